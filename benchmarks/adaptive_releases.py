"""Releases whose settings are chosen by looking at earlier models: what each kind of bound is worth.

    python benchmarks/adaptive_releases.py [--runs 1000000] [--output benchmarks/results/adaptive_releases.json]

The games of tests/audit/adaptive_owner.py (docs/proofs.md, "Settings chosen by looking at earlier models"):

- product: the owner picks the second of two releases by the first. Whatever is picked, the product bound of what
  happened is the same number; how often the secret is found is computed exactly and by simulation;
- named: the same for two equally likely words, one of which is named;
- filter: the same owner, and either second release spends what is left of a Renyi budget;
- series: the same owner within limits that were announced;
- stopping: equal releases until one of two words is clear.

The script ends with an error if a simulation contradicts an exact number, or a filter or a series is exceeded.
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
from hush.accounting.moments import choose_orders, conceded_allowance, log_moments, moment_budget
from hush.accounting.releases import Shape, joint_posterior, limit_posterior
from hush.audit.mechanism import MechanismAttack
from hush.audit.statistics import LEVEL, Success

HERE = Path(__file__).parent
PRODUCT = [(1e-10, 1e-3), (1e-6, 1e-3), (1e-4, 1e-2), (1e-2, 0.1), (0.5, 0.9)]
SHARES = np.linspace(0.04, 0.96, 24)
WORD_VALUES = [0.6, 0.7, 0.8, 0.9, 0.95]
NOISE = 0.05  # of the rare draw
ALONE = hush.Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)


def _games() -> Any:
    """The games of the test suite: they are no part of the package."""
    path = HERE.parent / "tests" / "audit" / "adaptive_owner.py"
    spec = importlib.util.spec_from_file_location("adaptive_owner", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["adaptive_owner"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


GAMES = _games()


def product_bound(prior: float, *releases: Any) -> float:
    """The accountant's bound on settings that happened."""
    return joint_posterior(
        [[release.rate] for release in releases],
        noise_multipliers=[release.noise for release in releases],
        rounds=[1] * len(releases),
        prior=prior,
    )


def settings(release: Any) -> dict[str, float]:
    return {"rate": release.rate, "noise": release.noise}


def simulated(game: Any, runs: int, rng: np.random.Generator) -> MechanismAttack:
    """The best attack on simulated games."""
    _, log_threshold = game.best()
    log_ratio, _ = game.played(runs, rng)
    detected = log_ratio > log_threshold
    coin = rng.random(runs) < np.exp(np.minimum(log_threshold - log_ratio, 0.0))
    return MechanismAttack(
        prior=game.prior,
        log_threshold=log_threshold,
        detected=Success(hits=int(detected.sum()), runs=runs),
        alarms=Success(hits=int((detected & coin).sum()), runs=runs),
    )


def product_rows(runs: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for prior, value in PRODUCT:
        games = [GAMES.crossing_game(prior, value, share=float(share), noise=NOISE) for share in SHARES]
        game = max(games, key=lambda game: game.best()[0])
        exact, _ = game.best()
        attack = simulated(game, runs, rng)
        rows.append(
            {
                "prior": prior,
                "product_bounds": [product_bound(prior, game.first, second) for second in game.seconds],
                "found": exact,
                "times_the_bound": exact / value,
                "simulated": [attack.lower(LEVEL), attack.success, attack.upper(LEVEL)],
                "first": settings(game.first),
                "seconds": [settings(second) for second in game.seconds],
            }
        )
        print(f"product  prior {prior:g} stated {value:g} found {exact:.4g} ({exact / value:.3f} times)", flush=True)
    return rows


def named_rows(runs: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for value in WORD_VALUES:
        best: tuple[float, Any, Any] | None = None
        for share in SHARES[::2]:
            game = GAMES.crossing_game(0.5, value, share=float(share), noise=NOISE)
            naming = GAMES.NamingGame(first=game.first, seconds=game.seconds)
            named = naming.success(points=201)
            if best is None or named > best[0]:
                best = named, game, naming
        assert best is not None
        _, game, naming = best
        success = Success(hits=int(naming.named(runs, rng).sum()), runs=runs)
        rows.append(
            {
                "prior": 0.5,
                "product_bounds": [product_bound(0.5, game.first, second) for second in game.seconds],
                "named": naming.success(),
                "named_without_looking": [naming.success(choices=[place]) for place in range(2)],
                "simulated": [success.lower(LEVEL / 2), success.rate, success.upper(LEVEL / 2)],
            }
        )
        print(f"named    stated {value:g} named {rows[-1]['named']:.5f}", flush=True)
    return rows


def spent(release: Any, prior: float, ceiling: float, order: float) -> float:
    """What the filter's accountant says that a release spends."""
    allowance = conceded_allowance([[prior]], [[ceiling]])
    moments = log_moments(
        ALONE, rates=release.rate, noise_multiplier=release.noise, rounds=1, order=[[order]], conceded=allowance
    )
    return float(moments[0, 0])


def filter_rows() -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for prior, ceiling in PRODUCT:
        order = float(choose_orders(prior, ceiling, intensity=1.0, rounds=2)[0, 0])
        budget = float(moment_budget(prior, ceiling, order))

        def moment(release: Any, prior: float = prior, ceiling: float = ceiling, order: float = order) -> float:
            return spent(release, prior, ceiling, order)

        games = [GAMES.filtered_game(prior, budget, moment, share=float(share)) for share in SHARES[::3]]
        game = max(games, key=lambda game: game.best()[0])
        found, _ = game.best()
        fixed = max(GAMES.product_posterior(prior, game.first, second) for second in game.seconds)
        rows.append(
            {"prior": prior, "ceiling": ceiling, "order": order, "found": found, "found_without_looking": fixed}
        )
        print(
            f"filter   prior {prior:g} ceiling {ceiling:g} found {found:.4g}, without looking {fixed:.4g}", flush=True
        )
    return rows


def series_rows() -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for prior, _ in PRODUCT:
        first, second = GAMES.Release(rate=0.2, noise=0.6), GAMES.Release(rate=0.3, noise=0.6)
        rare = GAMES.rarer(prior, first, second, noise=0.4)
        shapes = [Shape(noise_multiplier=0.6, rounds=1), Shape(noise_multiplier=0.4, rounds=1)]
        limit = -np.log1p(-np.array([[first.rate, max(rare.rate, second.rate)]]))
        certified = float(limit_posterior(limit, shapes, prior=prior)[0])
        found, _ = GAMES.Game(prior=prior, first=first, seconds=(rare, second)).best()
        products = [product_bound(prior, first, one) for one in (rare, second)]
        rows.append({"prior": prior, "certified": certified, "found": found, "product_bounds": products})
        print(f"series   prior {prior:g} certified {certified:.4g} found {found:.4g} products {products[1]:.4g}")
    return rows


def stopping(runs: int, rng: np.random.Generator) -> dict[str, Any]:
    game = GAMES.StoppingGame(shift=0.5, releases=12, odds=19)
    made, named = game.played(runs, rng)
    stated = game.stated()
    rows = list[dict[str, Any]]()
    for number in range(1, game.releases + 1):
        at = made == number
        success = Success(hits=int(named[at].sum()), runs=int(at.sum()))
        rows.append(
            {
                "releases": number,
                "stated": float(stated[number - 1]),
                "chains": success.runs,
                "named": [success.lower(LEVEL / 2), success.rate, success.upper(LEVEL / 2)],
                "named_and_at_most_this_stated": float((named & (made <= number)).mean()),
            }
        )
    average = {"stated": float(stated[made - 1].mean()), "named": float(named.mean())}
    print(f"stopping stated {average['stated']:.4f} on average, named {average['named']:.4f}")
    return {"shift": game.shift, "odds": game.odds, "rows": rows, "average": average}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "adaptive_releases.json")
    args = parser.parse_args()
    begin, rng = time.process_time(), np.random.default_rng(args.seed)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "load": list(os.getloadavg()),
        "versions": {"hush": hush.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "runs": args.runs,
        "level": LEVEL,
        "product": product_rows(args.runs, rng),
        "named": named_rows(args.runs, rng),
        "filter": filter_rows(),
        "series": series_rows(),
        "stopping": stopping(args.runs, rng),
    }
    result["cpu_seconds"] = round(time.process_time() - begin, 1)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    contradicted = any(not row["simulated"][0] <= row["found"] <= row["simulated"][2] for row in result["product"])
    exceeded = any(row["found"] > row["ceiling"] for row in result["filter"])
    exceeded |= any(row["found"] > row["certified"] for row in result["series"])
    if contradicted or exceeded:
        sys.exit("a simulation contradicts an exact number, or a filter or a series is exceeded")


if __name__ == "__main__":
    main()
