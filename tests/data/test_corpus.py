"""Reading a corpus: the same examples in any format give the same corpus, in order, and no message shows them."""

import bz2
import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush.data import read_corpus

SECRET = "the vault code is 7401"
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=5)
LINES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=8), min_size=1)


def write(path: Path, texts: list[str], *, column: str = "text") -> Path:
    """The examples in the form that the file's name asks for, beside a column of numbers where the form has columns."""
    kind = path.name.split(".", 1)[1]
    if kind == "parquet":
        table = pa.table({"number": list(range(len(texts))), column: pa.array(texts, pa.string())})
        pq.write_table(table, path, row_group_size=2)
    elif kind.startswith("jsonl"):
        rows = [json.dumps({"number": index, column: text}) + "\n" for index, text in enumerate(texts)]
        content = "".join(rows).encode()
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    elif kind == "json":
        path.write_text(json.dumps([{"number": index, column: text} for index, text in enumerate(texts)]))
    elif kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[column], *([text] for text in texts)])
    else:
        content = "".join(f"{text}\n" for text in texts).encode()
        path.write_bytes(bz2.compress(content) if kind.endswith("bz2") else content)
    return path


def refused(source: Path | str, **options: Any) -> str:
    with pytest.raises(hush.InvalidInput) as caught:
        list(read_corpus(source, **options).texts())
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None  # a cause, or its message, may quote the row
    return str(caught.value)


@settings(max_examples=30)
@given(TEXTS, st.sampled_from(["parquet", "jsonl", "jsonl.gz", "json"]))
def test_what_was_written_is_what_is_read_in_order(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], kind: str
) -> None:
    corpus = read_corpus(write(tmp_path_factory.mktemp("any") / f"data.{kind}", texts))
    assert list(corpus.texts()) == texts
    assert list(corpus.texts()) == texts  # again, from the beginning
    assert len(corpus) == len(texts)


@settings(max_examples=30)
@given(LINES, st.sampled_from(["txt", "txt.bz2"]))
def test_every_line_of_a_text_file_is_an_example_even_an_empty_one(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], kind: str
) -> None:
    corpus = read_corpus(write(tmp_path_factory.mktemp("any") / f"data.{kind}", texts))
    assert list(corpus.texts()) == texts
    assert len(corpus) == len(texts)


@settings(max_examples=30)
@given(st.lists(st.text('ab",\n é☃', min_size=1, max_size=8).filter(lambda text: text.strip()), min_size=1, max_size=5))
def test_quotes_commas_and_line_breaks_survive_csv(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    corpus = read_corpus(write(tmp_path_factory.mktemp("any") / "data.csv", texts))
    assert list(corpus.texts()) == texts
    assert len(corpus) == len(texts)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "txt"])
def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path, kind: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / f"c.{kind}", ["5", "6"])
    write(tmp_path / f"a.{kind}", ["1", "2"])
    write(tmp_path / "b" / f"z.{kind}", ["3", "4"])
    write(tmp_path / ".hidden" / f"a.{kind}", ["no"])
    write(tmp_path / f".a.{kind}", ["no"])
    (tmp_path / "LICENSE").write_text("no")
    options: dict[str, Any] = {"unit": "line"} if kind == "txt" else {}
    corpus = read_corpus(tmp_path, **options)
    assert list(corpus.texts()) == ["1", "2", "3", "4", "5", "6"]
    assert len(corpus) == 6
    assert repr(corpus) == f"Corpus(source={str(tmp_path)!r}, column='text')"


def test_a_folder_of_text_has_an_example_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\nexample\n")
    (tmp_path / "b.md").write_text("")
    corpus = read_corpus(tmp_path)
    assert list(corpus.texts()) == ["one\nexample\n", ""]
    assert len(corpus) == 2
    assert list(read_corpus(tmp_path / "a.txt", unit="file").texts()) == ["one\nexample\n"]
    assert list(read_corpus(tmp_path / "a.txt").texts()) == ["one", "example"]


def test_the_column_is_the_one_named_or_text_or_the_only_one_with_text(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "body": ["b"], "title": pa.array(["t"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "two.parquet")
    assert list(read_corpus(tmp_path / "two.parquet", column="title").texts()) == ["t"]
    assert "has the columns id (no text), body, title; name the one" in refused(tmp_path / "two.parquet")
    assert "has no column 'abstract'; it has id (no text), body, title" in refused(
        tmp_path / "two.parquet", column="abstract"
    )
    assert "the column 'id' holds no text" in refused(tmp_path / "two.parquet", column="id")
    assert read_corpus(write(tmp_path / "one.parquet", ["a"], column="body")).column == "body"
    pq.write_table(table.append_column("text", pa.array(["x"])), tmp_path / "text.parquet")
    assert list(read_corpus(tmp_path / "text.parquet").texts()) == ["x"]


def test_every_file_of_a_folder_needs_the_column(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ["1"])
    write(tmp_path / "b.jsonl", ["2"], column="body")
    assert "b.jsonl has no column 'text'; it has number (no text), body" in refused(tmp_path)


def test_several_columns_are_read_together(tmp_path: Path) -> None:
    for kind in ("parquet", "jsonl", "json"):
        corpus = read_corpus(write(tmp_path / f"data.{kind}", ["a", "b"]))
        assert list(corpus.rows("text", "number")) == [("a", 0), ("b", 1)]


def test_broken_rows_are_named_by_line_and_none_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    lines = [b'{"text": "good"}', b'{"text": "%s" oops}' % SECRET.encode(), b"", b'{"text": null}', b'{"text": 3}',
             b'["%s"]' % SECRET.encode(), b'{"text": "\xff"}', b'{"text": "\\ud800"}']  # fmt: skip
    path.write_bytes(b"\n".join(lines[:4]))
    assert (
        f"rows without readable text in column 'text': {path}, line 2: not a JSON object; {path}, line 4: empty; "
        "correct"
    ) in refused(path)
    path.write_bytes(b"\n".join(lines[:1] + lines[4:]))
    message = refused(path)
    assert f": {path}, line 2: a int; {path}, line 3: not a JSON object; {path}, line 4: not UTF-8; " in message
    assert f"{path}, line 5: not UTF-8; correct" in message
    path.write_bytes(b'{"text": "good"}\n' + b"{\n" * 9)
    message = refused(path)
    assert f"{path}, line 6: not a JSON object; and more; correct" in message
    assert "line 7" not in message


def test_broken_csv_is_named_by_line_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"id,text\n1,good\n2,{SECRET},more\n\n3,fine\n")
    assert f"{path}, line 3: 3 cells under 2 columns; correct" in refused(path)
    path.write_text(f'text\n"{SECRET}" and more\n')
    assert "line 2: quotes do not close" in refused(path)
    path.write_bytes(b"text\n\xff\xfe\n")
    assert f"{path}, line 2: not UTF-8" in refused(path)
    path.write_text("a,a\n1,2\n")
    assert "two columns have the same name" in refused(path)
    path.write_text("\ufefftext\ngood\n", encoding="utf-8")  # a byte-order mark, as spreadsheets write it
    assert list(read_corpus(path).texts()) == ["good"]


HEADLESS = {
    "one column": f"{SECRET}\nanother document\n",
    "an identifier": "bluefalcon\nanother document\n",
    "two identifiers": "bluefalcon,hello\nanother,document\n",
    "one row": "bluefalcon\n",
    "beside a usual name": "id,bluefalcon\n1,another document\n",
    "semicolons": f"1;{SECRET}\n2;another document\n",
    "quoted semicolons": f'"1";"{SECRET}"\n"2";"another document"\n',
    "tabs": f"1\t{SECRET}\n2\tanother document\n",
}
CELLS = st.lists(st.text("abc XYZ;\t019'é", min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=3)


@pytest.mark.parametrize("kind", HEADLESS)
@pytest.mark.parametrize("column", [None, "text"])
def test_a_row_of_data_in_place_of_a_header_is_refused_and_not_shown(
    tmp_path: Path, kind: str, column: str | None
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(HEADLESS[kind])
    message = refused(path, column=column)
    assert "bluefalcon" not in message
    assert "hello" not in message
    assert "write" in message
    sign = "semicolons" if "semicolons" in kind else kind if kind == "tabs" else None
    assert ("looks separated by" in message) == (sign is not None)
    assert sign is None or f"separated by {sign}" in message


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("data.csv", 'id;text\n1;"a; b, c"\n2;d\n', None),
        ("data.csv", 'id|text\n1|"a; b, c"\n2|d\n', None),
        ("data.csv", "\ufeffid\tText\n1\ta; b, c\n2\td\n", "Text"),
        ("data.csv", 'Nr;Nachricht\n1;"a; b, c"\n2;d\n', "Nachricht"),
        ("data.tsv", "id\tNachricht\n1\ta; b, c\n2\td\n", "Nachricht"),
        ("data.csv", 'id,text\n1,"a; b, c"\n2,d\n', None),
    ],
)
def test_semicolons_bars_and_tabs_separate_cells_too(
    tmp_path: Path, name: str, content: str, column: str | None
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert list(read_corpus(path, column=column).texts()) == ["a; b, c", "d"]


def test_a_column_that_only_looks_separated_is_read_with_commas(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text\none; two\nthree; four\n")
    assert list(read_corpus(path).texts()) == ["one; two", "three; four"]


@settings(max_examples=100)
@given(CELLS, CELLS)
def test_no_cell_of_a_file_without_a_header_is_in_its_refusal(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], second: list[str]
) -> None:
    path = tmp_path_factory.mktemp("any") / "data.csv"
    marked = [f"q{cell}q" for cell in first]  # found in no path and no message by chance
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([marked, second])
    message = refused(path)
    assert not any(cell in message for cell in marked)


@pytest.mark.parametrize("name", ["text", "content", "Body", "message"])
def test_a_single_column_of_a_usual_name_is_the_text(tmp_path: Path, name: str) -> None:
    assert list(read_corpus(write(tmp_path / "data.csv", ["a", "b"], column=name)).texts()) == ["a", "b"]


def test_a_column_that_is_named_is_read_whatever_its_name_is(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", ["a", "b"], column="What they said; verbatim")
    refused(path)
    corpus = read_corpus(path, column="What they said; verbatim")
    assert list(corpus.texts()) == ["a", "b"]
    with pytest.raises(hush.InvalidInput, match=r"has no column 'team'; it has \(column 1\)"):
        corpus.check_columns(["team"])


def test_a_key_that_may_be_a_secret_is_neither_guessed_nor_shown(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    by_customer = [{"bluefalcon": "their contract"}, {"redowl": "their contract"}]
    for rows in (by_customer[:1], by_customer, [by_customer[0] | by_customer[1]]):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for column in (None, "contract"):
            message = refused(path, column=column)
            assert "bluefalcon" not in message
            assert "redowl" not in message
    path.write_text("".join(json.dumps({"post": text, "stars": 3}) + "\n" for text in "ab"))
    assert list(read_corpus(path).texts()) == ["a", "b"]  # a key of every row is the form of the data
    assert "it has post, stars (no text)" in refused(path, column="body")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_name_that_is_a_sentence_is_not_shown_wherever_it_stands(tmp_path: Path, kind: str) -> None:
    """As from a table whose first row was taken for names."""
    path = write(tmp_path / f"data.{kind}", ["a", "b"], column=SECRET)
    assert "it has number (no text), (column 2)" in refused(path, column="text")
    assert "number (no text), (column 2); names that may be data are not shown; name the one" in refused(path)
    assert SECRET not in repr(read_corpus(path, column=SECRET))


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes(b"good\n\xff\n")
    assert f"{path}, line 2: not UTF-8" in refused(path)
    assert f"{path}: not UTF-8" in refused(path, unit="file")


def test_huge_rows_are_read(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    for kind in ("csv", "jsonl", "txt", "parquet", "jsonl.gz"):
        assert list(read_corpus(write(tmp_path / f"data.{kind}", [long, "y"])).texts()) == [long, "y"]


def test_empty_cells_of_parquet_are_broken_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "data.parquet")
    assert f"column 'text': {tmp_path / 'data.parquet'}, row 1: empty; correct" in refused(tmp_path / "data.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.parquet", SECRET.encode(), "is not a readable Parquet file"),
        ("data.json", b"[" + SECRET.encode(), "begins as a JSON list but is not valid JSON"),
        ("data.jsonl", b"", "holds no row that can be read"),
        ("data.csv", b"", "holds no row that can be read"),
        ("data.jsonl.gz", SECRET.encode(), "cannot be decompressed"),
        ("data.xlsx", SECRET.encode(), "has an unknown ending"),
        ("data", SECRET.encode(), "has an unknown ending"),
    ],
)
def test_files_that_are_no_data_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in refused(tmp_path / name)


def test_folders_that_are_no_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.doc").write_text(SECRET)
    assert "holds 1 files, but none in a known format; pass Parquet" in refused(tmp_path)
    write(tmp_path / "a.csv", ["a"])
    write(tmp_path / "a.txt", ["a"])
    assert "holds csv and text files; pass a folder with one kind" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "missing.jsonl")
    assert "does not exist" in refused(tmp_path / "missing")
    assert f"unit='line'; {tmp_path / 'a.csv'} is not plain text" in refused(tmp_path / "a.csv", unit="line")


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", ["a"])
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert list(read_corpus(tmp_path).texts()) == ["a"]


def test_a_name_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert 'install the library that loads it: pip install "hush[hf]"' in refused("stanfordnlp/imdb")


def test_data_sets_are_read_from_a_folder_that_the_library_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"text": ["a", "b", None], "label": [0, 1, 0]})
    made.select(range(2)).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made.select([0]), "test": made}).save_to_disk(tmp_path / "splits")
    corpus = read_corpus(tmp_path / "one")
    assert list(corpus.texts()) == ["a", "b"]
    assert len(corpus) == 2
    assert list(read_corpus(tmp_path / "splits").texts()) == ["a"]
    assert "row 2: empty" in refused(f"{tmp_path / 'splits'}:test")
    assert "the column 'label' holds no text" in refused(tmp_path / "one", column="label")
    assert "(KeyError); check the name, the split" in refused(f"{tmp_path / 'splits'}:validation")
    assert "NAME:CONFIG:SPLIT" in refused("a:b:c:d")


def test_a_name_its_configuration_and_its_split_reach_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[tuple[object, ...]] = []

    def load(name: str, config: str | None, *, split: str, trust_remote_code: bool) -> Any:
        assert not trust_remote_code
        asked.append((name, config, split))
        if name == "gone":
            raise ConnectionError(SECRET)
        return datasets.Dataset.from_dict({"text": ["a"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    for source in ("org/name", "name:test", "name:small:test"):
        assert list(read_corpus(source).texts()) == ["a"]
    assert asked == [("org/name", None, "train"), ("name", None, "test"), ("name", "small", "test")]
    assert "(ConnectionError)" in refused("gone")


def test_a_time_that_no_calendar_has_is_refused_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    times = pa.array([0, 2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"text": ["a", "b"], "when": times}), path)
    with pytest.raises(hush.InvalidInput, match=r"a date out of range in one of the columns \['text', 'when'\]"):
        list(read_corpus(path).rows("text", "when"))


def test_of_a_header_only_usual_names_are_shown(tmp_path: Path) -> None:
    """A first row of data may have such names among its cells."""
    path = tmp_path / "data.csv"
    for first in ("id,customer_ref,text", "bluefalcon,redfox", "id,text,bluefalcon", "id,text,met bluefalcon today"):
        path.write_text(f"{first}\n{first}\n")
        said = refused(path, column="nothing")
        assert "bluefalcon" not in said
        assert "customer_ref" not in said
        assert "it has id" in said or not first.startswith("id")
