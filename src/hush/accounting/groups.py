"""Many secrets at once: those whose counts have nearly the same mean and spread share one dominating law.

Legend: S secrets, N examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hush.accounting.counts import EPS, Array, CountLaw, joined_law
from hush.incidence import Incidence

Indices = NDArray[np.int64]

FINEST = 2e-4  # relative width of the finest groups: sharing a law then costs next to no noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Secrets that share one law, which dominates the count of each; what holds for it holds for all of them."""

    member: Indices
    law: CountLaw
    width: float

    @property
    def is_finest(self) -> bool:
        """Too narrow for cutting it finer to matter."""
        return self.width <= FINEST


class Crowd:
    """The sampling rates of every secret's examples, and how to group secrets."""

    def __init__(self, incidence: Incidence, rate_N: Array, *, tail: float) -> None:
        self._offset_S = incidence.offset_S
        self._rate_of_entry = rate_N[incidence.example_of_entry]
        self._tail = tail
        secret = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
        rate = self._rate_of_entry

        def total(values: Array) -> Array:
            return np.bincount(secret, values, minlength=incidence.num_secrets).astype(np.float64)

        self.mean_S = total(rate)
        self._square_S = total(rate * rate)  # mean less variance
        # Terms of one sign, added one after another: at most an EPS of their sum each, and an idle round is made rarer.
        with np.errstate(divide="ignore"):
            self.log_idle_S = total(np.log1p(-rate)) * (1 + EPS * incidence.examples_per_secret)

    def coarse_width(self, member: Indices, most: int) -> float:
        """The narrowest width, FINEST times a power of 2, that makes at most so many groups."""
        width = FINEST
        while np.unique(self._keys(member, width)).size > most:
            width *= 2
        return width

    def grouped(self, member: Indices, width: float) -> Iterator[Group]:
        """Groups of secrets with means within a factor 1 + width and alike in spread."""
        keys = self._keys(member, width)
        order = np.argsort(keys, kind="stable")
        for part in np.split(member[order], np.flatnonzero(np.diff(keys[order])) + 1):
            law = joined_law([self._rates(int(secret)) for secret in part], tail=self._tail)
            yield Group(member=part, law=law, width=width)

    def _keys(self, member: Indices, width: float) -> Indices:
        mean = np.floor(np.log(self.mean_S[member]) / width).astype(np.int64)
        spread = np.floor(self._square_S[member] / self.mean_S[member] / (8 * width)).astype(np.int64)
        return mean * (1 << 20) + spread

    def _rates(self, secret: int) -> Array:
        return self._rate_of_entry[self._offset_S[secret] : self._offset_S[secret + 1]]
