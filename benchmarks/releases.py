"""Several releases about the same secrets: is every bound sound and tight, and what do many secrets cost?

    python benchmarks/releases.py [--chains 1000] [--seed 1] [--secrets 100000] [--releases 12] [--output FILE]

Chains: random ones of 2 to 12 unlike releases, where users are: priors from 1e-12 to 1e-2, noise such that the
posterior is above the prior and below one half. Each asks for the upper bounds (blow-up, Renyi, KL), the certified
attack on the product pair, the independent attacks with closed forms on each single release
(tests/accounting/references.py), the same releases in another order, and one release fewer.

Speed: secrets of the size of the paper's experiment (weights.py) in releases whose corpus grows by 4 % each: all joint
posteriors, compared with the posteriors and the least noise of the last release alone, in the same run; and the limits
and posteriors of an announced series of the same shapes.

--secrets 0 or --chains 0 leaves a part out; the file keeps what it has of it.
"""

import argparse
import datetime
import json
import math
import multiprocessing
import os
import platform
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from soundness_sweep import quantiles_of, references

import hush
from hush.accounting.releases import Shape, limit_capacity, limit_posterior
from weights import PRIOR, instance

HERE = Path(__file__).resolve().parent
FLOAT_NOISE = 1e-9  # relative rounding of the closed forms
MACHINE = 1e-6  # relative: two orders of one sum may be rounded differently
GROSS = 1.01
GROWTH = 1.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One question; the rates of each release follow from the seed."""

    seed: int
    examples: list[int]
    rate: list[float]
    sigma: list[float]
    rounds: list[int]
    prior: float

    def rates(self) -> list[np.ndarray]:
        """Sampling probabilities in each release."""
        rng = np.random.default_rng(self.seed)
        return [np.minimum(1.0, rate * rng.uniform(0, 2, n)) for rate, n in zip(self.rate, self.examples, strict=True)]

    def ask(self, *, order: list[int] | None = None, **settings: Any) -> float:
        """The joint posterior, of the releases in this order."""
        chosen = range(len(self.rounds)) if order is None else order
        rates = self.rates()
        return hush.joint_posterior(
            [rates[r] for r in chosen],
            noise_multipliers=[self.sigma[r] for r in chosen],
            rounds=[self.rounds[r] for r in chosen],
            prior=self.prior,
            **settings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the accountant says of a chain, and what is wrong with it."""

    chain: Chain
    upper: float
    lower: float
    renyi: float
    kl: float
    attack: float
    seconds: float
    faults: list[str]

    @property
    def ratio(self) -> float:
        """Upper bound over the certified lower one."""
        ratio = self.upper / self.lower
        return math.inf if math.isnan(ratio) else ratio


def draw_chain(rng: np.random.Generator) -> Chain:
    """A chain whose posterior is above its prior and below one half."""
    while True:
        releases = int(rng.integers(2, 13))
        examples = [int(np.exp(rng.uniform(0, np.log(300)))) for _ in range(releases)]
        rate = [float(np.exp(rng.uniform(np.log(1e-5), np.log(0.3)))) for _ in range(releases)]
        rounds = [round(float(np.exp(rng.uniform(0, np.log(5000))))) for _ in range(releases)]
        prior = float(10.0 ** rng.uniform(-12, -2))
        # Noise at which a release by itself would show about an R-th of what a posterior of up to one half allows.
        shift = -float(scipy.special.ndtri(prior)) * rng.uniform(0.1, 0.9) / math.sqrt(releases)
        sigma = [
            float(np.clip(n * q * math.sqrt(t) / shift * np.exp(rng.uniform(-1, 1)), 0.3, 1e4))
            for n, q, t in zip(examples, rate, rounds, strict=True)
        ]
        chain = Chain(
            seed=int(rng.integers(2**31)), examples=examples, rate=rate, sigma=sigma, rounds=rounds, prior=prior
        )
        if chain.ask(accuracy=0.1) < 0.5:
            return chain


def check(chain: Chain) -> Outcome:
    """Ask for all sides; whatever contradicts, warnings and exceptions too, is a fault."""
    faults: list[str] = []
    upper = lower = renyi = kl = shuffled = fewer = seconds = math.nan
    releases = len(chain.rounds)
    order = np.random.default_rng(chain.seed).permutation(releases).tolist()
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            upper, lower = chain.ask(), chain.ask(side="lower")
            seconds = time.perf_counter() - begin
            renyi, kl = chain.ask(bound="renyi"), chain.ask(bound="kl")
            shuffled, fewer = chain.ask(order=order), chain.ask(order=order[1:], side="lower")
        except Exception as error:  # the benchmark reports whatever happens and goes on
            faults.append(f"{type(error).__name__}: {error}")
    faults += [f"warning: {entry.message}" for entry in raised]
    attack = max(
        references.best_attack(rates, sigma, rounds, chain.prior)
        for rates, sigma, rounds in zip(chain.rates(), chain.sigma, chain.rounds, strict=True)
    )
    for name, bound in (("blowup", upper), ("renyi", renyi), ("kl", kl)):
        if not bound >= attack * (1 - FLOAT_NOISE):
            faults.append(f"the bound {name} is below an attack on one release")
        if not bound >= lower:
            faults.append(f"the bound {name} is below the attack on all")
        if not chain.prior <= bound <= 1:
            faults.append(f"the bound {name} is out of range")
    if not abs(shuffled / upper - 1) <= MACHINE:
        faults.append("the order of the releases matters")
    if not fewer <= upper:
        faults.append("one release fewer tells more")
    return Outcome(
        chain=chain, upper=upper, lower=lower, renyi=renyi, kl=kl, attack=attack, seconds=seconds, faults=faults
    )


def chains(count: int, seed: int, keep: Callable[[dict[str, Any]], None]) -> list[Outcome]:
    """Check many random chains; what is recorded is kept now and then."""
    rng, outcomes, begin = np.random.default_rng(seed), list[Outcome](), time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for outcome in pool.imap(check, (draw_chain(rng) for _ in range(count))):
            outcomes.append(outcome)
            if outcome.faults:
                print(f"\n{outcome}")
            if len(outcomes) % 50 == 0 or len(outcomes) == count:
                keep(summary(outcomes, seed) | {"seconds": round(time.perf_counter() - begin, 1)})
    return outcomes


def summary(outcomes: list[Outcome], seed: int) -> dict[str, Any]:
    """What is recorded of chains."""
    ratio = np.array([outcome.ratio for outcome in outcomes])
    widest = sorted(outcomes, key=lambda outcome: -outcome.ratio)[:10]
    return {
        "chains": len(outcomes),
        "seed": seed,
        "releases": [2, 12],
        "violations": sum(bool(outcome.faults) for outcome in outcomes),
        "share_within_1_percent": float(np.mean(ratio <= GROSS)),
        "upper_over_lower": quantiles_of(ratio),
        "renyi_over_upper": quantiles_of(np.array([outcome.renyi / outcome.upper for outcome in outcomes])),
        "kl_over_upper": quantiles_of(np.array([outcome.kl / outcome.upper for outcome in outcomes])),
        "attack_on_one_over_upper": quantiles_of(np.array([outcome.attack / outcome.upper for outcome in outcomes])),
        "posterior": quantiles_of(np.array([outcome.upper for outcome in outcomes])),
        "slowest_seconds": max(outcome.seconds for outcome in outcomes),
        "faults": [asdict(outcome) for outcome in outcomes if outcome.faults],
        "widest": [asdict(outcome) | {"ratio": outcome.ratio} for outcome in widest],
    }


def grown(full: hush.Incidence, share: float) -> hush.Incidence:
    """The same secrets in the examples that are there when the corpus has this share of its final size."""
    there = full.example_of_entry < share * full.num_examples
    secret = np.repeat(np.arange(full.num_secrets), full.examples_per_secret)
    return hush.Incidence.from_pairs(
        full.example_of_entry[there],
        secret[there],
        num_examples=math.ceil(share * full.num_examples),
        num_secrets=full.num_secrets,
    )


def timed(task: Any) -> tuple[Any, dict[str, float]]:
    """A result, and the clock and CPU time that it took."""
    begin, cpu = time.perf_counter(), time.process_time()
    found = task()
    return found, {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}


def speed(num_secrets: int, releases: int) -> dict[str, Any]:
    """Many secrets: all releases jointly, against one release."""
    full, ceiling_S = instance(num_secrets, seed=0)
    graphs = [grown(full, GROWTH ** (r + 1 - releases)) for r in range(releases)]
    batch = 0.02048 * num_secrets
    rates = [batch / graph.num_examples for graph in graphs]
    # Noise that keeps the promises after all releases, a little unlike in each.
    sigma = 2.1 * math.sqrt(releases) * 1.12 ** np.linspace(-1, 1, releases)
    one, one_time = timed(
        lambda: hush.posteriors(
            graphs[-1], prior=PRIOR, noise_multiplier=float(sigma[-1]), rates=rates[-1], rounds=2000
        )
    )
    _, plan_time = timed(
        lambda: hush.calibrate(graphs[-1], prior=PRIOR, ceiling=ceiling_S, rates=rates[-1], rounds=2000)
    )
    settings = {"noise_multipliers": sigma.tolist(), "rounds": [2000] * releases}
    joint, joint_time = timed(lambda: hush.joint_posteriors(graphs, rates=rates, prior=PRIOR, **settings))
    sample = np.random.default_rng(0).choice(num_secrets, min(40, num_secrets), replace=False)
    alone = [
        hush.joint_posterior(
            [np.full(graph.examples_of(int(j)).size, rate) for graph, rate in zip(graphs, rates, strict=True)],
            prior=PRIOR,
            **settings,
        )
        for j in sample
    ]
    shapes = [Shape(noise_multiplier=float(each), rounds=2000) for each in sigma]
    limits, capacity_time = timed(lambda: limit_capacity(PRIOR, ceiling_S, shapes=shapes))
    kept, limit_time = timed(lambda: limit_posterior(limits, shapes, prior=PRIOR))
    return {
        "secrets": num_secrets,
        "releases": releases,
        "examples": [graph.num_examples for graph in graphs],
        "entries": [graph.num_entries for graph in graphs],
        "one_release": one_time,
        "least_noise_of_one_release": plan_time,
        "joint": joint_time,
        "joint_over_one_cpu": joint_time["cpu_seconds"] / one_time["cpu_seconds"],
        "joint_over_least_noise_cpu": joint_time["cpu_seconds"] / plan_time["cpu_seconds"],
        "shared_bound_over_own": quantiles_of(joint[sample] / np.array(alone)),
        "largest_posterior_of_one_release": float(one.max()),
        "largest_joint_posterior": float(joint.max()),
        "limit_capacity": capacity_time,
        "limit_posterior": limit_time,
        "limits_kept": bool((kept <= ceiling_S).all()),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> int:
    """Run both parts, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--secrets", type=int, default=100_000)
    parser.add_argument("--releases", type=int, default=12)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "releases.json")
    options = parser.parse_args()

    def keep(part: str, result: dict[str, Any]) -> None:
        """Write what one part found, beside what the file has of the other."""
        facts = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["benchmarks/releases.py", *sys.argv[1:]]),
            "hardware": f"{os.cpu_count()} × {platform.processor() or platform.machine()}, {platform.system()}",
            "load": os.getloadavg(),
            "versions": {
                "hush": hush.__version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "scipy": scipy.__version__,
            },
        }
        record = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
        record[part] = facts | result
        options.output.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\n{part} written to {options.output}")

    if options.secrets:
        found = speed(options.secrets, options.releases)
        print(json.dumps(found, indent=2))
        keep("speed", found)
    if options.chains:
        outcomes = chains(options.chains, options.seed, lambda result: keep("random_chains", result))
        return 1 if any(outcome.faults for outcome in outcomes) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
