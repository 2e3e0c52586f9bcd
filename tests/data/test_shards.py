"""Shards: for any cut, they are the corpus's examples, each once and in order, readable by any process."""

import gzip
import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush.data import arrow_readers, parts, read_corpus, shards, text_readers
from hush.data import shards as filling
from hush.data.parts import Block

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=9)
LINES = st.lists(st.sampled_from(["", "é", "☃☃", "a b", "x" * 30, "𝔘ni"]) | TEXT, min_size=1, max_size=12)
SIZES = st.integers(1, 40)


@contextmanager
def small(span: int, block: int = 3) -> Iterator[None]:
    """Spans, shards and blocks of these sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_readers, "SPAN_BYTES", span)
        patch.setattr(shards, "GROUPED_FILE_BYTES", span)
        patch.setattr(arrow_readers, "SHARD_ROWS", span)
        for module in (filling, arrow_readers):
            patch.setattr(module, "BLOCK_ROWS", block)
            patch.setattr(module, "BLOCK_BYTES", 4 * block)
        yield


def blocks_of(source: Any, columns: tuple[str, ...] = (), **options: Any) -> list[list[Block]]:
    """The blocks of every shard, each read as another process would get it."""
    cut = read_corpus(source, **options).shards()
    return [list(pickle.loads(pickle.dumps(shard)).blocks(columns, skip_bad=True)) for shard in cut]


def texts_of(cut: list[list[Block]]) -> list[str]:
    return [text for blocks in cut for block in blocks for text in block.strings]


@settings(max_examples=60)
@given(LINES, SIZES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_lines_cut_anywhere_are_the_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], span: int, ending: str, closed: bool
) -> None:
    with small(span):
        path = tmp_path_factory.mktemp("any") / "data.txt"
        content = ending.join(rows) + (ending if closed or not rows[-1] else "")
        path.write_bytes(content.encode())
        cut = blocks_of(path)
        assert texts_of(cut) == rows
        assert list(read_corpus(path).texts()) == rows
        for blocks in cut:  # rows count from 0 in every shard
            assert [row for block in blocks for row in block.rows.tolist()] == list(range(sum(map(len, blocks))))
        edges = [shard.pieces[0].span for shard in read_corpus(path).shards()]
        if len(edges) > 1:
            assert [edge.begin for edge in edges if edge] == [0, *(edge.end for edge in edges[:-1] if edge)]
            for edge in edges[:-1]:
                assert edge is not None
                assert content.encode()[edge.end - 1 : edge.end] == b"\n"


@settings(max_examples=40)
@given(LINES, SIZES, st.sampled_from(["parquet", "jsonl", "jsonl.gz", "json", "folder"]))
def test_every_form_cut_anywhere_gives_its_rows_with_their_columns(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], span: int, form: str
) -> None:
    with small(span):
        folder = tmp_path_factory.mktemp("any")
        path = folder / f"data.{form}"
        records = [{"text": text, "n": str(number)} for number, text in enumerate(rows)]
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(records), path, row_group_size=5)
        elif form == "json":
            path.write_text(json.dumps(records))
        elif form == "folder":
            path.mkdir()
            for number, text in enumerate(rows):
                (path / f"{number:03d}.txt").write_bytes(text.encode())
        else:
            content = "".join(json.dumps(record, ensure_ascii=False) + "\n\n" for record in records).encode()
            path.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
        cut = blocks_of(path, () if form == "folder" else ("n", "text"))
        assert texts_of(cut) == rows
        for block in (block for blocks in cut for block in blocks):
            assert len(block.rows) == len(block) == len(block.files if block.files is not None else ())
        if form != "folder":
            numbers = [value for blocks in cut for block in blocks for value in block.columns["n"].to_pylist()]
            assert numbers == [record["n"] for record in records]
            again = [value for blocks in cut for block in blocks for value in block.columns["text"].to_pylist()]
            assert again == rows


def test_large_files_are_cut_and_small_ones_are_read_together(tmp_path: Path) -> None:
    with small(20):
        for name in ("a", "b", "c"):
            (tmp_path / f"{name}.txt").write_text("1234567")
        groups = [shard.files for shard in read_corpus(tmp_path).shards()]
        assert groups == [(str(tmp_path / "a.txt"), str(tmp_path / "b.txt")), (str(tmp_path / "c.txt"),)]
        pq.write_table(pa.table({"text": ["x"] * 100}), tmp_path / "data.parquet")
        spans = [shard.pieces[0].span for shard in read_corpus(tmp_path / "data.parquet").shards()]
        assert [(span.begin, span.end) for span in spans if span] == [(0, 20), (20, 40), (40, 60), (60, 80), (80, 100)]


def test_blocks_are_bounded_but_for_one_huge_row(tmp_path: Path) -> None:
    huge = "x" * (2 * parts.BLOCK_BYTES)
    rows = ["a" * 1000] * 10_000 + [huge, "end"]
    pq.write_table(pa.table({"text": rows}), tmp_path / "data.parquet")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    for kind in ("parquet", "jsonl"):
        cut = blocks_of(tmp_path / f"data.{kind}")
        assert texts_of(cut) == rows
        for block in (block for blocks in cut for block in blocks):
            assert len(block) <= parts.BLOCK_ROWS
            assert sum(map(len, block.strings[:-1])) <= parts.BLOCK_BYTES


def test_a_broken_row_is_named_by_its_line_in_the_file_wherever_the_cut_is(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    good = [b'{"text": "good %d"}' % number for number in range(40)]
    path.write_bytes(b"\n".join([*good[:30], b"", b'{"text": "hunter2"', b'{"text": "\xff"}', *good[30:]]))
    for span in (10, 50, 10_000):
        with small(span):
            with pytest.raises(hush.InvalidInput) as caught:
                list(read_corpus(path).texts())
            assert f"{path}, line 32: not a JSON object" in str(caught.value)
            assert "hunter2" not in str(caught.value)
            cut = blocks_of(path)
            assert len(texts_of(cut)) == 40
            broken = [row for blocks in cut for block in blocks for row in block.broken]
            assert [(row.file, row.why) for row in broken] == [
                (str(path), "not a JSON object"),
                (str(path), "not UTF-8"),
            ]


@settings(max_examples=60)
@given(st.floats(0, 1), st.integers(0, 40), st.integers(1, 400), st.sampled_from([("text",), ("text", "lists")]))
def test_parquet_that_is_cut_while_it_is_read_is_whole_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: float, after: int, buffer: int, columns: tuple[str, ...]
) -> None:
    """Arrow takes an early end between two pages for the end of the rows."""
    path = tmp_path_factory.mktemp("cut") / "data.parquet"
    rows = {
        "text": [f"{number} é" * 4 for number in range(120)],
        "lists": [["x"] * (number % 3) for number in range(120)],
    }
    pq.write_table(pa.table(rows), path, row_group_size=60, data_page_size=100, write_batch_size=10)
    found: list[pa.RecordBatch] = []
    refused = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_readers, "BUFFER_BYTES", buffer)
        patch.setattr(arrow_readers, "BLOCK_ROWS", 5)
        try:
            for batch in arrow_readers.ParquetPart(path).read(columns):
                if len(found) == after:
                    os.truncate(path, int(cut * path.stat().st_size))
                found.append(batch)
        except hush.InvalidInput as error:
            refused = str(error)
    if refused is None:
        assert pa.Table.from_batches(found).to_pydict() == {name: rows[name] for name in columns}
    else:
        assert refused == f"{path} is not a readable Parquet file; write it again"


def test_parquet_with_fewer_rows_than_it_was_cut_for_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": ["a"] * 10}), path)
    with small(4):
        cut = read_corpus(path).shards()
    pq.write_table(pa.table({"text": ["a"] * 9}), path)
    assert sum(len(block) for shard in cut[:-1] for block in shard.blocks()) > 0
    with pytest.raises(
        hush.InvalidInput, match="has 9 rows, fewer than when it was opened first: it was changed since"
    ):
        list(cut[-1].blocks())


def test_rows_of_parquet_that_are_no_text_are_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    bad = pa.array([b"good", b"\xff\xfe", None, b"fine"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, bad.buffers(), null_count=1)
    pq.write_table(pa.table({"text": text, "n": [0, 1, 2, 3]}), path)
    (blocks,) = blocks_of(path, ("n",))
    assert texts_of([blocks]) == ["good", "fine"]
    assert [(row.where, row.why) for block in blocks for row in block.broken] == [
        (f"{path}, row 1", "not UTF-8"),
        (f"{path}, row 2", "empty"),
    ]
    assert [block.rows.tolist() for block in blocks] == [[0, 3]]
    assert [block.columns["n"].to_pylist() for block in blocks] == [[0, 3]]
    with pytest.raises(hush.InvalidInput, match="row 1: not UTF-8;"):
        list(read_corpus(path).texts())


def test_the_arxiv_snapshot_is_read_by_its_abstracts(tmp_path: Path) -> None:
    """The form of the well-known snapshot: an object on each line, abstracts with line breaks, versions as a list."""
    path = tmp_path / "arxiv-metadata-oai-snapshot.json"
    records = [
        {
            "id": f"0704.000{number}",
            "submitter": None,
            "title": "On\n  vertices",
            "categories": "math.CO cs.CG",
            "abstract": f"  We show \\alpha\nin case {number}.\n",
            "versions": [{"version": "v1", "created": "Sat, 31 Mar 2007 02:26:18 GMT"}],
            "authors_parsed": [["Streinu", "Ileana", ""]],
        }
        for number in range(5)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    cut = blocks_of(path, ("id", "categories", "submitter", "authors_parsed"), column="abstract")
    assert texts_of(cut) == [record["abstract"] for record in records]
    ((block,),) = cut
    assert block.columns["id"].to_pylist() == [record["id"] for record in records]
    assert block.columns["submitter"].null_count == 5
    assert block.columns["authors_parsed"].to_pylist()[0] == ['["Streinu", "Ileana", ""]']


@given(st.lists(st.sampled_from([None, "a", 3, 3.5, True, {"b": 1}]), min_size=1, max_size=6), st.integers(1, 6))
def test_what_a_value_becomes_depends_on_it_alone(values: list[Any], cut: int) -> None:
    whole = filling._array(values).to_pylist()
    assert filling._array(values[:cut]).to_pylist() + filling._array(values[cut:]).to_pylist() == whole


def test_a_whole_number_is_the_same_with_and_without_a_point() -> None:
    """Writers add one to a column in which a number is missing: the same customer is 7 in one file, 7.0 in the next."""
    assert filling._array([7, 7.0, None, float("nan"), "7"]).to_pylist() == ["7", "7", None, None, "7"]
    assert filling._array([[7.0], 7]).to_pylist() == [["7"], ["7"]]


def test_data_sets_are_cut_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    from hush.data import arrow_readers

    monkeypatch.setattr(arrow_readers, "SHARD_ROWS", 4)
    rows = [f"text {number}" for number in range(10)]
    datasets.Dataset.from_dict({"text": rows, "n": list(range(10))}).save_to_disk(tmp_path / "saved")
    cut = blocks_of(tmp_path / "saved", ("n",))
    assert len(cut) == 3
    assert texts_of(cut) == rows
    assert [value for blocks in cut for block in blocks for value in block.columns["n"].to_pylist()] == list(range(10))


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "team": ["b"]}), tmp_path / "data.parquet")
    corpus = read_corpus(tmp_path / "data.parquet", column="text")
    corpus.check_columns(["team"])
    with pytest.raises(hush.InvalidInput, match="has no column 'taem'; it has text, team"):
        corpus.check_columns(["taem"])
