"""Promises of a rules file: points of prior and ceiling that the owner states, or a prior from a public format.

A format says how a secret was drawn (an alphabet and a length, a generator, or bits), which an adversary is assumed to
know; its prior is 1 divided by the number of equally likely values. A prior is never computed from a secret's own text:
a plan is public, so a prior that depended on the text would reveal something about it before any model is trained. A
prior of 1e-14 for a password, for example, would reveal that the password is long.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import inf, nextafter
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.rules.reading import nearest
from hush.settings import Model, Probability, Whole, wrong

__all__ = ["ALPHABETS", "GENERATORS", "LEAST_PRIOR", "Format", "Promise", "prior_among", "protection_of"]


LEAST_PRIOR = 1e-300  # the smallest prior that the accountant takes; a test compares the two

ALPHABETS: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {
        "digits": lambda length: 10**length,
        "hex": lambda length: 16**length,
        "lower": lambda length: 26**length,
        "upper": lambda length: 26**length,
        "letters": lambda length: 52**length,
        "alphanumeric": lambda length: 62**length,
        "printable": lambda length: 95**length,
        "bytes": lambda length: 256**length,
        # These encode whole bytes, so their last letters are not free: 22 letters of base64 are 16 bytes, not 132 bits.
        "base32": lambda length: 256 ** (5 * length // 8),
        "base64": lambda length: 256 ** (6 * length // 8),
    }
)
"""The number of texts of a given length over each named alphabet."""

GENERATORS: Mapping[str, int] = MappingProxyType(
    {
        "uuid4": 2**122,  # six of the 128 bits are fixed
        "nanoid": 64**21,
        "luhn16": 10**15,  # 16 digits, of which the last is a check digit
        "payment-card": 10**7,  # the same, for an adversary who knows the issuer's first eight digits
        "github-token": 62**30,  # the last six of its 36 characters are a checksum
    }
)
"""The number of equally likely values of each known generator of secrets."""


def prior_among(values: int) -> float:
    """The prior of one value among this many equally likely values, rounded up.

    Guarantee: at least 1 / values (compared exactly) and at least LEAST_PRIOR; it is the smallest such double.

    >>> prior_among(2**20) == 2.0**-20, prior_among(10**6), prior_among(62**500)
    (True, 1.0000000000000002e-06, 1e-300)
    """
    exact = Fraction(1, values)
    prior = float(exact)
    if prior < exact:
        prior = nextafter(prior, inf)
    return max(prior, LEAST_PRIOR)


MAX_FORMAT_LENGTH = 4096  # letters or bits; LEAST_PRIOR is reached long before
MAX_ALPHABET_SIZE = 1_114_112  # the number of code points of Unicode


def _alphabet(value: object) -> object:
    allowed = f"pass how many letters there are (2 to {MAX_ALPHABET_SIZE}), or one of {', '.join(ALPHABETS)}"
    if isinstance(value, str) and value in ALPHABETS:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MAX_ALPHABET_SIZE:
        return value
    raise wrong(f"it is not a known alphabet{nearest(value, ALPHABETS)}; {allowed}")


def _generator(value: object) -> object:
    if isinstance(value, str) and value in GENERATORS:
        return value
    raise wrong(f"it is not a known generator{nearest(value, GENERATORS)}; pass one of {', '.join(GENERATORS)}")


class Format(Model):
    """How a secret was drawn, which is public: all values of the format were equally likely."""

    alphabet: Annotated[int | str | None, BeforeValidator(_alphabet)] = None
    length: Whole | None = Field(
        default=None,
        ge=1,
        le=MAX_FORMAT_LENGTH,
        description=f"how many letters it has at least, a whole number from 1 to {MAX_FORMAT_LENGTH}",
    )
    generator: Annotated[str | None, BeforeValidator(_generator)] = None
    bits: Whole | None = Field(
        default=None, ge=1, le=MAX_FORMAT_LENGTH, description=f"a whole number of random bits, 1 to {MAX_FORMAT_LENGTH}"
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = self.model_fields_set
        if given not in ({"alphabet", "length"}, {"generator"}, {"bits"}):
            raise wrong(
                f"it states {' and '.join(sorted(given)) or 'nothing'}; pass alphabet and length, or generator, or bits"
            )
        return self

    @property
    def values(self) -> int:
        """The number of equally likely values."""
        if self.bits is not None:
            return 2**self.bits
        if self.generator is not None:
            return GENERATORS[self.generator]
        length = self.length or 0
        return self.alphabet**length if isinstance(self.alphabet, int) else ALPHABETS[str(self.alphabet)](length)

    @property
    def prior(self) -> float:
        """The prior of an adversary who knows the format and nothing else.

        Guarantee: at least 1 / ``values``; see ``prior_among``.

        >>> Format(alphabet="hex", length=32).prior == Format(bits=128).prior == 2.0**-128
        True
        """
        return prior_among(self.values)


class Promise(Model):
    """A promise, or a part of one that the rule or the defaults complete."""

    prior: Probability | None = Field(
        default=None, ge=LEAST_PRIOR, description=f"a number from {LEAST_PRIOR} to less than 1, such as 1e-10"
    )
    ceiling: Probability | None = Field(default=None, description="a number between 0 and 1, such as 1e-3")
    format: Format | None = Field(
        default=None, description="a mapping with alphabet and length, with generator, or with bits"
    )
    points: tuple[tuple[Probability, Probability], ...] | None = Field(
        default=None, min_length=1, description="a list of [prior, ceiling] pairs, such as [[1e-10, 1e-3], [1e-4, 0.1]]"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = self.model_fields_set
        if "points" in given and len(given) > 1:
            raise wrong("points state priors and ceilings already; drop them, or prior, ceiling and format")
        if {"prior", "format"} <= given:
            raise wrong("the prior is stated and also follows from the format; drop one of them")
        for prior, ceiling in self.points or ():
            if prior < LEAST_PRIOR:
                raise wrong(f"a point has the prior {prior!r}, too small to account for; raise it to {LEAST_PRIOR}")
            if prior > ceiling:
                raise wrong(f"a point has its prior {prior!r} above its ceiling {ceiling!r}; raise the ceiling")
        return self


def protection_of(*promises: Promise | None) -> Protection:
    """The protection that these promises state together, given in order of precedence.

    The order is the secret's own promise, its rule's, the defaults; each fills in what earlier ones leave open. A
    promise with points is complete by itself: it neither fills in others nor is filled in.

    >>> protection_of(Promise(ceiling=1e-6), None, Promise(prior=1e-10, ceiling=1e-3))
    Protection(prior=1e-10, ceiling=1e-06)
    """
    prior: float | None = None
    ceiling: float | None = None
    for promise in promises:
        if promise is None:
            continue
        if promise.points is not None:
            if prior is None and ceiling is None:
                return Protection.of(*promise.points)
            break  # points cannot complete half a promise
        if prior is None:
            prior = promise.prior if promise.format is None else promise.format.prior
        if ceiling is None:
            ceiling = promise.ceiling
    if prior is None or ceiling is None:
        missing = "prior and no ceiling" if prior is ceiling else "prior" if prior is None else "ceiling"
        raise InvalidInput(f"no {missing} is promised; state it under promise, or for all rules under defaults")
    if prior > ceiling:
        raise InvalidInput(
            f"the prior {prior!r} is above the ceiling {ceiling!r}; raise the ceiling, or state a longer format if "
            "secrets have one"
        )
    return Protection(prior, ceiling)
