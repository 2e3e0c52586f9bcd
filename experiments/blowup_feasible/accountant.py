"""hush on the same points: the masses of its own composed law, proven sides of the blow-up function, least noise.

Simulated runs are the independent second route: they share no code with either library
(tests/accounting/references.py).
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import hush
from experiments.blowup_feasible.cases import RATE, ROUNDS, Point, Promise
from experiments.blowup_feasible.measure import measured
from hush.accounting.accountant import ACCURACY, count_tail
from hush.accounting.blowup import LARGEST_SIZE, split
from hush.accounting.composition import CONCEDED_EXCESS, Composed, Term, choose_resolution, compose
from hush.accounting.counts import count_law
from hush.accounting.one_round import Part, conceded_over, discretise, hidden_parts, spread

__all__ = ["ask", "least_noise", "masses", "simulate"]

BOUNDS = ("kl", "renyi", "blowup")
STEEP = 100  # examples from which on a run is a sum of many small losses, so that a tilted law may be simulated


def ask(point: Point) -> dict[str, Any]:
    """Both proven sides of the posterior, what they cost, and the masses of the law they come from."""

    def upper() -> float:
        return hush.posterior(point.rates, noise_multiplier=point.noise_multiplier, rounds=ROUNDS, prior=point.prior)

    def lower() -> float:
        return hush.posterior(
            point.rates, noise_multiplier=point.noise_multiplier, rounds=ROUNDS, prior=point.prior, side="lower"
        )

    upper()  # once before the clock starts, so that loading is not counted
    (high, upper_seconds, peak), (low, lower_seconds, _) = measured(upper), measured(lower)
    return {
        "lower": low,
        "upper": high,
        "cpu_seconds": upper_seconds,
        "cpu_seconds_lower": lower_seconds,
        "peak_mb": peak,
        **masses(point),
    }


def masses(point: Point) -> dict[str, Any]:
    """Total mass under Q, and under P with what was conceded, each recomputed from a composition of T rounds.

    Neither comes from its own law, which would only repeat one round's mass: the tilt lies a quarter of the way towards
    the other (0 is Q, 1 is P). The posterior itself comes from a tilt towards its threshold and needs neither total.
    """
    law = count_law(point.rates, tail=count_tail(point.prior, ROUNDS))
    parts = [Part(law=law, sigma=point.noise_multiplier, rounds=ROUNDS)]
    hidden, _ = hidden_parts(parts, point.prior, share=CONCEDED_EXCESS * ACCURACY)
    if not hidden:
        raise ValueError(
            f"at noise {point.noise_multiplier} one draw gives the secret away: there is no law to compose"
        )
    resolution = choose_resolution(hidden, point.prior, accuracy=ACCURACY)
    cells = discretise(law, point.noise_multiplier, end=resolution.end, cells=resolution.cells)
    index, mass = split(*spread(cells), resolution.step)
    terms = [Term(index=index, mass=mass, rounds=ROUNDS)]

    def total(*, tilt: float, power: float) -> tuple[float, int]:
        """Sum of the Q-masses times exp(power * v), and the number of points."""
        found = compose(terms, step=resolution.step, tilt=tilt, largest_size=LARGEST_SIZE)
        if not isinstance(found, Composed):
            raise ValueError(f"the law of {ROUNDS} rounds needs more than {LARGEST_SIZE} points")
        return float(np.exp(found.log_norm + (power - tilt) * found.values) @ found.tilted), found.tilted.size

    (without, points), (with_secret, _) = total(tilt=0.25, power=0.0), total(tilt=0.75, power=1.0)
    return {"mass_without": without, "mass_with": with_secret + conceded_over([cells], [ROUNDS]), "points": points}


def least_noise(promise: Promise) -> dict[str, Any]:
    """The noise that keeps the promise by each bound, and the processor seconds that finding it took."""
    examples = np.arange(promise.examples)
    one = hush.Incidence.from_pairs(examples, np.zeros_like(examples), num_examples=promise.examples, num_secrets=1)
    answer: dict[str, Any] = {}
    for bound in BOUNDS:
        found, seconds, _ = measured(
            lambda bound=bound: hush.calibrate(
                one, prior=promise.prior, ceiling=promise.ceiling, rates=RATE, rounds=ROUNDS, bound=bound
            )
        )
        answer[bound] = found.noise_multiplier
        answer[f"{bound}_cpu_seconds"] = seconds
    return answer


def simulate(point: Point, *, runs: int, seed: int) -> dict[str, Any]:
    """The posterior from simulated runs, with its standard error.

    Many examples: runs are drawn from a law tilted beyond the secret's and weighted back. Few: one draw can decide a
    run, the weights would be wild, so runs are drawn with the secret, and five times as many.
    """
    tilt, count = (2.0, runs) if point.examples >= STEEP else (1.0, 5 * runs)
    rng = np.random.default_rng(seed)
    simulation = _references().Simulation(point.rates, point.noise_multiplier, ROUNDS, runs=count, rng=rng, tilt=tilt)
    found = simulation.posterior(point.prior)
    return {"posterior": found.value, "standard_error": found.error, "runs": count, "tilt": tilt}


@cache
def _references() -> ModuleType:
    path = Path(__file__).parents[2] / "tests" / "accounting" / "references.py"
    spec = importlib.util.spec_from_file_location("accounting_references", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
