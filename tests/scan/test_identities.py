"""Identities: a secret keeps its id from scan to scan, whatever becomes of its examples, and no id is given twice."""

import json
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.scan import Scan, scan
from hush.scan.identities import IDENTITIES_FILE, Identities

KEY, OTHER_KEY = DataKey(bytes(range(32))), DataKey(bytes(32))
DEFAULTS = {"prior": 1e-10, "ceiling": 1e-3}
CODES = {"name": "codes", "find": "patterns", "patterns": [r"QX-\d{3}"]}


def scanned(texts: Iterable[str], *rules: dict[str, Any], known: Identities | None = None, key: DataKey = KEY) -> Scan:
    with TemporaryDirectory() as folder:
        path = Path(folder, "data.jsonl")
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return scan(path, {"defaults": DEFAULTS, "rules": list(rules) or [CODES]}, key=key, known=known)


def id_of(found: Scan) -> dict[str, str]:
    assert found.secrets.texts is not None
    return dict(zip(found.secrets.texts, found.secrets.ids, strict=True))


def known_from(found: Scan) -> Identities:
    identities = found.identities
    assert identities is not None
    return identities


numbers = st.lists(st.integers(0, 999), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(months=st.lists(numbers, min_size=2, max_size=4), data=st.data())
def test_a_secret_keeps_its_id_whatever_happens_to_its_examples(months: list[list[int]], data: st.DataObject) -> None:
    known, first = Identities.none(KEY.id), dict[str, str]()
    for month in months:  # examples appear, vanish and change; secrets vanish and come back
        texts = [f"{data.draw(st.sampled_from(['a', 'b c', '']))} QX-{number:03d}" for number in month]
        found = scanned(data.draw(st.permutations(texts)), known=known)
        for text, name in id_of(found).items():
            assert first.setdefault(text, name) == name
        known = known.joined(known_from(found))
    assert len(set(first.values())) == len(first)
    assert set(known.ids) == set(first.values())


def test_the_id_of_a_vanished_secret_is_never_given_again() -> None:
    known = known_from(scanned(["QX-001", "QX-002"]))
    later = id_of(scanned(["QX-003"], known=known))
    assert later == {"QX-003": "codes-000002"}


def test_without_known_identities_ids_count_as_they_always_did() -> None:
    assert scanned(["x QX-005", "QX-001"]).secrets.ids == ("codes-000000", "codes-000001")
    assert scanned(["x QX-005", "QX-001"], known=Identities.none(KEY.id)).secrets.ids == (
        "codes-000000",
        "codes-000001",
    )


def test_a_renamed_rule_keeps_its_ids_and_two_rules_of_one_text_have_two() -> None:
    known = known_from(scanned(["QX-001", "QX-002"]))
    renamed = scanned(["QX-002", "QX-001"], CODES | {"name": "customers"}, known=known)
    assert id_of(renamed) == {"QX-001": "codes-000000", "QX-002": "codes-000001"}
    both = scanned(["QX-001"], CODES, CODES | {"name": "customers"}, known=known)
    assert both.secrets.ids == ("codes-000000", "customers-000000")
    joined = known.joined(known_from(renamed))
    assert set(joined.ids) == {"codes-000000", "codes-000001"}  # under both names of the rule


def test_a_pattern_is_recognised_by_its_expression_and_not_by_its_place() -> None:
    def rule(*patterns: str) -> dict[str, Any]:
        return {"name": "projects", "find": "patterns", "patterns": list(patterns), "secret": "pattern"}

    first = scanned(["alpha", "beta"], rule("alpha", "beta"))
    later = scanned(["alpha", "beta"], rule("gamma", "beta", "alpha"), known=known_from(first))
    places = {later.secrets.texts[number]: name for number, name in enumerate(later.secrets.ids)}  # pyright: ignore
    assert places == {"pattern 3": "projects-000000", "pattern 2": "projects-000001", "pattern 1": "projects-000002"}


def test_a_public_name_that_stands_for_another_text_becomes_another_id() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "listed.csv")
        rule = {"name": "people", "find": "literals", "file": str(path)}
        path.write_text("text,name\nAda Byron,chair\n")
        first = scanned(["by Ada Byron"], rule)
        path.write_text("text,name\nMax Born,chair\n")
        later = scanned(["by Max Born"], rule, known=known_from(first))
    assert first.secrets.ids == ("people:chair",)
    assert later.secrets.ids == ("people:chair~2",)


def test_a_project_is_recognised_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "apollo").mkdir()
    (tmp_path / "apollo" / "a.py").write_text("x = 1\n")
    rules = {
        "defaults": DEFAULTS,
        "rules": [{"name": "projects", "find": "code", "secrets": [{"name": "apollo", "paths": ["apollo"]}]}],
    }
    first = scan(tmp_path, rules, key=KEY)
    (tmp_path / "apollo" / "a.py").write_text("y = 2\n")
    assert scan(tmp_path, rules, key=KEY, known=known_from(first)).secrets.ids == first.secrets.ids


def test_identities_are_the_owners_and_hold_no_text(tmp_path: Path) -> None:
    found = scanned(["the code QX-123"])
    found.save(tmp_path / "scan")
    path = tmp_path / "scan" / "owner" / IDENTITIES_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for file in (path for path in tmp_path.rglob("*") if path.is_file() and path.name != "texts.parquet"):
        assert b"QX-123" not in file.read_bytes(), file
    assert b"QX-123" not in repr(known_from(found)).encode()
    loaded = Scan.load(tmp_path / "scan").identities
    assert loaded is not None
    assert loaded.by_identity == known_from(found).by_identity
    without_key = scan(written(tmp_path), {"defaults": DEFAULTS, "rules": [CODES]})
    assert without_key.identities is None


def written(folder: Path) -> Path:
    path = folder / "data.txt"
    path.write_text("QX-001\n")
    return path


def test_a_fingerprint_depends_on_key_kind_and_text_and_is_that_of_no_row() -> None:
    one = KEY.fingerprint_identity("text", "QX-001")
    others = [
        KEY.fingerprint_identity("name", "QX-001"),
        KEY.fingerprint_identity("text", "QX-002"),
        KEY.fingerprint_identity("textQ", "X-001"),
        OTHER_KEY.fingerprint_identity("text", "QX-001"),
        KEY.fingerprint_row("QX-001"),
        KEY.fingerprint_row(b"hush identity 1\ntextQX-001"),
    ]
    assert one == KEY.fingerprint_identity("text", "QX-001")
    assert len({one, *others}) == 7


def test_another_key_is_refused() -> None:
    known = known_from(scanned(["QX-001"]))
    with pytest.raises(InvalidInput, match="under the key"):
        scanned(["QX-001"], known=known, key=OTHER_KEY)
    with pytest.raises(InvalidInput, match="under the key"):
        known.joined(Identities.none(OTHER_KEY.id))


def test_identities_that_contradict_each_other_are_refused() -> None:
    known = known_from(scanned(["QX-001"]))
    apart = known_from(scanned(["QX-002"]))  # scanned without them: the same id for another secret
    assert not known.agrees(apart)
    with pytest.raises(InvalidInput, match="scan again"):
        known.joined(apart)
    twice = {"ids": known.ids * 2, "rules": known.rules * 2, "fingerprints": known.fingerprints * 2}
    with pytest.raises(InvalidInput, match="listed twice"):
        replace(known, **twice)
    with pytest.raises(InvalidInput, match="the same id"):
        replace(known, **twice | {"fingerprints": (known.fingerprints[0], bytes(32))})
