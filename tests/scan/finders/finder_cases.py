"""Blocks and texts for the tests of the finders, and hits in a comparable form."""

import re
from collections.abc import Sequence
from unicodedata import category

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from hush.data.parts import Block
from hush.scan.finders import Tokens
from hush.scan.hits import Hits

Row = tuple[int, int, int, str, str]

# Letters, joiners, dollar signs, case that changes length or script, combining marks, characters of two to four bytes.
PIECES = [
    "a",
    "b",
    "Ab",
    "-",
    "'",
    "$",
    " ",
    "\n",
    "_",
    "7",
    "é",
    "É",
    "e\u0301",
    "ß",
    "ẞ",
    "Σ",
    "ς",
    "ſ",
    "s",
    "ı",
    "i",
    "İ",
    "\u212a",
    "Ⱥ",
    "ж",
    "中",
    "𝒜",
    "𐐀",
    "😀",
    "\x00",
]
texts = st.lists(st.sampled_from(PIECES), max_size=24).map("".join) | st.text(max_size=12)


def block_of(strings: Sequence[str], **columns: pa.Array) -> Block:
    """A block whose texts begin in the middle of their buffers, as a slice of a file's column does."""
    padded = pa.array(["é before", *strings, "after"], pa.large_string())
    return Block(texts=padded.slice(1, len(strings)), columns=columns, rows=np.arange(len(strings)))


def rows_of(hits: Hits) -> list[Row]:
    """Example, begin, end, key and reason of each hit, in a fixed order."""
    columns = (hits.example_H.tolist(), hits.begin_H.tolist(), hits.end_H.tolist(), hits.key_H, hits.reason_H)
    return sorted((e, b, s, hits.keys[k], hits.reasons[r]) for e, b, s, k, r in zip(*columns, strict=True))


def lowered(text: str) -> str:
    """Code point by code point, where the lower case is one; by the characters that differ rather than one by one."""
    return re.sub(r"[^\u0130]+", lambda part: "".join(c.lower() for c in part.group()), text)


def ascii_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:[-'][a-z]+)*", re.sub(r"\$[^$]*\$", " ", text.lower()))


def reference(text: str, tokens: Tokens) -> list[tuple[int, int, str]]:
    """Words and where they stand, from a string of classes that is as long as the text."""
    text = lowered(text) if tokens.lower else text
    ascii_letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    letters = str.isalpha if tokens.letters == "unicode" else ascii_letters.__contains__
    marks = (lambda c: category(c) in ("Mn", "Mc", "Me")) if tokens.letters == "unicode" else (lambda _: False)
    classes = "".join(
        "L" if letters(c) else "J" if c in tokens.joiners else "M" if marks(c) else "$" if c == "$" else "."
        for c in text
    )
    if tokens.skip_formulas:
        classes = re.sub(r"\$[^$]*\$", lambda formula: " " * len(formula.group()), classes)
    return [(m.start(), m.end(), text[m.start() : m.end()]) for m in re.finditer("L[LM]*(?:JL[LM]*)*", classes)]
