"""Adversarial inputs: no pair is missed, no count is wrong, and no secret text leaks."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Memory, prepared
from typer.testing import CliRunner

import hush
from hush.cli import app
from hush.data import read_corpus, text_readers
from hush.data.shards import BlockBuilder
from hush.incidence import Incidence
from hush.keys import DataKey
from hush.protection import Protection
from hush.scan import scan
from hush.scan.assemble import run_scan
from hush.scan.collect import UnorderedSecret, public_order, secret_table
from hush.scan.engines import LocalEngine
from hush.scan.finders.literals import Literals
from hush.scan.finders.unicode import caseless
from hush.scan.identities import given_ids
from hush.scan.result import Scan
from hush.scan.rules import Rules, load_rules

PROMISES = {"prior": 1e-10, "ceiling": 1e-3}
BY_TEAM = {"defaults": PROMISES, "rules": [{"name": "team", "find": "fields", "column": "team"}]}
BY_LITERAL = {"defaults": PROMISES, "rules": [{"name": "word", "find": "literals", "values": ["hidden"]}]}


def holders(found: Scan) -> dict[str, list[int]]:
    """Which examples hold each text."""
    texts = found.secrets.texts or ()
    return {text: found.incidence.examples_of(number).tolist() for number, text in enumerate(texts)}


def json_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Which rows there are, and which row is which


def test_a_byte_order_mark_before_an_empty_line_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\r\n{"text": "a"}\n\xef\xbb\xbf{"text": "hidden"}\n\xef\xbb\xbf')
    corpus = read_corpus(path)
    assert (len(corpus), list(corpus.texts())) == (2, ["a", "hidden"])
    assert holders(scan(corpus, BY_LITERAL)) == {"hidden": [1]}


def test_a_bad_value_in_a_list_breaks_its_own_row_alone(tmp_path: Path) -> None:
    binary = pa.array([b"one", b"\xff", b"two"])
    teams = pa.ListArray.from_arrays([0, 1, 2, 3], pa.Array.from_buffers(pa.string(), 3, binary.buffers()))
    pq.write_table(pa.table({"text": ["a", "b", "c"], "team": teams}), tmp_path / "data.parquet")
    found = scan(tmp_path / "data.parquet", BY_TEAM, skip_bad=True)
    assert found.skipped == 1
    assert holders(found) == {"one": [0], "two": [1]}


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["hidden"])], ["text", "text"])
    pq.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(hush.InvalidInput, match="two columns have the same name"):
        read_corpus(tmp_path / "data.parquet")


def test_compression_goes_by_the_ending_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "data.txt.GZ"
    path.write_bytes(gzip.compress(b"a\n") + gzip.compress(b"hidden\n"))
    assert holders(scan(path, BY_LITERAL)) == {"hidden": [1]}


def test_a_missing_number_names_no_secret(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "data.jsonl", {"text": "a", "team": float("nan")}, {"text": "b", "team": [1, None]})
    assert holders(scan(path, BY_TEAM)) == {"1": [1]}


def test_names_of_files_that_are_no_utf_8_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("hidden")
    (tmp_path / "b.txt").write_text("nothing")
    (tmp_path / os.fsdecode(b"c\xff.txt.gz")).write_bytes(gzip.compress(b"hidden"))
    found = scan(tmp_path, BY_LITERAL)
    assert holders(found) == {"hidden": [0, 2]}
    assert found.owner is not None
    assert found.owner.example(0)["id"] == r"a\xff.txt:0"


def test_a_folder_that_cannot_be_looked_into_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("nothing")
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def scandir(place):
        if Path(place).name == "closed":
            raise PermissionError(13, "Permission denied", str(place))
        return listed(place)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        read_corpus(tmp_path)


def test_data_that_changed_since_it_was_scanned_is_not_saved_with_it(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "hidden"}\nbroken\n{"text": "b"}\n')
    found = scan(path, BY_LITERAL, skip_bad=True)
    path.write_text('{"text": "b"}\nbroken\n{"text": "hidden"}\n')  # as many rows, another order
    with pytest.raises(hush.InvalidInput, match="changed while it was scanned"):
        found.save(tmp_path / "found")
    assert not (tmp_path / "found").exists()


# What the public side tells

members = st.lists(st.integers(0, 5), max_size=3)
names = st.permutations([f"{number:03x}" for number in range(0, 4096, 500)])


@settings(max_examples=25)
@given(
    st.lists(members, min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), members), min_size=1, max_size=8),
    names,
    names,
    st.integers(1, 60),
    st.randoms(),
)
def test_the_public_side_is_the_same_whatever_the_texts_and_the_order_of_any_list(
    tmp_path_factory, keys_of, rows, one, other, size, order
) -> None:
    """Nor does it tell which of several equal texts it was whose row named a tag."""
    folder = tmp_path_factory.mktemp("twins")
    files = []
    moved: list[list[int]] = [[] for _ in rows]  # the tags of the twin
    for which, tags in rows:
        equal = [place for place, (another, _) in enumerate(rows) if another == which]
        for tag in tags:
            moved[order.choice(equal)].append(tag)
    twins = ((one, [tags for _, tags in rows], 2**20, list), (other, moved, size, shuffled_by(order)))
    for number, (naming, tags_of, span, again) in enumerate(twins):
        rules = [
            {"name": "keys", "find": "patterns", "patterns": ["key-[0-9a-f]{3}"]},
            {"name": "tags", "find": "fields", "column": "tags"},
            {"name": "list", "find": "fields", "column": "list", "separator": ","},
            {"name": "known", "find": "literals", "values": again(naming)},
            {"name": "table", "find": "literals", "file": str(folder / "table.csv"), "promise": {"prior": 1e-3}},
            {"name": "named", "find": "literals", "file": str(folder / "named.csv")},
            {"name": "forms", "find": "patterns", "secret": "pattern", "patterns": again(naming)},
        ]
        promised = [f"{name},{0.25 if place % 2 else 0.5}\n" for place, name in enumerate(naming)]
        (folder / "table.csv").write_text("text,ceiling\n" + "".join(again(promised)))
        named = [f"{text},n{place}\n" for place, text in enumerate(naming)]
        (folder / "named.csv").write_text("text,name\n" + "".join(again(named)))
        # Texts are numbered: no order of their keys makes different ones equal.
        texts = [
            " ".join([f"{which}:", *(f"key-{naming[key]}" for key in again(keys_of[which]))]) for which in range(4)
        ]
        records = (
            {
                "text": texts[which],
                "tags": [naming[tag] for tag in again(tags)],
                "list": ",".join(naming[tag] for tag in again(tags)),
            }
            for (which, _), tags in zip(rows, tags_of, strict=True)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_readers, "SPAN_BYTES", span)
            found = scan(json_lines(folder / "data.jsonl", *records), {"defaults": PROMISES, "rules": rules})
        found.save(folder / str(number))
        files.append([path.read_bytes() for path in sorted((folder / str(number) / "public").iterdir())])
    assert files[0] == files[1]


def test_the_public_side_does_not_tell_how_a_graph_came_about(tmp_path: Path) -> None:
    """Copies, rows passed over, and which example it was that called a word a secret."""
    rules = {
        "defaults": PROMISES,
        "rules": [
            {"name": "team", "find": "fields", "column": "team"},
            {"name": "codes", "find": "patterns", "patterns": [r"code (\w+)"], "group": 1},
        ],
    }
    red = '{"text": "x", "team": "red"}\n'
    ways = {
        "copied": red + '{"text": "x", "team": null}\n{"text": "code ab"}\n{"text": "an ab"}\n',
        "stated": red + '{"text": "y", "team": "red"}\n{"text": "an ab"}\n{"text": "code ab"}\n',
        "broken": red + 'no row\n{"text": "x"}\n{"text": "code ab"}\n{"text": "ab, code ab"}\n',
    }
    seen = {}
    for name, rows in ways.items():
        (tmp_path / "data.jsonl").write_text(rows)
        found = scan(tmp_path / "data.jsonl", rules, skip_bad=True)
        found.save(tmp_path / name)
        seen[name] = {path.name: path.read_bytes() for path in (tmp_path / name / "public").iterdir()}
        again = Scan.load(tmp_path / name)
        assert again.summary() == found.summary()  # the owner keeps all of it
    assert seen["copied"] == seen["stated"] == seen["broken"]
    counted = [Scan.load(tmp_path / name).summary() for name in ways]
    assert [(one["pairs_from_copies"], one["skipped"]) for one in counted] == [(1, 0), (0, 0), (1, 1)]


def shuffled_by(order: random.Random) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda values: order.sample(list(values), len(values))


LITERALS = ["Acme", "ACME", "Globex", "Initech", "umbrella", "Umbrella", "Acme"]  # some are equal, some but for case


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(LITERALS), max_size=3).map(" ".join), max_size=8),
    st.permutations(LITERALS),
    st.sets(st.integers(1, 7)),
    st.booleans(),
)
def test_the_owner_finds_the_same_text_behind_each_id_in_whatever_order_the_list_is(texts, values, cuts, fold) -> None:
    def scanned(listed: Sequence[str], **cut: Any) -> Scan:
        corpus = Memory([(text, None) for text in texts], **cut)
        return run_scan(corpus, prepared(Literals(values=listed, ignore_case=fold)), engine=LocalEngine(workers=1))

    found, again = scanned(LITERALS), scanned(values, cuts=tuple(cuts), size=2)
    assert again.incidence == found.incidence
    assert (again.secrets, again.secrets.texts) == (found.secrets, found.secrets.texts)
    same = caseless if fold else str
    assert sorted(found.secrets.texts or ()) == sorted({same(value) for value in LITERALS})
    for number, text in enumerate(found.secrets.texts or ()):
        holders = [example for example, other in enumerate(texts) if text in map(same, other.split())]
        assert found.incidence.examples_of(number).tolist() == holders
        assert sorted({reason.example for reason in found.why(secret=number)}) == holders


def test_the_order_of_secrets_is_that_of_their_examples_then_promises_then_names() -> None:
    strong, weak = Protection(1e-6, 1e-3), Protection(1e-6, 1e-2)
    listed = [
        UnorderedSecret(rule="b", name=None, protection=strong, key="nowhere"),
        UnorderedSecret(rule="b", name=None, protection=weak, key="second"),
        UnorderedSecret(rule="b", name=None, protection=strong, key="a second"),
        UnorderedSecret(rule="b", name=None, protection=strong, key="first of one"),
        UnorderedSecret(rule="b", name=None, protection=strong, key="first of two"),
        UnorderedSecret(rule="a", name="z", protection=strong, key="1"),
        UnorderedSecret(rule="a", name="y", protection=strong, key="2"),
    ]
    incidence = Incidence.from_pairs(
        [1, 1, 0, 0, 300, 2, 2], [1, 2, 3, 4, 4, 5, 6], num_examples=301, num_secrets=len(listed)
    )
    ordered = [listed[number] for number in public_order(listed, incidence)]
    secrets = secret_table(ordered, given_ids(ordered))
    assert secrets.texts == ("first of one", "first of two", "a second", "second", "nowhere", "2", "1")
    assert secrets.ids == (*(f"b-{number:06d}" for number in range(5)), "a:y", "a:z")


def test_rows_on_their_way_into_a_block_do_not_show() -> None:
    gathering = BlockBuilder(columns=("text",))
    gathering.add(("hidden",), 0, 0)
    assert repr(gathering) == "BlockBuilder(1 examples)"


@pytest.mark.parametrize(
    "content",
    ["rules: *hidden", "rules: !hidden x", "\t- hidden", "? [hidden]\n: 1", "hidden: 1", "rules: [{find: hidden}]"],
)
def test_no_error_about_rules_quotes_them_nor_carries_along_one_that_does(tmp_path: Path, content: str) -> None:
    (tmp_path / "rules.yaml").write_text(content)
    with pytest.raises(hush.InvalidInput) as raised:
        load_rules(tmp_path / "rules.yaml")
    assert "hidden" not in str(raised.value)
    assert raised.value.__context__ is None


@pytest.mark.parametrize("key", [None, 5, 2.5, True, ("a",)])
def test_keys_that_are_no_text_are_refused_wherever_they_stand(key: object) -> None:
    rule = {"name": "w", "find": "words", "documents": [1, 2]}
    good = {"defaults": PROMISES, "rules": [rule]}
    strange = [{**good, key: 1}, {**good, "rules": [{**rule, key: 1}]}, {**good, "defaults": {**PROMISES, key: 1}}]
    for content in strange:
        with pytest.raises(hush.InvalidInput):
            Rules.of(content)


# What is lost or left behind


def test_what_no_scan_wrote_is_never_replaced(tmp_path: Path) -> None:
    found = scan(json_lines(tmp_path / "data.jsonl", {"text": "hidden"}), BY_LITERAL)
    folder = tmp_path / "found"
    found.save(folder)
    key = folder / "owner" / "data.key"
    DataKey.create(key)
    with pytest.raises(hush.InvalidInput, match=r"holds data\.key, which no scan wrote"):
        found.save(folder)
    key.rename(tmp_path / "data.key")
    found.save(folder)


def test_a_scan_does_not_replace_what_it_reads(tmp_path: Path) -> None:
    data, rules, output = tmp_path / "data.jsonl", tmp_path / "rules.yaml", tmp_path / "found"
    data.write_text('{"text": "hidden"}\nbroken\n')
    rules.write_text(json.dumps(BY_LITERAL))
    command = ["--rules", str(rules), "--output", str(output), "--skip-bad", "--force", "--workers", "1"]
    assert CliRunner().invoke(app, ["scan", str(data), *command]).exit_code == 0
    again = CliRunner().invoke(app, ["scan", str(output / "owner" / "data.parquet"), *command])
    assert again.exit_code == 2
    assert (output / "owner" / "data.parquet").is_file()


STUCK = """
import time
from hush.scan.engines import LocalEngine

if __name__ == "__main__":
    next(iter(LocalEngine(workers=2).map(time.sleep, [600.0, 600.0])))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")
def test_no_process_of_a_scan_outlives_one_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    working: list[int] = []
    with subprocess.Popen([sys.executable, str(tmp_path / "stuck.py")]) as scanning:
        begin = time.monotonic()
        while len(working) < 2 and time.monotonic() - begin < 30:
            time.sleep(0.05)
            working = children(scanning.pid)
        time.sleep(1.5)  # time to be given their tasks
        scanning.kill()
    assert len(working) == 2
    begin = time.monotonic()
    while any(map(is_running, working)) and time.monotonic() - begin < 10:
        time.sleep(0.05)
    outliving = [process for process in working if is_running(process)]
    for process in outliving:
        os.kill(process, signal.SIGKILL)
    assert not outliving


def children(process: int) -> list[int]:
    """The processes that a scan works with; the tracker of the multiprocessing module is none."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    found = chain.from_iterable(task.read_text().split() for task in tasks)
    return [int(each) for each in found if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
