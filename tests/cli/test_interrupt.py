"""Signals in training, in processes of their own: the first asks, the second ends; before a round is done, any ends."""

import signal
import subprocess
import sys

import pytest

from hush.cli.interrupt import stopped_after_message

PROGRAM = """
import signal
from hush.cli.interrupt import Interrupt
with Interrupt(lambda: print("asked", flush=True)) as stop:
    if {begun}:
        assert not stop()
        signal.raise_signal({first})
        assert stop()
        print(stop.exit_code, type(stop.exception("bye")).__name__, flush=True)
    signal.raise_signal({second})
    print("still here")
"""
NUMBERS = (signal.SIGINT, signal.SIGTERM)


def ran(*, begun: bool, first: int = 0, second: int = 0) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(begun=begun, first=int(first), second=int(second))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)


def assert_ended(done: subprocess.CompletedProcess[str], number: int) -> None:
    """By the signal itself, or by Python's KeyboardInterrupt, after which it ends itself by SIGINT."""
    assert done.returncode == -number
    assert ("KeyboardInterrupt" in done.stderr) == (number == signal.SIGINT)
    assert "still here" not in done.stdout


@pytest.mark.parametrize("first", NUMBERS)
@pytest.mark.parametrize("second", NUMBERS)
def test_the_first_asks_and_the_second_ends(first: int, second: int) -> None:
    done = ran(begun=True, first=first, second=second)
    told = "143 Terminated" if first == signal.SIGTERM else "130 KeyboardInterrupt"
    assert done.stdout == f"asked\n{told}\n"
    assert_ended(done, second)


@pytest.mark.parametrize("number", NUMBERS)
def test_before_a_round_is_done_nothing_is_waited_for(number: int) -> None:
    done = ran(begun=False, second=number)
    assert done.stdout == ""
    assert_ended(done, number)


def test_the_message_says_how_far_training_got() -> None:
    assert stopped_after_message(3, 6).startswith("Stopped after round 3 of 6, which is saved.")
    assert stopped_after_message(0, 6).startswith("Stopped before the first private round. What is learnt is saved;")
