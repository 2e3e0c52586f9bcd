"""What a round shows of its examples, gathered from all ranks: a record for the run log, numbers for the terminal.

All of it, times included, depends on the secret draw and stays with the owner.
"""

from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.plan import Plan
from hush.train.clipping import Clipped
from hush.train.distributed import Ranks
from hush.train.rounds import LiveNumbers
from hush.train.run_log import RoundRecord

__all__ = ["Progress"]

RECENT = 100  # rounds whose mean time tells how long the others will take


@final
class Progress:
    """Watches the rounds of a run, one after another."""

    def __init__(self, plan: Plan, ranks: Ranks) -> None:
        self._plan, self._ranks = plan, ranks
        self._began = 0.0
        self._seen: list[tuple[Clipped, NDArray[np.bool_]]] = []
        self.records: deque[RoundRecord] = deque(maxlen=RECENT)

    def begin(self) -> None:
        """Start a round, without what was seen of one that was left in the middle."""
        self._began, self._seen = perf_counter(), []

    def see(self, clipped: Clipped, real: NDArray[np.bool_]) -> None:
        """Note a micro-batch and its mask of real examples; nothing is read off the device yet."""
        self._seen.append((clipped, real))

    def end(self, round: int, signal_to_noise: Tensor | None) -> RoundRecord:
        """The record of the round, counted from 1, over the examples of all ranks, which call this together."""
        real = np.concatenate([mask for _, mask in self._seen] or [np.zeros(0, dtype=np.bool_)])
        losses, norms = (
            _joined([getattr(clipped, name) for clipped, _ in self._seen])[real] for name in ("losses", "norms")
        )
        self._seen = []
        shares = self._ranks.gather((losses, norms))
        losses, norms = (np.concatenate([share[part] for share in shares]) for part in (0, 1))
        record = RoundRecord.of(
            round,
            losses,
            norms,
            clip_norm=self._plan.clip_norm,
            signal_to_noise=None if signal_to_noise is None else float(signal_to_noise),
            seconds=perf_counter() - self._began,
        )
        self.records.append(record)
        return record

    def live(self, reached: int, scores: Mapping[str, float]) -> LiveNumbers | None:
        """The last round's numbers when so many rounds are done; None before the first."""
        if not self.records:
            return None
        last, left = self.records[-1], self._plan.rounds - reached
        pace = float(np.mean([record.seconds for record in self.records]))
        return LiveNumbers(
            round=last.round,
            rounds_left=left,
            loss=last.loss,
            clipped_share=last.clipped_share,
            signal_to_noise=last.signal_to_noise,
            seconds_left=left * pace,
            scores=scores,
        )


def _joined(tensors: list[Tensor]) -> NDArray[np.float64]:
    return torch.cat(tensors).double().cpu().numpy() if tensors else np.zeros(0)
