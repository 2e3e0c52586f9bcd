"""Pictures of numbers, computed by hush when the picture is drawn or by a benchmark; nothing is typed in by hand.

One secret in 100 examples, each drawn with probability 2048 / 1.7 million, for 2000 rounds, unless it says otherwise.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from company import BATCH, PRIOR, ROUNDS, company
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm
from theme import BLUE, EDGE, GREEN, INK, MUTED, PAPER, RED, chart

import hush
from hush.accounting.counts import count_law
from hush.numbers import rounded_up

CEILING = 1e-3
RATES = np.full(100, 2048 / 1_700_000)
LOG_TICKS = 10.0 ** np.arange(-12, 1, 2)


def noise_for(ceiling: float = CEILING) -> float:
    """The least noise that keeps the promise of this page's secret."""
    alone = hush.Incidence.from_pairs(range(100), [0] * 100, num_examples=100, num_secrets=1)
    return hush.calibrate(alone, prior=PRIOR, ceiling=ceiling, rates=RATES, rounds=ROUNDS).noise_multiplier


def ends(noise: float, prior: float | np.ndarray = PRIOR) -> np.ndarray:
    """The posterior, at most."""
    return np.asarray(hush.posterior(RATES, noise_multiplier=noise, rounds=ROUNDS, prior=prior))


def promise() -> Figure:
    """Where a prior ends at four amounts of noise, and which of them keep the promise."""
    figure, (axes,) = chart(1, height=3.0)
    noises = [0.8, 1.3, noise_for(), 4.0]
    axes.axvspan(CEILING, 1.6, color=RED, alpha=0.07, linewidth=0)
    axes.axvline(CEILING, color=RED, linewidth=1.6, linestyle="--")
    axes.text(CEILING * 1.4, -0.72, "above the ceiling", color=RED, va="center", fontsize=9.5)
    axes.text(CEILING / 1.4, -0.72, "ceiling", color=RED, va="center", ha="right", weight="bold", fontsize=9.5)
    axes.text(PRIOR, -0.72, "prior", color=MUTED, va="center", ha="center", weight="bold", fontsize=9.5)
    for row, noise in enumerate(noises):
        end = float(ends(noise))
        colour = GREEN if end <= CEILING else RED
        reach = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.2, "shrinkA": 5, "shrinkB": 0}
        axes.annotate("", (end, row), (PRIOR, row), arrowprops=reach)
        axes.plot(PRIOR, row, "o", color=MUTED, markersize=8)
        axes.text(
            1.02, row, f"at most {rounded_up(end, 3)}", transform=axes.get_yaxis_transform(), color=colour,
            weight="bold", va="center",
        )  # fmt: skip
    axes.set(xscale="log", xlim=(1e-12, 1.6), ylim=(3.6, -1.1), xlabel="chance of naming the secret")
    axes.set_yticks(range(len(noises)), [f"noise {_told(noise)}" for noise in noises], color=INK)
    axes.set_xticks(LOG_TICKS)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_title("A promise: from the prior, never above the ceiling")
    return figure


def weights() -> Figure:
    """How often each secret is drawn, and what the weights of its examples are, before and after planning."""
    graph, ceiling_S = company()
    plan = hush.make_plan(graph, prior=PRIOR, ceiling=ceiling_S, batch_size=BATCH, rounds=ROUNDS)
    count_S = graph.examples_per_secret
    drawn_S = [plan.rates[graph.examples_of(secret)].sum() for secret in range(graph.num_secrets)]
    figure, (left, right) = chart(2)
    order = np.argsort(count_S)
    left.plot(count_S[order], count_S[order] * BATCH / graph.num_examples, color=MUTED, linestyle="--", linewidth=1.8)
    left.plot(count_S, drawn_S, "o", color=GREEN, markersize=3.5, alpha=0.75, markeredgewidth=0)
    left.set(xscale="log", yscale="log", xlabel="examples that contain the secret", ylabel="draws per round, expected")
    left.text(26, 0.75, "all alike", color=MUTED, weight="bold", ha="right")
    left.text(15, 0.03, "planned: less for\nthose that need\nmost noise", color=GREEN, weight="bold", linespacing=1.35)
    left.set_title("How often a secret is drawn")
    for axis, ticks in ((left.xaxis, (1, 3, 10, 30, 100)), (left.yaxis, (0.01, 0.03, 0.1, 0.3, 1))):
        axis.set_major_formatter("{x:g}")
        axis.set_ticks(ticks)
        axis.set_ticks([], minor=True)
    with_secrets = graph.secrets_per_example > 0
    right.hist(plan.weights[with_secrets], bins=np.linspace(0, 1, 11), color=GREEN, rwidth=0.86)
    kept = plan.weights[with_secrets].sum() / with_secrets.sum()
    share = f"{with_secrets.sum():,} examples hold a secret;\nthey keep {100 * kept:.0f} % of their weight"
    right.text(0.05, 0.9, share, transform=right.transAxes, va="top", linespacing=1.4)
    right.set(xlabel="weight", ylabel="examples with secrets")
    right.grid(visible=False, axis="x")
    right.set_title("What it costs in data")
    return figure


def round_of_noise() -> Figure:
    """Clipping, and one round's sum along the secret's direction with little and with enough noise."""
    figure, (clipping, little, enough) = chart(3, height=3.3)
    _draw_clipping(clipping)
    planned = noise_for()
    _draw_round(little, 0.3, "Little noise: a draw shows")
    _draw_round(enough, planned, "Enough noise: it hides")
    return figure


def curve() -> Figure:
    """Prior → posterior at several amounts of noise, and the point that was promised."""
    figure, (axes,) = chart(1, width=7.2, height=4.2)
    priors = np.geomspace(1e-12, 0.5, 60)
    planned = noise_for()
    axes.plot(priors, priors, color=MUTED, linestyle=":", linewidth=1.6)
    axes.text(3e-7, 5e-8, "nothing learned", color=MUTED, fontsize=9.5, va="top")
    for noise, colour, style, place, offset in _looks(planned):
        axes.plot(priors, ends(noise, priors), color=colour, linestyle=style, linewidth=2.2)
        axes.annotate(
            f"noise {_told(noise)}", (place, float(ends(noise, place))), offset, textcoords="offset points",
            color=colour, ha="center", va="center", weight="bold",
        )  # fmt: skip
    point = {"color": GREEN, "markeredgecolor": PAPER, "markeredgewidth": 1.5, "zorder": 5}
    axes.plot(PRIOR, CEILING, "o", markersize=11, **point)
    axes.annotate("promised", (PRIOR, CEILING), (9, -6), textcoords="offset points", weight="bold", va="top")
    for prior, side in ((1e-4, "center"), (0.5, "right")):
        end = float(ends(planned, prior))
        axes.plot(prior, end, "o", markersize=7, **point)
        told = f"{prior:g} → {rounded_up(end, 2 if end < 0.9 else 4)}"
        axes.text(prior if side == "center" else 0.8, 5, told, ha=side, va="center", fontsize=9.5)
    axes.set(xscale="log", yscale="log", xlim=(1e-12, 1), ylim=(1e-12, 30), xlabel="prior", ylabel="posterior, at most")
    axes.set_xticks(LOG_TICKS)
    axes.set_yticks(LOG_TICKS)
    axes.set_title("One model, every prior")
    return figure


def stopping() -> Figure:
    """What product bounds state when an owner stops as soon as a word is clear, and how often it was named."""
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "adaptive_releases.json"
    rows = json.loads(results.read_text())["stopping"]["rows"]
    figure, (axes,) = chart(1, width=7.2, height=3.6)
    made = [row["releases"] for row in rows]
    axes.plot(made, [row["stated"] for row in rows], color=BLUE, linewidth=2.2)
    axes.plot(made, [row["named"][1] for row in rows], "o", color=RED, markersize=7)
    axes.plot(made, [row["named_and_at_most_this_stated"] for row in rows], color=GREEN, linewidth=2.2, linestyle="--")
    axes.text(1.9, 1.01, "named, of the chains that stopped here", color=RED, weight="bold", va="bottom")
    axes.text(1.2, 0.6, "product bound stated", color=BLUE, weight="bold", va="center")
    inside = "of all chains: named while\nno more than this was stated"
    axes.text(5.6, 0.3, inside, color=GREEN, weight="bold", linespacing=1.35)
    axes.set(xlim=(0.7, 12.3), ylim=(0, 1.12), xlabel="releases until the owner stopped", ylabel="probability")
    axes.set_xticks(made)
    axes.set_title("Stopping as soon as a word is clear")
    return figure


def _looks(planned: float) -> Iterator[tuple[float, str, str, float, tuple[float, float]]]:
    """Noise, colour, line style, and where its name stands: at a prior, and so many points from the line."""
    yield 1.3, RED, "--", 1e-9, (0, 11)
    yield planned, GREEN, "-", 1e-7, (26, -13)
    yield 4.0, BLUE, "-.", 1e-9, (36, -6)


def _told(noise: float) -> str:
    return rounded_up(noise, 3).rstrip("0").removesuffix(".")


def _draw_clipping(axes: Axes) -> None:
    """Gradients of nine examples in a plane, for show, cut to norm 1."""
    generator = np.random.default_rng(7)
    angles = 2 * np.pi * (np.arange(9) + generator.uniform(-0.3, 0.3, 9)) / 9
    lengths = generator.lognormal(0.15, 0.45, (9, 1))
    gradients = lengths * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    clipped = gradients / np.maximum(lengths, 1)
    turn = np.linspace(0, 2 * np.pi, 100)
    head = {"arrowstyle": "-|>", "color": GREEN, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    axes.plot(np.cos(turn), np.sin(turn), color=EDGE, linestyle="--", linewidth=1.3)
    for whole, cut in zip(gradients, clipped, strict=True):
        axes.plot(*zip(cut, whole, strict=True), color=EDGE, linewidth=1.2, alpha=0.6)
        axes.annotate("", cut, (0, 0), arrowprops=head)
    axes.set_aspect("equal")
    axes.set(xlim=(-2, 2), ylim=(-2, 2), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_xlabel("each example moves the sum\nby at most the clip norm", labelpad=7)
    axes.set_title("Clip", fontsize=11.5)


def _draw_round(axes: Axes, noise: float, title: str) -> None:
    """Density of the noisy sum, in clip norms: with the secret's examples, and with their gradients zeroed."""
    law = count_law(RATES, tail=1e-15)
    x = np.linspace(-3.2 * noise - 0.3, 3.2 * noise + 1.8, 400)
    held = law.mass @ norm.pdf(x, loc=law.counts[:, None], scale=noise)
    axes.fill_between(x, held, color=GREEN, alpha=0.12, linewidth=0)
    axes.plot(x, held, color=GREEN, linewidth=2.2, label="with the secret")
    axes.plot(x, norm.pdf(x, scale=noise), color=INK, linewidth=1.5, linestyle=":", label="without it")
    axes.set(yticks=[], xlabel=f"one round's sum, in clip norms\n(noise {_told(noise)})")
    axes.set_ylim(0, float(norm.pdf(0, scale=noise)) * 1.45)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.legend(loc="upper right", frameon=False, fontsize=9, handlelength=1.4, borderaxespad=0)
    axes.set_title(title, fontsize=11.5)
