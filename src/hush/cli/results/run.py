"""What a run shows: a line for each stage, a bar while one is at work, and at the end what may leave."""

import json
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from rich.console import Console

from hush.audit.headline import STYLES, headline
from hush.cli.checks import quiet_libraries
from hush.cli.results.accounting import Record
from hush.cli.results.cautions import plan_cautions, show_cautions
from hush.console import WorkBar, counted, plain, rounded_up, show_rows
from hush.plan import Plan
from hush.plan.plan import kept_weight, unlisted_secrets
from hush.report.markup import percent_at_least
from hush.run.job import Watch
from hush.run.pipeline import STAGES

if TYPE_CHECKING:
    from hush.run.forecast import Forecast
    from hush.run.pipeline import Outcome
    from hush.train.round import LiveNumbers

__all__ = ["CHECKING", "Screen", "forecast_record", "outcome_record", "show_forecast", "show_outcome"]


CHECKING = "Checking what is asked for"  # before the first stage
_DOING = {stage.name: stage.doing for stage in STAGES}
_STATES = {
    "done": "done",
    "runs": "runs",
    "goes on": "goes on",
    "depends": "runs if an earlier stage comes to something new",
    "refused": "refused without --new-release",
    "depends, refused": "if an earlier stage comes to something new, refused without --new-release",
}


@final
class Screen:
    """Told by a run what it does; shows a line for each stage, and on a terminal a bar.

    Before training begins it warns of what may not be meant: afterwards the model is made, and a plan is trained once.
    folder: of the run. verbose: also stages that are not done again, and how long a stage took; but not training, whose
    time tells how large its draws were.
    """

    def __init__(self, console: Console, *, folder: Path, verbose: bool) -> None:
        self._console, self._folder, self._verbose = console, folder, verbose
        self._bar = WorkBar(console, CHECKING)
        self._begun: tuple[str, float] | None = None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def watch(self, *, stoppable: Callable[[], AbstractContextManager[Callable[[], bool]]]) -> Watch:
        """What a run is given."""
        return Watch(stage=self._stage, work=self._bar, live=self._live, notice=self._notice, stoppable=stoppable)

    def stopping(self) -> None:
        """Ctrl-C during training."""
        self._console.print("Stopping after this round; Ctrl-C again stops at once.", soft_wrap=True)

    def _stage(self, name: str, state: str) -> None:
        self._end_stage()
        if state == "begins":
            self._begun = name, time.perf_counter()
            if name in ("train", "audit"):
                quiet_libraries(silent=False)
        self._bar.begin(_DOING[name])
        if state == "begins" or self._verbose:
            self._console.print(plain(f"{_DOING[name]}{' (as before)' if state == 'kept' else ' …'}"), soft_wrap=True)
        if name == "train" and state == "begins":
            show_cautions(plan_cautions(Plan.load(self._folder / "owner" / "plan")), self._console)

    def _end_stage(self) -> None:
        if self._begun is not None and self._verbose and self._begun[0] != "train":
            name, begin = self._begun
            self._console.print(plain(f"{_DOING[name]}: {time.perf_counter() - begin:.2f} s"), soft_wrap=True)
        self._begun = None

    def _live(self, live: "LiveNumbers") -> None:
        rounds = live.round + live.rounds_left
        loss = "" if live.loss is None else f", loss {live.loss:.3f}"  # on the owner's terminal, and nowhere else
        held_out = live.scores.get("held-out loss")
        loss += "" if held_out is None else f", held out {held_out:.3f}"
        self._bar(_DOING["train"], live.round, rounds, shown=f"Round {live.round:,} of {rounds:,}{loss}")

    def _notice(self, said: str) -> None:
        self._console.print(plain(f"Note: {said}"), soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)
        if error is None:
            self._end_stage()


def forecast_record(stages: "Sequence[Forecast]") -> Record:
    """Plain data for JSON; seconds are guesses."""
    rows = [
        {"stage": one.stage, "state": one.state, "size": one.size, "estimated_seconds": one.seconds} for one in stages
    ]
    known = [one.seconds for one in stages if one.seconds is not None]
    return {"stages": rows, "estimated_seconds": sum(known), "is_estimate": True}


def show_forecast(record: Record, console: Console) -> None:
    """A row for each stage."""
    rows = [
        [row["stage"], _STATES[row["state"]], row["size"], _duration(row["estimated_seconds"])]
        for row in record["stages"]
    ]
    show_rows(console, ["stage", "", "size", "time, about"], rows)
    console.print(
        "Nothing was done. Times are estimates from counts, for a processor without GPU; they may be wrong by several "
        "times. What is not known yet has none.",
        soft_wrap=True,
    )


def outcome_record(made: "Outcome") -> Record:
    """Where everything is, and what it came to. No times: how long training took tells how large its draws were."""
    train, owner = made.outputs["train"], made.folder / "owner"
    plan = Plan.load(owner / "plan")
    release = None if made.verdict == "failed" else str(made.folder / "release")
    return {
        "folder": str(made.folder),
        "release": release,
        "share": release,  # its name in hush 0.1.0, for programs that read it
        "owner": str(owner),
        "report": str(owner / "report.html"),
        "ran": list(made.ran),
        "examples": made.outputs["scan"]["examples"],
        "secrets": made.outputs["scan"]["secrets"],
        "unlisted": unlisted_secrets(plan.incidence),  # canaries never are
        "canaries": made.outputs.get("canaries", {}).get("canaries", 0),
        "noise_multiplier": plan.noise_multiplier,
        "kept_fraction": plan.kept_fraction,
        "kept_weight": kept_weight(plan),
        "rounds": plan.rounds,
        "max_length": train.get("max_length"),
        "cut_texts": train.get("cut_texts", 0),
        "model": train["fingerprint"],
        "certifies": train["certifies"],
        "verdict": made.verdict,
        "audit": None if made.verdict is None else headline(json.loads((owner / "audit" / "audit.json").read_text())),
        "notices": made.outputs["scan"].get("notices", []),
        "cautions": plan_cautions(plan),
    }


def show_outcome(record: Record, console: Console) -> None:
    """The sentences that an owner needs."""
    done = ", ".join(record["ran"]) or "nothing: no input changed"
    canaries = f", and {counted(record['canaries'], 'canary', 'canaries')}" if record["canaries"] else ""
    found = f", {record['secrets'] - record['unlisted']:,} of them in some example" if record["unlisted"] else ""
    lines = [
        f"Done now: {done}.",
        f"{counted(record['examples'], 'example')}, {counted(record['secrets'], 'secret')}{found}{canaries}; "
        f"noise multiplier {rounded_up(record['noise_multiplier'])}, {counted(record['rounds'], 'round')}.",
        f"Used: {percent_at_least(record['kept_fraction'], 3)} of the examples; those with secrets keep "
        f"{percent_at_least(record['kept_weight'], 3)} of their weight.",
    ]
    if record["cut_texts"]:
        lines.append(
            f"Texts are cut at {counted(record['max_length'], 'token')}; that long: "
            f"{counted(record['cut_texts'], 'text')}. See training.max_length."
        )
    if record["release"] is not None:
        lines.append(f"May leave your hands:  {record['release']} (model, plan, certificate, report)")
    lines += [
        f"May not:               {record['owner']} (everything else)",
        f"Your report:           {record['report']}",
    ]
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    if record["release"] is not None:
        console.print(plain(f"Check it:              hush verify {shlex.quote(record['release'])}"), soft_wrap=True)
    if record["audit"] is not None:
        style = STYLES.get(record["verdict"], "yellow")
        nothing = " Nothing is released." if record["release"] is None else ""
        console.print(plain(f"Audit: {record['audit']}{nothing}"), style=style, soft_wrap=True)
    for said in record["notices"]:
        console.print(plain(f"Note: {said}"), soft_wrap=True)
    show_cautions(record["cautions"], console)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
