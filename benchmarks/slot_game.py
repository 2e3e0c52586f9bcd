"""The game of a promise about slots, from the scan to the models, in many runs: honest owners and broken ones.

    python benchmarks/slot_game.py [--runs 20000] [--output benchmarks/results/slot_game.json]

Honest owners are played under several settings and all their comparisons are judged at one family-wise level. Each
broken owner of tests/audit/broken_steps.py is played in as many runs. A row states success without the model beside the
stated prior, and with the models beside the certified posterior, with Clopper-Pearson intervals at 99 %. The script
ends with an error if an honest owner fails or a broken one passes.
"""

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import hush
from hush.audit.game import Game, Steps, play, rule_scan
from hush.audit.statistics import LEVEL, exceeded

HERE = Path(__file__).parent


def _broken_steps() -> Any:
    """The broken owners of the test suite: they are no part of the package."""
    path = HERE.parent / "tests" / "audit" / "broken_steps.py"
    spec = importlib.util.spec_from_file_location("broken_steps", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OWNERS = _broken_steps()
CANDIDATES = OWNERS.CANDIDATES
UNEVEN = np.geomspace(1, 30, len(CANDIDATES))
HONEST: dict[str, dict[str, Any]] = {
    "loss at the slots": {},
    "difference of gradients": {"part": "difference"},
    "one text, every round": {"texts": ["x {secret}", "xy", "yx"], "rounds": 1, "batch_size": 1.0},
    "higher rates": {"batch_size": 1.0, "rounds": 20},
    "a low ceiling": {"ceiling": 0.05},
    "a high ceiling": {"ceiling": 0.8},
    "an uneven generator": {"generator": (UNEVEN / UNEVEN.sum()).tolist(), "ceiling": 0.3},
    "two candidates": {"candidates": ["a", "cb"], "ceiling": 0.7},
}


def row(name: str, game: Game, runs: int, seed: int) -> dict[str, Any]:
    begin = time.process_time()
    played = play(game, runs=runs, rng=np.random.default_rng(seed))
    verdict = played.verdict()
    found = {
        "name": name,
        "prior": played.prior,
        "certified": played.certified,
        "without_model": [played.without_model.hits, runs, *played.without_model.interval(LEVEL)],
        "with_models": [played.with_model.hits, runs, *played.with_model.interval(LEVEL)],
        "rows": [row.status for row in verdict.rows],
        "verdict": verdict.status,
        "cpu_seconds": round(time.process_time() - begin, 1),
    }
    print(
        f"{name:36} prior {played.prior:.4f} without {played.without_model.rate:.4f}   certified "
        f"{played.certified:.4f} with {played.with_model.rate:.4f}   {verdict.status} {found['rows']}"
    )
    return found | {"successes": (played.without_model, played.with_model)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "slot_game.json")
    args = parser.parse_args()
    honest = list[dict[str, Any]]()
    for seed, (name, changes) in enumerate(HONEST.items()):
        honest.append(row(name, OWNERS.small_game(**changes, steps=Steps()), args.runs, seed))
    broken = list[dict[str, Any]]()
    for seed, (name, steps) in enumerate(OWNERS.broken_owners(rule_scan).items()):
        broken.append(row(name, OWNERS.small_game(steps=steps), args.runs, 100 + seed))
    successes = [success for found in honest for success in found.pop("successes")]
    bounds = [bound for found in honest for bound in (found["prior"], found["certified"])]
    flagged = int(exceeded(successes, bounds).sum())
    for found in broken:
        del found["successes"]
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "load": list(os.getloadavg()),
        "versions": {"hush": hush.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "runs": args.runs,
        "level": LEVEL,
        "candidates": len(CANDIDATES),
        "honest_comparisons": len(bounds),
        "honest_flagged": flagged,
        "honest": honest,
        "broken": broken,
    }
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    if flagged or any(found["verdict"] != "failed" for found in broken):
        sys.exit("an honest owner was flagged, or a broken one was not noticed")


if __name__ == "__main__":
    main()
