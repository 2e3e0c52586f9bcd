"""What the finders know of characters: Python's own Unicode tables as arrays that compiled loops can look into.

Everything goes code point by code point, so that a character of the folded text is a character of the text. That is
where it departs from ``str.lower``, which turns İ (U+0130) into two characters and a Σ that ends a word into ς.

The bytes under a block's texts, for finders that read them without making Python strings.

Shapes: N examples; an ``offset_N`` has N + 1 entries, text i is ``data[offset_N[i]:offset_N[i + 1]]``.
"""

from functools import cache
from typing import Any, TypeVar
from unicodedata import category

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = [
    "BREAK",
    "FORMULA",
    "JOINER",
    "LETTER",
    "LETTER_AT_END",
    "MARK",
    "bytes_of",
    "caseless",
    "caseless_table",
    "folded",
    "frozen",
    "is_letter",
    "is_word",
    "strings_of",
    "token_table",
]


Scalar = TypeVar("Scalar", bound=np.generic)


def bytes_of(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 of all texts and where each begins and ends in it, without copying."""
    _, offsets, data = texts.buffers()
    if offsets is None or not len(texts):
        return frozen(np.empty(0, np.uint8)), frozen(np.zeros(1, np.int64))
    offset_N = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return frozen(np.frombuffer(data if data is not None else b"", np.uint8)), frozen(offset_N)


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """The array, not to be written to. Compiled loops take that kind only: each kind is compiled on its own."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def strings_of(data: NDArray[np.uint8], offset_N: NDArray[np.int64]) -> pa.LargeStringArray:
    """The way back."""
    buffers: Any = [pa.py_buffer(frozen(array)) for array in (offset_N, data)]
    return pa.LargeStringArray.from_buffers(len(offset_N) - 1, *buffers)


NUM_CODE_POINTS = 0x40000  # no code point above is a letter, a digit or has a lower case

BREAK, LETTER, JOINER, FORMULA, LETTER_AT_END, MARK = range(6)
"""What a code point does in a tokenisation; LETTER_AT_END is a letter that is followed by a break, MARK goes on a word.

Vowels of many scripts are marks (नरेंद्र), and so are accents in texts that are not composed: a word does not end there.
"""
KIND_SHIFT = 24

CASE_EXCEPTIONS = {"İ": "i", "\u1fd3": "\u0390", "\u1fe3": "\u03b0", "\ufb06": "\ufb05"}
"""Letters that are another one in another case, or in another spelling of it, though no single character says so."""


def folded(text: str) -> str:
    """In lower case where that is one character: as long as before.

    >>> folded("ÀΣ İ"), "ÀΣ İ".lower() == folded("ÀΣ İ")
    ('àσ İ', False)
    """
    return "".join(lower if len(lower := character.lower()) == 1 else character for character in text)


def caseless(text: str) -> str:
    """As long as before, and equal for texts that differ in case alone: what ``ignore_case`` compares.

    Beyond ``folded``, all forms of a letter are one: σ and ς, s and ſ, and i with and without a dot, since İ is both
    the capital of i and next to I. Letters are equal exactly where ``re.IGNORECASE`` takes them so.

    >>> caseless("ΟΔΟΣ") == caseless("οδος"), caseless("İstanbul") == caseless("ISTANBUL")
    (True, True)
    """
    return "".join(map(_caseless, text))


@cache
def _caseless(character: str) -> str:
    upper = character.upper()
    if character in CASE_EXCEPTIONS:
        return CASE_EXCEPTIONS[character]
    return folded(upper if len(upper) == 1 and character.isalpha() else character)


@cache
def caseless_table() -> NDArray[np.uint32]:
    """``caseless`` for each code point."""
    return frozen(
        np.fromiter((ord(caseless(chr(point))) for point in range(NUM_CODE_POINTS)), np.uint32, NUM_CODE_POINTS)
    )


@cache
def lower_table() -> NDArray[np.uint32]:
    """The folded code point of each."""
    return frozen(
        np.fromiter((ord(folded(chr(point))) for point in range(NUM_CODE_POINTS)), np.uint32, NUM_CODE_POINTS)
    )


@cache
def is_letter() -> NDArray[np.bool_]:
    """``str.isalpha``."""
    return frozen(np.fromiter((chr(point).isalpha() for point in range(NUM_CODE_POINTS)), np.bool_, NUM_CODE_POINTS))


@cache
def is_mark() -> NDArray[np.bool_]:
    """What Unicode combines with the character before it: its categories Mn, Mc and Me."""
    return frozen(
        np.fromiter((category(chr(point))[0] == "M" for point in range(NUM_CODE_POINTS)), np.bool_, NUM_CODE_POINTS)
    )


@cache
def is_word() -> NDArray[np.bool_]:
    r"""What ``\w`` matches."""
    return frozen(
        np.fromiter(
            (chr(point).isalnum() or point == 0x5F for point in range(NUM_CODE_POINTS)), np.bool_, NUM_CODE_POINTS
        )
    )


@cache
def token_table(letters: str, lower: bool, joiners: str, skip_formulas: bool) -> NDArray[np.uint32]:
    """For each code point what it does (high byte) and the code point to write for it."""
    point = lower_table() if lower else np.arange(NUM_CODE_POINTS, dtype=np.uint32)
    if letters == "unicode":
        letter = is_letter()
    else:
        letter = ((point >= ord("a")) & (point <= ord("z"))) | ((point >= ord("A")) & (point <= ord("Z")))
    kind = np.where(letter, LETTER, BREAK).astype(np.uint32)
    if letters == "unicode":
        kind[is_mark()] = MARK
    table = point.astype(np.uint32)
    for joiner in joiners:
        kind[table == ord(joiner)] = JOINER
    if skip_formulas:
        kind[ord("$")] = FORMULA
    if letters == "ascii" and lower:
        # "İ".lower() is an i and a dot above it, which is no letter: the one place where a letter makes two characters.
        kind[0x130], table[0x130] = LETTER_AT_END, ord("i")
    return frozen((kind << KIND_SHIFT | table).astype(np.uint32))
