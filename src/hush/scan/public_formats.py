"""Priors from how secrets are made: how many equally likely values a public format has, and so how likely each is.

A format says how a secret was drawn (an alphabet and a length, a generator, or bits), which an adversary is assumed to
know. Nothing here ever sees a secret.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import inf, nextafter
from types import MappingProxyType

__all__ = ["ALPHABETS", "GENERATORS", "LEAST_PRIOR", "prior_among"]

LEAST_PRIOR = 1e-300  # the accountant takes no smaller one; a test compares the two

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
        # These write whole bytes, so their last letters are not free: 22 letters of base64 are 16 bytes, not 132 bits.
        "base32": lambda length: 256 ** (5 * length // 8),
        "base64": lambda length: 256 ** (6 * length // 8),
    }
)
"""How many texts of a length there are over a named alphabet."""

GENERATORS: Mapping[str, int] = MappingProxyType(
    {
        "uuid4": 2**122,  # six of the 128 bits are fixed
        "nanoid": 64**21,
        "luhn16": 10**15,  # 16 digits, the last of which checks the others
        "payment-card": 10**7,  # the same, to somebody who knows the issuer's first eight digits
        "github-token": 62**30,  # the last six of its 36 characters check the others
    }
)
"""How many equally likely values a known way to make secrets has."""


def prior_among(values: int) -> float:
    """The probability of one value among so many equally likely ones.

    Guarantee: at least 1 / values, exactly compared, and at least the smallest prior that the accountant takes; above
    that smallest one it is the least such double.

    >>> prior_among(2**20) == 2.0**-20, prior_among(10**6), prior_among(62**500)
    (True, 1.0000000000000002e-06, 1e-300)
    """
    exact = Fraction(1, values)
    prior = float(exact)
    if prior < exact:
        prior = nextafter(prior, inf)
    return max(prior, LEAST_PRIOR)
