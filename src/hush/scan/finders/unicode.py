"""Unicode tables as arrays for compiled loops, and the UTF-8 bytes of a block without Python strings.

All tables map single code points, so a character of the folded text corresponds to one character of the text. This
differs from ``str.lower``, which turns İ (U+0130) into two characters and a Σ at the end of a word into ς.
Shapes: N examples; an ``offset_N`` has N + 1 entries, and text i is ``data[offset_N[i]:offset_N[i + 1]]``.
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
    "is_letter",
    "is_word",
    "read_only",
    "strings_of",
    "token_table",
]


Scalar = TypeVar("Scalar", bound=np.generic)


def bytes_of(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 bytes of all texts and their offsets, without copying."""
    _, offsets, data = texts.buffers()
    if offsets is None or not len(texts):
        return read_only(np.empty(0, np.uint8)), read_only(np.zeros(1, np.int64))
    offset_N = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return read_only(np.frombuffer(data if data is not None else b"", np.uint8)), read_only(offset_N)


def read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A read-only view. Compiled loops take only such arrays, since Numba compiles writable ones separately."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def strings_of(data: NDArray[np.uint8], offset_N: NDArray[np.int64]) -> pa.LargeStringArray:
    """The texts of these bytes and offsets; the inverse of ``bytes_of``."""
    buffers: Any = [pa.py_buffer(read_only(array)) for array in (offset_N, data)]
    return pa.LargeStringArray.from_buffers(len(offset_N) - 1, *buffers)


NUM_CODE_POINTS = 0x40000  # size of the tables: no code point above is a letter, a digit or has a lower case

BREAK, LETTER, JOINER, FORMULA, LETTER_AT_END, MARK = range(6)
"""The role of a code point in tokenisation. LETTER_AT_END is a letter followed by a break; MARK continues a word.

Vowels of many scripts are marks (नरेंद्र), and so are accents in texts that are not composed.
"""
KIND_SHIFT = 24

CASE_EXCEPTIONS = {"İ": "i", "\u1fd3": "\u0390", "\u1fe3": "\u03b0", "\ufb06": "\ufb05"}
"""Letters equal to another letter up to case, although neither ``str.upper`` nor ``str.lower`` shows it."""


def folded(text: str) -> str:
    """In lower case, except characters whose lower case is longer: the length does not change.

    >>> folded("ÀΣ İ"), "ÀΣ İ".lower() == folded("ÀΣ İ")
    ('àσ İ', False)
    """
    return "".join(lower if len(lower := character.lower()) == 1 else character for character in text)


def caseless(text: str) -> str:
    """The form that ``ignore_case`` compares: equal for texts that differ in case alone, and of unchanged length.

    Beyond ``folded``, all forms of a letter are equal: σ and ς, s and ſ, and i with and without a dot (İ is a capital
    of i). Letters are equal exactly if ``re.IGNORECASE`` treats them as equal.

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
    return read_only(
        np.fromiter((ord(caseless(chr(point))) for point in range(NUM_CODE_POINTS)), np.uint32, NUM_CODE_POINTS)
    )


@cache
def lower_table() -> NDArray[np.uint32]:
    """``folded`` for each code point."""
    return read_only(
        np.fromiter((ord(folded(chr(point))) for point in range(NUM_CODE_POINTS)), np.uint32, NUM_CODE_POINTS)
    )


@cache
def is_letter() -> NDArray[np.bool_]:
    """``str.isalpha`` for each code point."""
    return read_only(np.fromiter((chr(point).isalpha() for point in range(NUM_CODE_POINTS)), np.bool_, NUM_CODE_POINTS))


@cache
def is_mark() -> NDArray[np.bool_]:
    """Whether each code point is a combining mark: categories Mn, Mc and Me."""
    return read_only(
        np.fromiter((category(chr(point))[0] == "M" for point in range(NUM_CODE_POINTS)), np.bool_, NUM_CODE_POINTS)
    )


@cache
def is_word() -> NDArray[np.bool_]:
    r"""Whether ``\w`` matches each code point."""
    return read_only(
        np.fromiter(
            (chr(point).isalnum() or point == 0x5F for point in range(NUM_CODE_POINTS)), np.bool_, NUM_CODE_POINTS
        )
    )


@cache
def token_table(letters: str, lower: bool, joiners: str, skip_formulas: bool) -> NDArray[np.uint32]:
    """For each code point its role in tokenisation (high byte) and the code point to write for it."""
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
        # "İ".lower() is an i and a combining dot, which is not a letter: the only letter that becomes two characters.
        kind[0x130], table[0x130] = LETTER_AT_END, ord("i")
    return read_only((kind << KIND_SHIFT | table).astype(np.uint32))
