"""The basic case of each language that tree-sitter reads: what uses the secret is hidden, what does not is not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from small_repositories import plain_folder

from hush.scan.code import CodeSecret, CodeSettings, Imports
from hush.scan.code.definitions_tree_sitter import SyntaxFile
from hush.scan.code.settings import PublicPart
from hush.scan.code.spread import containment

SECRET = CodeSecret(name="pay", paths=("**/pay/**", "**/pay.rs"))
OWN = {
    "pay/rates.js": "export const RATE = 7;\nexport function total(h) { return h * RATE; }\n",
    "pay/kinds.ts": "export const KIND: number = 7;\n",
    "com/pay/Rates.java": "package com.pay;\npublic class Rates {\n  public static int total(int h) { return 7; }\n}\n",
    "go.mod": "module acme.com/x\n",
    "pay/rates.go": "package pay\n\nfunc Total(h int) int { return h * 7 }\n",
    "Cargo.toml": '[package]\nname = "x"\n',
    "src/lib.rs": "mod pay;\nmod shop;\nfn a() -> i32 { crate::pay::total(2) }\nfn b() -> i32 { 1 }\n",
    "src/pay.rs": "pub fn total(h: i32) -> i32 { h * 7 }\n",
    "pay/rates.h": "#define RATE 7\nint total(int h);\n",
    "pay/rates.hpp": "namespace pay { int total(int h); }\n",
}
IMPORTERS = {
    "shop/cart.js": (
        "import { total as t } from '../pay/rates';\n"
        "import os from 'os';\n"
        "const h = t;\n"
        "\n"
        "function a(x) {\n  const y = h(x);\n  return y;\n}\n"
        "// plain\n"
        "function b(x) {\n  return x;\n}\n"
        "class C {\n  a() { return t(1); }\n  b() { return 2; }\n}\n"
    ),
    "shop/old.js": (
        "const r = require('../pay/rates');\nfunction a() { return r.total(3); }\nfunction b() { return 1; }\n"
    ),
    "shop/cart.ts": (
        "import { KIND } from '../pay/kinds';\n"
        "export function a(x: number): boolean { return x > KIND; }\n"
        "export function b(): number { return 3; }\n"
    ),
    "com/shop/Cart.java": (
        "package com.shop;\nimport com.pay.Rates;\nimport java.util.List;\npublic class Cart {\n"
        "  int a(int x) {\n    int y = Rates.total(x);\n    return y;\n  }\n  int b(int x) { return x; }\n}\n"
    ),
    "shop/cart.go": (
        'package shop\n\nimport (\n\t"fmt"\n\t"acme.com/x/pay"\n)\n\nvar h = pay.Total\n\n'
        "func A(x int) int {\n\treturn h(x)\n}\n\nfunc b(x int) int {\n\tfmt.Println(x)\n\treturn x\n}\n"
    ),
    "src/shop.rs": (
        "use crate::pay::total;\nuse std::fmt;\n\nfn a(x: i32) -> i32 {\n    let y = total(x);\n    y\n}\n\n"
        "fn b(x: i32) -> i32 { x }\n\nstruct S;\n"
        "impl S {\n    fn c(&self) -> i32 { total(3) }\n    fn d(&self) -> i32 { 4 }\n}\n"
    ),
    "shop/cart.c": (
        '#include <stdio.h>\n#include "../pay/rates.h"\n\nstatic int (*h)(int) = total;\n\n'
        "int a(int x) {\n  return h(x);\n}\n\n/* plain */\nint b(int x) {\n  return x + 1;\n}\n"
    ),
    "shop/cart.cpp": (
        '#include "../pay/rates.hpp"\n\nclass C {\n public:\n  int a(int x) { return pay::total(x); }\n'
        "  int b(int x) { return x; }\n};\n\nint d(int x) { return x; }\n"
    ),
}
DEFINITIONS = {
    "shop/cart.js": (
        "import { total as t } from '../pay/rates';\nimport os from 'os';\nSLOT\n\nSLOT\n// plain\n"
        "function b(x) {\n  return x;\n}\nclass C {\n  SLOT\n  b() { return 2; }\n}\n"
    ),
    "shop/old.js": "const r = require('../pay/rates');\nSLOT\nfunction b() { return 1; }\n",
    "shop/cart.ts": "import { KIND } from '../pay/kinds';\nSLOT\nexport function b(): number { return 3; }\n",
    "com/shop/Cart.java": (
        "package com.shop;\nimport com.pay.Rates;\nimport java.util.List;\npublic class Cart {\n"
        "  SLOT\n  int b(int x) { return x; }\n}\n"
    ),
    "shop/cart.go": (
        'package shop\n\nimport (\n\t"fmt"\n\t"acme.com/x/pay"\n)\n\nSLOT\n\nSLOT\n\n'
        "func b(x int) int {\n\tfmt.Println(x)\n\treturn x\n}\n"
    ),
    "src/shop.rs": (
        "use crate::pay::total;\nuse std::fmt;\n\nSLOT\n\nfn b(x: i32) -> i32 { x }\n\nstruct S;\n"
        "impl S {\n    SLOT\n    fn d(&self) -> i32 { 4 }\n}\n"
    ),
    "src/lib.rs": "mod pay;\nmod shop;\nSLOT\nfn b() -> i32 { 1 }\n",
    "shop/cart.c": (
        '#include <stdio.h>\n#include "../pay/rates.h"\n\nSLOT\n\nSLOT\n\n/* plain */\n'
        "int b(int x) {\n  return x + 1;\n}\n"
    ),
    "shop/cart.cpp": (
        '#include "../pay/rates.hpp"\n\nclass C {\n public:\n  SLOT\n  int b(int x) { return x; }\n};\n\n'
        "int d(int x) { return x; }\n"
    ),
}
LINES = {
    "shop/cart.js": (
        "import { total as t } from '../pay/rates';\nimport os from 'os';\nSLOT\n\nfunction a(x) {\n  SLOT\n  SLOT\n}\n"
        "// plain\nfunction b(x) {\n  return x;\n}\nclass C {\n  SLOT\n  b() { return 2; }\n}\n"
    ),
    "com/shop/Cart.java": (
        "package com.shop;\nimport com.pay.Rates;\nimport java.util.List;\npublic class Cart {\n"
        "  int a(int x) {\n    SLOT\n    SLOT\n  }\n  int b(int x) { return x; }\n}\n"
    ),
    "shop/cart.c": (
        '#include <stdio.h>\n#include "../pay/rates.h"\n\nSLOT\n\nint a(int x) {\n  SLOT\n}\n\n/* plain */\n'
        "int b(int x) {\n  return x + 1;\n}\n"
    ),
}


def skeletons(
    folder: Path,
    files: Mapping[str, str],
    hides: Literal["definitions", "lines"],
    public: tuple[PublicPart, ...] = (),
) -> dict[str, str]:
    settings = CodeSettings(secrets=(SECRET,), imports=Imports(depth=1), hides=hides, public=public)
    found = containment(plain_folder(folder, files), settings)
    texts = dict(files)
    for path in found.reasons:
        for begin, end in reversed(found.spans.get(path, {}).get(0, ((0, len(files[path])),))):
            texts[path] = f"{texts[path][:begin]}SLOT{texts[path][end:]}"
    return texts


@pytest.mark.parametrize(("hides", "expected"), [("definitions", DEFINITIONS), ("lines", LINES)])
def test_each_language_hides_what_uses_the_secret(
    hides: Literal["definitions", "lines"], expected: dict[str, str], tmp_path: Path
) -> None:
    found = skeletons(tmp_path, {**OWN, **IMPORTERS}, hides)
    for path, text in expected.items():
        assert found[path] == text, path


def test_characters_outside_of_ascii_move_no_span(tmp_path: Path) -> None:
    head = "import { total } from '../pay/rates';\n// é😀\nconst é = '😀';\n"
    text = f"{head}function a() {{ return total('é'); }}\nconst b = 1;\n"
    found = skeletons(tmp_path, {**OWN, "shop/a.js": text}, "definitions")["shop/a.js"]
    assert found == f"{head}SLOT\nconst b = 1;\n"


def test_what_a_file_exports_again_is_followed(tmp_path: Path) -> None:
    files = {
        **OWN,
        "shop/index.js": "export { total } from '../pay/rates';\n",
        "shop/h.js": "import { total } from './index';\nconst h = total;\nexport { h };\n",
        "web.js": "import { h } from './shop/h';\nfunction a() { return h(); }\nfunction b() { return 1; }\n",
        "include/all.h": '#include "../pay/rates.h"\n',
        "web.c": '#include "include/all.h"\nint a(void) { return total(1); }\nint b(void) { return 1; }\n',
    }
    found = skeletons(tmp_path, files, "definitions")
    assert found["shop/index.js"] == files["shop/index.js"]
    assert found["web.js"] == "import { h } from './shop/h';\nSLOT\nfunction b() { return 1; }\n"
    assert found["web.c"] == '#include "include/all.h"\nSLOT\nint b(void) { return 1; }\n'


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("shop/a.js", "import { total } from '../pay/rates';\nfunction a( {\n"),  # syntax errors
        ("shop/a.go", 'package shop\n\nimport . "acme.com/x/pay"\n\nfunc a() int { return Total(1) }\n'),
        (
            "com/shop/A.java",
            "package com.shop;\nimport static com.pay.Rates.*;\nclass A { int a() { return total(1); } }\n",
        ),
        ("src/shop.rs", "use crate::pay::*;\nfn a() -> i32 { total(1) }\n"),
    ],
)
def test_imports_of_everything_and_errors_hide_everything_but_imports(path: str, text: str, tmp_path: Path) -> None:
    found = skeletons(tmp_path, {**OWN, path: text}, "definitions")[path]
    assert "return" not in found
    assert "fn a" not in found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pay/rates.js", "SLOT function total(h) SLOT\n"),
        ("com/pay/Rates.java", "package com.pay;\npublic class Rates SLOT\n  public static int total(int h) SLOT\n"),
        ("pay/rates.go", "package pay\n\nfunc Total(h int) int SLOT\n"),
        ("src/pay.rs", "pub fn total(h: i32) -> i32 SLOT\n"),
        ("pay/rates.h", "SLOT"),
    ],
)
def test_own_files_show_imports_and_signatures_and_no_constant(path: str, expected: str, tmp_path: Path) -> None:
    found = skeletons(tmp_path, OWN, "definitions", ("imports", "signatures"))[path]
    assert found == expected
    assert "7" not in found


def test_files_of_other_languages_are_not_read() -> None:
    assert SyntaxFile.read("a.rb", "x = 1\n") is None
