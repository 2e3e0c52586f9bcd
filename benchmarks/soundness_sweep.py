"""Does any certified upper bound ever fall below what an attack reaches?

Draws random settings over the whole range the accountant is made for and compares, at each, the upper bounds (by the
blow-up function, Renyi and KL), the certified lower bound and an independent attack with closed-form success
(tests/accounting/references.py). Writes benchmarks/results/soundness_sweep.json and exits with 1 if anything is out of
order.

    .venv/bin/python benchmarks/soundness_sweep.py --settings 2000 --seed 1
"""

import argparse
import datetime
import importlib.util
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import scipy

import hush

HERE = Path(__file__).resolve().parent
FLOAT_NOISE = 1e-9  # relative rounding of the closed forms
GROSS = 1.01


def _references():
    path = HERE.parent / "tests" / "accounting" / "references.py"
    spec = importlib.util.spec_from_file_location("hush_references", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


references = _references()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One question to the accountant; rates follow from the seed."""

    seed: int
    kind: str
    examples: int
    rate: float
    sigma: float
    rounds: int
    prior: float

    def rates(self) -> np.ndarray:
        """One sampling probability for each example."""
        rng = np.random.default_rng(self.seed)
        if self.kind == "equal":
            return np.full(self.examples, self.rate)
        if self.kind == "unequal":
            return np.minimum(1.0, self.rate * rng.uniform(0, 2, self.examples))
        if self.kind == "heavy":  # a few examples are drawn far more often than the others
            return np.minimum(1.0, self.rate * np.exp(2 * rng.standard_normal(self.examples)))
        rates = np.full(self.examples, self.rate)  # "always": some examples are in every batch
        rates[: 1 + self.examples // 3] = 1.0
        return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the accountant and the attack say, and what is wrong with it (nothing, if all is well)."""

    setting: Setting
    upper: float
    renyi: float
    kl: float
    lower: float
    attack: float
    seconds: float
    faults: list[str]

    @property
    def ratio(self) -> float:
        """Upper bound over the best lower one; infinite where there is no answer."""
        ratio = self.upper / max(self.lower, self.attack)
        return math.inf if math.isnan(ratio) else ratio


def draw_settings(count: int, seed: int) -> Iterator[Setting]:
    """Random settings over the stated range; half of them have their noise put where the answer is interesting."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        kind = str(rng.choice(["equal", "unequal", "heavy", "always"], p=[0.4, 0.3, 0.2, 0.1]))
        examples = int(np.exp(rng.uniform(0, np.log(2000)))) if rng.random() < 0.7 else int(rng.integers(1, 4))
        rate = float(np.exp(rng.uniform(np.log(1e-6), 0))) if rng.random() < 0.9 else 1.0
        rounds = round(float(np.exp(rng.uniform(0, np.log(1e6)))))
        prior = float(10.0 ** rng.uniform(-300, np.log10(0.5))) if rng.random() < 0.4 else 0.0
        prior = prior or min(0.5, float(10.0 ** rng.uniform(-20, np.log10(0.5))))
        sigma = float(10.0 ** rng.uniform(-1, 4))
        if rng.random() < 0.5:  # near the noise at which the promise starts to give
            depth = math.sqrt(max(-2 * math.log(prior), 1.0))
            mean = examples * rate
            scale = max(mean * math.sqrt(rounds), 1.0) / depth * float(np.exp(rng.uniform(-1.5, 1.5)))
            sigma = float(np.clip(scale, 0.1, 1e4))
        yield Setting(
            seed=int(rng.integers(2**31)),
            kind=kind,
            examples=examples,
            rate=rate,
            sigma=sigma,
            rounds=rounds,
            prior=prior,
        )


def check(setting: Setting) -> Outcome:
    """Ask for both sides, compare with the attack; warnings and exceptions are faults."""
    rates = setting.rates()
    faults: list[str] = []
    upper, renyi, kl, lower = math.nan, math.nan, math.nan, math.nan
    begin, seconds = time.perf_counter(), math.nan
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            ask = {"noise_multiplier": setting.sigma, "rounds": setting.rounds, "prior": setting.prior}
            upper = hush.posterior(rates, **ask)
            lower = hush.posterior(rates, **ask, side="lower")
            seconds = time.perf_counter() - begin
            renyi = hush.posterior(rates, **ask, bound="renyi")
            kl = hush.posterior(rates, **ask, bound="kl")
        except Exception as error:  # the sweep reports whatever happens and goes on
            faults.append(f"{type(error).__name__}: {error}")
    faults += [f"warning: {entry.message}" for entry in raised]
    attack = references.best_attack(rates, setting.sigma, setting.rounds, setting.prior)
    for name, bound in (("blowup", upper), ("renyi", renyi), ("kl", kl)):
        if not bound >= attack * (1 - FLOAT_NOISE):
            faults.append(f"the bound {name} is below the attack")
        if not bound >= lower:
            faults.append(f"the bound {name} is below the certified lower bound")
        if not setting.prior <= bound <= 1:
            faults.append(f"the bound {name} is out of range")
    if not setting.prior <= lower:
        faults.append("the certified lower bound is below the prior")
    return Outcome(
        setting=setting,
        upper=upper,
        renyi=renyi,
        kl=kl,
        lower=lower,
        attack=attack,
        seconds=seconds,
        faults=faults,
    )


def quantiles_of(values: np.ndarray) -> dict[str, float]:
    """What is recorded of many numbers."""
    levels = [0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]
    return {str(level): float(np.quantile(values, level, method="lower")) for level in levels}


def summary(outcomes: list[Outcome], *, seed: int, seconds: float) -> dict[str, object]:
    """What is recorded of a sweep."""
    ratio = np.array([outcome.ratio for outcome in outcomes])
    certified = np.array([outcome.upper / outcome.lower if outcome.lower > 0 else np.inf for outcome in outcomes])
    faulty = [outcome for outcome in outcomes if outcome.faults]
    worst = sorted(outcomes, key=lambda outcome: -outcome.ratio)[:20]

    def record(outcome: Outcome) -> dict[str, object]:
        return asdict(outcome) | {"ratio": outcome.ratio}

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} × {platform.processor() or platform.machine()}, {platform.system()}",
        "versions": {
            "hush": hush.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "seed": seed,
        "settings": len(outcomes),
        "seconds": round(seconds, 1),
        "violations": len(faulty),
        "share_within_1_percent": float(np.mean(ratio <= GROSS)),
        "share_certified_within_1_percent": float(np.mean(certified <= GROSS)),
        "upper_over_best_lower": quantiles_of(ratio),
        "upper_over_certified_lower": quantiles_of(certified),
        "renyi_over_upper": quantiles_of(np.array([outcome.renyi / outcome.upper for outcome in outcomes])),
        "kl_over_upper": quantiles_of(np.array([outcome.kl / outcome.upper for outcome in outcomes])),
        "attack_over_upper": quantiles_of(
            np.array([outcome.attack / outcome.upper for outcome in outcomes if not outcome.faults])
        ),
        "slowest_seconds": max(outcome.seconds for outcome in outcomes),
        "faults": [record(outcome) for outcome in faulty],
        "widest": [record(outcome) for outcome in worst],
    }


def main() -> int:
    """Run the sweep, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "soundness_sweep.json")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    begin = time.perf_counter()
    for setting in draw_settings(arguments.settings, arguments.seed):
        outcomes.append(check(setting))
        if outcomes[-1].faults:
            print(f"\n{outcomes[-1]}")
        if len(outcomes) % 20 == 0 or len(outcomes) == arguments.settings:
            wrong = sum(bool(outcome.faults) for outcome in outcomes)
            print(f"\r{len(outcomes)}/{arguments.settings} settings, {wrong} violations", end="", flush=True)
    record = summary(outcomes, seed=arguments.seed, seconds=time.perf_counter() - begin)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\n{record['share_within_1_percent']:.1%} within 1 %; written to {arguments.output}")
    return 1 if record["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
