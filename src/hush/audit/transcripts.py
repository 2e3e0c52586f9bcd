"""What an attacker sees of many runs, and what only the judge knows: iterates, and which candidate was the true one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hush.errors import InvalidInput

__all__ = ["Transcripts"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Transcripts:
    """Models of R independent runs, as an attacker sees them: iterates[r, i] is run r's model after round released[i].

    truth[r] is the candidate that run r was trained on; attacks do not look at it.
    """

    iterates: Tensor  # R × released × D
    released: tuple[int, ...]
    truth: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.iterates.shape[:2] != (self.truth.size, len(self.released)):
            raise InvalidInput(
                f"iterates of shape {tuple(self.iterates.shape)} for {self.truth.size} runs with {len(self.released)} "
                "models each; pass runs × models × parameters"
            )
        if len(self.released) < 2 or any(late <= early for early, late in pairwise(self.released)):
            raise InvalidInput(f"models after the rounds {self.released}; pass at least two, in the order of training")

    def only(self, released: Sequence[int]) -> Self:
        """The same runs with fewer models released; [0, T] leaves the first, which is known anyway, and the last."""
        missing = [index for index in released if index not in self.released]
        if missing:
            raise InvalidInput(f"no model was kept after the rounds {missing}; choose among {self.released}")
        where = [self.released.index(index) for index in released]
        return replace(self, iterates=self.iterates[:, where], released=tuple(released))

    def __repr__(self) -> str:
        return f"Transcripts({self.truth.size} runs, {len(self.released)} models of each)"
