"""Long work without a terminal: a line now and then, and of training nothing that the draw decides."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

from hush.cli.messages import FEWEST, MILESTONES, Milestones, logged
from hush.console import LOG_INTERVAL_SECONDS, Heartbeat, ProgressBar, TimeLeft, WorkBar, timed_bar
from hush.run.job import Watch
from hush.train.round import LiveNumbers


def log(*, terminal: bool = False) -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, force_terminal=terminal, width=80, color_system=None), out


def live(round: int, rounds: int, *, loss: float = 1.5, seconds: float = 60.0) -> LiveNumbers:
    return LiveNumbers(
        round=round, rounds_left=rounds - round, loss=loss, clipped_share=0.5, signal_to_noise=0.1, seconds_left=seconds
    )


@given(st.integers(1, 300), st.floats(0.1, 9.0), st.floats(0.0, 1e5))
def test_a_log_of_training_is_the_same_whatever_was_drawn(rounds: int, loss: float, seconds: float) -> None:
    said: list[str] = []
    for numbers in ({}, {"loss": loss, "seconds": seconds}):
        console, out = log()
        told = Milestones(console)
        for round in range(1, rounds + 1):
            told(live(round, rounds, **numbers))
        said.append(out.getvalue())
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == (MILESTONES - 1 if rounds >= FEWEST else 0)


def test_the_tenths_of_training_are_said() -> None:
    console, out = log()
    told = Milestones(console)
    for round in range(1, 2001):
        told(live(round, 2000))
    assert out.getvalue().splitlines() == [f"Round {round:,} of 2,000 is done." for round in range(200, 2000, 200)]


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=60))
def test_a_line_comes_at_most_every_half_minute(steps: list[float]) -> None:
    console, out = log()
    now, told_at = [0.0], [0.0]
    beat = Heartbeat(console, clock=lambda: now[0])
    beat("Scanning", 0, len(steps) + 1)
    for done, step in enumerate(steps, 1):
        before, now[0] = len(out.getvalue()), now[0] + step
        beat("Scanning", done, len(steps) + 1)
        if len(out.getvalue()) > before:
            assert now[0] - told_at[-1] >= LOG_INTERVAL_SECONDS
            told_at.append(now[0])
        else:
            assert now[0] - told_at[-1] < LOG_INTERVAL_SECONDS
    assert len(out.getvalue().splitlines()) == len(told_at) - 1


def test_a_line_says_how_far_it_is_and_how_long_the_rest_takes() -> None:
    console, out = log()
    now = [100.0]
    beat = Heartbeat(console, clock=lambda: now[0])
    for done, what, at in ((0, "Scanning", 100), (25, "Scanning", 140), (26, "Scanning", 150), (1, "Planning", 250)):
        now[0] = at
        beat(what, done, 100)
    assert out.getvalue() == "Scanning: 25%, about 2 min left\n"  # the plan has only begun


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_are_for_logs_and_bars_for_terminals(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr("hush.console.LOG_INTERVAL_SECONDS", 0.0)
    console, out = log(terminal=terminal)
    with ProgressBar(console, "Scanning") as bar:
        bar(1, 4)
        bar(2, 4)
    assert ("Scanning: 50%, about 0 s left" in out.getvalue()) != terminal
    console, out = log(terminal=terminal)
    Milestones(console)(live(20, 100))
    assert ("Round 20 of 100 is done." in out.getvalue()) != terminal


def test_a_bar_says_how_long_the_rest_takes_once_it_lasts() -> None:
    now = [0.0]
    progress = timed_bar(log(terminal=True)[0], get_time=lambda: now[0], auto_refresh=False)
    progress.add_task("Scanning", total=200)
    (task,) = progress.tasks
    said: dict[int, str] = {}
    for at in range(201):
        now[0] = at
        progress.update(task.id, completed=at)
        said[at] = TimeLeft().render(task).plain
    assert {said[at] for at in range(3)} == {""}
    assert (said[10], said[80], said[190]) == ("3 min left", "2 min left", "10 s left")
    assert said[200] == ""


def test_each_work_has_a_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that is done, and of the same size; the name beside the bar may change on the way."""
    now, said = [0.0], list[tuple[str, str]]()
    bars: list[Progress] = []

    def made(console: Console, **_: object) -> Progress:
        bars.append(timed_bar(console, get_time=lambda: now[0], auto_refresh=False))
        return bars[-1]

    monkeypatch.setattr("hush.console.timed_bar", made)
    bar = WorkBar(log(terminal=True)[0], "")
    for what, step in (("Scanning", 1.0), ("Training", 60.0)):
        bar.begin(what)
        for done in range(11):
            bar(what, done, 10, shown=f"{what} {done}")
            (task,) = bars[0].tasks
            said.append((task.description, TimeLeft().render(task).plain))
            now[0] += step
    assert said[5] == ("Scanning 5", "5 s left")
    assert said[11] == ("Training 0", "")
    assert said[16] == ("Training 5", "5 min left")
    assert said[10][1] == said[21][1] == ""


def test_no_time_is_cut_where_there_is_little_room() -> None:
    now = [0.0]
    console, out = log(terminal=True)
    progress = timed_bar(console, get_time=lambda: now[0], auto_refresh=False)
    task = progress.add_task("Round 1,234 of 2,000, loss 3.123, held out 3.456", total=2000)
    for done in range(0, 1241, 10):
        now[0] = 6.0 * done
        progress.update(task, completed=done)
    console.print(progress.get_renderable())
    (line,) = out.getvalue().splitlines()
    assert "held out 3.456 " in line
    assert "2:04:00" in line
    assert line.rstrip().endswith(" 1 h 16 min left")


def test_who_watches_a_run_is_told_as_before() -> None:
    heard: list[object] = []
    console, out = log()
    watch = logged(Watch(work=lambda *given: heard.append(given), live=heard.append), console)
    watch.work("Scanning", 1, 2)
    watch.live(live(20, 100))
    assert heard == [("Scanning", 1, 2), live(20, 100)]
    assert out.getvalue() == "Round 20 of 100 is done.\n"
