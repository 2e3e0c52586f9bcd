"""The normal form in which forms of one text are equal: its letters and digits alone, without case and without marks.

``normal_form`` decomposes compatibly (NFKD), drops combining marks, folds the case, and keeps letters and digits. So
``José-María``, ``JOSEMARIA`` and ``jose maria`` are equal. Digits of all scripts are those from 0 to 9. Apostrophes
that Unicode counts as letters (``OʼBrien``) separate like others, and letters that show nothing, or only stretch a
word, are dropped. Letters that Unicode does not decompose (``ł``, ``ø``) and letters of other scripts that look alike
stay different.

``Letters`` holds the normal form of all texts of a block as arrays, with the place of every letter in its text and with
two kinds of borders: parts of words (a separator, a change between letters and digits, a capital inside a word) and
whole runs (a separator). Invisible characters and combining marks separate nothing. Scripts that are written without
spaces have a border at every letter.
Shapes: N examples, C characters of all texts, Q letters of the normal form, H hits.
"""

import unicodedata
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.parts import Block
from hush.scan.finders.unicode import bytes_of, caseless
from hush.scan.hits import Hits

__all__ = ["Letters", "letters_of", "normal_form", "weight", "widened", "within_lines"]


SEPARATOR, SPACE, HYPHEN, INVISIBLE, LOWER, UPPER, OTHER, DIGIT, UNSPACED = range(9)
"""The role of a character. INVISIBLE separates nothing. UNSPACED: of a script that is written without spaces."""

UNSPACED_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1100, 0x11FF),  # Hangul, decomposed; Korean writes particles without a space after names
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0xA4CF),  # Chinese, kana, Yi
    (0xAC00, 0xD7FF),  # Hangul
    (0xF900, 0xFAFF),
    (0xFF66, 0xFFDC),
    (0x20000, 0x3FFFF),
)
STRETCHING = frozenset("\u0640\u07fa\u115f\u1160\u3164\uffa0")  # tatweel, its relative in N'Ko, the fillers of Hangul
MODIFIERS = frozenset(map(chr, (*range(0x02B9, 0x02C2), *range(0x02C6, 0x02D2), 0x02EC, 0x02EE, 0xA78C)))  # apostrophes
FIRST_WIDE, WIDE_WEIGHT = 0x2E80, 2  # an ideograph or a kana is as distinctive as two letters or more
ESCAPED = "nrt"
NUM_CODE_POINTS = 0x110000
WHOLE_WORD = "the whole word around a text that this rule found"
DOUBTFUL_WORD = f"{WHOLE_WORD}, and doubts"


@cache
def _letters_of(character: str) -> str:
    """The letters and digits of a character in the normal form; most characters have one or none."""
    plain = (each for each in unicodedata.normalize("NFKD", character) if unicodedata.category(each)[0] != "M")
    folded = unicodedata.normalize("NFKD", "".join(plain).casefold())
    return caseless("".join(_digit(each) for each in folded if _is_letter(each)))


def _is_letter(character: str) -> bool:
    return character.isalnum() and character not in STRETCHING and character not in MODIFIERS


def _digit(character: str) -> str:
    """The digit from 0 to 9 where the character is a decimal digit of any script."""
    return str(unicodedata.decimal(character)) if character.isdecimal() else character


def normal_form(text: str) -> str:
    """The letters and digits of a text, without case and marks.

    >>> normal_form("Jos\\u00e9-Mar\\u00eda") == normal_form("JOSE\\u0301 \\uff2daria"), normal_form("sk-4F9\\u00ad0")
    (True, 'sk4f90')
    """
    return "".join(map(_letters_of, text))


def weight(form: str) -> int:
    """How distinctive a normal form is, in letters."""
    return sum(WIDE_WEIGHT if ord(letter) >= FIRST_WIDE and _is_unspaced(ord(letter)) else 1 for letter in form)


def _is_unspaced(point: int) -> bool:
    return any(first <= point <= last for first, last in UNSPACED_RANGES)


def _role(character: str) -> int:
    kind = unicodedata.category(character)
    if not _letters_of(character):
        if character.isspace() or kind[0] == "Z":
            return SPACE
        is_invisible = kind[0] == "M" or kind == "Cf" or character in STRETCHING
        return INVISIBLE if is_invisible else HYPHEN if kind == "Pd" else SEPARATOR
    if _is_unspaced(ord(character)) or not character.isalnum():  # such as the sign for kilogram or for trademark
        return UNSPACED
    if not character.isalpha():
        return DIGIT
    return LOWER if character.islower() else UPPER if character.isupper() or character.istitle() else OTHER


@final
class _Table:
    """Role and letters of every code point that has occurred; filled as texts bring new ones."""

    def __init__(self) -> None:
        self.is_known = np.zeros(NUM_CODE_POINTS, dtype=np.bool_)
        self.role = np.zeros(NUM_CODE_POINTS, dtype=np.uint8)
        self.count = np.zeros(NUM_CODE_POINTS, dtype=np.uint8)
        self.offset = np.zeros(NUM_CODE_POINTS, dtype=np.int64)
        self.letters = np.empty(0, dtype=np.uint32)
        self.add(np.arange(128))

    def add(self, code_C: NDArray[np.integer]) -> None:
        """Makes sure that all these code points are known."""
        new = code_C[~self.is_known[code_C]]
        if not len(new):
            return
        letters = [self.letters]
        for point in np.unique(new).tolist():
            form = _letters_of(chr(point))
            self.role[point], self.count[point] = _role(chr(point)), len(form)
            self.offset[point] = sum(map(len, letters))
            letters.append(np.array([ord(letter) for letter in form], dtype=np.uint32))
            self.is_known[point] = True
        self.letters = np.concatenate(letters)


@cache
def _table() -> _Table:
    return _Table()


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Letters:
    """The normal form of consecutive texts, letter by letter. Private: it is the text.

    code_C: the code points of all texts. first_N: the first character of each text; N + 1 entries. form_Q: the code
    points of the normal form. at_Q: the character that each comes from. example_Q: its example. is_part_Q, is_run_Q:
    whether a part of a word, or a run, begins with it; both have one more entry for the end. is_escaped_Q: whether it
    follows an escaped line end or tab (a backslash with n, r or t), as text in logs does. spaces_Q: the number of
    letters up to this one that a space, and no hyphen, separates from the one before. run_begin_Q, run_end_Q: the
    characters from which and up to which the run of each letter goes, with the marks that follow it.
    """

    code_C: NDArray[np.integer]
    first_N: NDArray[np.int64]
    form_Q: NDArray[np.uint32]
    at_Q: NDArray[np.int64]
    example_Q: NDArray[np.int64]
    is_part_Q: NDArray[np.bool_]
    is_run_Q: NDArray[np.bool_]
    is_escaped_Q: NDArray[np.bool_]
    spaces_Q: NDArray[np.int64]
    run_begin_Q: NDArray[np.int64]
    run_end_Q: NDArray[np.int64]

    @classmethod
    def of(cls, texts: pa.LargeStringArray) -> Self:
        """The letters of these texts."""
        code_C, first_N = _code_points(texts)
        table = _table()
        table.add(code_C)
        role_C, count_C = table.role[code_C], table.count[code_C]
        at_Q = np.repeat(np.arange(len(code_C)), count_C) if count_C.max(initial=0) > 1 else np.flatnonzero(count_C)
        begins_Q = np.diff(at_Q, prepend=-1) > 0  # the first letter of its character
        within_Q = np.arange(len(at_Q)) - np.maximum.accumulate(np.where(begins_Q, np.arange(len(at_Q)), 0))
        form_Q = table.letters[table.offset[code_C[at_Q]] + within_Q]
        example_Q = np.searchsorted(first_N, at_Q, side="right") - 1
        new_Q = np.diff(example_Q, prepend=-1) > 0
        role_Q = role_C[at_Q]
        before_Q = np.append(np.uint8(SEPARATOR), role_Q)[:-1]
        hard_Q = _between(role_C <= HYPHEN, at_Q) | new_Q
        unspaced_Q = (role_Q == UNSPACED) | (before_Q == UNSPACED)
        is_run_Q = begins_Q & (hard_Q | unspaced_Q)
        after_Q = np.append(role_Q, np.uint8(SEPARATOR))[1:]
        goes_on_Q = ~np.append(hard_Q, True)[1:]  # the next letter follows without a separator
        capital_Q = (role_Q == UPPER) & ((before_Q == LOWER) | ((before_Q == UPPER) & (after_Q == LOWER) & goes_on_Q))
        is_part_Q = is_run_Q | (begins_Q & (((role_Q == DIGIT) != (before_Q == DIGIT)) | capital_Q))
        spaced_Q = _between(role_C == SPACE, at_Q) & ~_between(role_C == HYPHEN, at_Q) & ~new_Q
        first_of_run = np.flatnonzero(is_run_Q)
        run_Q = np.cumsum(is_run_Q) - 1
        last_of_run = np.append(first_of_run, len(at_Q))[1:] - 1
        return cls(
            code_C=code_C,
            first_N=first_N,
            form_Q=form_Q,
            at_Q=at_Q,
            example_Q=example_Q,
            is_part_Q=np.append(is_part_Q, True),
            is_run_Q=np.append(is_run_Q, True),
            is_escaped_Q=_follows_escape(code_C, at_Q, at_Q - first_N[example_Q]),
            spaces_Q=np.cumsum(spaced_Q, dtype=np.int64),
            run_begin_Q=at_Q[first_of_run][run_Q] if len(at_Q) else at_Q,
            run_end_Q=_ends(role_C, first_N)[at_Q[last_of_run]][run_Q] if len(at_Q) else at_Q,
        )

    def encoded(self) -> tuple[bytes, NDArray[np.int64] | None]:
        """The normal form as UTF-8, and the letter that each byte belongs to; None if each letter is one byte."""
        if self.form_Q.max(initial=0) < 128:
            return self.form_Q.astype(np.uint8).tobytes(), None
        data = self.form_Q.astype("<u4").tobytes().decode("utf-32-le").encode()
        return data, np.cumsum((np.frombuffer(data, np.uint8) & 0xC0) != 0x80) - 1

    def __repr__(self) -> str:
        return f"Letters({len(self.form_Q)} of {len(self.first_N) - 1} texts)"


@lru_cache(maxsize=1)
def letters_of(block: Block) -> Letters:
    """The letters of a block, computed once for all rules that search it one after another."""
    return Letters.of(block.texts)


def _code_points(texts: pa.LargeStringArray) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """The code points of all texts, one text after another, and the first of each text."""
    data, offset_N = bytes_of(texts)
    data = data[offset_N[0] : offset_N[-1]]
    first_N = offset_N - offset_N[0]
    if data.max(initial=0) < 128:
        return data, first_N
    before_C = np.append(0, np.cumsum((data & 0xC0) != 0x80))  # characters before each byte
    return np.frombuffer(data.tobytes().decode().encode("utf-32-le"), np.uint32), before_C[first_N]


def _between(chosen_C: NDArray[np.bool_], at_Q: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a chosen character, which is no letter, stands between each letter and the letter before it."""
    before_Q = np.cumsum(chosen_C, dtype=np.int32)[at_Q]
    return np.diff(before_Q, prepend=np.int32(0)) > 0


def _follows_escape(
    code_C: NDArray[np.integer], at_Q: NDArray[np.int64], place_Q: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether a backslash with one of the letters n, r and t stands right before each letter. place_Q: in its text."""
    letter_C = np.flatnonzero(code_C == ord("\\")) + 1
    letter_C = letter_C[letter_C < len(code_C)]
    letter_C = letter_C[np.isin(code_C[letter_C], [ord(letter) for letter in ESCAPED])]
    is_after_C = np.zeros(len(code_C) + 1, dtype=np.bool_)
    is_after_C[letter_C + 1] = True
    return is_after_C[at_Q] & (place_Q >= 2)


def _ends(role_C: NDArray[np.uint8], first_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each character the end of the marks and invisible characters that follow it in its text."""
    number = len(role_C)
    stops_C = np.append(role_C != INVISIBLE, True)
    stops_C[first_N] = True
    stop_C = np.where(stops_C, np.arange(number + 1), number)
    return np.minimum.accumulate(stop_C[::-1])[::-1][1:]


def widened(hits: Hits, block: Block) -> Hits:
    """The hits, and for each that begins or ends inside a run of letters and digits another one of the whole run.

    Otherwise the rest of the word would stand in the skeleton and tell about the secret.
    """
    with_span_H = hits.begin_H >= 0
    if not with_span_H.any():
        return hits
    chosen = hits.select(with_span_H)
    letters = letters_of(block)
    first_H = letters.first_N[chosen.example_H]
    from_H = np.searchsorted(letters.at_Q, first_H + chosen.begin_H)
    upto_H = np.searchsorted(letters.at_Q, first_H + chosen.end_H)
    has_letters_H = from_H < upto_H
    chosen, first_H = chosen.select(has_letters_H), first_H[has_letters_H]
    from_H, upto_H = from_H[has_letters_H], upto_H[has_letters_H]
    begin_H = np.minimum(chosen.begin_H, letters.run_begin_Q[from_H] - first_H)
    end_H = np.maximum(chosen.end_H, letters.run_end_Q[upto_H - 1] - first_H)
    wider_H = (begin_H < chosen.begin_H) | (end_H > chosen.end_H)
    if not wider_H.any():
        return hits
    added = replace(chosen, begin_H=begin_H, end_H=end_H).select(wider_H)
    added = replace(
        added,
        reason_H=added.is_doubtful_H.astype(np.int64),
        reasons=(WHOLE_WORD, DOUBTFUL_WORD),
        doubtful=frozenset((DOUBTFUL_WORD,)),
    )
    return Hits.merged([(0, hits), (0, added)])


def within_lines(hits: Hits, block: Block) -> Hits:
    """The hits without the spans that hold a line break: their examples are then secret as a whole.

    Files are cut into examples at line ends. If the number of lines of a secret were free, it would move the cuts.
    """
    broken_H = np.array(
        [
            begin >= 0 and "\n" in block.strings[example][begin:end]
            for example, begin, end in zip(
                hits.example_H.tolist(), hits.begin_H.tolist(), hits.end_H.tolist(), strict=True
            )
        ],
        dtype=np.bool_,
    )
    if not broken_H.any():
        return hits
    return replace(hits, begin_H=np.where(broken_H, -1, hits.begin_H), end_H=np.where(broken_H, -1, hits.end_H))
