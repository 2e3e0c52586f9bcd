"""Rules become finders with the same settings; a list of literals is read completely, or refused by row, unquoted."""

import csv
import pickle
import subprocess
import sys
import traceback
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.finders import Fields, Literals, Patterns, Tokens, Words
from hush.scan.finders.literals import read_literals
from hush.scan.near_copies import Copies
from hush.scan.rules import Rules
from hush.scan.rules.schema import CodeRule, Rule
from hush.scan.scanner import FINDERS, chunks_of_rules, code_settings, prepare

TOKEN = "hunter2-Zq81x"
COLUMNS = "a table of literals has the column text, and may have name, prior, ceiling, each once"
NO_NUMBER = "is not a number from 1e-300 to less than 1; write one there"
DEFAULTS = {"prior": 1e-10, "ceiling": 1e-3}


def rules_of(*listed: dict[str, Any], folder: Path = Path(), **more: Any) -> Rules:
    return Rules.of({"defaults": DEFAULTS, "rules": listed, **more}, folder=folder)


def test_every_kind_of_rule_but_copies_has_one_finder_in_the_table() -> None:
    models = get_args(get_args(Rule)[0])
    kinds = {get_args(model.model_fields["find"].annotation)[0] for model in models}
    assert set(FINDERS) == kinds - {"copies"}


def test_each_rule_becomes_its_finder() -> None:
    ready = prepare(
        rules_of(
            {"name": "w", "find": "words", "ranks": [5, 9], "tokens": {"letters": "unicode"}},
            {"name": "p", "find": "patterns", "patterns": ["a(b)"], "group": 1, "secret": "pattern"},
            {"name": "f", "find": "fields", "column": "team", "public_names": True, "promise": {"ceiling": 0.5}},
            {"name": "l", "find": "literals", "values": ["Ada"], "whole_words": True},
            {"name": "c", "find": "copies", "similarity": 0.9, "shingle": 4},
        )
    )
    words, patterns, fields, literals = ready.rules
    assert words.finder == Words(ranks=(5, 9), tokens=Tokens(letters="unicode"))
    assert patterns.finder == Patterns(patterns=["a(b)"], group=1, secret="pattern")
    assert fields.finder == Fields(column="team", public_names=True)
    assert literals.finder == Literals(values=["Ada"], whole_words=True)
    assert ready.copies == Copies(similarity=0.9, shingle=4)
    assert [rule.public_names for rule in ready.rules] == [False, False, True, False]
    assert fields.protection == Protection(1e-10, 0.5)
    pickle.loads(pickle.dumps(ready.rules))


def test_a_code_rule_says_what_its_settings_say() -> None:
    secret = {"name": "pay", "paths": ["pay/**"], "authors": ["team"], "promise": {"points": [[1e-9, 0.1], [0.1, 0.2]]}}
    rules = rules_of(
        {"name": "r", "find": "code", "secrets": [secret], "imports": {"depth": "all"}, "groups": {"team": ["a@b.c"]},
         "contributors": {"share": 0.2, "since": "2024-01-01", "of": "lines"}},
        chunks={"tokens": 64, "overlap": 4},
    )  # fmt: skip
    rule = rules.rules[0]
    assert isinstance(rule, CodeRule)
    settings = code_settings(rule, rules)
    assert settings.secrets[0].protection == Protection.of((1e-9, 0.1), (0.1, 0.2))
    assert settings.imports.depth is None
    assert settings.contributors is not None
    assert (settings.contributors.since, settings.contributors.of) == (date(2024, 1, 1), "lines")
    assert settings.groups == {"team": ("a@b.c",)}
    chunks = chunks_of_rules(rules)
    assert chunks is not None
    assert (chunks.tokens, chunks.lines, chunks.overlap) == (64, None, 4)


@pytest.mark.parametrize("depth", [0, None])
def test_no_depth_spreads_nothing(depth: int | None) -> None:
    secrets = [{"name": "pay", "paths": ["pay/**"]}]
    rules = rules_of({"name": "r", "find": "code", "secrets": secrets, "imports": {"depth": depth}})
    rule = rules.rules[0]
    assert isinstance(rule, CodeRule)
    assert code_settings(rule, rules).imports.depth == 0


def test_what_a_finder_refuses_is_said_of_its_rule() -> None:
    with pytest.raises(InvalidInput, match=r"^rule w: joiners: entry 0 is a letter"):
        prepare(rules_of({"name": "w", "find": "words", "ranks": [1, 2], "tokens": {"joiners": "a"}}))
    with pytest.raises(InvalidInput, match=r"^rule c: it is about code; scan the folder of a repository"):
        prepare(rules_of({"name": "c", "find": "code", "secrets": [{"name": "pay", "paths": ["a"]}]}))


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(lambda text: text.strip())
rows = st.fixed_dictionaries(
    {"text": texts}, optional={"prior": st.floats(1e-300, 0.4), "ceiling": st.floats(0.4, 0.9)}
)


@given(listed=st.lists(rows, min_size=1, max_size=5))
def test_tables_give_back_what_was_written(listed: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("literals")
    columns = {name: [row.get(name) for row in listed] for name in ("text", "prior", "ceiling")}
    types = {"text": pa.string(), "prior": pa.float64(), "ceiling": pa.float64()}
    pq.write_table(pa.table({name: pa.array(columns[name], types[name]) for name in columns}), folder / "a.parquet")
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(columns))
        writer.writeheader()
        writer.writerows(listed)
    for path in (folder / "a.parquet", folder / "a.csv"):
        found = read_literals(path)
        assert [literal.text for literal in found] == columns["text"]
        assert [literal.prior for literal in found] == columns["prior"]
        assert [literal.ceiling for literal in found] == columns["ceiling"]
        assert not any(repr(row["text"]) in repr(found) for row in listed if len(row["text"]) > 8)


def test_plain_text_has_a_literal_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("\ufeffAcme\r\n\n  Globex Inc \nZürich\rInitech".encode())
    assert [literal.text for literal in read_literals(path)] == ["Acme", "Globex Inc", "Zürich", "Initech"]


def test_a_table_names_and_promises_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("text,name,ceiling\nAcme Corporation,customer-a,0.1\nGlobex,customer-b,\n")
    ready = prepare(rules_of({"name": "l", "find": "literals", "file": "c.csv"}, folder=tmp_path))
    finder = ready.rules[0].finder
    assert isinstance(finder, Literals)
    assert [(each.name, each.protection) for each in finder.declared] == [
        ("customer-a", Protection(1e-10, 0.1)),
        ("customer-b", Protection(1e-10, 1e-3)),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"text,{TOKEN}\na,b\n", f"FILE: {COLUMNS}; column 2 of 2 is none of them"),
        (f"{TOKEN}\nb\n", f"FILE: {COLUMNS}; column 1 of 1 is none of them"),
        (f"text\n{TOKEN},b\n", "FILE, line 2: 2 cells under 1 columns; correct the row"),
        (f'text\na\n"{TOKEN}', "FILE, line 3: this is not CSV; check its quotes"),
        (f"text,prior\na,1e-10\nb,{TOKEN}\n", f"FILE, line 3: the prior {NO_NUMBER}"),
        ("text,ceiling\na,1\n", f"FILE, line 2: the ceiling {NO_NUMBER}"),
        ("text,prior\na,1e-305\n", f"FILE, line 2: the prior {NO_NUMBER}"),
        ("text,prior\na,nan\n", f"FILE, line 2: the prior {NO_NUMBER}"),
        (
            f"text,ceiling\n{TOKEN},1e-12\n",
            "FILE, line 2: the prior 1e-10 is above the ceiling 1e-12; raise the ceiling, or state a longer format if "
            "secrets have one",
        ),
        ("text,name\n ,b\n", "FILE, line 2: there is no text; write the literal there, or remove the row"),
        (
            f"text,name\n{TOKEN},the {TOKEN.upper()} one\n",
            "FILE, line 2: the name contains the text, and names are public; choose another name",
        ),
        (
            f"text,name\n{TOKEN},one\nc,by {TOKEN.upper()}\n",
            "FILE, line 3: the name contains the text of a literal of this list, and names are public; choose "
            "another name",
        ),
        (
            f"text,name\n{TOKEN},one\nc,\n",
            "FILE, line 3: this literal has no name but others do; name all of them, or none",
        ),
        (f"text,name\n{TOKEN},one\nc,one\n", "ids: two different literals have the same name; give each its own"),
        ("text\n", "FILE contains no literal; write one on each line, or drop the rule"),
    ],
)
def test_rows_that_cannot_be_are_refused_by_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(content)
    with pytest.raises(InvalidInput) as raised:
        prepare(rules_of({"name": "l", "find": "literals", "file": "c.csv"}, folder=tmp_path))
    assert str(raised.value).replace(str(path), "FILE") == f"rule l: {said}"
    assert TOKEN not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("text", "name", "words", "chars"), [
    ("an", "Banker", False, True), ("Straße", "the STRASSE 3", False, False), ("ada", "from ADA", True, True),
    ("ada", "ada_1", False, True), ("zoë", "ZOË.", True, True), ("zoë", "zoe", False, False),
])  # fmt: skip
def test_a_name_must_not_hold_what_the_scan_would_find(
    tmp_path: Path, text: str, name: str, words: bool, chars: bool
) -> None:
    """words, chars: whether it does as whole words, and anywhere; the case of letters never matters."""
    (tmp_path / "c.csv").write_text(f"text,name\nGlobex,{name}\n{text},other\n")
    for whole_words, held in ((True, words), (False, chars)):
        rule = {"name": "l", "find": "literals", "file": "c.csv", "whole_words": whole_words}
        if held:
            with pytest.raises(InvalidInput, match="line 2: the name contains the text of a literal of this list"):
                prepare(rules_of(rule, folder=tmp_path))
        else:
            prepare(rules_of(rule, folder=tmp_path))


def test_files_that_are_not_what_they_are_called_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(TOKEN.encode())
    with pytest.raises(InvalidInput, match=r"a\.parquet is not a readable Parquet file"):
        read_literals(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(InvalidInput, match=r"a\.txt, line 2: this is not UTF-8"):
        read_literals(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("rule", "package", "said"),
    [
        ({"find": "copies"}, "rensa", 'near copies need the package rensa; run pip install "hush[copies]"'),
        ({"find": "credentials"}, "detect_secrets", 'pip install "hush[credentials]"'),
        ({"find": "gitleaks", "file": "leaks.toml"}, "re2", 'pip install "hush[gitleaks]"'),
        ({"find": "pii", "entities": ["PERSON"]}, "presidio_analyzer", 'pip install "hush[pii]"'),
    ],
)
def test_a_rule_without_its_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rule: dict[str, Any], package: str, said: str
) -> None:
    (tmp_path / "leaks.toml").write_text("[[rules]]\nid = 'a'\nregex = 'b'\n")
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidInput, match=r"^rule r: ") as raised:
        prepare(rules_of({"name": "r"} | rule, folder=tmp_path))
    assert said in str(raised.value)


def test_rules_for_text_need_no_extra() -> None:
    blocked = ("ray", "detect_secrets", "presidio_analyzer", "rensa", "tree_sitter", "spacy", "pathspec", "re2")
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
        "from hush.scan.scanner import prepare\nfrom hush.scan.rules import Rules\n"
        "prepare(Rules.of({'defaults': {'prior': 1e-10, 'ceiling': 1e-3}, 'rules': ["
        "{'name': 'a', 'find': 'words', 'ranks': [1, 2]}, {'name': 'b', 'find': 'patterns', 'patterns': ['x']},"
        "{'name': 'c', 'find': 'literals', 'values': ['x']}, {'name': 'd', 'find': 'fields', 'column': 'x'}]}))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
