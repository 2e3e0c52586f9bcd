"""What training says: a live line on the owner's terminal, and at the end where the results are.

Loss, clipped share and time depend on the secret draw. They are shown live, on a terminal, and are not in the record,
which is easily kept and passed on.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from hush.cli_results import Record
from hush.console import plain
from hush.plan import Plan

if TYPE_CHECKING:
    from hush.corpus import Corpus
    from hush.train.fit import Fitted
    from hush.train.recipe import Recipe
    from hush.train.rounds import LiveNumbers

__all__ = ["TrainingBar", "fitted_record", "live_line", "quiet_libraries", "show_fitted", "show_start"]


class TrainingBar:
    """Called with the numbers of each round; shows the last one, and only on a terminal."""

    def __init__(self, console: Console, rounds: int) -> None:
        columns = (TextColumn("Round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=rounds, start=False)

    def __enter__(self) -> Self:
        return self

    def __call__(self, live: "LiveNumbers") -> None:
        if not self._bar.live.is_started:
            self._bar.start()
        self._bar.update(self._task, completed=live.round, description=live_line(live))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()


def live_line(live: "LiveNumbers") -> str:
    """Loss, clipped share, signal to noise, rounds and time left; a dash after an empty draw, or without noise."""
    loss = "–" if live.loss is None else f"{live.loss:.3f}"
    clipped = "–" if live.clipped_share is None else f"{live.clipped_share:.0%}"
    signal = "–" if live.signal_to_noise is None else f"{live.signal_to_noise:.2g}"
    return (
        f"loss {loss}, clipped {clipped}, signal/noise {signal}, "
        f"{live.rounds_left} rounds left, {_duration(live.seconds_left)}"
    )


def quiet_libraries() -> None:
    """No bars of the libraries beneath ours; their warnings stay."""
    try:
        from transformers.utils import logging
    except ImportError:
        return  # said where the library is needed
    logging.disable_progress_bar()


def show_start(plan: Plan, recipe: "Recipe", corpus: "Corpus", console: Console) -> None:
    """What is about to happen."""
    what = "LoRA adapters of" if recipe.lora is not None else "all of"
    line = (
        f"Training {what} {recipe.model} on {plan.incidence.num_examples:,} examples of {corpus.source} (column "
        f"{corpus.column}): {plan.rounds} rounds of about {plan.batch_size:g}, noise multiplier "
        f"{plan.training_noise_multiplier:.4g}, clip norm {plan.clip_norm:g}."
    )
    console.print(plain(line), soft_wrap=True)


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
    lines = [
        f"Trained {record['trained_parameters']:,} parameters for {record['rounds']} rounds{again}.",
        f"May leave your hands:  {record['release']} (model, certificate)",
        f"May not:               {record['owner']} (states, losses, batch sizes)",
    ]
    if fitted.cut:
        lines.append(
            f"{fitted.cut:,} texts reach {record['max_length']} tokens, where texts are cut; see --max-length."
        )
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    for mark in record["marks"]:
        console.print(Text(f"NOT A CERTIFICATE: {mark}", style="bold red"), soft_wrap=True)
    if record["certifies"]:
        console.print(plain(f"Certificate: {record['certificate']}"), soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
