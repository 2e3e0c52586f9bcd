"""How counts are spread, for people: in bins that double."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Histogram", "histogram_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How often counts were from ``least`` to ``most``, bin by bin: 0, 1, 2 to 3, 4 to 7, …"""

    least: tuple[int, ...]
    most: tuple[int, ...]
    count: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """The bins in words."""
        pairs = zip(self.least, self.most, strict=True)
        return [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in pairs]


def histogram_of(count_K: NDArray[np.integer]) -> Histogram:
    """The bins of these counts, from the first to the last that is not empty.

    >>> histogram_of(np.array([0, 1, 5, 6, 7, 1]))
    Histogram(least=(0, 1, 2, 4), most=(0, 1, 3, 7), count=(1, 2, 0, 3))
    """
    if not count_K.size:
        return Histogram(least=(), most=(), count=())
    bin_K = np.frexp(count_K.astype(np.float64))[1]  # the number of binary digits: 0 for 0, 1 for 1, 2 for 2 and 3
    filled = np.bincount(bin_K)
    bins = range(int(bin_K.min()), len(filled))
    return Histogram(
        least=tuple(2 ** (each - 1) if each else 0 for each in bins),
        most=tuple(2**each - 1 for each in bins),
        count=tuple(int(filled[each]) for each in bins),
    )
