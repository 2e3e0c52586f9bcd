"""What happened in each round, a line of JSON each, in files of the owner's that follow a run through its crashes.

Batch sizes and losses of the draw would give it away and stay with the owner for good; scores on data without secrets
wait there until the model that they tell of is released.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput

__all__ = ["RoundLines", "RoundRecord", "RunLog"]

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoundRecord:
    """One round, for the owner's eyes only; None where an empty draw leaves nothing to average.

    round counts from 1. not_finite is how many examples were left out because their gradient was not finite;
    norm_quantiles are those of the other gradients before clipping, at 0, 10, 25, 50, 75, 90 and 100 %.
    signal_to_noise is the norm of the clipped sum by that expected of its noise.
    """

    round: int
    examples: int
    loss: float | None
    clipped_share: float | None
    norm_quantiles: tuple[float, ...] | None
    not_finite: int
    signal_to_noise: float | None
    seconds: float = field(compare=False)

    @classmethod
    def of(
        cls,
        round: int,
        losses: NDArray[np.floating],
        norms: NDArray[np.floating],
        *,
        clip_norm: float,
        signal_to_noise: float | None,
        seconds: float,
    ) -> Self:
        """From the losses and norms of the examples that were drawn."""
        finite, losses = norms[np.isfinite(norms)], losses[np.isfinite(losses)]
        return cls(
            round=round,
            examples=len(norms),
            loss=float(losses.mean()) if losses.size else None,
            clipped_share=float(np.mean(finite > clip_norm)) if finite.size else None,
            norm_quantiles=tuple(np.quantile(finite, QUANTILES).tolist()) if finite.size else None,
            not_finite=len(norms) - len(finite),
            signal_to_noise=signal_to_noise,
            seconds=seconds,
        )


@final
class RoundLines:
    """An owner-only file with a line of JSON for each round, of which ``round`` is the number.

    A killed process costs at most the line it was writing; durable: once ``append`` returns, a crash of the machine
    costs nothing. After a resume, the lines of rounds that are done again give way to the new ones.
    """

    def __init__(self, path: Path, *, resumed_after: int, durable: bool = False) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._closed = finalize(self, os.close, self._handle)
        self._durable = durable
        end = path.read_bytes().rfind(b"\n") + 1  # what follows is a torn line
        os.ftruncate(self._handle, end)
        if end:
            self.append({"resumed_after": resumed_after})

    def append(self, content: Mapping[str, Any]) -> None:
        """Add a line."""
        if not self._closed.alive:  # the number of the closed file may be that of another one by now
            raise InvalidInput("this training was closed; open it again to go on")
        line = json.dumps(dict(content)).encode() + b"\n"
        if os.write(self._handle, line) < len(line):  # one write, so that a kill tears one line at most
            raise InvalidInput("the disk took a part of a line only, as full ones do; make room and start again")
        if self._durable:
            os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        self._closed()

    @staticmethod
    def read(path: str | Path) -> list[dict[str, Any]]:
        """The lines of a file, each round once, as last done."""
        found: list[dict[str, Any]] = []
        for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], start=1):
            try:
                content: dict[str, Any] = json.loads(line)
                reached = content["resumed_after"] if "resumed_after" in content else content["round"] - 1
                while found and found[-1]["round"] > reached:
                    found.pop()
                if "round" in content:
                    found.append(content)
            except (ValueError, TypeError, KeyError) as error:
                raise InvalidInput(f"line {number} of {path} is not one of a run log; restore the file") from error
        return found


@final
class RunLog:
    """The rounds of a run: what only its owner may see."""

    def __init__(self, path: Path, *, resumed_after: int) -> None:
        self._lines = RoundLines(path, resumed_after=resumed_after)

    def append(self, record: RoundRecord) -> None:
        """Add a round."""
        self._lines.append(asdict(record))

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    @staticmethod
    def read(path: str | Path) -> list[RoundRecord]:
        """The rounds of a log, each once, as last done."""
        records: list[RoundRecord] = []
        for content in RoundLines.read(path):
            try:
                quantiles = content["norm_quantiles"] and tuple(content["norm_quantiles"])
                records.append(RoundRecord(**{**content, "norm_quantiles": quantiles}))
            except (TypeError, KeyError) as error:
                raise InvalidInput(f"round {content['round']} of {path} is not complete; restore the file") from error
        return records
