r"""The literals rule: given strings are secrets; all of them are looked for at once (Aho-Corasick over UTF-8).

Every occurrence of every literal is found, also where literals overlap or contain each other. ``ignore_case`` compares
both sides code point by code point, all forms of a letter as one (``characters.caseless``), so that an occurrence has
as many characters as its literal. ``whole_words``: the characters on both sides are none that ``\w`` matches (letters
and digits of all scripts, underscore).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hush.corpus.blocks import Block
from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.finder import Declared
from hush.scan.finders.characters import caseless, caseless_table, is_word
from hush.scan.finders.pickles import fields_only
from hush.scan.finders.utf8 import bytes_of, frozen
from hush.scan.hits import Hits

__all__ = ["Literals"]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Literals:
    """These strings are secrets, declared in this order; equal ones count once, at the first one's place.

    ids: a public name for each, or None; protections: what each is promised, or None where the rule's promise holds. A
    literal's key is its text, folded with ``ignore_case``.

    >>> Literals(values=["Ada", "Alan"], ignore_case=True)
    Literals(2 literals, ignore_case=True, whole_words=False)
    """

    values: Sequence[str]
    ids: Sequence[str] | None = None
    protections: Sequence[Protection | None] | None = None
    ignore_case: bool = False
    whole_words: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.values, str):
            raise InvalidInput("values is one string; pass a list of literals")
        for name in ("values", "ids", "protections"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given))
                if len(getattr(self, name)) != len(self.values):
                    raise InvalidInput(
                        f"{name} has {len(given)} entries for {len(self.values)} literals; pass one for each"
                    )
        for index, value in enumerate(self.values, 1):
            if not isinstance(value, str) or not value:
                kind = "empty" if value == "" else f"a {type(value).__name__}, not a string"
                raise InvalidInput(f"literal {index} of the list is {kind}; leave it out or give its text")
            if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
                raise InvalidInput(
                    f"literal {index} of the list holds half a surrogate pair, which no text does; mend it"
                )
        named = [name for name, _ in self._named]
        if self.ids is not None and len(set(named)) < len(named):
            raise InvalidInput("ids: two different literals have the same name; give each its own")

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[Declared]:
        return [
            Declared(key=key, name=name, protection=protection)
            for key, (name, protection) in zip(self._positions, self._named, strict=True)
        ]

    def find(self, block: Block) -> Hits:
        """Every occurrence, by example and by where it ends."""
        from hush.scan.finders.text_kernels import fold_texts, place_matches

        data, offset_N = bytes_of(block.texts)
        if self.ignore_case:
            data, offset_N = map(frozen, fold_texts(data, offset_N, caseless_table()))
        # All texts of the block in one call; what crosses from one into the next is dropped afterwards.
        searched = data[offset_N[0] : offset_N[-1]].data
        matches = self._automaton.find_matches_as_indexes(searched, overlapping=True)
        match_H3 = np.fromiter(chain.from_iterable(matches), np.int64, 3 * len(matches)).reshape(-1, 3)
        key_H, bytes_H, end_H = match_H3[:, 0], match_H3[:, 2] - match_H3[:, 1], match_H3[:, 2] + offset_N[0]
        characters_H = self._characters[key_H]
        word = is_word() if self.whole_words else frozen(np.empty(0, np.bool_))
        example_H, begin_H = place_matches(data, offset_N, end_H, bytes_H, characters_H, word)
        kept_H = example_H >= 0
        present, key_H = np.unique(key_H[kept_H], return_inverse=True)
        keys = tuple(self._keys[key] for key in present)
        return Hits.of(
            example_H[kept_H],
            key_H,
            begin=begin_H[kept_H],
            end=(begin_H + characters_H)[kept_H],
            reason=key_H,
            keys=keys,
            reasons=tuple(f"literal {self._positions[key]:,} of the list" for key in keys),
        )

    @cached_property
    def _positions(self) -> dict[str, int]:
        """The distinct keys, and where in the list each stands first."""
        positions: dict[str, int] = {}
        for index, value in enumerate(self.values, 1):
            positions.setdefault(caseless(value) if self.ignore_case else value, index)
        return positions

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        return tuple(self._positions)

    @cached_property
    def _characters(self) -> NDArray[np.int64]:
        """How many each distinct literal has."""
        return np.fromiter(map(len, self._keys), np.int64, len(self._keys))

    @cached_property
    def _named(self) -> list[tuple[str | None, Protection | None]]:
        """Name and promise of each distinct literal, which all its repetitions must share."""
        found: dict[int, tuple[str | None, Protection | None]] = {}
        for index, value in enumerate(self.values, 1):
            entry = (
                None if self.ids is None else self.ids[index - 1],
                None if self.protections is None else self.protections[index - 1],
            )
            position = self._positions[caseless(value) if self.ignore_case else value]
            if found.setdefault(position, entry) != entry:
                raise InvalidInput(
                    f"literals {position} and {index} of the list are the same but have different names or promises; "
                    "keep one of them"
                )
        return list(found.values())

    @cached_property
    def _automaton(self) -> Any:
        import ahocorasick_rs

        kind = ahocorasick_rs.Implementation.ContiguousNFA  # a DFA of many thousand literals would need gigabytes
        return ahocorasick_rs.BytesAhoCorasick([key.encode() for key in self._keys], implementation=kind)

    def __getstate__(self) -> dict[str, Any]:
        return fields_only(self)

    def __repr__(self) -> str:
        return f"Literals({len(self.values)} literals, ignore_case={self.ignore_case}, whole_words={self.whole_words})"
