"""What training says: a live line on the owner's terminal, and at the end where the results are.

Loss, clipped share and time depend on the secret draw. They are shown live, on a terminal, and are not in the record,
which is easily kept and passed on.
"""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from hush.cli.results.accounting import Record
from hush.console import counted, lasting, plain, rounded_up
from hush.plan import Plan

if TYPE_CHECKING:
    from hush.data import Corpus
    from hush.train.fit import Fitted
    from hush.train.round import LiveNumbers

__all__ = ["TrainingBar", "fitted_record", "live_line", "show_fitted", "show_start", "stopped_at_once"]


ONCE = (
    "Train this plan once: each training of it is a release of its own, and no certificate accounts for two together."
)
STOPPING = "Stopping after this round; Ctrl-C again stops at once."


class TrainingBar:
    """Shows where training stands on a terminal, and nowhere else: first the data that is read, then each round."""

    def __init__(self, console: Console, rounds: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
        shown = console.is_terminal and not console.quiet
        self._bar = _WithNumbers(*columns, console=console, transient=True, disable=not shown)
        self._task = self._bar.add_task("Loading the model", total=None, left="", numbers=Text())
        self._rounds = rounds
        self._first_loss: float | None = None
        self._stopping = False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def reading(self, done: int, total: int) -> None:
        """So many texts of so many are tokenised."""
        if done < total:
            self._show("Reading the data", done, total, f"{done:,} of {counted(total, 'text')}")
        else:
            self._show("First round", 0, None, "the model is checked")

    def __call__(self, live: "LiveNumbers") -> None:
        """The numbers of the round that has just ended."""
        left = f"{counted(live.rounds_left, 'round')} left, {lasting(live.seconds_left)}"
        if not live.rounds_left:
            left = "releasing the model"
        elif self._stopping:
            left = "stopping"
        numbers = live_line(live, first_loss=self._first_loss)
        if self._first_loss is None:
            self._first_loss = live.loss
        self._show(f"Round {live.round:,} of {self._rounds:,}", live.round, self._rounds, left, numbers)

    def stopping(self) -> None:
        """Training was asked to stop."""
        self._stopping = True
        if self._bar.disable:
            self._bar.console.print(STOPPING, soft_wrap=True)
        else:
            self._bar.update(self._task, left="stopping", numbers=Text(STOPPING))

    def picture(self) -> RenderableType:
        """What a terminal shows now."""
        return self._bar.get_renderable()

    def _show(self, what: str, done: int, total: int | None, left: str, numbers: Text | None = None) -> None:
        self._bar.update(
            self._task, description=what, completed=done, total=total, left=left, numbers=numbers or Text()
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class _WithNumbers(Progress):
    """A bar with a line of numbers beneath, so that both fit in 80 columns."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from (task.fields["numbers"] for task in self.tasks if task.fields["numbers"])


def live_line(live: "LiveNumbers", *, first_loss: float | None = None) -> Text:
    """Loss, clipped share and signal to noise of a round; a dash after an empty draw, or without noise.

    And the last loss on what the plan holds out, if it does.
    """
    held_out = live.scores.get("held-out loss")
    loss = "–" if live.loss is None else f"{live.loss:.3f}"
    clipped = "–" if live.clipped_share is None else f"{live.clipped_share:.0%}"
    signal = "–" if live.signal_to_noise is None else f"{live.signal_to_noise:.2g}"
    began = "" if first_loss is None else f" (from {first_loss:.3f})"
    parts = (
        ("loss ", "dim"),
        loss,
        (began, "dim"),
        ("   clipped ", "dim"),
        clipped,
        ("   signal/noise ", "dim"),
        signal,
        *([] if held_out is None else [("   held out ", "dim"), f"{held_out:.3f}"]),
    )
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def show_start(plan: Plan, corpus: "Corpus", model: str, output: Path, console: Console, *, lora: bool) -> None:
    """What is about to happen, and, where no live numbers are shown, where they can be read."""
    what = "LoRA adapters of" if lora else "all of"
    line = (
        f"Training {what} {model} on {counted(plan.incidence.num_examples, 'example')} of {corpus.source} (column "
        f"{corpus.column}): {counted(plan.rounds, 'round')} of about {plan.batch_size:g}, noise multiplier "
        f"{rounded_up(plan.training_noise_multiplier)}, clip norm {plan.clip_norm:g}."
    )
    if not console.is_terminal:
        line += f" The numbers of each round are in {output / 'owner' / 'rounds.jsonl'}, for you alone."
    _say(line, console)


def stopped_at_once(output: Path) -> str:
    """What is said of a run that was stopped in the middle of whatever it did."""
    if (output / "owner" / "run.json").exists():
        return "Stopped. The same command goes on from the last saved state."
    return "Stopped before training began; nothing was written. The same command begins again."


def fitted_record(fitted: "Fitted") -> Record:
    """A finished run without anything that depends on the draw but through the model: the record may be passed on."""
    return {
        "rounds": fitted.rounds,
        "task": fitted.task,
        "trained_parameters": fitted.trained_parameters,
        "max_length": fitted.max_length,
        "noise_multiplier": fitted.certificate.noise_multiplier,
        "certifies": fitted.certificate.is_real,
        "marks": list(fitted.certificate.marks),
        "fingerprints": dict(fitted.certificate.fingerprints),
        "model": str(fitted.release / "model"),
        "certificate": str(fitted.release / "certificate.md"),
        "release": str(fitted.release),
        "owner": str(fitted.owner),
    }


def show_fitted(record: Record, console: Console, fitted: "Fitted") -> None:
    """Where everything is, what may leave, and what the certificate is worth."""
    again = f" ({fitted.resumed_after} of them in an earlier session)" if fitted.resumed_after else ""
    trained, rounds = counted(record["trained_parameters"], "parameter"), counted(record["rounds"], "round")
    release, owner = record["release"], f"{record['owner']} (states, losses, batch sizes)"
    lines = [f"Trained {trained} for {rounds}{again}."]
    if record["certifies"]:
        lines += [f"May leave your hands:  {release} (model, plan, certificate)", f"May not:               {owner}"]
    else:
        lines.append(f"Must not leave your hands: {release} (a model of which nothing is certified) and {owner}")
    if fitted.cut:
        lines.append(
            f"Texts are cut at {counted(record['max_length'], 'token')}; that long: {counted(fitted.cut, 'text')}. See "
            "--max-length."
        )
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    for mark in record["marks"]:
        console.print(Text(f"NOT A CERTIFICATE: {mark}", style="bold red"), soft_wrap=True)
    if record["certifies"]:
        console.print(plain(f"Certificate: {record['certificate']}"), soft_wrap=True)
        console.print(plain(ONCE), soft_wrap=True)


def _say(sentence: str, console: Console) -> None:
    """Broken between words on a terminal, and into no lines elsewhere."""
    console.print(plain(sentence), soft_wrap=not console.is_terminal)
