"""Output of ``hush rehearse``: the losses to expect of the three ways, the sentence, and the patch for the config."""

from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console

from hush.cli.results.accounting import Record
from hush.console import plain, show_rows

if TYPE_CHECKING:
    from hush.rehearse import Interval
    from hush.run.rehearsal import Rehearsed

__all__ = ["rehearsal_record", "show_rehearsal"]


def rehearsal_record(rehearsed: "Rehearsed") -> Record:
    """A finished rehearsal as plain data. All of it depends on public content alone."""
    from hush.rehearse import skips_private_rounds
    from hush.run.rehearsal import FORECAST, PATCH

    outcome, folder = rehearsed.outcome, rehearsed.folder
    return {
        **outcome.to_dict(),
        "sentence": outcome.sentence,
        "skips_private_rounds": skips_private_rounds(outcome),
        "folder": str(folder),
        "patch_file": str(folder / PATCH),
        "figure": str(folder / FORECAST),
    }


def show_rehearsal(rehearsed: "Rehearsed", console: Console, *, written: Path | None) -> None:
    """Print the table, the sentence, the patch and what limits the forecast."""
    from hush.run.rehearsal import FORECAST

    outcome = rehearsed.outcome
    like = "in slots like the secrets'" if outcome.slotted else "content like the secrets'"
    rows = [[arm.arm, _shown(arm.ordinary), _shown(arm.like)] for arm in outcome.arms]
    rows.append(["before training", *(f"{outcome.before[kind]:.3f}" for kind in ("ordinary", "like"))])
    title = f"Loss to expect ({outcome.repeats} repeats on {outcome.documents:,} public examples)"
    show_rows(console, ["", "ordinary content (90 %)", f"{like} (90 %)"], rows, title=title)
    console.print(plain(outcome.sentence), style="bold", soft_wrap=True)
    if outcome.patch:
        console.print("\nSettings for hush, to merge into the config:\n", soft_wrap=True)
        patch = {section: dict(values) for section, values in outcome.patch.items()}
        for line in yaml.safe_dump(patch, sort_keys=False).rstrip().splitlines():
            console.print(plain(f"  {line}"), soft_wrap=True)
    else:
        console.print("\nNo settings were better for hush than those of the config.", soft_wrap=True)
    console.print()
    console.print(plain(f"Private rounds were rehearsed at {outcome.scale}."), soft_wrap=True)
    for note in outcome.notes:
        console.print(plain(f"Note: {note}"), soft_wrap=True)
    console.print(plain(f"Figure: {rehearsed.folder / FORECAST}"), soft_wrap=True)
    if written is not None:
        console.print(plain(f"Wrote {written}. Next: hush run {written}"), soft_wrap=True)


def _shown(interval: "Interval") -> str:
    return f"{interval.expected:.3f} ({interval.low:.3f} to {interval.high:.3f})"
