"""Output of ``hush train``: a progress bar with live numbers, and at the end where the results are.

Loss, clipped share and time depend on the secret draw. They are shown live, on the owner's terminal only, and are not
in the record, which is easily kept and passed on.
"""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from hush.cli.results.accounting import Record
from hush.cli.results.cautions import show_cautions
from hush.console import counted, lasting, plain, rounded_up
from hush.plan import Plan

if TYPE_CHECKING:
    from hush.data import Corpus
    from hush.train.fit import Fitted
    from hush.train.public.first import PublicProgress
    from hush.train.round import LiveNumbers
    from hush.train.settings import Recipe

__all__ = [
    "STOPPING_NOTE",
    "TrainingBar",
    "fitted_record",
    "live_line",
    "show_fitted",
    "show_start",
    "stopped_at_once_message",
]


TRAIN_ONCE_NOTE = "Train this plan only once: each training is a release, and no certificate covers two together."
STOPPING_NOTE = "Stopping after this step; press Ctrl-C again to stop at once."


class TrainingBar:
    """A progress bar for a terminal, and nowhere else: first for reading the data, then for the rounds."""

    def __init__(self, console: Console, rounds: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
        visible = console.is_terminal and not console.quiet
        self._bar = _BarWithNumbers(*columns, console=console, transient=True, disable=not visible)
        self._task = self._bar.add_task("Loading the model", total=None, left="", numbers=Text())
        self._rounds = rounds
        self._first_loss: float | None = None
        self._stopping = False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def reading(self, done: int, total: int) -> None:
        """Show how many of the texts are tokenised."""
        if done < total:
            self._show("Reading the data", done, total, f"{done:,} of {counted(total, 'text')}")
        else:
            self._show("First round", 0, None, "checking the model")

    def public(self, progress: "PublicProgress") -> None:
        """Show how far ordinary training on what is public is; it may end early."""
        left = "stopping" if self._stopping else f"loss {progress.validation:.3f} on examples kept apart"
        self._show(f"Public part: step {progress.step:,}", progress.step, progress.most_steps, left)

    def __call__(self, live: "LiveNumbers") -> None:
        """Show the numbers of the round that has just ended."""
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
        """Show that training will stop after the current round."""
        self._stopping = True
        if self._bar.disable:
            self._bar.console.print(STOPPING_NOTE, soft_wrap=True)
        else:
            self._bar.update(self._task, left="stopping", numbers=Text(STOPPING_NOTE))

    def picture(self) -> RenderableType:
        """What a terminal shows at the moment."""
        return self._bar.get_renderable()

    def _show(self, label: str, done: int, total: int | None, left: str, numbers: Text | None = None) -> None:
        self._bar.update(
            self._task, description=label, completed=done, total=total, left=left, numbers=numbers or Text()
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class _BarWithNumbers(Progress):
    """A progress bar with a line of numbers below it, so that both fit in 80 columns."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from (task.fields["numbers"] for task in self.tasks if task.fields["numbers"])


def live_line(live: "LiveNumbers", *, first_loss: float | None = None) -> Text:
    """Loss, clipped share and signal-to-noise ratio of a round; a dash after an empty draw, or without noise.

    Followed by the last held-out loss, if the plan holds examples out.
    """
    held_out = live.scores.get("held-out loss")
    loss = "–" if live.loss is None else f"{live.loss:.3f}"
    clipped = "–" if live.clipped_share is None else f"{live.clipped_share:.0%}"
    signal = "–" if live.signal_to_noise is None else f"{live.signal_to_noise:.2g}"
    start = "" if first_loss is None else f" (from {first_loss:.3f})"
    parts = (
        ("loss ", "dim"),
        loss,
        (start, "dim"),
        ("   clipped ", "dim"),
        clipped,
        ("   signal/noise ", "dim"),
        signal,
        *([] if held_out is None else [("   held out ", "dim"), f"{held_out:.3f}"]),
    )
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def show_start(plan: Plan, corpus: "Corpus", recipe: "Recipe", output: Path, console: Console) -> None:
    """Print what is about to be trained, and, without a terminal, where the numbers of the rounds are."""
    part = "all parameters" if recipe.trainable is None else f"only {', '.join(recipe.trainable)}"
    trained = f"{'LoRA adapters' if recipe.lora is not None else part} of"
    line = (
        f"Training {trained} {recipe.model} on {counted(plan.incidence.num_examples, 'example')} of {corpus.source} "
        f"(column {corpus.column}): {counted(plan.rounds, 'round')} of about {plan.batch_size:g}, noise multiplier "
        f"{rounded_up(plan.training_noise_multiplier)}, clip norm {plan.clip_norm:g}."
    )
    if not console.is_terminal:
        line += f" The numbers of each round are in {output / 'owner' / 'rounds.jsonl'}; keep them private."
    console.print(plain(line), soft_wrap=not console.is_terminal)  # one line in a log


def stopped_at_once_message(output: Path) -> str:
    """The message of training that was stopped in the middle of a round, or before the first one."""
    if (output / "owner" / "run.json").exists():
        return "Stopped. Run the same command again to continue from the last saved state."
    return "Stopped before training began; nothing was written. Run the same command again to start over."


def fitted_record(fitted: "Fitted") -> Record:
    """A finished run as plain data. It depends on the secret draw only through the model, so it may be passed on."""
    return {
        "rounds": fitted.rounds,
        "task": fitted.task,
        "trained_parameters": fitted.trained_parameters,
        "max_length": fitted.max_length,
        "noise_multiplier": fitted.certificate.noise_multiplier,
        "certifies": fitted.certificate.is_real,
        "marks": list(fitted.certificate.marks),
        "losses": None if fitted.losses is None else asdict(fitted.losses),
        "cautions": list(fitted.cautions),
        "fingerprints": dict(fitted.certificate.fingerprints),
        "model": str(fitted.release / "model"),
        "certificate": str(fitted.release / "certificate.md"),
        "release": str(fitted.release),
        "owner": str(fitted.owner),
    }


def show_fitted(record: Record, console: Console, fitted: "Fitted") -> None:
    """Print where the results are, which may be passed on, and whether the certificate is valid."""
    earlier = f" ({fitted.resumed_after} of them in an earlier session)" if fitted.resumed_after else ""
    trained, rounds = counted(record["trained_parameters"], "parameter"), counted(record["rounds"], "round")
    release, owner = record["release"], f"{record['owner']} (checkpoints, losses, batch sizes)"
    lines = [f"Trained {trained} for {rounds}{earlier}."]
    if fitted.losses is not None:
        lines.append(f"Loss on held-out public examples: {fitted.losses}.")
    if record["certifies"]:
        lines += [f"May be passed on:   {release} (model, plan, certificate)", f"Must stay private:  {owner}"]
    else:
        lines.append(f"Must stay private: {release} (nothing is certified of this model) and {owner}")
    if fitted.cut:
        lines.append(
            f"Texts are cut to {counted(record['max_length'], 'token')}, and longer are "
            f"{counted(fitted.cut, 'text')}. Change this with --max-length."
        )
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    for mark in record["marks"]:
        console.print(Text(f"NOT A CERTIFICATE: {mark}", style="bold red"), soft_wrap=True)
    show_cautions([*record["cautions"], *fitted.owner_cautions], console)
    if record["certifies"]:
        console.print(plain(f"Certificate: {record['certificate']}"), soft_wrap=True)
        console.print(plain(TRAIN_ONCE_NOTE), soft_wrap=True)
