"""The study's tables, from the log of its runs alone: what each arm learnt, and what it gives away."""

import math
from typing import Any

from experiments.code_base.arms import ARMS, HARDLY_ANY, Arm
from experiments.code_base.tuning import best_of, final_key, tuned
from experiments.runs import RunLog, interval
from hush.report.markup import at_most

__all__ = ["Row", "base_of", "rows_of", "tables", "total"]

Row = dict[str, Any]
QUALITY = (
    "| arm | noise multiplier | examples used | weight that examples with secrets keep | loss, code without secrets | "
    "loss, secret projects' other code | certified |\n|---|---:|---:|---:|---:|---:|---|"
)
LEAKAGE = (
    "| arm | spans said, secret files | spans said, held-out files | difference (99 % limits) | exposure, bits | "
    "canaries named | canaries said | a canary's posterior, at most |\n|---|---:|---:|---:|---:|---:|---:|---:|"
)


def base_of(log: RunLog) -> Row | None:
    """The run that measured the model all arms begin with; None where it has not ended."""
    return next((entry for entry in log.entries() if entry["key"]["arm"] == "base"), None)


def rows_of(log: RunLog) -> list[Row]:
    """For each arm with a finished run of its best setting: outcomes and commits, one per seed."""
    found: list[Row] = []
    for arm in ARMS:
        best = best_of(tuned(log, arm))
        runs = [
            entry
            for entry in log.entries()
            if best is not None
            and "seed" in entry["key"]
            and entry["key"] == final_key(entry["key"]["scale"], arm, best, entry["key"]["seed"])
        ]
        if runs:
            commits = [run["commit"] for run in runs]
            found.append({"arm": arm, "outcomes": [run["outcome"] for run in runs], "commits": commits})
    return found


def tables(base: Row, rows: list[Row]) -> str:
    """Quality, then leakage. After ± stands the radius of the 95 % interval for the mean over seeds, rounded up."""
    start = base["outcome"]
    commits = dict.fromkeys(commit[:7] for commit in (base["commit"], *(one for row in rows for one in row["commits"])))
    return "\n".join(
        [
            QUALITY,
            f"| base model, before training | | | | {start['loss_free']:.3f} | {start['loss_projects']:.3f} | |",
            *(_line(row["arm"], _quality(row["arm"], row["outcomes"], start["facts"])) for row in rows),
            "",
            LEAKAGE,
            f"| base model, before training | | | | {start['exposure']:.1f} | {total([start], 'named')} | "
            f"{total([start], 'said')} | prior: {at_most(start['canary']['prior'], 2)} |",
            *(_line(row["arm"], _leakage(row["outcomes"])) for row in rows),
            "",
            f"{base['hardware']}; {base['versions']}; {base['date'][:10]}; commit {' and '.join(commits)}.",
        ]
    )


def total(outcomes: list[Row], name: str) -> str:
    """How many canaries of all seeds together were named, or said."""
    return f"{sum(one[name] for one in outcomes)} of {sum(one['canaries'] for one in outcomes)}"


def _line(arm: Arm, cells: list[str]) -> str:
    return f"| {arm.title} | " + " | ".join(cells) + " |"


def _quality(arm: Arm, outcomes: list[Row], facts: Row) -> list[str]:
    first = outcomes[0]
    used, kept = first.get("kept_fraction", 1.0), first.get("kept_weight", 1.0)
    if arm.data == "without secrets":
        used, kept = 1 - facts["examples_with_secrets"] / facts["examples"], 0.0
    return [
        _noise(0 if arm.noise_scale == HARDLY_ANY else first["noise_multiplier"]),
        f"{100 * used:.0f} %",
        f"{100 * kept:.0f} %",
        _mean(outcomes, "loss_free", 3),
        _mean(outcomes, "loss_projects", 3),
        "yes" if first["certified"] else "no" if arm.plan is None else "no: simulation",
    ]


def _leakage(outcomes: list[Row]) -> list[str]:
    """Limits are the widest of the seeds, which try the same spans and so do not add up; they are rounded outwards."""
    lower = math.floor(1000 * min(one["memorised_limits"][0] for one in outcomes)) / 10
    upper = math.ceil(1000 * max(one["memorised_limits"][1] for one in outcomes)) / 10
    difference = 100 * interval([one["memorised"] for one in outcomes])[0]
    return [
        *(_share(outcomes, name) for name in ("said_trained", "said_held_out")),
        f"{difference:.1f} % ({lower:.1f} to {upper:.1f} %)",
        _mean(outcomes, "exposure", 1),
        total(outcomes, "named"),
        total(outcomes, "said"),
        at_most(outcomes[0]["canary_posterior"], 2) if outcomes[0]["certified"] else "none",
    ]


def _noise(multiplier: float) -> str:
    return f"{multiplier:,.0f}" if multiplier >= 100 or multiplier == 0 else f"{multiplier:.3g}"


def _share(outcomes: list[Row], name: str) -> str:
    hits, tried = (sum(one[name][place] for one in outcomes) for place in (0, 1))
    return f"{100 * hits / tried:.1f} %"


def _mean(outcomes: list[Row], name: str, digits: int) -> str:
    mean, radius = interval([one[name] for one in outcomes])
    if math.isnan(radius):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {math.ceil(radius * 10**digits) / 10**digits:.{digits}f}"
