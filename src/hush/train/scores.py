"""Scores that are released with a model, on examples without a secret: their names, and the loss after each stage.

A line of evaluations.jsonl has the number of a round and the scores of the model after it. Round 0 is the model that
the private rounds start from; if ordinary training on what is public came first, that line also has the loss before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from hush.numbers import is_number

__all__ = ["LOSS", "LOSS_BEFORE", "StageLosses"]


LOSS = "held-out loss"  # the mean over the examples that the plan holds out
LOSS_BEFORE = f"{LOSS} before the public part"  # of the model as it was loaded; in the line of round 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StageLosses:
    """Held-out losses before training, after the public part (None without one) and after the private part.

    private is None where no private round was trained.
    """

    before: float
    public: float | None
    private: float | None

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Self | None:
        """From the lines of evaluations.jsonl of a finished training; None if they do not hold the first loss.

        >>> StageLosses.of([{"round": 0, LOSS: 3.0, LOSS_BEFORE: 5.5}, {"round": 9, LOSS: 2.9}])
        StageLosses(before=5.5, public=3.0, private=2.9)
        >>> str(StageLosses.of([{"round": 0, LOSS: 3.0, LOSS_BEFORE: 5.5}]))
        'before 5.500, after the public part 3.000'
        """
        scored = [row for row in rows if "run" not in row and is_number(row.get(LOSS))]
        if not scored or scored[0]["round"] != 0:
            return None
        first, last = float(scored[0][LOSS]), float(scored[-1][LOSS]) if scored[-1]["round"] else None
        if LOSS_BEFORE not in scored[0]:
            return cls(before=first, public=None, private=last)
        return cls(before=float(scored[0][LOSS_BEFORE]), public=first, private=last)

    @property
    def steps(self) -> tuple[tuple[str, float], ...]:
        """The stages by name, in order."""
        public = () if self.public is None else (("after the public part", self.public),)
        private = () if self.private is None else (("after the private part", self.private),)
        return (("before", self.before), *public, *private)

    def __str__(self) -> str:
        return ", ".join(f"{name} {loss:.3f}" for name, loss in self.steps)
