"""Chunks lose nothing: joined they are the file, each keeps its size limit, and every process reads the same ones."""

import pickle
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_repositories import plain_folder

from hush.data.parts import BrokenRow
from hush.errors import InvalidInput
from hush.scan.code import Chunks, Repository, code_corpus
from hush.scan.code.chunks import HiddenSpans, chunks_of

LINES = st.lists(st.integers(0, 14), max_size=12).map(lambda counts: "".join("word " * n + "\n" for n in counts))
TEXTS = LINES | st.text(st.sampled_from("ab_1 \t\n\r.(é\u2028\x0c😀"), max_size=300) | st.text(max_size=100)


@st.composite
def settings(draw: st.DrawFn, *, overlap: bool = True) -> Chunks:
    size = draw(st.integers(1, 12))
    repeated = draw(st.integers(0, size - 1)) if overlap else 0
    if draw(st.booleans()):
        return Chunks(lines=size, overlap=repeated)
    return Chunks(tokens=size, overlap=repeated)


def tokens(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


@given(TEXTS, settings(overlap=False))
def test_chunks_without_overlap_joined_are_the_text(text: str, chunks: Chunks) -> None:
    assert "".join(text[chunk.begin : chunk.end] for chunk in chunks_of(text, chunks)) == text


@given(TEXTS, settings())
def test_with_overlap_every_chunk_begins_in_or_right_after_the_one_before_and_adds_something(
    text: str, chunks: Chunks
) -> None:
    found = list(chunks_of(text, chunks))
    assert (found[0].begin, found[-1].end) == (0, len(text)) if text else found == []
    for one, after in pairwise(found):
        assert one.begin < after.begin <= one.end < after.end
        repeated = text[after.begin : one.end]
        amount = repeated.count("\n") if chunks.unit == "lines" else tokens(repeated)
        assert amount <= chunks.overlap


@given(TEXTS, settings())
def test_no_chunk_is_larger_than_asked(text: str, chunks: Chunks) -> None:
    for chunk in chunks_of(text, chunks):
        piece = text[chunk.begin : chunk.end]
        assert len(piece.split("\n")) - piece.endswith("\n") <= chunks.size or chunks.unit == "tokens"
        assert tokens(piece) <= chunks.size or chunks.unit == "lines"


@given(TEXTS, settings())
def test_ids_are_distinct_and_say_where_the_chunk_is(text: str, chunks: Chunks) -> None:
    found = list(chunks_of(text, chunks))
    assert len({chunk.place for chunk in found}) == len(found)
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    for chunk in found:
        match = re.fullmatch(r"L(\d+)(?:C(\d+))?-L(\d+)(?:C(\d+))?", chunk.place)
        assert match is not None
        first, column, last, last_column = (None if part is None else int(part) for part in match.groups())
        assert first is not None
        assert last is not None
        assert chunk.begin == starts[first - 1] + (column or 1) - 1
        assert chunk.end == (min(starts[last], len(text)) if last_column is None else starts[last - 1] + last_column)


PIECES = st.lists(st.tuples(TEXTS, st.booleans()), max_size=8)
FILLINGS = st.lists(st.text(st.sampled_from("ab_1 \n\r.(é\0"), min_size=1, max_size=40), min_size=8, max_size=8)


def filled(pieces: list[tuple[str, bool]], fillings: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """The text of the pieces, with a filling after each piece that says so, and the spans of the fillings."""
    text, spans = "", list[tuple[int, int]]()
    for (piece, has_slot), filling in zip(pieces, fillings, strict=False):
        text += piece
        if has_slot and not (spans and spans[-1][1] == len(text)):  # slots that touch would be one
            spans.append((len(text), len(text) + len(filling)))
            text += filling
    return text, spans


def skeletons_of_chunks(text: str, spans: list[tuple[int, int]], chunks: Chunks) -> list[tuple[str, list[str]]]:
    """Place and public text of each chunk: the pieces between the slots that it holds, none of which it cuts."""
    found: list[tuple[str, list[str]]] = []
    for chunk in chunks_of(text, chunks, spans):
        inside = [(begin, end) for begin, end in spans if begin < chunk.end and end > chunk.begin]
        assert all(chunk.begin <= begin and end <= chunk.end for begin, end in inside)
        borders = [chunk.begin, *(place for span in inside for place in span), chunk.end]
        found.append((chunk.place, [text[begin:end] for begin, end in zip(borders[::2], borders[1::2], strict=True)]))
    return found


@given(PIECES, FILLINGS, FILLINGS, settings())
def test_what_is_hidden_moves_no_border_and_changes_no_id(
    pieces: list[tuple[str, bool]], first: list[str], second: list[str], chunks: Chunks
) -> None:
    one, other = (skeletons_of_chunks(*filled(pieces, fillings), chunks) for fillings in (first, second))
    assert one == other


@given(PIECES, FILLINGS, settings(overlap=False))
def test_chunks_of_a_file_with_hidden_spans_joined_are_the_text(
    pieces: list[tuple[str, bool]], fillings: list[str], chunks: Chunks
) -> None:
    text, spans = filled(pieces, fillings)
    assert "".join(text[chunk.begin : chunk.end] for chunk in chunks_of(text, chunks, spans)) == text


def test_a_file_that_changed_since_its_spans_were_found_is_not_read(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, {"a.py": "x = 1\n"})
    corpus = code_corpus(repository, hidden=[{"a.py": HiddenSpans.of("x = 1\n", [(0, 5)])}])
    assert list(corpus.rows("text", "offset")) == [("x = 1\n", "0")]
    (tmp_path / "a.py").write_text("y = 2\n")
    (row,) = corpus.rows("text")
    assert isinstance(row, BrokenRow)
    assert "changed after the rules were read" in row.why


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(5, 12))
def test_lines_that_fit_are_never_cut(words: list[int], size: int) -> None:
    text = "".join("word " * count + "\n" for count in words)
    for chunk in chunks_of(text, Chunks(tokens=size)):
        assert text[chunk.end - 1] == "\n"


def test_a_huge_line_is_cut_by_tokens_and_kept_whole_by_lines() -> None:
    text = "x = [" + "1, " * 100_000 + "]"
    assert len(list(chunks_of(text, Chunks(lines=80)))) == 1
    pieces = [text[chunk.begin : chunk.end] for chunk in chunks_of(text, Chunks(tokens=256))]
    assert "".join(pieces) == text
    assert max(map(tokens, pieces)) == 256
    assert len(pieces) == -(-tokens(text) // 256)


def test_the_corpus_of_a_repository_joins_back_to_its_files_in_order(tmp_path: Path) -> None:
    files = {f"d{number % 3}/f{number}.py": f"line {number}\n" * (number * 37 % 200) for number in range(20)}
    repository = plain_folder(tmp_path, files)
    joined: dict[str, str] = {}
    for row in code_corpus(repository).rows("text", "path", "id"):
        assert isinstance(row, tuple)
        text, path, example = map(str, row)
        joined[path] = joined.get(path, "") + text
        assert example.startswith(f"{path}#L")
    assert joined == {path: text for path, text in sorted(files.items()) if text}


def test_shards_of_a_code_corpus_read_the_same_after_a_journey(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, {f"f{number}.py": "a = 1\n" * 100 for number in range(5)})
    corpus = code_corpus(repository, Chunks(lines=30))
    shards = pickle.loads(pickle.dumps(corpus.shards()))
    blocks = [block for shard in shards for block in shard.blocks(("path", "id"))]
    there = [
        row for b in blocks for row in zip(b.strings, *(b.columns[c].to_pylist() for c in ("path", "id")), strict=True)
    ]
    assert there == list(corpus.rows("text", "path", "id"))
    assert len(there) == len(corpus) == 5 * 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lines": 80, "tokens": 5}, "pass one of the two"),
        ({"lines": 0}, "pass 1 or more"),
        ({"tokens": 5, "overlap": 5}, "below the 5 tokens"),
        ({"overlap": -1}, "below the 80 lines"),
    ],
)
def test_impossible_chunks_are_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Chunks(**wrong)


def test_a_repository_of_empty_files_has_no_examples(tmp_path: Path) -> None:
    repository: Repository = plain_folder(tmp_path, {"__init__.py": ""})
    with pytest.raises(InvalidInput, match="no text file"):
        code_corpus(repository)
