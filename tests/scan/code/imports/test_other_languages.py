"""Imports of the other languages: each form leads to the right files, also with errors, cycles and deep nesting."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from small_repositories import plain_folder

from hush.errors import InvalidInput
from hush.scan.code.imports import LANGUAGES, import_graph, parsing

JAVASCRIPT = {
    "src/main.ts": """
import a from './a'; import type { B } from "./b"; import './style.css';
export * from './folder'; export { x } from './c.js'; import z = require('./d');
const q = require('./e'); const r = require(`./f`);
async function late() { await import(/* chunk */ './g'); require.resolve('./h'); }
import react from 'react'; import(`./${name}`); import k from '@app/k'; import w from '@acme/tools';
import s from '@acme/tools/deep'; import n from './missing'; other('./never');
""",
    **{f"src/{name}": "" for name in ("a.ts", "b.d.ts", "style.css", "folder/index.tsx", "c.ts", "d.cjs", "never.ts")},
    **{f"src/{name}": "" for name in ("e.jsx", "f.mjs", "g.json", "h.js", "app/k.ts")},
    "tsconfig.json": '{"compilerOptions": {/* here */ "baseUrl": ".", "paths": {"@app/*": ["src/app/*"]}, }, } // end',
    "packages/tools/package.json": '{"name": "@acme/tools", "main": "dist/gone.js"}',
    "packages/tools/src/index.ts": "",
    "packages/tools/src/deep.ts": "",
    "view.jsx": "import A from './src/app/k';\nexport default () => <A b={1}></A>;",
}
JAVA = {
    "src/com/acme/Main.java": """package com.acme;
import com.acme.billing.Invoice; import com.acme.data.*; import static com.acme.Tools.run;
import static com.acme.More.*; import com.acme.Outer.Inner; import java.util.List;
class Main { }""",
    "src/com/acme/billing/Invoice.java": "package com.acme.billing; public class Invoice {}",
    "src/com/acme/data/A.java": "package com.acme.data;",
    "test/com/acme/data/B.java": "package com . acme /* odd */ . data;",
    **{
        f"src/com/acme/{name}.java": f"package com.acme; class {name} {{}}" for name in ("Tools", "More", "Outer", "No")
    },
}
GO = {
    "go.mod": "// comment\nmodule acme.com/shop\n\ngo 1.22\n",
    "main.go": 'package main\nimport (\n"fmt"\nb "acme.com/shop/billing"\n_ `acme.com/tools/x`\n"other.org/lib"\n)\n',
    "billing/a.go": "package billing",
    "billing/b.go": 'package billing\nimport "acme.com/shopping"',
    "billing/a_test.go": 'package billing\nimport "acme.com/shop"',
    "tools/go.mod": "module acme.com/tools",
    "tools/x/x.go": "package x",
    "vendor/other.org/lib/l.go": "package lib",
}
RUST = {
    "Cargo.toml": '[package]\nname = "shop-app"\n',
    "src/lib.rs": 'pub mod billing; mod util; #[path = "odd/place.rs"] mod placed; pub mod inline { pub mod deep; }',
    "src/billing/mod.rs": "mod core; use self::core::Price; use super::util as u;",
    "src/billing/core.rs": "use crate::{inline::deep::{self, X as Y}, util::*}; fn f() { crate::placed::go::<u8>(); }",
    "src/util.rs": "mod tests { use super::*; use crate::billing::core; }\nuse std::fmt; use serde::Serialize;",
    "src/odd/place.rs": "",
    "src/inline/deep.rs": "fn f(x: super::super::util::T) {}",
    "src/main.rs": "use shop_app::billing::core::Price; fn main() { shop_app::util::go(); }",
    "other/Cargo.toml": '[package]\nname = "other"\n[dependencies]\nshop-app = { path = ".." }',
    "other/src/lib.rs": "extern crate shop_app; use shop_app::inline::deep;",
    "third/Cargo.toml": '[package]\nname = "third"\n[target.x.dependencies]\nmy-shop = { package = "shop-app" }',
    "third/src/lib.rs": "use my_shop::billing::core;",
}
C = {
    "src/main.c": '#include "near.h"\n#include "acme/far.h"\n#include <acme/far.h>\n#include <stdio.h>\n'
    '#include "../top.h"\n'
    '#define HEADER "macro.h"\n#include HEADER\n',
    "src/near.h": '#include "main.c"\n#include "near.h"',
    "src/macro.h": "",
    "include/acme/far.h": "",
    "top.h": "",
    "lib/table.cpp": 'enum names {\n#include "acme/far.h"\n};\nint x[] = {\n  # include <top.h>\n};\n',
    "lib/use.cpp": '#if X(\n#include "acme/far.h"\n#endif\nint main( {',
    "lib/part.inc": "#include_next <acme/far.h>\n",
    "lib/windows.C": '#include "acme\\far.h"\n#import "part.inc"\n',
    "near.h": "",
}
EXPECTED: Mapping[str, tuple[Mapping[str, str], Mapping[str, set[str]]]] = {
    "javascript": (
        JAVASCRIPT,
        {
            "src/main.ts": {
                f"src/{name}" for name in ("a.ts", "b.d.ts", "style.css", "folder/index.tsx", "c.ts", "d.cjs")
            }
            | {f"src/{name}" for name in ("e.jsx", "f.mjs", "g.json", "h.js", "app/k.ts")}
            | {"packages/tools/src/index.ts", "packages/tools/src/deep.ts"},
            "view.jsx": {"src/app/k.ts"},
        },
    ),
    "java": (
        JAVA,
        {
            "src/com/acme/Main.java": {
                *(f"src/com/acme/{name}.java" for name in ("billing/Invoice", "data/A", "Tools", "More", "Outer")),
                "test/com/acme/data/B.java",
            }
        },
    ),
    "go": (
        GO,
        {
            "main.go": {"billing/a.go", "billing/b.go", "tools/x/x.go", "vendor/other.org/lib/l.go"},
            "billing/a_test.go": {"main.go"},
        },
    ),
    "rust": (
        RUST,
        {
            "src/lib.rs": {"src/billing/mod.rs", "src/util.rs", "src/odd/place.rs", "src/inline/deep.rs"},
            "src/billing/mod.rs": {"src/billing/core.rs", "src/util.rs"},
            "src/billing/core.rs": {"src/inline/deep.rs", "src/util.rs", "src/odd/place.rs"},
            "src/util.rs": {"src/billing/core.rs"},
            "src/inline/deep.rs": {"src/util.rs"},
            "src/main.rs": {"src/billing/core.rs", "src/util.rs"},
            "other/src/lib.rs": {"src/lib.rs", "src/inline/deep.rs"},
            "third/src/lib.rs": {"src/billing/core.rs"},
        },
    ),
    "c": (
        C,
        {
            "src/main.c": {"src/near.h", "include/acme/far.h", "top.h", "src/macro.h"},
            "src/near.h": {"src/main.c"},
            "lib/table.cpp": {"include/acme/far.h", "top.h"},
            "lib/use.cpp": {"include/acme/far.h"},
            "lib/part.inc": {"include/acme/far.h"},
            "lib/windows.C": {"include/acme/far.h", "lib/part.inc"},
        },
    ),
}


@pytest.mark.parametrize("language", EXPECTED)
def test_every_form_leads_to_the_files_it_means(tmp_path: Path, language: str) -> None:
    files, expected = EXPECTED[language]
    graph = import_graph(plain_folder(tmp_path, files))
    assert {path: set(targets) for path, targets in graph.imports.items() if targets} == expected


def test_all_languages_at_once_keep_apart(tmp_path: Path) -> None:
    together = {f"{language}/{path}": text for language, (files, _) in EXPECTED.items() for path, text in files.items()}
    graph = import_graph(plain_folder(tmp_path, together))
    for one, other in graph.edges:
        assert one.split("/")[0] == other.split("/")[0]
    assert sum(graph.files.values()) == len(graph.imports)


def test_the_compiler_includes_no_file_that_is_not_found_here(tmp_path: Path) -> None:
    files = {path: text for path, text in C.items() if not path.startswith("lib/")} | {"src/near.h": '#include "in.h"'}
    repository = plain_folder(tmp_path, {**files, "src/in.h": "#pragma once\n"})
    command = ["gcc", "-MM", "-I", "include", "src/main.c"]
    try:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no compiler here")
    included = {path for path in done.stdout.replace("\\\n", " ").split()[1:] if path != "src/main.c"}
    graph = import_graph(repository)
    found = {*graph.imports["src/main.c"], *graph.imports["src/near.h"]}
    assert {str((tmp_path / path).resolve().relative_to(tmp_path)) for path in included} == found


BROKEN = {
    "a.js": "import './b'; function ( { ]",
    "b.js": "import './a'",
    "A.java": "package p; import p.B; class A { void (",
    "B.java": "package p; import p.A; class B {}",
    "go.mod": "module m",
    "x/x.go": 'package x\nimport "m/y"\nfunc (',
    "y/y.go": 'package y\nimport "m/x"',
    "lib.rs": "mod one; fn (",
    "one.rs": "use crate::two; mod lib;",
    "c.c": '#include "d.h"\nint x = (',
    "d.h": '#include "c.c"\n',
}


def test_files_with_errors_are_named_their_imports_count_and_circles_end(tmp_path: Path) -> None:
    graph = import_graph(plain_folder(tmp_path, BROKEN))
    assert graph.with_errors == ("A.java", "a.js", "c.c", "lib.rs", "x/x.go")
    pairs = {("a.js", "b.js"), ("A.java", "B.java"), ("x/x.go", "y/y.go"), ("c.c", "d.h"), ("lib.rs", "one.rs")}
    assert pairs <= set(graph.edges)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.js", "import './b';\n" + "[" * 200_000),
        ("a.java", "import b;\n class A { int x = " + "(" * 200_000),
        ("a.go", "package a\nvar x = " + "(" * 200_000),
        ("a.rs", "mod b { " * 30_000 + "use super::c;" * 30_000),
        ("a.rs", "fn f() { " + "a::b<" * 50_000),
        ("a.rs", "use a::{" * 50_000),
        ("a.rs", "mod b;" * 50_000),
        ("a.rs", "fn f() { m!(" + "a :: (b " * 20_000 + "c" * 100_000 + " " * 100_000 + ")" * 20_000 + "); }"),
        ("a.c", "int x = " + "(" * 200_000),
        ("a.cpp", "int x = " + "{" * 200_000),
        ("a.js", "x = '" + "y" * 900_000 + "'; import './b'"),
    ],
    ids=["js", "java", "go", "rust", "types", "uses", "mods", "tokens", "c", "c++", "huge line"],
)
def test_deep_trees_and_huge_lines_do_no_harm(tmp_path: Path, name: str, text: str) -> None:
    graph = import_graph(plain_folder(tmp_path, {name: text, "b.js": ""}))
    assert graph.imports[name] == (("b.js",) if name.endswith(".js") else ())


@pytest.mark.parametrize(
    "said",
    [
        'fn f() { println!("http://{}", crate::pay::rate()); }',
        "mod inner { fn f() { assert_eq!(vec![super::super :: r#pay::rate()], []); } }",
        "#[derive(Debug, crate::pay::Derived)] struct S;",
        "macro_rules! m { () => { $crate::pay::rate() } }",
        'include!("pay.rs");',
        'const S: &str = include_str! ( "../src/./pay.rs" );',
    ],
)
def test_what_a_rust_macro_is_given_counts(tmp_path: Path, said: str) -> None:
    files = {"Cargo.toml": '[package]\nname = "a"', "src/lib.rs": "mod pay; mod shop;", "src/pay.rs": ""}
    graph = import_graph(
        plain_folder(tmp_path, files | {"src/shop.rs": said, "src/other.rs": "m!(pay::x, Vec::new());"})
    )
    assert graph.imports["src/shop.rs"] == ("src/pay.rs",)
    assert graph.imports["src/other.rs"] == ()


@pytest.mark.parametrize("settings", ["{", '["a"]', '{"compilerOptions": 3}', '{"extends": "./tsconfig.json"}'])
def test_settings_that_mean_nothing_change_nothing(tmp_path: Path, settings: str) -> None:
    files = {"tsconfig.json": settings, "package.json": settings, "a.ts": "import './b'; import 'c'", "b.ts": ""}
    assert import_graph(plain_folder(tmp_path, files)).imports["a.ts"] == ("b.ts",)


@pytest.mark.parametrize(
    ("near", "above"),
    [
        ({"extends": "../base"}, {"baseUrl": ".", "paths": {"@pay/*": ["pay/*"]}}),
        ({"extends": ["../none.json", "../base.json"]}, {"paths": {"@pay/*": ["./pay/*"]}}),
        ({"extends": "../base", "compilerOptions": {"baseUrl": "."}}, {"paths": {"@pay/*": ["pay/*"]}}),
        ({"extends": "../base", "compilerOptions": {"paths": {"@pay/*": ["pay/*"]}}}, {"baseUrl": "."}),
    ],
    ids=["one", "several", "base below", "paths below"],
)
def test_settings_count_with_all_that_they_extend(tmp_path: Path, near: object, above: object) -> None:
    files = {
        "app/tsconfig.json": json.dumps(near),
        "base.json": json.dumps({"compilerOptions": above}),
        "app/main.ts": "import x from '@pay/core';",
        "pay/core.ts": "",
    }
    assert import_graph(plain_folder(tmp_path, files)).imports["app/main.ts"] == ("pay/core.ts",)


def test_a_missing_grammar_says_what_to_install_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "_GRAMMARS", dict.fromkeys(parsing._GRAMMARS, ("no_such_grammar", "language")))
    parsing._language.cache_clear()
    try:
        repository = plain_folder(tmp_path / "python", {"a.py": "import b", "b.py": "X = 1"})
        assert list(import_graph(repository).edges) == [("a.py", "b.py")]
        with pytest.raises(InvalidInput, match=r'pip install "hush\[code\]"'):
            import_graph(plain_folder(tmp_path / "go", {"a.go": "package a"}))
    finally:
        parsing._language.cache_clear()


def test_no_two_languages_claim_one_ending() -> None:
    endings = [ending for language in LANGUAGES for ending in language.endings]
    assert len(endings) == len(set(endings))
