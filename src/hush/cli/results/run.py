"""Output of ``hush run``: a line and a progress bar for each stage, and at the end where the results are."""

import json
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from rich.console import Console

from hush.audit.headline import STYLES, headline
from hush.cli.checks import quiet_libraries
from hush.cli.results.accounting import Record
from hush.cli.results.cautions import plan_cautions, show_cautions
from hush.cli.results.plan import show_outlook, show_without_noise
from hush.cli.results.train import STOPPING_NOTE
from hush.console import WorkBar, counted, plain, rounded_up, show_rows
from hush.plan import Plan
from hush.plan.plan import kept_weight, unlisted_secrets
from hush.report.markup import percent_at_least
from hush.run.folder import RunPaths, RunRecord
from hush.run.job import Watch
from hush.run.pipeline import STAGES
from hush.train.scores import StageLosses

if TYPE_CHECKING:
    from hush.run.forecast import DryRun
    from hush.run.pipeline import Outcome
    from hush.train.round import LiveNumbers

__all__ = ["CHECKING", "Screen", "forecast_record", "outcome_record", "show_forecast", "show_outcome"]


CHECKING = "Checking the config"  # before the first stage
_STAGE_LABELS = {stage.name: stage.doing for stage in STAGES}
_STATE_LABELS = {  # of the states of a forecast
    "done": "done",
    "runs": "runs",
    "goes on": "resumes",
    "depends": "runs if an earlier result changes",
    "refused": "refused without --new-release",
    "depends, refused": "refused without --new-release if an earlier result changes",
}


@final
class Screen:
    """Observes a run; prints a line for each stage, and on a terminal a progress bar.

    Before training starts it prints warnings about the plan: a plan is trained only once, so later is too late.
    folder: of the run. verbose: also print stages that are skipped, and how long each stage took, except for training,
    whose time depends on the size of its secret draws.
    """

    def __init__(self, console: Console, *, folder: Path, verbose: bool) -> None:
        self._console, self._folder, self._verbose = console, folder, verbose
        self._bar = WorkBar(console, CHECKING)
        self._begun: tuple[str, float] | None = None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def watch(self, *, stoppable: Callable[[], AbstractContextManager[Callable[[], bool]]]) -> Watch:
        """The observer to pass to a run."""
        return Watch(stage=self._stage, work=self._bar, live=self._live, notice=self._notice, stoppable=stoppable)

    def stopping(self) -> None:
        """Print that training will stop after the current round."""
        self._console.print(STOPPING_NOTE, soft_wrap=True)

    def _stage(self, name: str, state: str) -> None:
        self._end_stage()
        if state == "begins":
            self._begun = name, time.perf_counter()
            if name in ("scan", "plan", "train", "audit"):  # a scan may ask the model how much it reads
                quiet_libraries(silent=False)
        self._bar.begin(_STAGE_LABELS[name])
        if state == "begins" or self._verbose:
            self._console.print(
                plain(f"{_STAGE_LABELS[name]}{' (unchanged)' if state == 'kept' else ' …'}"), soft_wrap=True
            )
        if name == "train" and state == "begins":
            self._show_outlook()
            show_cautions(plan_cautions(Plan.load(self._folder / "owner" / "plan")), self._console)

    def _show_outlook(self) -> None:
        """Print what the plan's stage found can be learnt; plans of older versions have no such record."""
        outlook = RunRecord.read(RunPaths(self._folder).stages).stages["plan"].outputs.get("outlook")
        if outlook is not None:
            show_outlook(outlook, self._console)
            show_without_noise(outlook, self._console)

    def _end_stage(self) -> None:
        if self._begun is not None and self._verbose and self._begun[0] != "train":
            name, begin = self._begun
            self._console.print(plain(f"{_STAGE_LABELS[name]}: {time.perf_counter() - begin:.2f} s"), soft_wrap=True)
        self._begun = None

    def _live(self, live: "LiveNumbers") -> None:
        rounds = live.round + live.rounds_left
        loss = "" if live.loss is None else f", loss {live.loss:.3f}"  # only on the owner's terminal
        held_out = live.scores.get("held-out loss")
        loss += "" if held_out is None else f", held out {held_out:.3f}"
        self._bar(_STAGE_LABELS["train"], live.round, rounds, shown=f"Round {live.round:,} of {rounds:,}{loss}")

    def _notice(self, notice: str) -> None:
        self._console.print(plain(f"Note: {notice}"), soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)
        if error is None:
            self._end_stage()


def forecast_record(forecast: "DryRun") -> Record:
    """A dry run as plain data; seconds are forecasts."""
    stages = forecast.stages
    rows = [
        {"stage": stage.stage, "state": stage.state, "size": stage.size, "estimated_seconds": stage.seconds}
        for stage in stages
    ]
    known = [stage.seconds for stage in stages if stage.seconds is not None]
    cautions = [stage.caution for stage in stages if stage.caution]
    return {
        "stages": rows,
        "estimated_seconds": sum(known),
        "is_estimate": True,
        "cautions": cautions,
        "outlook": forecast.outlook,
        "releases": forecast.releases,
    }


def show_forecast(record: Record, console: Console) -> None:
    """Print a row for each stage."""
    rows = [
        [row["stage"], _STATE_LABELS[row["state"]], row["size"], _duration(row["estimated_seconds"])]
        for row in record["stages"]
    ]
    show_rows(console, ["stage", "", "size", "time, about"], rows)
    if record["releases"] is not None:
        console.print(plain(_left_sentence(record["releases"])), soft_wrap=True)
    if record["outlook"] is not None:
        show_outlook(record["outlook"], console)
        show_without_noise(record["outlook"], console)
    else:
        console.print("What can be learnt under the promises is known after the scan; ask again then.", soft_wrap=True)
    console.print(
        "Nothing was run. Times are forecasts for this machine's cores if nothing else uses them, and may be wrong by "
        "a factor of two or more; stages whose size is not known yet have none.",
        soft_wrap=True,
    )
    show_cautions(record["cautions"], console)


def _left_sentence(releases: Record) -> str:
    """How many releases of a chain have begun, and what is left."""
    begun, count = releases["begun"], releases["count"]
    said = f"Releases under one promise: {begun} begun, as they come"
    if count is not None:
        said = f"Releases under one promise: {begun} of {count} begun, {count - begun} left"
    elif begun:
        said += f"; each secret has at least {percent_at_least(releases['least_left'], 3)} of its budget left"
    unfinished = f". Not finished: release {releases['open'][0]}" if releases["open"] else ""
    return f"{said}{unfinished}. hush ledger shows them."


def outcome_record(outcome: "Outcome") -> Record:
    """A finished run as plain data. It holds no times: that of training depends on the size of its secret draws."""
    train, owner = outcome.outputs["train"], outcome.folder / "owner"
    plan = Plan.load(owner / "plan")
    release = None if outcome.verdict == "failed" else str(outcome.folder / "release")
    return {
        "folder": str(outcome.folder),
        "release": release,
        "share": release,  # its name in hush 0.1.0, for programs that read it
        "owner": str(owner),
        "report": str(owner / "report.html"),
        "ran": list(outcome.ran),
        "examples": outcome.outputs["scan"]["examples"],
        "secrets": outcome.outputs["scan"]["secrets"],
        "unlisted": unlisted_secrets(plan.incidence),  # canaries never are
        "canaries": outcome.outputs.get("canaries", {}).get("canaries", 0),
        "noise_multiplier": plan.noise_multiplier,
        "kept_fraction": plan.kept_fraction,
        "kept_weight": kept_weight(plan),
        "scope": None if plan.certificate.scope is None else dict(plan.certificate.scope),
        "rounds": plan.rounds,
        "private_rounds": train.get("private_rounds", plan.rounds),
        "why_no_rounds": train.get("why_no_rounds"),
        "releases": None if plan.chain is None else {"number": plan.chain.number, "count": plan.chain.count},
        "outlook": {
            name: value for name, value in outcome.outputs["plan"].get("outlook", {}).items() if name != "inputs"
        },
        "max_length": train.get("max_length"),
        "cut_texts": train.get("cut_texts", 0),
        "losses": train.get("losses"),
        "model": train["fingerprint"],
        "certifies": train["certifies"],
        "verdict": outcome.verdict,
        "audit": None
        if outcome.verdict is None
        else headline(json.loads((owner / "audit" / "audit.json").read_text())),
        "notices": [
            *outcome.outputs["scan"].get("notices", []),
            *(f"WARNING: {sentence}" for sentence in outcome.outputs["plan"].get("history", [])),
        ],
        "cautions": plan_cautions(plan),
    }


def _used(record: Record) -> str:
    """How much of the data is used, and what of it is public."""
    kept, weight = (percent_at_least(record[name], 3) for name in ("kept_fraction", "kept_weight"))
    if record.get("scope") is None:
        return f"Used: {kept} of the examples; those with secrets keep {weight} of their weight."
    scope = record["scope"]
    return (
        f"Drawn in private: {kept} of the examples with secrets, which keep {weight} of their weight. What is secret: "
        f"the text in {counted(scope['slots'], 'slot')}, and {counted(scope['whole_examples'], 'whole example')}. The "
        "rest is public."
    )


def show_outcome(record: Record, console: Console) -> None:
    """Print what the run did, where the results are, which may be passed on, and the verdict of the audit."""
    done = ", ".join(record["ran"]) or "nothing: no input changed"
    canaries = f", and {counted(record['canaries'], 'canary', 'canaries')}" if record["canaries"] else ""
    in_examples = f", {record['secrets'] - record['unlisted']:,} of them in some example" if record["unlisted"] else ""
    lines = [
        f"Stages run: {done}.",
        f"{counted(record['examples'], 'example')}, {counted(record['secrets'], 'secret')}{in_examples}{canaries}; "
        + (
            f"noise multiplier {rounded_up(record['noise_multiplier'])}, {counted(record['rounds'], 'round')}."
            if record["private_rounds"]
            else "no private round was trained."
        ),
        _used(record) if record["private_rounds"] else str(record["why_no_rounds"]),
    ]
    if record["releases"] is not None:
        number, count = record["releases"]["number"], record["releases"]["count"]
        lines.append(f"Release {number}{'' if count is None else f' of {count}'} under one promise.")
    if record["losses"] is not None:
        lines.append(f"Loss on held-out public examples: {StageLosses(**record['losses'])}.")
    else:
        lines.append(
            "No loss is shown: none of the examples without a secret is held out. By default 5 % are if that is at "
            "least 20; plan.hold_out sets the share."
        )
    if record["cut_texts"]:
        lines.append(
            f"Texts are cut to {counted(record['max_length'], 'token')}, and longer are "
            f"{counted(record['cut_texts'], 'text')}. Change this with training.max_length."
        )
    if record["release"] is not None:
        lines.append(f"May be passed on:   {record['release']} (model, plan, certificate, report)")
    lines += [
        f"Must stay private:  {record['owner']} (everything else)",
        f"Your report:        {record['report']}",
    ]
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    if record["release"] is not None:
        console.print(plain(f"Check it:           hush verify {shlex.quote(record['release'])}"), soft_wrap=True)
    if record["audit"] is not None:
        style = STYLES.get(record["verdict"], "yellow")
        nothing = " Nothing is released." if record["release"] is None else ""
        console.print(plain(f"Audit: {record['audit']}{nothing}"), style=style, soft_wrap=True)
    for notice in record["notices"]:
        console.print(plain(f"Note: {notice}"), soft_wrap=True)
    show_cautions(record["cautions"], console)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
