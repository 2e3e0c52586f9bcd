"""Ctrl-C that a library swallows, or turns into an error of its own, stops all the same."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import message, run
from hush.cli.interrupt import Interrupt, remembered_interrupt


def swallowed() -> None:
    """What some libraries do with Ctrl-C while they load others."""
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def turned() -> None:
    """What others make of it."""
    swallowed()
    raise AttributeError("half loaded")


def test_what_is_swallowed_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with remembered_interrupt() as again:
        again()
        swallowed()
        with pytest.raises(KeyboardInterrupt):
            again()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_made_of_ctrl_c_counts_as_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), remembered_interrupt(), remembered_interrupt():  # commands nest them
        turned()
    with pytest.raises(KeyboardInterrupt), remembered_interrupt(), Interrupt(lambda: None):
        turned()


def test_an_error_without_ctrl_c_stays_what_it_is() -> None:
    with pytest.raises(AttributeError), remembered_interrupt():
        raise AttributeError


def test_what_is_swallowed_before_the_first_round_stops_after_it() -> None:
    with Interrupt(lambda: None) as stop:
        swallowed()
        assert stop()


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with remembered_interrupt() as again:
            signal.raise_signal(signal.SIGINT)
            again()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_may_be_called_from_a_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, "init", "--output", tmp_path / "hush.yaml").result().exit_code == 0


def test_a_command_says_that_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hush.run.config.template", lambda _: turned())
    stopped = run("init")
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert message(stopped) == "Stopped; no result was written. The same command begins anew."
