"""What the loop of the Trainer gets in place of its own optimizer, schedule and progress bar."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from transformers import ProgressCallback

from hush.train.private_training import PrivateTraining
from hush.train.round import LiveNumbers

__all__ = ["OwnerProgress", "PrivateOptimizer", "StoredSchedule"]


@final
class PrivateOptimizer:
    """An optimizer whose step is that of the private training; everything else is the optimizer's own."""

    def __init__(self, optimizer: torch.optim.Optimizer, private: PrivateTraining) -> None:
        self.inner, self._private = optimizer, private

    def step(self, closure: object = None) -> None:
        """End the round."""
        self._private.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@final
class StoredSchedule:
    """A schedule that the private training only stores; the Trainer steps it, after the optimizer or an evaluation."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def step(self) -> None:
        """Do nothing: the Trainer steps the schedule."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule."""
        return self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state into the schedule."""
        self._schedule.load_state_dict(state)


@final
class OwnerProgress(ProgressCallback):
    """The Trainer's progress bar; on a terminal it adds the numbers that only the owner may see, and no log gets."""

    def __init__(self, live: Callable[[], LiveNumbers | None], *, scores: bool) -> None:
        super().__init__()
        self._live, self._scores = live, scores

    def on_step_end(self, *args: Any, **options: Any) -> None:
        """Show loss, clipped share and signal-to-noise of the round."""
        super().on_step_end(*args, **options)
        live = self._live()
        if live is not None and self.training_bar is not None and sys.stderr.isatty():
            numbers = {"loss": live.loss, "clipped": live.clipped_share, "signal/noise": live.signal_to_noise}
            self.training_bar.set_postfix({name: f"{n:.3g}" for name, n in numbers.items() if n is not None})

    def on_evaluate(self, *args: Any, metrics: Mapping[str, float] | None = None, **options: Any) -> None:
        """Show scores that loggers do not get."""
        super().on_evaluate(*args, **options)
        if self._scores and self.training_bar is not None and sys.stderr.isatty():
            self.training_bar.write(f"for the owner only: {dict(metrics or {})}")
