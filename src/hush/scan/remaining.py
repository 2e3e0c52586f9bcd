"""The independent check of skeletons: does the text outside the slots still hold a form of a secret?

It states the same rules as variants.py and shares no code with the search there: strings instead of arrays, a look-up
of every part of the text instead of an automaton, borders by regular expressions. It takes some milliseconds a text, so
it is for checking, not for finding.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import final

__all__ = ["RemainingForms", "remaining_forms"]


LEAST_LETTERS, LEAST_INFLECTED, LEAST_SPACED, LEAST_INSIDE = 2, 5, 5, 7  # as in variants.py
JOINT = "\ue000"  # a border inside a run of letters and digits; a private character, which separates nothing
ESCAPE = "\ue001"  # behind an escaped line end or tab: a border for secrets of LEAST_INFLECTED letters or more
NOTHING = re.compile("[\u0640\u07fa\u115f\u1160\u3164\uffa0]")  # letters that show nothing, or only stretch a word
APOSTROPHE = re.compile("[\u02b9-\u02c1\u02c6-\u02d1\u02ec\u02ee\ua78c]")  # and their relatives among the letters
WIDE = "\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
UNSPACED = f"\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff{WIDE}"
_BORDERS = re.compile(rf"(?<=[{UNSPACED}])|(?=[{UNSPACED}])|(?<=\d)(?=[^\W\d_])|(?<=[^\W\d_])(?=\d)")
_WIDE = re.compile(f"[{WIDE}]")


def remaining_forms(
    skeleton_text: str, secret_texts: Sequence[str], *, placeholders: Iterable[str] = ()
) -> tuple[int, ...]:
    """Which of the secrets have a form in a skeleton, by their indices; placeholders in it are no text.

    >>> remaining_forms("[names] met al-\\nice and Bobby.", ["Alice", "Bob", "Carol"], placeholders=["[names]"])
    (0,)
    """
    return RemainingForms(secret_texts).of(skeleton_text, placeholders=placeholders)


@final
class RemainingForms:
    """The check for one list of secrets, prepared once. Its repr shows how many there are."""

    def __init__(self, secret_texts: Sequence[str]) -> None:
        self._number = len(secret_texts)
        self._secrets: dict[str, list[tuple[int, set[int]]]] = {}
        self._short: list[tuple[int, re.Pattern[str]]] = []
        for index, secret in enumerate(secret_texts):
            letters, before = _letters(secret)
            if len(letters) + len(_WIDE.findall(letters)) < LEAST_LETTERS:
                before, after = (rf"(?{look}\w)" if re.match(r"\w", edge) else "" for look, edge in _edges(secret))
                pattern = re.compile(f"{before}{re.escape(secret)}{after}", re.IGNORECASE)
                self._short.append((index, pattern))
                continue
            own_gaps = {place for place, gap in enumerate(before) if place and gap.strip(JOINT + ESCAPE)}
            self._secrets.setdefault(letters, []).append((index, own_gaps))
        self._lengths = sorted({len(letters) for letters in self._secrets})

    def of(self, skeleton_text: str, *, placeholders: Iterable[str] = ()) -> tuple[int, ...]:
        """The secrets that have a form in this text, ascending."""
        found: set[int] = set()
        cuts = "|".join(map(re.escape, placeholders))
        for piece in re.split(cuts, skeleton_text) if cuts else [skeleton_text]:
            found.update(index for index, pattern in self._short if pattern.search(piece))
            found.update(self._in_piece(piece))
        return tuple(sorted(found))

    def _in_piece(self, piece: str) -> Iterable[int]:
        letters, before = _letters(piece)
        before = [*before, " "]
        for begin in range(len(letters)):
            for length in self._lengths:
                end = begin + length
                if end > len(letters):
                    break
                for index, own_gaps in self._secrets.get(letters[begin:end], ()):
                    if _counts(letters, before, begin, end, own_gaps):
                        yield index

    def __repr__(self) -> str:
        return f"RemainingForms(of {self._number} secrets)"


def _counts(letters: str, before: Sequence[str], begin: int, end: int, own_gaps: set[int]) -> bool:
    weight = end - begin + len(_WIDE.findall(letters[begin:end]))
    begins = begin == 0 or before[begin] not in ("", *([ESCAPE] if weight < LEAST_INFLECTED else []))
    is_bounded = begins and before[end] not in ("", ESCAPE)
    is_inflected = begins and any(before[end + rest : end + rest + 1] not in ([""], [ESCAPE]) for rest in (1, 2))
    if not (is_bounded or weight >= LEAST_INSIDE or (is_inflected and weight >= LEAST_INFLECTED)):
        return False
    spaces = {place - begin for place in range(begin + 1, end) if _is_space(before[place])}
    return weight >= LEAST_SPACED or len(spaces) in (0, end - begin - 1) or spaces <= own_gaps


def _is_space(gap: str) -> bool:
    has_space = any(each.isspace() or unicodedata.category(each)[0] == "Z" for each in gap)
    return has_space and not any(unicodedata.category(each) == "Pd" for each in gap)


def _letters(text: str) -> tuple[str, list[str]]:
    """The letters and digits of a text without case and marks, and what stands before each: "" inside a word."""
    plain = _without_marks(unicodedata.normalize("NFKD", text))
    with_capitals = "".join(f"{JOINT}{each}" if _opens_part(plain, place) else each for place, each in enumerate(plain))
    with_escapes = re.sub(r"(?<=\\[nrt])(?=[^\W\d_])", ESCAPE, with_capitals)
    folded = _without_marks(unicodedata.normalize("NFKD", with_escapes.casefold())).replace("\u0131", "i")
    folded = "".join(str(unicodedata.decimal(each)) if each.isdecimal() else each for each in folded)
    letters, before, gap = [], [], ""
    for each in _BORDERS.sub(JOINT, folded):
        if each.isalnum() and not APOSTROPHE.match(each):
            letters.append(each)
            before.append(gap)
            gap = ""
        else:
            gap += each
    return "".join(letters), before


def _edges(secret: str) -> list[tuple[str, str]]:
    """For the first and the last character: what looks at the character beside it, and the character."""
    return [("<!", secret[0]), ("!", secret[-1])]


def _opens_part(text: str, place: int) -> bool:
    """Whether a capital inside a word begins a part of it: aB, or the B of ABc."""
    if not (place and text[place].isupper()):
        return False
    return text[place - 1].islower() or (text[place - 1].isupper() and text[place + 1 : place + 2].islower())


def _without_marks(text: str) -> str:
    shown = NOTHING.sub("", text)
    return "".join(each for each in shown if unicodedata.category(each) not in ("Cf", "Mn", "Mc", "Me"))
