"""What the repeats of a rehearsal say: losses to expect, differences, which of the three ways to take, and cautions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.rehearse.content import PublicContent
from hush.rehearse.outcome import (
    ARMS,
    Arm,
    ArmForecast,
    Difference,
    Outcome,
    Reached,
    Tried,
    decide,
    difference,
    forecast_interval,
)
from hush.rehearse.scaled import Scale, described

if TYPE_CHECKING:
    from hush.rehearse.arms import ArmLosses

__all__ = ["concluded"]


def concluded(
    plan: Plan,
    content: PublicContent,
    repeats: "Sequence[Mapping[Arm, ArmLosses]]",
    *,
    like_share: float,
    before: Mapping[str, float],
    patch: Mapping[str, Any],
    tried: tuple[Tried, ...],
    scale: Scale,
) -> Outcome:
    """The outcome of a rehearsal from the losses that each repeat reached."""
    slotted, held_out = plan.slots is not None, int(held_out_examples(plan).size)
    series = {
        (arm, kind): [cast("Reached", getattr(repeat[arm], kind)) for repeat in repeats]
        for arm in ARMS
        for kind in ("ordinary", "like")
    }
    pooled = {
        kind: float(np.mean([np.var([r.mean for r in series[arm, kind]], ddof=1) for arm in ARMS]))
        for kind in ("ordinary", "like")
    }
    arms = tuple(
        ArmForecast(
            arm=arm,
            ordinary=forecast_interval(series[arm, "ordinary"], pooled_variance=pooled["ordinary"], held_out=held_out),
            like=forecast_interval(series[arm, "like"], pooled_variance=pooled["like"], held_out=None),
        )
        for arm in ARMS
    )
    pairs: tuple[tuple[Arm, Arm], ...] = (("hush", "dropping"), ("hush", "redacting"), ("redacting", "dropping"))
    differences = tuple(
        Difference(arm=arm, other=other, content=kind, difference=difference(series[arm, kind], series[other, kind]))
        for arm, other in pairs
        for kind in ("ordinary", "like")
    )
    by_name: dict[Arm, ArmForecast] = {arm.arm: arm for arm in arms}
    taken, gains = decide(by_name, differences, like_share=like_share, slotted=slotted)
    return Outcome(
        choice=taken,
        gains=gains,
        arms=arms,
        differences=differences,
        before=dict(before),
        patch=dict(patch),
        tried=tried,
        repeats=len(repeats),
        like_share=like_share,
        scale=described(scale),
        slotted=slotted,
        documents=len(content),
        available=content.available,
        notes=(*_notes(content, scale, slotted=slotted), *_unfinished(differences, slotted)),
    )


def _notes(content: PublicContent, scale: Scale, *, slotted: bool) -> list[str]:
    notes = [
        "Public examples play the secrets. How much there is to learn from real ones cannot be known without "
        "spending a promise; if they differ more from what is public than the players do, hush gains more."
    ]
    if len(content) < content.available:
        notes.append(
            f"It saw {len(content):,} of {content.available:,} public examples: the losses of the real training will "
            "be lower, for all three ways."
        )
    if not slotted:
        notes.append(
            "Whole examples are secret under this plan. Redacting would show all of an example but its hidden words, "
            "and no promise would cover what a finder misses."
        )
    if scale.rounds < 1:
        notes.append("The private rounds were fewer than planned; a larger budget makes the forecast better.")
    return notes


def _unfinished(differences: Sequence[Difference], slotted: bool) -> list[str]:
    """A note where hush gains on ordinary content: the stream beside its rounds continues ordinary training."""
    start = "redacting" if slotted else "dropping"
    rows = [row for row in differences if (row.arm, row.other, row.content) == ("hush", start, "ordinary")]
    if not any(row.difference.high < 0 for row in rows):
        return []
    return [
        "hush lowers the loss on ordinary content, too: ordinary training ended before it had learnt what is public. "
        "Raise the epochs or the patience of public_first, and rehearse again; until then only what hush gains beyond "
        "that counts for it."
    ]
