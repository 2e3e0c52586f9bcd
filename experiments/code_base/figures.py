"""The study's table and figure, from the log of its runs alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.code_base.arms import ARMS, Arm
from experiments.runs import RunLog, interval

__all__ = ["draw", "rows_of", "table"]

Row = dict[str, Any]
HEAD = (
    "| arm | noise multiplier | loss, code without secrets | loss, secret projects' other code | secret spans said | "
    "memorised | exposure, bits | canaries said | certified |\n|---|---|---|---|---|---|---|---|---|"
)


def draw(output: Path, images: Path) -> None:
    """Write table.md beside the log and code-base.svg into the folder of images, from whatever runs there are."""
    log = RunLog(output / "runs.jsonl")
    rows = rows_of(log)
    base = next((entry for entry in log.entries() if entry["key"].get("arm") == "base"), None)
    if not rows or base is None:
        print(f"{output} holds no finished run of an arm yet")
        return
    (output / "table.md").write_text(table(base, rows) + "\n")
    _figure(base["outcome"], rows, images / "code-base")


def rows_of(log: RunLog) -> list[Row]:
    """For each arm with a finished run: its outcomes, one per seed."""
    found: list[Row] = []
    for arm in ARMS:
        outcomes = [
            entry["outcome"]
            for entry in log.entries()
            if "seed" in entry["key"]
            and (entry["key"]["arm"], entry["key"]["noise_scale"]) == (arm.name, arm.noise_scale)
        ]
        if outcomes:
            found.append({"arm": arm, "outcomes": outcomes})
    return found


def table(base: Row, rows: list[Row]) -> str:
    """Same promises: quality and leakage of each arm, the mean and the radius of its 95 % interval over seeds."""
    start = base["outcome"]
    lines = [
        HEAD,
        f"| base model, before training | | {start['loss_free']:.3f} | {start['loss_projects']:.3f} | "
        f"| | {start['exposure']:.1f} | {start['said']} of {start['canaries']} | |",
    ]
    for row in rows:
        arm, outcomes = row["arm"], row["outcomes"]
        said, canaries = (sum(one[name] for one in outcomes) for name in ("said", "canaries"))
        hits, tried = (sum(one["said_trained"][place] for one in outcomes) for place in (0, 1))
        cells = [
            arm.title,
            f"{outcomes[0]['noise_multiplier']:.3g}",
            _cell(outcomes, "loss_free", "{:.3f}"),
            _cell(outcomes, "loss_projects", "{:.3f}"),
            f"{hits / tried:.2%}",
            _cell(outcomes, "memorised", "{:.2%}"),
            _cell(outcomes, "exposure", "{:.1f}"),
            f"{said} of {canaries}",
            _certified(outcomes[0]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append(f"\n{base['hardware']}; {base['versions']}; {base['date'][:10]}; commit {base['commit'][:12]}.")
    return "\n".join(lines)


def _certified(outcome: Row) -> str:
    if not outcome["certified"]:
        return "no: simulation" if "largest_posterior" in outcome else "no"
    return f"yes: up to {outcome['largest_share_of_ceiling']:.0%} of a ceiling"


def _cell(outcomes: list[Row], name: str, form: str) -> str:
    mean, radius = interval([one[name] for one in outcomes])
    return form.format(mean) + (f" ± {form.format(radius)}" if radius == radius else "")


def _figure(base: Row, rows: list[Row], path: Path) -> None:
    from experiments.figures import COLOURS, panels, save

    figure, axes = panels(1, 3, width=4.6)
    sides = (
        ("loss_projects", "memorised", "loss on the secret projects' held-out files", "spans memorised, share"),
        ("loss_free", "exposure", "loss on held-out files without secrets", "exposure of the canaries, bits"),
    )
    for (quality, leakage, right, up), axis in zip(sides, axes[0], strict=False):
        for row in rows:
            _point(axis, row, quality, leakage, COLOURS)
        axis.axvline(base[quality], color="#999999", linestyle=":", linewidth=1, label="base model")
        axis.set(xlabel=right, ylabel=up)
    axes[0, 0].set_title("Projects' code and memory")
    axes[0, 1].set_title("Other code and canaries")
    noisy = [row for row in rows if row["outcomes"][0]["noise_multiplier"]]
    bars: Callable[[Arm], str] = lambda arm: arm.title.replace(", a", ",\na")  # noqa: E731
    axes[0, 2].barh(
        [bars(row["arm"]) for row in noisy],
        [row["outcomes"][0]["noise_multiplier"] / base["batch_size"] for row in noisy],
        color=[COLOURS[row["arm"].name] for row in noisy],
    )
    axes[0, 2].set(xscale="log", xlabel="noise multiplier / batch size")
    axes[0, 2].set_title("Noise in a mean gradient")
    axes[0, 2].invert_yaxis()
    axes[0, 0].legend(fontsize=7)
    save(figure, path)


def _point(axis: Any, row: Row, quality: str, leakage: str, colours: dict[str, str]) -> None:
    (x, x_radius), (y, y_radius) = (interval([one[name] for one in row["outcomes"]]) for name in (quality, leakage))
    whole = row["arm"].noise_scale == 1
    axis.errorbar(
        x, y,
        xerr=None if x_radius != x_radius else x_radius,
        yerr=None if y_radius != y_radius else y_radius,
        marker="o" if whole else "D",
        markerfacecolor=colours[row["arm"].name] if whole else "white",
        color=colours[row["arm"].name],
        linestyle="none",
        label=row["arm"].title,
    )  # fmt: skip
