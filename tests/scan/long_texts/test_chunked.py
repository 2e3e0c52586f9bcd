"""Scans of long texts in chunks: every secret is in all chunks that hold it, what is public stays the same for every
filling, and everything after a scan takes chunks for examples."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.scan.long_texts import ModelTokens, stand_in
from hush.scan.long_texts.chunked import TYPICAL_CHARACTERS
from hush.scan.redact import redact
from hush.scan.result import Scan
from hush.scan.scanner import scan
from slotted import made_tokenizer

DEFAULTS = {"prior": 1e-3, "ceiling": 0.1}
KEY = DataKey(bytes(32))
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
]


def written(folder: Path, texts: list[str], **columns: list[Any]) -> Path:
    """Texts, and columns beside them, as JSON lines."""
    rows = [{"text": text} | {name: values[i] for name, values in columns.items()} for i, text in enumerate(texts)]
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def names(*values: str, hides: str = "example", name: str = "names") -> dict[str, Any]:
    return {"name": name, "find": "literals", "values": list(values), "hides": hides}


def scanned(source: Any, *rules: dict[str, Any], chunks: dict[str, Any] | None, **more: Any) -> Scan:
    return scan(source, {"defaults": DEFAULTS, "rules": rules} | ({"chunks": chunks} if chunks else {}), **more)


def texts_of(found: Scan) -> list[str]:
    """The texts of the examples as they are saved with a scan."""
    with TemporaryDirectory() as folder:
        found.save(Path(folder, "scan"))
        return pq.read_table(Path(folder, "scan", "owner", "data.parquet")).column("text").to_pylist()


def ids_of(found: Scan) -> list[str]:
    assert found.owner is not None
    return [name for batch in found.owner.examples("id") for name in batch.column("id").to_pylist()]


sentences = st.lists(st.sampled_from([*WORDS, "end. ", "\n\n", "x" * 30]), max_size=30).map(" ".join)


@settings(max_examples=40)
@given(
    documents=st.lists(st.tuples(sentences, sentences), min_size=1, max_size=4),
    secret=st.from_regex("[JQZ]{6,40}", fullmatch=True),  # no letter of the words, with which it could overlap
    hides=st.sampled_from(["example", "span"]),
    size=st.integers(5, 80),
    overlap=st.integers(0, 60),
)
def test_a_planted_secret_is_in_every_chunk_that_holds_a_part_of_it(
    documents: list[tuple[str, str]], secret: str, hides: str, size: int, overlap: int
) -> None:
    chunks = {"characters": size, "overlap": min(overlap, size - 1)}
    with TemporaryDirectory() as folder:
        source = written(Path(folder), [f"{before} {secret} {after}" for before, after in documents])
        found = scanned(source, names(secret, hides=hides), chunks=chunks, key=KEY)
        hidden = len(stand_in(["names"], least=0 if hides == "span" else TYPICAL_CHARACTERS))
        fits = all(len(before) + len(after) + 2 + hidden <= size for before, after in documents)
        assert (found.incidence.num_examples == len(documents)) == fits
        texts = [text for block in [read_corpus(source)] for text in block.texts()] if fits else texts_of(found)
    assert found.data_fingerprint == KEY.fingerprint_rows(texts)
    assert found.incidence.examples_of(0).tolist() == [number for number, text in enumerate(texts) if secret in text]
    # No part of the secret without the rest: of its capitals, none is in another chunk.
    assert all(re.sub(secret, "", text) == re.sub("[A-Z]", "", text) for text in texts)
    for reason in found.why():
        assert texts[reason.example][reason.begin : reason.end] == secret
    if hides == "span":
        holding = found.incidence.examples_of(0).tolist()
        assert found.slots.has_slots_N.nonzero()[0].tolist() == holding
        assert found.skeleton_fingerprint == KEY.fingerprint_rows(found.spans.public_rows(found.incidence, texts))


def public_side(folder: Path, texts: list[str], secrets: list[str], chunks: dict[str, Any], hides: str) -> list[Any]:
    """All that is public of a scan: graph, slots, ids, skeletons, and chunks without a secret."""
    tokens = ModelTokens(made_tokenizer("bytes", special=True), 24)
    rules = [names(secret, hides=hides, name=f"rule-{number}") for number, secret in enumerate(secrets)]
    found = scanned(written(folder, texts), *rules, chunks=chunks, model_tokens=tokens)
    rows = list(found.spans.public_rows(found.incidence, texts_of(found)))
    return [found.incidence.fingerprint, found.slots.fingerprint, ids_of(found), found.secrets.ids, rows]


@settings(max_examples=25)
@given(
    parts=st.lists(sentences, min_size=3, max_size=3),
    first=st.tuples(st.from_regex("Q[A-Z]{5,30}", fullmatch=True), st.from_regex("[0-9]{7,20}", fullmatch=True)),
    second=st.tuples(st.from_regex("Q[A-Z]{5,90}", fullmatch=True), st.from_regex("[0-9]{7,90}", fullmatch=True)),
    chunks=st.sampled_from([{"characters": 40}, {"tokens": 6, "overlap": 2}, {"lines": 1}, {"tokens": "auto"}]),
    hides=st.sampled_from(["example", "span"]),
)
def test_another_secret_of_any_length_changes_nothing_public(
    parts: list[str], first: tuple[str, str], second: tuple[str, str], chunks: dict[str, Any], hides: str
) -> None:
    def texts(secrets: tuple[str, str]) -> list[str]:
        return [f"{parts[0]} {secrets[0]} {parts[1]} {secrets[1]}\n\n{parts[2]}" + " word" * 40, "short"]

    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        assert public_side(Path(one), texts(first), [*first], chunks, hides) == public_side(
            Path(other), texts(second), [*second], chunks, hides
        )


def test_texts_that_fit_are_scanned_as_without_chunks(tmp_path: Path) -> None:
    source = written(tmp_path, ["Ann met Bob.", "nobody", "Bob again"], id=["a", "b", "c"])
    rules = names("Ann", "Bob", hides="span")
    plain = scanned(source, rules, chunks=None, id_column="id", key=KEY)
    chunked = scanned(source, rules, chunks={"characters": 40}, id_column="id", key=KEY)
    assert (chunked.incidence, chunked.secrets, chunked.slots) == (plain.incidence, plain.secrets, plain.slots)
    assert (chunked.data_fingerprint, ids_of(chunked)) == (plain.data_fingerprint, ["a", "b", "c"])
    chunked.save(tmp_path / "found")
    assert not (tmp_path / "found" / "owner" / "data.parquet").exists()


def test_ids_files_and_rows_are_those_of_the_document(tmp_path: Path) -> None:
    source = written(tmp_path, ["one two three four", "Ann"], id=["a", "b"])
    found = scanned(source, names("Ann"), chunks={"characters": 8}, id_column="id")
    assert found.owner is not None
    assert [*zip(ids_of(found), texts_of(found), strict=True)] == [
        ("a#1", "one two "), ("a#2", "three "), ("a#3", "four"), ("b", "Ann"),
    ]  # fmt: skip
    assert [found.owner.example(number)["row"] for number in range(4)] == [0, 0, 0, 1]
    assert found.secrets.ids == ("names-000000",)
    [reason] = found.why(example="b")
    assert (reason.example, reason.begin) == (3, 0)


def test_a_secret_that_a_column_names_is_in_all_chunks_of_its_text(tmp_path: Path) -> None:
    source = written(tmp_path, ["one two three four", "five six seven eight"], team=["core", None])
    team = {"name": "team", "find": "fields", "column": "team", "public_names": True}
    found = scanned(source, team, names("five", hides="span"), chunks={"characters": 8})
    assert texts_of(found) == ["one two ", "three ", "four", "five", " six ", "seven ", "eight"]
    assert found.incidence.examples_of(0).tolist() == [0, 1, 2]
    assert found.incidence.examples_of(1).tolist() == [3]
    assert found.slots.has_slots_N.tolist() == [False] * 3 + [True] + [False] * 3


def test_only_the_chunk_with_a_whole_example_secret_is_secret_as_a_whole(tmp_path: Path) -> None:
    source = written(tmp_path, ["Ann called. Nothing else at all happened. Bob wrote. Ann again."])
    found = scanned(source, names("Ann", hides="span"), names("Bob", name="bobs"), chunks={"characters": 37})
    assert texts_of(found) == ["Ann called. ", "Nothing else at all happened. ", "Bob wrote. ", "Ann again."]
    assert found.slots.has_slots_N.tolist() == [True, False, False, True]
    assert found.slots.whole_examples(found.incidence).tolist() == [False, False, True, False]


def test_a_secret_over_a_border_is_one_slot(tmp_path: Path) -> None:
    secret = "first line\n\nsecond. Line " + "z" * 30  # a paragraph, a sentence and a long word
    source = written(tmp_path, [f"before before {secret} after after after", "short"])
    found = scanned(source, names(secret.strip(), hides="span"), chunks={"characters": 20})
    assert [text for text in texts_of(found) if "line" in text or "zz" in text] == [f"{secret} after after "]
    assert len(found.slots) == 1


def test_words_are_counted_by_document(tmp_path: Path) -> None:
    source = written(tmp_path, ["rare " * 2 + "common " * 4, "common", "common"])
    rule = {"name": "w", "find": "words", "documents": [1, 1]}
    found = scanned(source, rule, chunks={"characters": 28})
    assert found.secrets.texts == ("rare",)
    assert (found.incidence.num_examples, found.incidence.num_entries) == (5, 2)


def test_copies_inherit_before_and_after_texts_are_cut(tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    body = " ".join(f"{word}{number}" for number in range(6) for word in WORDS)
    near = "a heading before it " + body
    source = written(tmp_path, [body, near, body[:40], "something else"], team=["core", None, None, None])
    team = {"name": "team", "find": "fields", "column": "team", "public_names": True}
    copies = {"name": "copies", "find": "copies", "similarity": 0.8}
    found = scanned(source, team, copies, chunks={"characters": 40, "overlap": 8})
    texts, documents = texts_of(found), [name.split("#")[0] for name in ids_of(found)]
    of_copies = [n for n, name in enumerate(documents) if name in ("data.jsonl:0", "data.jsonl:1")]
    equal = [n for n, text in enumerate(texts) if documents[n] == "data.jsonl:2" and text in texts[:n]]
    assert len(of_copies) > 20
    assert found.incidence.examples_of(0).tolist() == [*of_copies, *equal]
    assert found.inherited == len(of_copies) + len(equal) - documents.count("data.jsonl:0")
    first_of_near = documents.index("data.jsonl:1")
    [reason] = found.why(example=first_of_near)
    assert reason.reason.startswith("near copy of the text that begins with example 0 ")


def test_chunks_of_spans_are_redacted_and_loaded(tmp_path: Path) -> None:
    text = "Ann met Bob. " * 3 + "ANN wrote to An\u00adn. Nobody answered."
    found = scanned(written(tmp_path, [text]), names("Ann", "Bob", hides="span"), chunks={"characters": 30}, key=KEY)
    found.save(tmp_path / "found")
    loaded, data = Scan.load(tmp_path / "found"), read_corpus(tmp_path / "found" / "owner" / "data.parquet")
    assert loaded.spans.slots == found.slots
    written_rows = redact(loaded, data, tmp_path / "redacted.jsonl", key=KEY)
    assert (written_rows.rows, written_rows.left_out) == (found.incidence.num_examples, 0)
    redacted = "".join(json.loads(line)["text"] for line in (tmp_path / "redacted.jsonl").read_text().splitlines())
    assert redacted == "[names] met [names]. " * 3 + "[names] wrote to [names]. Nobody answered."


def test_texts_that_were_set_aside_move_no_border_and_stay_set_aside(tmp_path: Path) -> None:
    pytest.importorskip("detect_secrets")
    rows = ['password = "changeme" and some more words here', "key = AKIAQ3EGTYVIOP62L4M7 and some more words here"]
    found = scanned(written(tmp_path, rows), {"name": "keys", "find": "credentials"}, chunks={"characters": 24})
    texts = texts_of(found)
    assert [n for n, text in enumerate(texts) if "AKIA" in text] == found.incidence.examples_of(0).tolist()
    [aside] = [entry for entry in found.set_aside() if "placeholder" in entry.why]
    assert [texts[example] for example in aside.examples] == [text for text in texts if "changeme" in text]


def test_rows_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    source = written(tmp_path, ["one two three four", "Ann"])
    source.write_text("not json\n" + source.read_text())
    found = scanned(source, names("Ann"), chunks={"characters": 8}, skip_bad=True)
    assert (found.skipped, ids_of(found)) == (1, [*(f"data.jsonl:1#{n}" for n in (1, 2, 3)), "data.jsonl:2"])
    assert texts_of(found)[-1] == "Ann"


def test_the_length_of_a_model_needs_a_model(tmp_path: Path) -> None:
    source = written(tmp_path, ["one two three four " * 9])
    with pytest.raises(InvalidInput, match="no model is named"):
        scanned(source, names("Ann"), chunks={"tokens": "auto"})
    tokens = ModelTokens(made_tokenizer("wordpiece", special=True), 12)
    found = scanned(source, names("Ann"), chunks={"tokens": "auto"}, model_tokens=tokens)
    lengths = [len(tokens.tokenizer(text)["input_ids"]) for text in texts_of(found)]
    assert (len(lengths) > 3, max(lengths) <= 12) == (True, True)
    assert np.mean(lengths) > 6
