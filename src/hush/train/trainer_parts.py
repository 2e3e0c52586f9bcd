"""Small parts of ``HushTrainer``: what it hands to the Trainer and to the private training; data checks."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from transformers import ProgressCallback

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.batches import check_lengths
from hush.train.collate import Collator
from hush.train.private import PrivateTraining
from hush.train.rounds import LiveNumbers

__all__ = [
    "OwnerProgress",
    "PrivateSteps",
    "StepsElsewhere",
    "check_data",
]


@final
class PrivateSteps:
    """An optimizer whose step is that of the private training; anything else is the optimizer's."""

    def __init__(self, optimizer: torch.optim.Optimizer, private: PrivateTraining) -> None:
        self.inner, self._private = optimizer, private

    def step(self, closure: object = None) -> None:
        """End the round."""
        self._private.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@final
class StepsElsewhere:
    """A schedule as the private training stores it; the Trainer steps it, after the optimizer or an evaluation."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def step(self) -> None:
        """Nothing."""

    def state_dict(self) -> dict[str, Any]:
        """The schedule's."""
        return self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the schedule."""
        self._schedule.load_state_dict(state)


@final
class OwnerProgress(ProgressCallback):
    """The Trainer's progress bar; on a terminal, with the numbers that only its owner may see, and that no log gets."""

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
        """Show scores that no logger gets."""
        super().on_evaluate(*args, **options)
        if self._scores and self.training_bar is not None and sys.stderr.isatty():
            self.training_bar.write(f"for the owner only: {dict(metrics or {})}")


def check_data(data: Any, plan: Plan, collator: Any, buckets: Sequence[int]) -> None:
    """Refuse data that are not the plan's examples by number, and collators that tie examples together."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise InvalidInput(
            f"train_dataset is a {type(data).__name__}, which cannot be asked for its n-th example; a round draws "
            "from all of them: pass a dataset with a length and rows by number"
        )
    if len(data) != plan.incidence.num_examples:
        raise InvalidInput(
            f"train_dataset has {len(data)} rows but the plan is for {plan.incidence.num_examples} examples; pass the "
            "data that the plan was made for, a row for each example, in its order"
        )
    names = {kind.__name__ for kind in type(collator).__mro__}
    if "DataCollatorWithFlattening" in names or getattr(collator, "padding_free", False):
        raise InvalidInput(
            f"{type(collator).__name__} packs several examples into one sequence, and their gradients cannot be told "
            "apart; use a collator that pads, with one row per example"
        )
    if "DataCollatorForLanguageModeling" in names and getattr(collator, "seed", None) is not None:
        raise InvalidInput(
            f"{type(collator).__name__}(seed={collator.seed}) masks by a known stream, in which an example's place "
            "tells how many were drawn before it; leave the seed out"
        )
    if buckets:
        if not isinstance(collator, Collator) or not hasattr(data, "lengths"):
            raise InvalidInput(
                "buckets need data that know their lengths and a collator that pads to one: pass what "
                "hush.train.collate.tokenise gives, and one of the collators beside it"
            )
        check_lengths(data.lengths, buckets)
