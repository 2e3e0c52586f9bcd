"""Pictures of how things hang together: the stages, the graph of examples and secrets, whose hands hold what."""

import tempfile
from pathlib import Path

from company import MAIL, scanned_mail
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from theme import (
    BLUE,
    EDGE,
    GREEN,
    INK,
    MUTED,
    PAPER,
    RED,
    SOFT_BLUE,
    SOFT_GREEN,
    SOFT_GREY,
    SOFT_RED,
    YELLOW,
    arrow,
    box,
    sketch,
)

import hush

STAGES = (  # name, question, what comes out of it
    ("scan", "Who contains\nwhat?", "graph,\npromises"),
    ("plan", "How often,\nhow much noise?", "rates, noise,\ncertificate"),
    ("train", "Draw, clip,\nadd noise", "model"),
    ("audit", "Can an attack\nbeat it?", "verdict"),
    ("report", "What holds, and\nwhat did it cost?", "one page"),
)
SHARED = (
    ("model/", "learned under noise"),
    ("certificate.md", "the promise, and its limits"),
    ("plan/", "rates, noise, graph: to verify"),
    ("report.html", "without the audit"),
)
OWNED = (
    ("your data, data.key", "fingerprints are keyed"),
    ("scan/", "texts and places of secrets"),
    ("training/", "draws, losses, batch sizes"),
    ("audit/", "scores on data with secrets"),
)


def flow() -> Figure:
    """The stages of a run, each with its question and what it hands on."""
    figure, axes = sketch(8.8, 2.75)
    box(axes, (1, 11), (9, 8), fill=SOFT_GREY, edge=EDGE)
    axes.text(5.5, 15, "data", ha="center", va="center", weight="bold")
    for place, (name, question, result) in enumerate(STAGES):
        left = 14.5 + 15 * place
        arrow(axes, (left - 4.1, 15), (left - 0.4, 15))
        box(
            axes,
            (left, 11),
            (10.8, 8),
            fill=SOFT_GREEN if name == "plan" else SOFT_BLUE,
            edge=GREEN if name == "plan" else BLUE,
        )
        axes.text(left + 5.4, 15, name, ha="center", va="center", weight="bold", fontsize=12)
        axes.text(left + 5.4, 23, question, ha="center", va="center", color=MUTED, fontsize=9.5, linespacing=1.3)
        axes.text(left + 5.4, 5.6, result, ha="center", va="center", fontsize=9.5, linespacing=1.3)
        arrow(axes, (left + 5.4, 10.6), (left + 5.4, 8.4), colour=EDGE, linewidth=1.0, mutation_scale=8)
    axes.text(5.5, 5.6, "yours", ha="center", va="center", fontsize=9.5)
    axes.text(5.5, 23, "texts or code", ha="center", va="center", color=MUTED, fontsize=9.5)
    return figure


def graph() -> Figure:
    """Examples, secrets, and who contains what: found by a scan of eight mails; and the weights of a plan for it."""
    with tempfile.TemporaryDirectory() as folder:
        found = scanned_mail(Path(folder))
    plan = hush.make_plan(
        found.incidence, prior=found.secrets.prior, ceiling=found.secrets.ceiling, batch_size=2, rounds=20, keep=0.6
    )
    figure, axes = sketch(8.6, 4.1)
    axes.text(3, 38, "weight", weight="bold", color=MUTED, fontsize=10)
    axes.text(15, 38, "examples", weight="bold", color=MUTED, fontsize=10)
    axes.text(60, 38, "secrets", weight="bold", color=MUTED, fontsize=10)
    for example, text in enumerate(MAIL):
        y = 33 - 4.4 * example
        holds = bool(found.incidence.secrets_per_example[example])
        axes.barh(y, 8, height=1.5, left=3, color=SOFT_GREY)
        axes.barh(y, 8 * plan.weights[example], height=1.5, left=3, color=GREEN if holds else EDGE)
        box(axes, (15, y - 1.6), (26, 3.2), fill=SOFT_GREEN if holds else PAPER, edge=GREEN if holds else EDGE)
        axes.text(16.2, y, text, va="center", fontsize=9.5, color=INK if holds else MUTED)
    for secret, name in enumerate(found.secrets.ids):
        y = 28 - 11 * secret
        members = found.incidence.examples_of(secret)
        for example in members:
            axes.plot([41, 60], [33 - 4.4 * example, y], color=EDGE, linewidth=1.4, zorder=1)
        box(axes, (60, y - 3.1), (24, 6.2), fill=SOFT_RED, edge=RED)
        axes.text(61.5, y + 1.1, name, va="center", weight="bold", fontsize=9.5)
        prior, ceiling = found.secrets.prior[secret], found.secrets.ceiling[secret]
        count = f"{len(members)} example{'s' if len(members) > 1 else ''}"
        axes.text(
            61.5, y - 1.4, f"{_short(prior)} → {_short(ceiling)}, {count}", va="center", fontsize=9.5, color=MUTED
        )
    return figure


def _short(number: float) -> str:
    return f"{number:g}".replace("e-0", "e-")


def hands() -> Figure:
    """What may leave the owner's hands, and what may not."""
    figure, axes = sketch(8.6, 3.5)
    _panel(axes, 1, "owner/", "stays with you", OWNED, fill=SOFT_RED, edge=RED)
    _panel(axes, 46, "release/", "may leave", SHARED, fill=SOFT_GREEN, edge=GREEN)
    arrow(axes, (41, 17), (45, 17), colour=YELLOW, linewidth=2.2, mutation_scale=15)
    axes.text(
        43, 21, "clipped,\nnoised,\nproven", ha="center", va="bottom", fontsize=8.5, color=MUTED, linespacing=1.25
    )
    return figure


def _panel(
    axes: Axes, left: float, name: str, meaning: str, rows: tuple[tuple[str, str], ...], *, fill: str, edge: str
) -> None:
    box(axes, (left, 1), (39, 33), fill=fill, edge=edge)
    axes.text(left + 2, 30, name, weight="bold", fontsize=13, va="center", color=edge)
    axes.text(left + 37, 30, meaning, fontsize=10.5, va="center", ha="right", color=INK)
    for place, (what, why) in enumerate(rows):
        y = 23.4 - 6.3 * place
        axes.text(left + 2, y + 1.1, what, weight="bold", fontsize=10, va="center")
        axes.text(left + 2, y - 1.5, why, fontsize=9.5, va="center", color=MUTED)
