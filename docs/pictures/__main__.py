"""Draw the pictures of the documentation: ``python docs/pictures [NAME ...]`` writes them to ``docs/images``.

The headline and the frontier take minutes; each of the others is done in seconds.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import charts
import headline
import sketches
from matplotlib.figure import Figure
from theme import save

IMAGES = Path(__file__).parents[1] / "images"

PICTURES: Mapping[str, Callable[[], Figure | str]] = {
    "noise": headline.noise,
    "frontier": headline.frontier,
    "concepts/flow": sketches.flow,
    "concepts/promise": charts.promise,
    "concepts/graph": sketches.graph,
    "concepts/weights": charts.weights,
    "concepts/round": charts.round_of_noise,
    "concepts/curve": charts.curve,
    "concepts/hands": sketches.hands,
    "stopping": charts.stopping,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python docs/pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(PICTURES)}; all by default")
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder to write to")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(PICTURES):
        parser.error(f"there is no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    for name in asked.names or PICTURES:
        save(PICTURES[name](), asked.output / f"{name}.svg")
