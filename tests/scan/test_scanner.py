"""``scan``: every way to name data and rules gives the same result, planted secrets are found, and the public side of a
result does not depend on the secrets' texts."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
import hush.scan
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.protection import Protection
from hush.scan import load_rules, scan
from hush.scan.engines import LocalEngine
from hush.scan.result import Scan
from hush.scan.rules import Rules

DEFAULTS = {"prior": 1e-10, "ceiling": 1e-3}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def written(folder: Path, texts: list[str], **columns: list[Any]) -> Path:
    """Texts, and columns beside them, as JSON lines."""
    rows = [{"text": text} | {name: values[i] for name, values in columns.items()} for i, text in enumerate(texts)]
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def described(found: Scan) -> tuple[Any, ...]:
    """All of a result."""
    return found.incidence, found.secrets, found.secrets.texts, found.rules, list(found.why())


def test_the_public_names_are_reachable_and_light() -> None:
    assert hush.scan.scan is scan
    assert hush.scan.Scan is Scan
    assert hush.scan.load_rules is load_rules


def test_data_and_rules_may_be_named_in_every_way(tmp_path: Path) -> None:
    data = written(tmp_path, ["a cat", "a dog", "a cat and a dog"])
    content = {"defaults": DEFAULTS, "rules": [{"name": "w", "find": "words", "documents": [2, 2]}]}
    file = tmp_path / "rules.yaml"
    file.write_text("{defaults: {prior: 1e-10, ceiling: 1e-3}, rules: [{name: w, find: words, documents: [2, 2]}]}")
    expected = described(scan(data, file))
    assert expected[1].ids == ("w-000000", "w-000001")
    for source in (str(data), read_corpus(data)):
        for rules in (str(file), load_rules(file), content, Rules.of(content)):
            assert described(scan(source, rules)) == expected
    assert described(scan(data, file, engine=LocalEngine(workers=1))) == expected


def test_a_key_may_be_a_key_or_a_file(tmp_path: Path) -> None:
    data = written(tmp_path, ["a cat", "a dog"])
    rules = {"defaults": DEFAULTS, "rules": [{"name": "w", "find": "literals", "values": ["cat"]}]}
    key = DataKey.create(tmp_path / "data.key")
    fingerprint = scan(data, rules, key=key).data_fingerprint
    assert fingerprint == scan(data, rules, key=tmp_path / "data.key").data_fingerprint
    assert fingerprint == key.fingerprint_rows(read_corpus(data).texts())
    assert scan(data, rules).data_fingerprint is None


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    data = written(tmp_path, ["a"])
    rules = {"defaults": DEFAULTS, "rules": [{"name": "w", "find": "literals", "values": ["cat"]}]}
    with pytest.raises(InvalidInput, match="workers=2; an engine is given"):
        scan(data, rules, workers=2, engine=LocalEngine())
    code = {"name": "c", "find": "code", "secrets": [{"name": "s", "paths": ["*.py"]}]}
    with pytest.raises(InvalidInput, match="is not a folder, but these rules are about code"):
        scan(read_corpus(data), rules | {"rules": [code]})
    with pytest.raises(InvalidInput, match="unit is for tables, but these rules are about code"):
        scan(tmp_path, rules | {"chunks": {"lines": 3}}, unit="file")


def test_chunks_alone_make_a_folder_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\ntwo = 2\nthree = one\n")
    rules = {
        "defaults": DEFAULTS,
        "chunks": {"lines": 1},
        "rules": [{"name": "w", "find": "literals", "values": ["one"]}],
    }
    assert scan(tmp_path, rules).incidence.examples_of(0).tolist() == [0, 2]


texts = st.text(st.sampled_from("ab .,\n'-éß漢🦊"), max_size=30)


@settings(max_examples=40)
@given(
    corpus=st.lists(texts, min_size=1, max_size=6),
    token=st.text(LETTERS[2:], min_size=6, max_size=12),
    data=st.data(),
)
def test_a_planted_secret_is_found_exactly_where_it_is(corpus: list[str], token: str, data: st.DataObject) -> None:
    holders = data.draw(st.sets(st.integers(0, len(corpus) - 1), min_size=1))
    where = {}
    for example in holders:
        at = data.draw(st.integers(0, len(corpus[example])))
        before, after = corpus[example][:at] + " ", " " + corpus[example][at:]
        corpus[example] = before + token + after
        where[example] = (len(before), len(before) + len(token))
    rules = {
        "defaults": DEFAULTS,
        "rules": [
            {"name": "l", "find": "literals", "values": [token]},
            {"name": "p", "find": "patterns", "patterns": ["[c-z]{6,}"]},
            {"name": "w", "find": "words", "documents": [1, len(corpus)]},
        ],
    }
    with TemporaryDirectory() as folder:
        found = scan(written(Path(folder), corpus), rules)
        assert found.secrets.texts is not None
        for rule in ("l", "p", "w"):
            mine = [
                number
                for number, name in enumerate(found.secrets.ids)
                if name.startswith(f"{rule}-") and found.secrets.texts[number] == token
            ]
            assert len(mine) == 1
            assert set(found.incidence.examples_of(mine[0]).tolist()) == holders
            spans = {(reason.example, (reason.begin, reason.end)) for reason in found.why(secret=mine[0])}
            assert spans == set(where.items())


@settings(max_examples=8)
@given(
    values=st.lists(st.text(LETTERS, min_size=8, max_size=8), min_size=2, max_size=2, unique=True),
    others=st.lists(st.text(LETTERS, min_size=8, max_size=8), min_size=2, max_size=2, unique=True),
)
def test_the_public_side_does_not_depend_on_the_texts_of_secrets(values: list[str], others: list[str]) -> None:
    rules = {
        "defaults": {"ceiling": 1e-3},
        "rules": [
            {
                "name": "keys",
                "find": "patterns",
                "patterns": ["key:([a-z]{8})"],
                "group": 1,
                "promise": {"format": {"alphabet": "lower", "length": 8}},
            }
        ],
    }

    def public(one: str, two: str) -> dict[str, bytes]:
        with TemporaryDirectory() as folder:
            found = scan(written(Path(folder), [f"key:{one}", "none", f"key:{two} key:{one}"]), rules)
            found.save(Path(folder, "found"))
            return {path.name: path.read_bytes() for path in Path(folder, "found/public").iterdir()}

    assert public(*values) == public(*others)


def test_each_secret_has_the_promise_nearest_to_it(tmp_path: Path) -> None:
    data = written(tmp_path, ["Acme Globex key-12", "x"], team=["core", None])
    (tmp_path / "names.csv").write_text("text,ceiling\nAcme,0.25\nGlobex,\n")
    rules = Rules.of(
        {
            "defaults": DEFAULTS,
            "rules": [
                {"name": "l", "find": "literals", "file": "names.csv", "promise": {"ceiling": 0.125}},
                {
                    "name": "p",
                    "find": "patterns",
                    "patterns": [r"key-\d\d"],
                    "promise": {"format": {"bits": 6}, "ceiling": 0.5},
                },
                {"name": "t", "find": "fields", "column": "team"},
            ],
        },
        folder=tmp_path,
    )
    promised = dict(zip(*(lambda table: (table.ids, table.protections))(scan(data, rules).secrets), strict=True))
    assert promised == {
        "l-000000": Protection(1e-10, 0.125),
        "l-000001": Protection(1e-10, 0.25),
        "p-000000": Protection(2.0**-6, 0.5),
        "t-000000": Protection(1e-10, 1e-3),
    }


def test_a_key_that_would_be_read_as_data_is_refused(tmp_path: Path) -> None:
    written(tmp_path, ["a cat", "a dog"])
    content = {"defaults": DEFAULTS, "rules": [{"name": "w", "find": "words", "documents": [1, 1]}]}
    with pytest.raises(InvalidInput, match="lies inside the data"):
        scan(tmp_path, content, key=tmp_path / "key.txt")
    assert scan(tmp_path, content, key=tmp_path / "my.key").incidence.num_examples == 2  # no file of texts
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["data.jsonl", "my.key"]


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    rules = {"defaults": DEFAULTS, "rules": [{"name": "w", "find": "words", "documents": [1, 2]}]}
    scan(written(tmp_path, ["a", "b"]), rules, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (2, 2)
    assert [done for done, _ in told] == [1, 2]
