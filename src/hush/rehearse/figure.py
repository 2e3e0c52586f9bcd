"""The figure of a rehearsal: what to expect of the three ways, on ordinary content and on content like the secrets'."""

from pathlib import Path
from typing import TYPE_CHECKING

from hush.rehearse.outcome import Arm, Outcome
from hush.report.figures import MUTED, STYLE, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["forecast_figure", "save_forecast"]


LOOKS: dict[Arm, tuple[str, str]] = {  # colour and marker
    "dropping": ("#D55E00", "^"),
    "redacting": ("#0072B2", "s"),
    "hush": ("#009E73", "o"),
}


def forecast_figure(outcome: Outcome) -> "Figure":
    """A panel for each kind of content: the expected loss of each way, with its 90 % interval."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    like = "in slots like the secrets'" if outcome.slotted else "content like the secrets'"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 3.2), layout="constrained")
        for axes, kind, title in zip(
            figure.subplots(1, 2), ("ordinary", "like"), ("ordinary content", like), strict=True
        ):
            for place, arm in enumerate(reversed(outcome.arms)):
                interval = arm.ordinary if kind == "ordinary" else arm.like
                colour, marker = LOOKS[arm.arm]
                axes.plot([interval.low, interval.high], [place, place], color=colour, linewidth=2.4)
                axes.plot([interval.expected], [place], color=colour, marker=marker, markersize=8)
                label = f"{interval.expected:.3f}"
                axes.annotate(label, (interval.expected, place), (0, 9), textcoords="offset points", ha="center")
            axes.set_yticks(range(len(outcome.arms)), [arm.arm for arm in reversed(outcome.arms)])
            axes.set_ylim(-0.6, len(outcome.arms) - 0.3)
            axes.margins(x=0.15)
            axes.set_title(title)
            axes.set_xlabel("loss (nats per token)")
        figure.supxlabel(
            f"rehearsed on {outcome.documents:,} public examples, {outcome.repeats} repeats; bars: 90 % of trainings",
            fontsize=9,
            color=MUTED,
        )
    return figure


def save_forecast(outcome: Outcome, path: Path) -> None:
    """Write the figure as PNG, SVG or HTML, by the path's suffix."""
    save_figure(forecast_figure(outcome), path)
