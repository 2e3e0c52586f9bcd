"""What long work says where there is no terminal: under a scheduler, in a container, behind nohup.

A log is easily kept and passed on. So of training it holds which rounds are done, at places that were fixed before, and
neither times nor losses: they depend on the secret draw.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from rich.console import Console

from hush.console import Heartbeat

if TYPE_CHECKING:
    from hush.pipeline.job import Watch
    from hush.train.rounds import LiveNumbers

__all__ = ["Milestones", "both", "logged"]

MILESTONES = 10  # lines of a training
FEWEST = 2 * MILESTONES  # rounds that are worth them


@final
class Milestones:
    """Told of every round; says each tenth part of all rounds that is done, where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, live: "LiveNumbers") -> None:
        rounds = live.round + live.rounds_left
        reached, before = (MILESTONES * round // rounds for round in (live.round, live.round - 1))
        if not self._console.is_terminal and rounds >= FEWEST and reached > before and live.rounds_left:
            self._console.print(f"Round {live.round:,} of {rounds:,} is done.", soft_wrap=True, highlight=False)


def both(one: Callable[..., object], other: Callable[..., object]) -> Callable[..., None]:
    """Tell one, then the other."""

    def tell(*given: Any) -> None:
        one(*given)
        other(*given)

    return tell


def logged(watch: "Watch", console: Console) -> "Watch":
    """What watches a run, and says now and then how far its stages are."""
    return replace(watch, work=both(watch.work, Heartbeat(console)), live=both(watch.live, Milestones(console)))
