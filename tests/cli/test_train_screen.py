"""What a terminal shows while a model is trained."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from hush.cli.results.train import TrainingBar, live_line
from hush.train.round import LiveNumbers


def numbers(**changes: Any) -> LiveNumbers:
    given: dict[str, Any] = {
        "round": 3, "rounds_left": 7, "loss": 1.23456, "clipped_share": 0.25, "signal_to_noise": 0.0312,
        "seconds_left": 61.0,
    }  # fmt: skip
    return LiveNumbers(**given | changes)


def test_the_live_line_shows_loss_clipping_and_signal() -> None:
    assert live_line(numbers()).plain == "loss 1.235   clipped 25%   signal/noise 0.031"
    assert live_line(numbers(), first_loss=2.0).plain.startswith("loss 1.235 (from 2.000)   clipped")
    empty = numbers(loss=None, clipped_share=None, signal_to_noise=0.0)
    assert live_line(empty).plain == "loss –   clipped –   signal/noise 0"
    assert live_line(numbers(signal_to_noise=None)).plain.endswith("signal/noise –")
    assert live_line(numbers(scores={"held-out loss": 2.5, "round": 3})).plain.endswith("   held out 2.500")


def shown(*calls: LiveNumbers | tuple[int, int] | None, width: int = 80) -> list[str]:
    """What a terminal shows at last: of texts read, of rounds, of being asked to stop (None)."""
    console = Console(file=StringIO(), force_terminal=True, width=width, color_system=None)
    paper = Console(file=StringIO(), width=width, color_system=None)
    with TrainingBar(console, 10) as bar:
        for call in calls:
            if call is None:
                bar.stopping()
            elif isinstance(call, tuple):
                bar.reading(*call)
            else:
                bar(call)
        with paper.capture() as captured:
            paper.print(bar.picture())
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_rounds_and_time_left_above_the_numbers_and_cuts_nothing(width: int) -> None:
    first, then = numbers(round=2, loss=2.0), numbers(seconds_left=7384.0)
    bar, line = shown((60, 60), first, then, width=width)
    assert bar.startswith("Round 3 of 10 ")
    assert bar.rstrip().endswith(" 7 rounds left, 2 h 03 min")
    assert line.rstrip() == "loss 1.235 (from 2.000)   clipped 25%   signal/noise 0.031"
    for seconds, words in ((61.0, "1 min"), (2.9, "2 s")):
        assert shown(numbers(seconds_left=seconds), width=width)[0].rstrip().endswith(f"7 rounds left, {words}")


def test_a_terminal_shows_what_goes_on_before_the_first_round_and_after_the_last() -> None:
    assert shown()[0].startswith("Loading the model ")
    assert shown((1000, 12000))[0].startswith("Reading the data ")
    assert shown((1000, 12000))[0].rstrip().endswith("1,000 of 12,000 texts")
    assert shown((12000, 12000))[0].startswith("First round ")
    assert shown(numbers(round=10, rounds_left=0))[0].rstrip().endswith("releasing the model")
    asked = shown(numbers(), None)
    assert asked[0].rstrip().endswith("stopping")
    assert asked[1].startswith("Stopping after this step; press Ctrl-C again to stop at once.")


@pytest.mark.parametrize("terminal", [True, False])
def test_live_numbers_are_for_a_terminal_only(terminal: bool) -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, color_system=None)
    with TrainingBar(console, 10) as bar:
        bar(numbers())
    assert ("loss 1.235" in out.getvalue()) == terminal
    assert ("Round 3 of 10" in out.getvalue()) == terminal
