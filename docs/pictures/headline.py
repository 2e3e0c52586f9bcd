"""The two pictures that hush draws by itself: the noise of the README, and the frontier of a made-up company."""

import tempfile
from io import StringIO
from pathlib import Path

from company import BATCH, EXAMPLES, PRIOR, ROUNDS, SECRETS, company
from matplotlib.figure import Figure
from rich.console import Console

import hush
from hush.accounting.arguments import Bound
from hush.demo import run_noise_table
from hush.report.figures import frontier_figure
from hush.weights.choose import Capacity

KINDS: tuple[tuple[Capacity, Bound], ...] = (
    ("accounted", "blowup"),
    ("paper", "blowup"),
    ("paper", "kl"),
)  # capacities, bound


def noise() -> str:
    """What ``hush demo --noise-table`` draws."""
    with tempfile.TemporaryDirectory() as folder:
        run_noise_table(Path(folder), Console(file=StringIO()))
        return Path(folder, "noise.svg").read_text()


def frontier() -> Figure:
    """What ``hush frontier --capacity all --plot`` draws."""
    graph, ceiling_S = company()
    promise = {"prior": PRIOR, "ceiling": ceiling_S, "batch_size": BATCH, "rounds": ROUNDS}
    swept = [hush.frontier(graph, **promise, capacity=capacity, bound=bound) for capacity, bound in KINDS]
    sizes = f"{EXAMPLES:,} examples, {SECRETS} secrets, batch {BATCH}, {ROUNDS} rounds"
    return frontier_figure(swept, subtitle=sizes)
