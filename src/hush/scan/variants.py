"""The search for other forms of secrets whose rule hides spans: what is learnt from a skeleton must hold none of them.

A rule finds a secret in the form that it knows. Outside the slots the text is learnt without noise, so every other form
of the same text must lie in a slot too: in any case and Unicode form, with separators inside or missing, and inside a
longer word. Two texts are forms of each other if their normal forms (normal_form.py) are equal. An occurrence of a
normal form counts

- as whole parts of words: bounded on both sides by a separator, by a change between letters and digits, or by a
  capital inside a word (``antiSecret2``); at the begin of a word with one or two letters after it (``secrets``) or
  after an escaped line end or tab (``\\nsecret``), if the secret has ``LEAST_INFLECTED`` letters or more; or anywhere
  inside a word, from ``LEAST_INSIDE`` letters on;
- without spaces between its letters, except where the secret has a separator itself; or between all its letters
  (``s e c``); or anywhere, from ``LEAST_SPACED`` letters on. A space beside a hyphen is the break of a line.

A secret with fewer than ``LEAST_LETTERS`` letters and digits is searched for as it is, in any case. Where it begins or
ends with a letter or digit, none may stand beside it.
The span of a hit covers the whole run of letters and digits that it lies in, so that no rest of a word is left.

The limits are set by hits per secret on abstracts of arXiv, with words of 10 to 20 examples of 20,000 as secrets
(benchmarks/slots.py). Inside words, 7 letters is the least length with fewer further hits than hits of its own: 79
beside 25 for 6 letters, 25 beside 32 for 7. The other two are a judgement: at 5 letters most secrets have no inflected
hit (15 beside 28 on average; 23 beside 31 for 4), and those across spaces fall from 1.7 for 4 letters to 0.4.
Shapes: K distinct normal forms, H matches; C and Q as in normal_form.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hush.data.parts import Block
from hush.scan.finders.literals import Literals
from hush.scan.finders.unicode import caseless
from hush.scan.hits import Hits, pickled_fields
from hush.scan.normal_form import Letters, letters_of, normal_form, weight, widened

__all__ = ["Limits", "Variants"]


OTHER_FORM = "another form of a text that this rule found elsewhere"
INSIDE_WORD = f"{OTHER_FORM}, inside a longer word"
LEAST_LETTERS = 2
LEAST_INFLECTED, LEAST_INSIDE, LEAST_SPACED = 5, 7, 5
MAX_INFLECTION = 2  # letters after the secret that count as its inflection


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From how many letters on a secret counts if it is inflected, inside a longer word, and with spaces inside."""

    inflected: int = LEAST_INFLECTED
    inside: int = LEAST_INSIDE
    spaced: int = LEAST_SPACED


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Variants:
    """Finds all forms of these texts, which are the keys of one rule's secrets; the given form counts, too.

    >>> Variants(keys=["Jos\\u00e9 Mar\\u00eda"])
    Variants(of 1 texts)
    """

    keys: Sequence[str]
    limits: Limits = Limits()

    def find(self, block: Block) -> Hits:
        """Every occurrence of every form; each span covers whole runs of letters and digits."""
        parts = [(0, self._normal_forms(block))]
        for found in self._short_hits(block):
            found = widened(found, block)
            one_reason = Hits.of(
                found.example_H,
                found.key_H,
                begin=found.begin_H,
                end=found.end_H,
                keys=found.keys,
                reasons=(OTHER_FORM,),
            )
            parts.append((0, self._as_given(one_reason)))
        return Hits.merged(parts)

    def _short_hits(self, block: Block) -> Iterator[Hits]:
        if self._words.values:
            yield self._words.find(block)
        if self._symbols.values:
            yield _apart(self._symbols.find(block), block)

    def _normal_forms(self, block: Block) -> Hits:
        if not self._forms:
            return Hits.of([], [], keys=(), reasons=())
        letters = letters_of(block)
        data, letter_of_byte = letters.encoded()
        matches = self._automaton.find_matches_as_indexes(data, overlapping=True)
        match_H3 = np.fromiter(chain.from_iterable(matches), np.int64, 3 * len(matches)).reshape(-1, 3)
        form_H, from_H, last_H = match_H3[:, 0], match_H3[:, 1], match_H3[:, 2] - 1
        if letter_of_byte is not None:
            from_H, last_H = letter_of_byte[from_H], letter_of_byte[last_H]
        begins_H = letters.is_part_Q[from_H]
        begins_H |= letters.is_escaped_Q[from_H] & (self._weight_K[form_H] >= self.limits.inflected)
        is_bounded_H = begins_H & letters.is_part_Q[last_H + 1]
        kept_H = self._counts(letters, form_H, from_H, last_H, begins_H, is_bounded_H)
        form_H, from_H, last_H, is_bounded_H = (each[kept_H] for each in (form_H, from_H, last_H, is_bounded_H))
        example_H = letters.example_Q[from_H]
        begin_H, end_H = self._with_edges(letters, form_H, letters.run_begin_Q[from_H], letters.run_end_Q[last_H])
        # A form may be that of several secrets.
        copies_H = np.diff(self._offset_K)[form_H]
        row_H = np.repeat(np.arange(len(form_H)), copies_H)
        within_H = np.arange(len(row_H)) - np.repeat(np.cumsum(copies_H) - copies_H, copies_H)
        key_H = self._key_of_form[self._offset_K[form_H[row_H]] + within_H]
        present, key_H = np.unique(key_H, return_inverse=True)
        first_H = letters.first_N[example_H]
        return Hits.of(
            example_H[row_H],
            key_H,
            begin=(begin_H - first_H)[row_H],
            end=(end_H - first_H)[row_H],
            reason=(~is_bounded_H)[row_H],
            keys=tuple(self.keys[key] for key in present.tolist()),
            reasons=(OTHER_FORM, INSIDE_WORD),
        )

    def _counts(
        self,
        letters: Letters,
        form_H: NDArray[np.int64],
        from_H: NDArray[np.int64],
        last_H: NDArray[np.int64],
        begins_H: NDArray[np.bool_],
        is_bounded_H: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Which matches of letters are occurrences of a form, by the rules in the module's docstring."""
        ends_Q = np.append(letters.is_part_Q, np.ones(MAX_INFLECTION, dtype=np.bool_))
        rest_H = [ends_Q[last_H + 1 + rest] for rest in range(1, MAX_INFLECTION + 1)]
        is_inflected_H = begins_H & np.any(rest_H, axis=0)
        weight_H = self._weight_K[form_H]
        kept_H = letters.example_Q[from_H] == letters.example_Q[last_H]
        kept_H &= (
            is_bounded_H | (is_inflected_H & (weight_H >= self.limits.inflected)) | (weight_H >= self.limits.inside)
        )
        spaces_H = letters.spaces_Q[last_H] - letters.spaces_Q[from_H]
        spaced_H = (spaces_H > 0) & (spaces_H < last_H - from_H) & (weight_H < self.limits.spaced)
        kept_H &= ~spaced_H | self._has_gaps_K[form_H]
        for match in np.flatnonzero(kept_H & spaced_H).tolist():
            first, last = int(from_H[match]), int(last_H[match])
            gaps = np.flatnonzero(np.diff(letters.spaces_Q[first : last + 1])) + 1
            kept_H[match] = any(own.issuperset(gaps.tolist()) for own in self._gaps[int(form_H[match])])
        return kept_H

    def _with_edges(
        self, letters: Letters, form_H: NDArray[np.int64], begin_H: NDArray[np.int64], end_H: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The spans with the secret's own characters before its first and after its last letter, where they are."""
        begin_H, end_H = begin_H.copy(), end_H.copy()
        for match in np.flatnonzero(self._has_edges_K[form_H]).tolist():
            begin, end = int(begin_H[match]), int(end_H[match])
            low, high = letters.first_N[np.searchsorted(letters.first_N, begin, side="right") - 1 :][:2].tolist()
            for before, after in self._edges[int(form_H[match])]:
                same = _common(before[::-1], letters.code_C[max(begin - len(before), low) : begin][::-1])
                begin_H[match] = min(begin_H[match], begin - same)
                end_H[match] = max(
                    end_H[match], end + _common(after, letters.code_C[end : min(end + len(after), high)])
                )
        return begin_H, end_H

    def _as_given(self, hits: Hits) -> Hits:
        """Hits of folded keys as hits of the keys as they were given."""
        given: dict[str, list[str]] = {}
        for key in (*self._words.values, *self._symbols.values):
            given.setdefault(caseless(key), []).append(key)
        rows = [
            (example, key, begin, end)
            for example, folded, begin, end in zip(
                hits.example_H.tolist(), hits.key_H.tolist(), hits.begin_H.tolist(), hits.end_H.tolist(), strict=True
            )
            for key in given[hits.keys[folded]]
        ]
        keys = tuple(dict.fromkeys(key for _, key, _, _ in rows))
        number = {key: index for index, key in enumerate(keys)}
        return Hits.of(
            [row[0] for row in rows],
            [number[row[1]] for row in rows],
            begin=[row[2] for row in rows],
            end=[row[3] for row in rows],
            keys=keys,
            reasons=(OTHER_FORM,),
        )

    # What the search needs to know about the texts

    @cached_property
    def _forms(self) -> dict[str, list[int]]:
        """The distinct normal forms that are long enough, each with the keys that have it."""
        forms: dict[str, list[int]] = {}
        for number, key in enumerate(self.keys):
            form = normal_form(key)
            if weight(form) >= LEAST_LETTERS:
                forms.setdefault(form, []).append(number)
        return forms

    @cached_property
    def _short(self) -> list[str]:
        """The texts that are too short for a search by normal form."""
        return [key for key in self.keys if weight(normal_form(key)) < LEAST_LETTERS]

    @cached_property
    def _words(self) -> Literals:
        """Those of them that begin and end like a word."""
        words = [key for key in self._short if _in_word(key[0]) and _in_word(key[-1])]
        return Literals(values=words, ignore_case=True, whole_words=True)

    @cached_property
    def _symbols(self) -> Literals:
        """The others: a sign separates itself from what stands beside it."""
        symbols = [key for key in self._short if not (_in_word(key[0]) and _in_word(key[-1]))]
        return Literals(values=symbols, ignore_case=True, whole_words=False)

    @cached_property
    def _offset_K(self) -> NDArray[np.int64]:
        return np.cumsum([0, *map(len, self._forms.values())])

    @cached_property
    def _key_of_form(self) -> NDArray[np.int64]:
        return np.fromiter(chain.from_iterable(self._forms.values()), np.int64)

    @cached_property
    def _weight_K(self) -> NDArray[np.int64]:
        return np.fromiter(map(weight, self._forms), np.int64, len(self._forms))

    @cached_property
    def _gaps(self) -> list[list[set[int]]]:
        """For each form, of each of its keys: before which letters of the form the key has a separator."""
        return [[_own_gaps(self.keys[key]) for key in keys] for keys in self._forms.values()]

    @cached_property
    def _has_gaps_K(self) -> NDArray[np.bool_]:
        return np.array([any(gaps) for gaps in self._gaps], dtype=np.bool_)

    @cached_property
    def _edges(self) -> list[list[tuple[list[int], list[int]]]]:
        """For each form, of each of its keys: the characters before its first and after its last letter."""
        return [[_edges_of(self.keys[key]) for key in keys] for keys in self._forms.values()]

    @cached_property
    def _has_edges_K(self) -> NDArray[np.bool_]:
        return np.array([any(before or after for before, after in edges) for edges in self._edges], dtype=np.bool_)

    @cached_property
    def _automaton(self) -> Any:
        import ahocorasick_rs

        compact = ahocorasick_rs.Implementation.ContiguousNFA  # a DFA of many thousand texts would need gigabytes
        return ahocorasick_rs.BytesAhoCorasick([form.encode() for form in self._forms], implementation=compact)

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)

    def __repr__(self) -> str:
        return f"Variants(of {len(self.keys)} texts)"


def _in_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _apart(hits: Hits, block: Block) -> Hits:
    """The hits that no word goes on beside: where one begins or ends like a word, it must begin or end there."""
    kept = np.ones(len(hits.example_H), dtype=np.bool_)
    for hit, (example, begin, end) in enumerate(
        zip(hits.example_H.tolist(), hits.begin_H.tolist(), hits.end_H.tolist(), strict=True)
    ):
        text = block.strings[example]
        before, after = text[max(begin - 1, 0) : begin + 1], text[end - 1 : end + 1]
        kept[hit] = not any(len(pair) == 2 and all(map(_in_word, pair)) for pair in (before, after))
    return hits if kept.all() else hits.select(kept)


def _own_gaps(key: str) -> set[int]:
    """Before which letters of its normal form a text has a separator."""
    gaps, letters, is_open = set[int](), 0, False
    for character in key:
        form = normal_form(character)
        if form and is_open and letters:
            gaps.add(letters)
        is_open = not form
        letters += len(form)
    return gaps


def _edges_of(key: str) -> tuple[list[int], list[int]]:
    places = [place for place, character in enumerate(key) if normal_form(character)]
    if not places:
        return [], []
    return [*map(ord, key[: places[0]])], [*map(ord, key[places[-1] + 1 :])]


def _common(expected: Sequence[int], codes: Iterable[int]) -> int:
    """How many characters agree from the first on."""
    count = 0
    for wanted, code in zip(expected, codes, strict=False):
        if wanted != code:
            break
        count += 1
    return count
