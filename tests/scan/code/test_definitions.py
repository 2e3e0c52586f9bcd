"""No name that an import of a secret binds stands outside of what is hidden, and nothing that is hidden moves a border.

The second route to what a skeleton still shows is Python's tokenizer, which knows nothing of scopes or assignments.
"""

import io
import tokenize
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_repositories import plain_folder

from hush.scan.code import CodeSecret, CodeSettings, Imports
from hush.scan.code.python_names import PythonFile
from hush.scan.code.settings import PublicPart
from hush.scan.code.spread import Containment, containment

Hides = Literal["definitions", "lines"]
SECRET = CodeSecret(name="billing", paths=("billing/",))
RATES = {"billing/rates.py": "RATE = 37\n\n\ndef total(hours):\n    return hours * RATE\n"}


def contained(
    files: Mapping[str, str],
    *,
    hides: Hides = "definitions",
    depth: int | None = 1,
    public: tuple[PublicPart, ...] = (),
    folder: Path | None = None,
) -> Containment:
    settings = CodeSettings(secrets=(SECRET,), imports=Imports(depth=depth), hides=hides, public=public)
    with TemporaryDirectory() as temporary:
        return containment(plain_folder(Path(temporary) if folder is None else folder, files), settings)


def skeletons(files: Mapping[str, str], **further: object) -> dict[str, str]:
    """The skeleton of every file, with SLOT for what is hidden; of a file that is hidden as a whole, only SLOT."""
    found = contained(files, **further)  # pyright: ignore[reportArgumentType]
    texts = dict(files)
    for path in found.reasons:
        text = files[path]
        for begin, end in reversed(found.spans.get(path, {}).get(0, ((0, len(text)),))):
            text = f"{text[:begin]}SLOT{text[end:]}"
        texts[path] = text
    return texts


def importer(text: str, **further: object) -> str:
    return skeletons({**RATES, "shop.py": text}, **further)["shop.py"]


def shown_names(text: str) -> set[str]:
    """The names in a text outside of its imports, and the words of its comments."""
    names: set[str] = set()
    line: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            if line[0].string not in ("import", "from"):
                names.update(each.string for each in line)
            line = []
        elif token.type == tokenize.COMMENT:
            names.update(token.string.split())
        elif token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            line.append(token)
    return names


# Templates: {} is an expression. All bind names of their own, so that a name is never bound twice.
STATEMENTS = (
    "v{n} = {e}",
    "v{n}: int = {e}",
    "v{n} = 0\nv{n} += {e}",
    "w{n}, v{n} = {e}, 1",
    "def f{n}(a, b={e}):\n    return a",
    "def f{n}(a: {e}):\n    return a",
    "def f{n}():\n    def inner():\n        return {e}\n    return inner",
    "async def f{n}():\n    return await {e}",
    "@{e}\ndef f{n}():\n    return 1",
    "class C{n}({e}):\n    def a(self):\n        return 1",
    "class C{n}:\n    x{n} = {e}\n    def a(self):\n        return 1",
    "class C{n}:\n    def a(self):\n        self.y{n} = {e}\n    def b(self):\n        return self.y{n}",
    "print([i for i in {e} if i])",
    "if (v{n} := {e}):\n    print(1)\nelse:\n    print(2)",
    "for v{n} in {e}:\n    print(v{n})",
    "with {e} as v{n}:\n    print(v{n})",
    "try:\n    print(1)\nexcept {e} as v{n}:\n    print(v{n})\nfinally:\n    print(3)",
    "match {e}:\n    case [v{n}, *_]:\n        print(v{n})\n    case _:\n        print(2)",
    "print(lambda: {e})",
    "print(f'{{{e}}}')",
    "def f{n}():\n    global v{n}\n    v{n} = {e}",
    "x{n} = 1; v{n} = {e}",
    "v{n} = (\n    1,  # one\n    {e},\n)",
    "if True: v{n} = {e}",
    "while {e}:\n    break",
    "del_{n} = {{}}\ndel_{n}[0] = {e}",
    "# about {e} here\ny{n} = 2",
    "assert {e}, 'text'",
)  # fmt: skip
IMPORTS = {
    "import billing.rates as zz": "zz",
    "from billing import rates as zz": "zz",
    "from billing.rates import total as zz": "zz",
    "from billing.rates import RATE, total as zz": "zz",
    "try:\n    from billing.rates import total as zz\nexcept ImportError:\n    zz = None": "zz",
}


@st.composite
def sources(draw: st.DrawFn) -> tuple[str, frozenset[str]]:
    """A file that imports the secret, and the names that carry it: of the import, and assigned from those."""
    source, name = draw(st.sampled_from(sorted(IMPORTS.items())))
    lines, tainted = [source, "import os"], {name}
    for number in range(draw(st.integers(1, 7))):
        template = draw(st.sampled_from(STATEMENTS))
        used = draw(st.sampled_from([*sorted(name for name in tainted if name[0] != "y"), "os", "os"]))
        chain = draw(st.sampled_from(["", ".a", ".a.b"]))
        lines.append(template.format(n=number, e=used + chain))
        if used != "os":
            carriers = [name for name in ("v{n}", "w{n}", "self.y{n}", "del_{n}") if name in template]
            tainted.update(name.format(n=number).removeprefix("self.") for name in carriers)
    return "\n".join(lines) + "\n", frozenset(tainted)


@pytest.mark.parametrize("hides", ["definitions", "lines"])
@given(sources())
def test_names_of_the_secret_stand_only_in_imports_and_slots(hides: Hides, source: tuple[str, frozenset[str]]) -> None:
    text, tainted = source
    compile(text, "shop.py", "exec")
    shown = shown_names(importer(text, hides=hides))
    assert shown.isdisjoint(tainted)
    assert "os" not in tainted


@given(sources())
def test_lines_hide_no_more_than_definitions(source: tuple[str, frozenset[str]]) -> None:
    files = {**RATES, "shop.py": source[0]}
    hidden: dict[str, set[int]] = {}
    for hides in ("definitions", "lines"):
        spans = contained(files, hides=hides).spans.get("shop.py", {}).get(0, ())
        hidden[hides] = {place for begin, end in spans for place in range(begin, end) if not source[0][place].isspace()}
    assert hidden["lines"] <= hidden["definitions"]


@given(st.lists(st.sampled_from(STATEMENTS), max_size=6))
def test_a_file_that_only_imports_the_secret_hides_nothing(templates: list[str]) -> None:
    text = "import billing.rates\n" + "\n".join(each.format(n=n, e="os") for n, each in enumerate(templates)) + "\n"
    assert importer(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # the fixpoint of the issue
            "from billing import rates\nh = rates.total\ndef g():\n    return h()\ndef k():\n    return 1\n",
            "from billing import rates\nSLOT\ndef k():\n    return 1\n",
        ),
        (
            "import billing.rates\nx = billing.other\ny = billing.rates.RATE\n",
            "import billing.rates\nx = billing.other\nSLOT\n",
        ),
        ("from billing.rates import *\nimport os\nx = 1\n", "from billing.rates import *\nimport os\nSLOT\n"),
        (
            "import billing.rates as r\ndef f(r):\n    return r\n",
            "import billing.rates as r\ndef f(r):\n    return r\n",
        ),
        (
            "import billing.rates as r\ndef f():\n    return [r for r in ()] and r\n",
            "import billing.rates as r\nSLOT\n",
        ),
        ("def f():\n    import billing.rates\ndef g():\n    return 1\n", "SLOT\ndef g():\n    return 1\n"),
        ("import billing.rates, m\nm.load('rates')\nm.load('x')\n", "import billing.rates, m\nSLOT\nm.load('x')\n"),
        (
            "import billing.rates\nimport m\nx = m.import_module('billing' + '.rates')\n"
            "y = getattr(m, 'total')\nz = 1\n",
            "import billing.rates\nimport m\nSLOT\nz = 1\n",
        ),
        ('"""Uses billing.rates."""\nimport billing.rates\n', "SLOT\nimport billing.rates\n"),
        (
            "import billing.rates as r\n# one\n# two\ndef f():\n    r\n\n# r\nx = 1\n",
            "import billing.rates as r\nSLOT\n\nSLOT\nx = 1\n",
        ),
        ("import billing.rates as r\n\n__all__ = ['r']\n", "import billing.rates as r\n\nSLOT\n"),
        ("import billing.rates as r\r\nx = 1\r\ny = r\r\n", "import billing.rates as r\r\nx = 1\r\nSLOT\r\n"),
        ("\ufeffimport billing.rates as r\ny = r  # é\nz = 'é'; w = r\n", "\ufeffimport billing.rates as r\nSLOT\n"),
        ("import billing.rates as r\ndef f(:\n", "SLOT"),  # cannot be parsed
    ],
)
def test_definitions_that_mention_the_secret_are_hidden_and_others_are_not(text: str, expected: str) -> None:
    assert importer(text) == expected


def test_lines_hide_whole_statements_and_only_the_head_of_compound_ones() -> None:
    text = (
        "import billing.rates as r\ndef f(x, y=r.A):\n    z = (\n        1,\n        r.B,\n    )\n"
        "    if z:\n        return 1\n    return 2\n"
    )
    assert importer(text, hides="lines") == "import billing.rates as r\nSLOT\n        return 1\n    return 2\n"


def test_names_are_followed_through_files_that_hand_them_on() -> None:
    files = {
        **RATES,
        "shop/__init__.py": "from .cart import h\n",
        "shop/cart.py": "from billing.rates import total\nh = total\n\ndef k():\n    return 1\n",
        "a.py": "from shop import h as x\ndef f():\n    return x()\ndef g():\n    return 1\n",
        "b.py": "import shop\ndef f():\n    return shop.h()\ndef g():\n    return shop.other()\n",
        "c.py": "from shop import *\ndef f():\n    return h()\ndef g():\n    return 1\n",
        "d.py": "import m\ndef f():\n    return m.s.h()\ndef g():\n    return m.s.o()\n",
        "m.py": "import shop as s\n",
        "e.py": "import shop.cart\ndef f():\n    return shop.cart.h\ndef g():\n    return shop.cart.k\n",
    }
    found = skeletons(files)
    assert found["shop/__init__.py"] == files["shop/__init__.py"]
    for path in "abcde":
        _, shown = found[f"{path}.py"].split("SLOT")
        assert shown.startswith("\ndef g()"), path
    through = [sentence for _, sentence in contained(files).reasons["a.py"]]
    assert through == ["file a.py uses names of billing that shop/__init__.py hands on"]


def test_a_definition_that_uses_the_secret_is_one_step_of_depth() -> None:
    files = {
        **RATES,
        "a.py": "from billing import rates\ndef f():\n    return rates\n",
        "b.py": "from a import f\ndef g():\n    return f()\n",
        "c.py": "from b import g\ndef h():\n    return g()\n",
    }
    for depth, expected in ((0, set[str]()), (1, {"a.py"}), (2, {"a.py", "b.py"}), (None, {"a.py", "b.py", "c.py"})):
        found = contained(files, depth=depth)
        assert set(found.reasons) - set(RATES) == expected


@pytest.mark.parametrize(
    ("public", "expected"),
    [
        ((), "SLOT"),
        (("imports",), "SLOT\nimport os\nSLOT\n"),
        (("signatures",), "SLOT\nclass A(os.Path):\n    SLOT\n    def f(self, a: int = SLOT) -> SLOT:  SLOT\n"),
        (("docstrings",), '"""Rates."""\nSLOT\n    """Of A."""\n    SLOT\n'),
    ],
)
def test_of_its_own_files_a_secret_shows_only_what_is_public(public: tuple[PublicPart, ...], expected: str) -> None:
    text = (
        '"""Rates."""\nimport os\n# why\nRATE = 37\n\n@cached\nclass A(os.Path):\n    """Of A."""\n    x = 37\n'
        "    def f(self, a: int = 37) -> 'A':  # how\n        return 37\n"
    )
    shown = skeletons({"billing/rates.py": text}, public=public)["billing/rates.py"]
    assert [line for line in shown.split("\n") if line.strip()] == [
        line for line in expected.split("\n") if line.strip()
    ]
    assert "37" not in shown


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    file = PythonFile.read(text)
    assert file is None or isinstance(file.names, frozenset)
