"""What a model does not read, counted against its tokens, one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush.scan.long_texts.unread
from hush.data import Corpus, read_corpus
from hush.scan.long_texts import ModelTokens
from hush.scan.long_texts.unread import Unread, characters_read, unread_of_scan
from hush.scan.scanner import scan
from slotted import KINDS, TEXTS, made_tokenizer

texts = st.lists(st.sampled_from([*TEXTS, "é漢🦊", "\n\n", "x" * 40, " "]), max_size=4).map("".join)


@settings(max_examples=60)
@given(batch=st.lists(texts, min_size=1, max_size=4), kind=st.sampled_from(KINDS), length=st.integers(3, 60))
def test_what_is_read_of_a_text_is_what_its_tokens_stand_for(batch: list[str], kind: str, length: int) -> None:
    tokenizer = made_tokenizer(kind, special=True)
    for text, read in zip(batch, characters_read(tokenizer, batch, length).tolist(), strict=True):
        all_tokens = tokenizer(text, return_offsets_mapping=True)
        content = [end for begin, end in all_tokens["offset_mapping"] if end > begin]
        fits = len(all_tokens["input_ids"]) <= length
        assert read == (len(text) if fits else content[length - 3] - _first(all_tokens))


def _first(tokens: Any) -> int:
    return next(begin for begin, end in tokens["offset_mapping"] if end > begin)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted), min_size=1, max_size=8),
    data=st.data(),
)
def test_counts_are_sums_over_texts_and_occurrences(pairs: list[list[int]], data: st.DataObject) -> None:
    reads, lengths = zip(*pairs, strict=True)
    examples = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=8))
    ends = [data.draw(st.integers(0, lengths[example])) for example in examples]
    found = Unread.of(lengths, reads, example_H=examples, end_H=ends)
    assert (found.texts, found.cut) == (len(pairs), sum(read < length for read, length in pairs))
    assert (found.characters, found.unread) == (sum(lengths), sum(lengths) - sum(reads))
    assert found.beyond == sum(end > reads[example] for example, end in zip(examples, ends, strict=True))
    assert (found.sentence(9) == "") == (found.cut == 0)


@pytest.mark.parametrize("hides", ["example", "span"])
@pytest.mark.parametrize("most", [20_000, 3])
def test_texts_of_a_scan_are_counted_as_they_are_learnt(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, hides: str, most: int
) -> None:
    monkeypatch.setattr(hush.scan.long_texts.unread, "MAX_TOKENISED", most)
    rows = ["Ann met Bob. " + "word " * 40 + "Ann", "nobody here", "Bob", "y " * 60, "Ann " + "z " * 60]
    (tmp_path / "data.txt").write_text("\n".join(rows) + "\n")
    corpus: Corpus = read_corpus(tmp_path / "data.txt")
    rule = {"name": "n", "find": "literals", "values": ["Ann", "Bob"], "hides": hides}
    found = scan(corpus, {"defaults": {"prior": 1e-3, "ceiling": 0.1}, "rules": [rule]})
    tokens = ModelTokens(made_tokenizer("bytes", special=True), 40)
    unread = unread_of_scan(found, corpus.texts(), tokens)
    looked_at = [0, 1, 2, 3, 4] if most > 5 else [0, 2, 4]
    shown = [found.spans.skeleton(n, rows[n]) if hides == "span" else rows[n] for n in looked_at]
    reads = characters_read(tokens.tokenizer, shown, 40)
    assert (unread.texts, unread.of_all) == (len(looked_at), None if most > 5 else 5)
    assert unread.unread == sum(map(len, shown)) - reads.sum()
    assert (unread.occurrences, unread.beyond) == (5, 1)
    assert np.count_nonzero(reads < [*map(len, shown)]) == unread.cut
