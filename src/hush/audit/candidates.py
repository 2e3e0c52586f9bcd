"""What a planted secret may be: every text of a public format, or a list. Each is as likely as any other."""

import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, nextafter
from random import Random
from types import MappingProxyType
from typing import Any, Self, final

from hush.errors import InvalidInput
from hush.scan.public_formats import prior_among

__all__ = ["ALPHABETS", "Candidates"]

LONGEST = 256  # letters

ALPHABETS: Mapping[str, str] = MappingProxyType(
    {
        "digits": string.digits,
        "hex": string.digits + "abcdef",
        "lower": string.ascii_lowercase,
        "upper": string.ascii_uppercase,
        "letters": string.ascii_letters,
        "alphanumeric": string.ascii_letters + string.digits,
    }
)


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Candidates:
    """All texts that a secret may be, numbered from 0. Build one with ``of_format`` or ``of_list``.

    >>> pins = Candidates.of_format("digits", 4)
    >>> pins.size, pins.text(42), pins.prior
    (10000, '0042', 0.0001)
    """

    letters: str = ""
    length: int = 0
    values: tuple[str, ...] = ()

    @classmethod
    def of_format(cls, alphabet: str, length: int) -> Self:
        """Every text of this length over a named alphabet."""
        if alphabet not in ALPHABETS:
            raise InvalidInput(f"alphabet={alphabet!r}; pass one of {', '.join(ALPHABETS)}")
        if not 1 <= length <= LONGEST:
            raise InvalidInput(f"length={length}; pass a whole number of letters from 1 to {LONGEST}")
        return cls(letters=ALPHABETS[alphabet], length=length)

    @classmethod
    def of_list(cls, values: Sequence[str]) -> Self:
        """These texts, at least two, all different."""
        if len(values) < 2 or len(set(values)) < len(values) or not all(values):
            raise InvalidInput(
                f"there are {len(values)} candidates, {len(set(values))} of them different; pass at least two, all "
                "different, none empty"
            )
        return cls(values=tuple(values))

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.values) or len(self.letters) ** self.length

    @property
    def prior(self) -> float:
        """The chance of naming the right one without having seen anything. Guarantee: at least 1 / ``size``."""
        return prior_among(self.size)

    def spoken_prior(self, fold: Callable[[str], str] = str) -> float:
        """The same for whoever says a text that goes on: it names each candidate that it begins with, as Ann in Anna.

        fold: what is left of a text when it is spoken; those that are then equal, such as Bo and bo, are said at once.

        >>> Candidates.of_list(["Ann", "Anna", "Bo", "Cy"]).spoken_prior()
        0.5
        """
        most = max(Counter(map(fold, self.letters)).values(), default=1) ** self.length
        chain: list[str] = []
        for value in sorted(map(fold, self.values)):  # what begins alike stands together, the shorter first
            while chain and not value.startswith(chain[-1]):
                chain.pop()
            chain.append(value)
            most = max(most, len(chain))
        exact = Fraction(most, self.size)
        return max(self.prior, float(exact), nextafter(float(exact), inf) if float(exact) < exact else 0.0)

    def masked_prior(self, fold: Callable[[str], str] = str, *, more: int = 0) -> float:
        """The same for whoever is told how many tokens it has, as a masked model is, and has an answer for each number.

        more: tokens that may be hidden beside its own.

        >>> round(Candidates.of_list(["Bo", "Cy", "Ada", "Eve"]).masked_prior(), 4)  # one to three tokens
        0.75
        """
        texts = self.values or (self.letters[:1] * self.length,)
        widths = more + max(len(fold(text).encode()) for text in texts)  # a token holds at least one byte
        return min(1.0, nextafter(widths * self.spoken_prior(fold), inf))

    def text(self, number: int) -> str:
        """The candidate of this number."""
        if not 0 <= number < self.size:
            raise InvalidInput(f"candidate {number} is outside [0, {self.size}); they count from 0")
        if self.values:
            return self.values[number]
        letters: list[str] = []
        for _ in range(self.length):
            number, place = divmod(number, len(self.letters))
            letters.append(self.letters[place])
        return "".join(reversed(letters))

    def some(self, count: int, rng: Random) -> list[int]:
        """So many different ones, drawn at random; all where there are no more."""
        return list(range(self.size)) if count >= self.size else list(_distinct(self.size, count, rng))

    def others(self, number: int, count: int, rng: Random) -> list[int]:
        """So many different ones besides this one, drawn at random; all others where there are no more."""
        if count >= self.size - 1:
            return [other for other in range(self.size) if other != number]
        return [other + (other >= number) for other in _distinct(self.size - 1, count, rng)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the owner's file."""
        return {"values": list(self.values)} if self.values else {"letters": self.letters, "length": self.length}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From what ``to_dict`` gave."""
        if "values" in data:
            return cls.of_list([str(value) for value in data["values"]])
        names = {letters: name for name, letters in ALPHABETS.items()}
        return cls.of_format(names.get(str(data["letters"]), "unknown"), int(data["length"]))

    def __repr__(self) -> str:
        return f"Candidates({self.size} texts)"


def _distinct(size: int, count: int, rng: Random) -> Iterator[int]:
    """Different numbers below a size that may be too large for ``Random.sample``."""
    seen: set[int] = set()
    while len(seen) < count:
        number = rng.randrange(size)
        if number not in seen:
            seen.add(number)
            yield number
