"""What somebody would try who wants a pair to be missed, a number to be wrong, or a text to get out."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import hush
from hush.cli import app
from hush.corpus import lines, read_corpus
from hush.corpus.filling import Gathering
from hush.keyed import DataKey
from hush.scan import scan
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
    with pytest.raises(hush.InvalidInput, match="two columns have one name"):
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
    found = scan(tmp_path, BY_LITERAL)
    assert holders(found) == {"hidden": [0]}
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
@given(st.lists(st.tuples(members, members), min_size=1, max_size=8), names, names, st.integers(1, 60))
def test_the_public_side_is_the_same_whatever_the_texts_are(tmp_path_factory, rows, one, other, size) -> None:
    folder = tmp_path_factory.mktemp("twins")
    rules = [
        {"name": "keys", "find": "patterns", "patterns": ["key-[0-9a-f]{3}"]},
        {"name": "tags", "find": "fields", "column": "tags"},
        {"name": "list", "find": "fields", "column": "list", "separator": ","},
    ]
    files = []
    for number, (naming, span) in enumerate(((one, 2**20), (other, size))):
        records = (
            {
                "text": " ".join(f"key-{naming[key]}" for key in keys),
                "tags": [naming[tag] for tag in tags],
                "list": ",".join(naming[tag] for tag in tags),
            }
            for keys, tags in rows
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lines, "SPAN_BYTES", span)
            found = scan(json_lines(folder / "data.jsonl", *records), {"defaults": PROMISES, "rules": rules})
        found.save(folder / str(number))
        reasons = pq.read_table(folder / str(number) / "owner" / "reasons.parquet")
        files.append([reasons, *(path.read_bytes() for path in sorted((folder / str(number) / "public").iterdir()))])
    assert files[0] == files[1]


def test_rows_on_their_way_into_a_block_do_not_show() -> None:
    gathering = Gathering(columns=("text",))
    gathering.add(("hidden",), 0, 0)
    assert repr(gathering) == "Gathering(1 examples)"


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
from hush.scan.engines.local import LocalEngine

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
