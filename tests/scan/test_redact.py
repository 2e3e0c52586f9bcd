"""Slots of a scan: saved, loaded, counted, explained by their reasons, and redacted as data."""

import json
import stat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import hush
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.scan.redact import redact
from hush.scan.result import Scan
from hush.scan.scanner import scan
from hush.slots import Slots, Spans

TEXTS = [
    "Acme renewed; ACME-like, ac\u00adme.",
    "Lunch with Glo-\nbex and Initech",
    "globexes again, gastronomy too",
    "nothing here",
    "nothing here",
]
CUSTOMERS = {"name": "customers", "find": "literals", "values": ["Acme", "Globex"], "hides": "span"}
OTHERS = {"name": "others", "find": "literals", "values": ["Initech"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"id": f"m-{number}", "text": text, "team": "ops"} for number, text in enumerate(TEXTS)]
    (tmp_path / "mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scanned(*rules: dict[str, Any], **more: Any) -> Scan:
    return scan("mail.jsonl", {"defaults": {"prior": 1e-3, "ceiling": 0.1}, "rules": rules}, column="text", **more)


def test_slots_survive_saving_and_loading(folder: Path) -> None:
    found = scanned(CUSTOMERS, OTHERS, key="data.key")
    found.save("found")
    loaded = Scan.load("found")
    assert isinstance(loaded.spans, Spans)
    assert loaded.slots == found.slots == loaded.spans.slots
    assert [loaded.spans.skeleton(example, TEXTS[example]) for example in (0, 2)] == [
        "[customers] renewed; [customers]-like, [customers].",
        "[customers] again, gastronomy too",
    ]
    assert loaded.spans.begin_L.tolist() == found.spans.begin_L.tolist()
    assert loaded.skeleton_fingerprint == found.skeleton_fingerprint is not None
    key = DataKey.load("data.key")
    public = found.spans.public_rows(found.incidence, TEXTS)
    assert found.skeleton_fingerprint == key.fingerprint_rows(public)
    assert stat.S_IMODE((folder / "found" / "owner" / "spans.parquet").stat().st_mode) == 0o600
    assert found.summary() == loaded.summary()


def test_examples_of_a_rule_that_hides_examples_have_no_slots(folder: Path) -> None:
    found = scanned(CUSTOMERS, OTHERS)
    assert found.slots.has_slots_N.tolist() == [True, False, True, False, False]
    assert found.slots.whole_examples(found.incidence).tolist() == [False, True, False, False, False]
    assert [row.get("examples_with_slots") for row in found.summary()["rules"]] == [2, 0]


def test_without_a_rule_that_hides_spans_nothing_changes(folder: Path) -> None:
    found = scanned({**CUSTOMERS, "hides": "example"}, OTHERS, key="data.key")
    found.save("found")
    assert len(found.slots) == 0
    assert found.skeleton_fingerprint is None
    assert {path.name for path in (folder / "found").glob("*/*")}.isdisjoint({"slots.parquet", "spans.parquet"})
    assert found.incidence.examples_of(0).tolist() == [0]
    assert "examples_with_slots" not in found.summary()["rules"][0]


def test_without_a_key_skeletons_have_no_fingerprint(folder: Path) -> None:
    assert scanned(CUSTOMERS).skeleton_fingerprint is None


def test_the_public_side_knows_the_slots_and_not_where_they_are(folder: Path) -> None:
    found = scanned(CUSTOMERS)
    found.save("found")
    (folder / "found" / "owner").rename(folder / "kept")
    loaded = Scan.load("found")
    assert loaded.slots == found.slots
    with pytest.raises(InvalidInput, match="where the slots are in the texts is in owner/"):
        loaded.spans  # noqa: B018
    loaded.save("copy")
    assert Slots.from_parquet("copy/public/slots.parquet") == found.slots


@pytest.mark.parametrize("change", ["removed", "other"])
def test_changed_slots_are_refused(folder: Path, change: str) -> None:
    scanned(CUSTOMERS).save("found")
    path = folder / "found" / "public" / "slots.parquet"
    if change == "removed":
        path.unlink()
    else:
        Slots.none(hush.Incidence.from_pairs([], [], num_examples=5, num_secrets=2)).to_parquet(path)
    with pytest.raises(InvalidInput, match=r"slots\.parquet changed after the scan was written"):
        Scan.load("found")


def test_a_scan_without_slots_files_is_read_as_before(folder: Path) -> None:
    scanned(OTHERS).save("found")
    path = folder / "found" / "owner" / "counts.json"
    counts = json.loads(path.read_text())
    del counts["secret_text"]
    path.write_text(json.dumps(counts))
    loaded = Scan.load("found")
    assert len(loaded.spans.slots) == 0
    assert loaded.summary()["secret_text"] is None


def test_copies_without_a_place_make_their_example_secret_as_a_whole(folder: Path) -> None:
    pytest.importorskip("rensa")
    words = " ".join(f"word{number}" for number in range(60))
    rows = [f"{words} Acme said.", f"{words} nobody said.", "nothing else"]
    (folder / "mail.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    found = scanned(CUSTOMERS, {"name": "near", "find": "copies", "similarity": 0.7, "shingle": 1})
    assert found.incidence.examples_of(0).tolist() == [0, 1]
    assert found.slots.has_slots_N.tolist() == [True, False, False]
    (reason,) = found.why(example=1)
    assert reason.reason.startswith("near copy of example 0")
    assert reason.reason.endswith("; no place in this text is known, so the whole example is secret")


def test_how_much_text_is_secret_under_each_choice(folder: Path) -> None:
    found = scanned(CUSTOMERS, OTHERS)
    about = found.summary()["secret_text"]
    total = sum(map(len, TEXTS))
    hidden = sum(map(len, ("Acme", "ACME", "ac\u00adme", "globexes", "Glo-\nbex")))
    customers, others = about["rules"]
    assert about["characters"] == total
    assert customers["example"] == pytest.approx(sum(map(len, TEXTS[:3])) / total)
    assert customers["span"] == pytest.approx(hidden / total)
    assert others["example"] == pytest.approx(len(TEXTS[1]) / total)
    assert others["span"] == pytest.approx(len("Initech") / total)
    secret = len(TEXTS[1]) + hidden - len("Glo-\nbex")
    assert about["share"] == pytest.approx(secret / total)
    assert "secret_text" not in json.loads(_public_summary(found, folder))


def _public_summary(found: Scan, folder: Path) -> str:
    found.save(folder / "found")
    return (folder / "found" / "public" / "summary.json").read_text()


def test_a_longer_word_around_a_literal_is_hidden_with_it(folder: Path) -> None:
    found = scanned({**CUSTOMERS, "values": ["stro"]})
    assert found.spans.skeleton(2, TEXTS[2]) == "globexes again, [customers] too"
    assert {reason.reason for reason in found.why()} == {
        "literal 1 of the list",
        "the whole word around a text that this rule found",
    }


# Redacting


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("copy", [(), ("id",)])
def test_redacted_data_are_skeletons_in_order_without_whole_examples(
    folder: Path, ending: str, copy: tuple[str, ...]
) -> None:
    found = scanned(CUSTOMERS, OTHERS)
    corpus = read_corpus("mail.jsonl", column="text")
    written = redact(found, corpus, f"out.{ending}", copy=copy)
    path = folder / f"out.{ending}"
    rows = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if ending == "jsonl"
        else pq.read_table(path).to_pylist()
    )
    kept = [0, 2, 3, 4]
    assert rows == [
        {"text": found.spans.skeleton(example, TEXTS[example])} | dict.fromkeys(copy, f"m-{example}")
        for example in kept
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (written.rows, written.skeletons, written.slots, written.left_out) == (4, 2, 4, 1)


def test_other_data_are_refused_and_nothing_is_written(folder: Path) -> None:
    found = scanned(CUSTOMERS, OTHERS, key="data.key")
    lines = (folder / "mail.jsonl").read_text().splitlines()
    other = {
        "has 4": lines[:4],
        "has more": [*lines, lines[0]],
        "does not hold its secret": [json.dumps({"text": "x" * 60}), *lines[1:]],
        "still holds a form of secret customers-00000": [*lines[:3], json.dumps({"text": "A C M E"}), lines[4]],
    }
    for message, rows in other.items():
        (folder / "other.jsonl").write_text("\n".join(rows))
        with pytest.raises(InvalidInput, match=message):
            redact(found, read_corpus("other.jsonl", column="text"), "out.jsonl")
    (folder / "other.jsonl").write_text("\n".join([*lines[:3], json.dumps({"text": "another text"}), lines[4]]))
    corpus = read_corpus("other.jsonl", column="text")
    with pytest.raises(InvalidInput, match="the data are not those of the scan"):
        redact(found, corpus, "out.jsonl", key=DataKey.load("data.key"))
    assert not (folder / "out.jsonl").exists()


def test_what_cannot_be_redacted_is_refused_with_a_reason(folder: Path) -> None:
    corpus = read_corpus("mail.jsonl", column="text")
    with pytest.raises(InvalidInput, match="no example of this scan has slots"):
        redact(scanned(OTHERS), corpus, "out.jsonl")
    found = scanned(CUSTOMERS)
    with pytest.raises(InvalidInput, match=r"ends in \.jsonl or \.parquet"):
        redact(found, corpus, "out.csv")
    with pytest.raises(InvalidInput, match="the text itself cannot be copied"):
        redact(found, corpus, "out.jsonl", copy=["text"])
    with pytest.raises(InvalidInput, match="has no column 'city'"):
        redact(found, corpus, "out.jsonl", copy=["city"])
    with pytest.raises(InvalidInput, match="made without a key"):
        redact(found, corpus, "out.jsonl", key=DataKey(bytes(32)))
