"""Running and assembling a scan: cuts, order and engine change nothing, every pair has a reason, copies inherit."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import PROMISE, Astray, Capitals, Memory, Rare, Teams, content, prepared

import hush
from hush.data import read_corpus
from hush.keys import DataKey
from hush.scan.assemble import run_scan
from hush.scan.engines import LocalEngine
from hush.scan.hits import DeclaredSecret, PreparedRule
from hush.scan.shard_tasks import MergedCounts

KEY = DataKey(bytes(range(32)))
HERE = LocalEngine(workers=1)
TEXTS = st.sampled_from(["", "A", "AB a"]) | st.text("ABCab é☃", max_size=5)  # often equal ones
ROWS = st.lists(st.tuples(TEXTS, st.sampled_from([None, "red", "blue"])), max_size=12)
CUTS = st.lists(st.integers(0, 12), max_size=5).map(tuple)


@settings(max_examples=60)
@given(ROWS, CUTS, st.integers(1, 5))
def test_any_cut_into_shards_and_blocks_gives_the_scan_of_one_pass(
    rows: list[tuple[str, str | None]], cuts: tuple[int, ...], size: int
) -> None:
    rules = prepared(Capitals(known=("Z", "B")), Teams(), Rare(most=2))
    whole = run_scan(Memory(rows), rules, engine=HERE, key=KEY)
    pieces = run_scan(Memory(rows, cuts, size), rules, engine=HERE, key=KEY)
    assert content(pieces) == content(whole)


@settings(max_examples=60)
@given(ROWS, CUTS)
def test_the_pairs_are_those_of_a_direct_count(rows: list[tuple[str, str | None]], cuts: tuple[int, ...]) -> None:
    scan = run_scan(Memory(rows, cuts, 2), prepared(Capitals(), Teams()), engine=HERE)
    expected = set()
    for example, (text, _) in enumerate(rows):
        expected |= {(example, "capitals", letter) for letter in text if letter.isupper()}
        expected |= {(example, "capitals", one + two) for one, two in pairwise(text) if (one + two).isupper()
                     and one.isalpha() and two.isalpha()}  # fmt: skip
        # Equal texts share the team of each of them.
        expected |= {(example, "teams", team) for other, team in rows if other == text and team}
    assert scan.secrets.texts is not None
    found = {
        (int(example), scan.secrets.ids[secret].split("-")[0], scan.secrets.texts[secret])
        for secret in range(len(scan.secrets))
        for example in scan.incidence.examples_of(secret)
    }
    assert found == expected


@given(ROWS, CUTS)
def test_every_pair_has_a_reason_and_every_reason_a_pair(
    rows: list[tuple[str, str | None]], cuts: tuple[int, ...]
) -> None:
    scan = run_scan(Memory(rows, cuts), prepared(Capitals(), Teams(), Rare(most=1)), engine=HERE)
    reasons = content(scan)["reasons"]
    matrix = scan.incidence.to_scipy()
    assert {(row["example"], row["secret"]) for row in reasons} == set(zip(*map(np.ndarray.tolist, matrix.nonzero()),
                                                                           strict=True))  # fmt: skip
    for row in reasons:
        assert scan.secrets.ids[row["secret"]].startswith(row["rule"])
        if row["begin"] >= 0:
            assert scan.secrets.texts is not None
            assert rows[row["example"]][0][row["begin"] : row["end"]] == scan.secrets.texts[row["secret"]]


@given(ROWS, CUTS)
def test_declared_and_found_secrets_are_numbered_by_their_examples_alone(
    rows: list[tuple[str, str | None]], cuts: tuple[int, ...]
) -> None:
    own = hush.Protection(1e-6, 1e-2)
    scan = run_scan(Memory(rows, cuts), prepared(Capitals(known=("Z", "B"))), engine=HERE)
    holders: dict[str, list[int]] = {"Z": [], "B": []}
    for example, (text, _) in enumerate(rows):
        for key in {text[begin : begin + width] for width in (1, 2) for begin in range(len(text) - width + 1)}:
            if key.isalpha() and key.isupper():
                holders.setdefault(key, []).append(example)
    promise = {key: own if key in ("Z", "B") else PROMISE for key in holders}
    # Those in no example come last; PROMISE, of the smaller prior, comes before the declared ones' own.
    found = sorted(holders, key=lambda key: (holders[key] or [len(rows)], promise[key] == own, key))
    assert scan.secrets.texts == tuple(found)
    assert scan.secrets.ids == tuple(f"capitals-{number:06d}" for number in range(len(found)))
    assert scan.secrets.protections == tuple(promise[key] for key in found)


@given(ROWS, CUTS)
def test_secrets_that_equal_texts_share_are_numbered_by_all_their_examples(
    rows: list[tuple[str, str | None]], cuts: tuple[int, ...]
) -> None:
    scan = run_scan(Memory(rows, cuts), prepared(Teams()), engine=HERE)
    teams = {text: {team for other, team in rows if other == text and team} for text, _ in rows}
    holders = {
        team: [example for example, (text, _) in enumerate(rows) if team in teams[text]]
        for team in set().union(*teams.values())
    }
    found = sorted(holders, key=lambda team: (holders[team], team))
    assert scan.secrets.texts == tuple(found)
    assert scan.secrets.ids == tuple(f"teams-{number:06d}" for number in range(len(found)))
    assert [scan.incidence.examples_of(number).tolist() for number in range(len(found))] == [
        holders[team] for team in found
    ]


def test_equal_texts_share_what_a_column_says_and_the_reason_names_the_first() -> None:
    rows = [("other", None), ("same", "red"), ("same", None), ("same", "blue"), ("none", "")]
    scan = run_scan(Memory(rows), prepared(Teams(), public_names=True), engine=HERE)
    assert scan.secrets.ids == ("teams:blue", "teams:red")
    assert [scan.incidence.examples_of(secret).tolist() for secret in (0, 1)] == [[1, 2, 3], [1, 2, 3]]
    assert {(reason.example, reason.secret_id, reason.reason) for reason in scan.why()} == {
        (1, "teams:red", "column team"),
        (2, "teams:red", "exact copy of example 1"),
        (3, "teams:red", "exact copy of example 1"),
        (1, "teams:blue", "exact copy of example 3"),
        (2, "teams:blue", "exact copy of example 3"),
        (3, "teams:blue", "column team"),
    }
    assert scan.summary()["pairs_from_copies"] == 4


def test_near_copies_inherit_through_their_groups() -> None:
    copies = pytest.importorskip("hush.scan.near_copies")
    pytest.importorskip("rensa")
    words = [f"word{number}" for number in range(60)]
    rows = [(" ".join(words), "red"), ("something else entirely", None), (" ".join([*words, "more"]), None)]
    scan = run_scan(Memory(rows, (1, 2)), prepared(Teams()), engine=HERE, copies=copies.Copies())
    assert scan.incidence.examples_of(0).tolist() == [0, 2]
    (reason,) = scan.why(example=2)
    assert reason.reason.startswith("near copy of example 0 (similarity")


@given(st.lists(st.integers(0, 9)), st.randoms())
def test_counts_merge_to_the_same_total_in_any_order(counts: list[int], order: random.Random) -> None:
    from collections import Counter

    rare, shuffled = Rare(most=1), counts[:]
    order.shuffle(shuffled)
    totals = []
    for some in (counts, shuffled):
        total = MergedCounts(rare)
        for number in some:
            total.add(Counter(a=1, b=number + 1))
            total.add(None)
        totals.append(total.value())
    assert totals[0] == totals[1]
    assert totals[0] == (Counter(a=len(counts), b=sum(counts) + len(counts)) if counts else None)


RECORDS = [{"text": f"Text {number % 7} of A{'BC'[number % 2]}", "team": "red" if number % 5 else None, "id": number}
           for number in range(40)]  # fmt: skip


def test_two_processes_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.data import arrow_readers

    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "data.parquet", row_group_size=3)
    corpus = read_corpus(tmp_path / "data.parquet", column="text")
    rules = prepared(Capitals(), Teams(), Rare(most=20))
    told: list[tuple[int, int]] = []
    whole = run_scan(corpus, rules, engine=HERE, key=KEY, id_column="id")
    monkeypatch.setattr(arrow_readers, "SHARD_ROWS", 10)
    assert len(corpus.shards()) > 3
    several = run_scan(
        corpus,
        rules,
        engine=LocalEngine(workers=2),
        key=KEY,
        id_column="id",
        progress=lambda *count: told.append(count),
    )
    assert content(several) == content(whole)
    steps = 2 * len(corpus.shards())
    assert told == [(done, steps) for done in range(1, steps + 1)]
    assert several.data_fingerprint == KEY.fingerprint_rows(corpus.texts())
    examples = content(several)["examples"]
    assert [row["id"] for row in examples] == [str(number) for number in range(40)]
    assert [row["row"] for row in examples] == list(range(40))
    assert {row["file"] for row in examples} == {str(tmp_path / "data.parquet")}
    assert [row["fingerprint"] for row in examples] == [KEY.fingerprint_row(text) for text in corpus.texts()]


def test_ids_say_file_and_row_and_count_broken_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.data import shards, text_readers

    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "A"}\n{"text": 3}\n\n{"text": "B"}\n')
    (tmp_path / "sub" / "b.jsonl").write_text('oops\n{"text": "A"}\n{"text": "C"}\nA\n')
    corpus = read_corpus(tmp_path)
    with pytest.raises(hush.InvalidInput, match=r"a.jsonl, line 2: a int; .*b.jsonl, line 1: not a JSON object"):
        run_scan(corpus, prepared(Capitals()), engine=HERE)
    expected = None
    for size in (10**6, 5):
        monkeypatch.setattr(text_readers, "SPAN_BYTES", size)
        monkeypatch.setattr(shards, "GROUPED_FILE_BYTES", size)
        scan = run_scan(corpus, prepared(Capitals()), engine=HERE, skip_bad=True, key=KEY)
        assert [row["id"] for row in content(scan)["examples"]] == [
            "a.jsonl:0",
            "a.jsonl:2",
            "sub/b.jsonl:1",
            "sub/b.jsonl:2",
        ]
        assert scan.skipped == 3
        by_file = {str(tmp_path / "a.jsonl"): 1, str(tmp_path / "sub" / "b.jsonl"): 2}
        assert scan.summary()["skipped_by_file"] == by_file
        assert scan.incidence.num_examples == 4
        assert expected in (None, content(scan))
        expected = content(scan)


def test_nothing_to_find_and_nothing_to_read_are_scans_too() -> None:
    none = run_scan(Memory([]), prepared(Capitals(known=("Z",)), Rare(most=1)), engine=HERE, key=KEY)
    assert (none.incidence.num_examples, none.incidence.num_secrets) == (0, 1)
    assert none.data_fingerprint == KEY.fingerprint_rows([])
    assert list(none.why()) == []
    empty = run_scan(Memory([("a", None)]), [], engine=HERE)
    assert (empty.incidence.num_examples, empty.incidence.num_secrets) == (1, 0)


def test_rules_that_cannot_be_told_apart_are_refused() -> None:
    rule = PreparedRule(name="one", finder=Capitals(), protection=PROMISE)
    with pytest.raises(hush.InvalidInput, match="two rules are called one"):
        run_scan(Memory([]), [rule, rule], engine=HERE)
    twice = PreparedRule(
        name="two", finder=Teams(declared=(DeclaredSecret(key="x"), DeclaredSecret(key="x"))), protection=PROMISE
    )
    with pytest.raises(hush.InvalidInput, match="declared twice"):
        run_scan(Memory([]), [twice], engine=HERE)


def test_a_name_that_cannot_be_read_makes_its_row_a_broken_one_in_every_reading(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "A", "team": "red"}\n{"text": "B", "team": "\\ud800"}\n')
    scan = run_scan(read_corpus(path, column="text"), prepared(Teams(), Rare(most=1)), engine=HERE, skip_bad=True)
    assert scan.skipped == 1
    assert scan.secrets.texts == ("red", "A")
    scan.save(tmp_path / "scan")
    assert list(read_corpus(tmp_path / "scan" / "owner" / "data.parquet").texts()) == ["A"]


def test_a_finder_that_points_outside_its_block_is_refused() -> None:
    with pytest.raises(hush.InvalidInput, match="outside the 1 examples of its block"):
        run_scan(Memory([("a", None), ("b", None)], (1,)), prepared(Astray()), engine=HERE)
