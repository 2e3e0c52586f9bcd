"""Speed of the accountant at the size of the paper's experiment, beside dp_accounting on a sample of the same secrets.

    python benchmarks/accounting.py [--secrets 100000] [--sample 3] [--output benchmarks/results/accounting.json]

100,000 secrets in 50 to 100 examples each, ceilings uniform in [2e-4, 1e-3], prior 1e-10, rates 2048 / 1.7e6 times a
factor uniform in [0.9, 1.1] per example, 2000 rounds. hush calibrates one noise multiplier for all of them and gives
all posteriors. dp_accounting answers the paper's question (KL of one secret's mixture, a search over the noise) for a
few of the same secrets; its total is extrapolated.
"""

import argparse
import json
import os
import platform
import resource
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import scipy

import hush
from hush.accounting.divergences import kl_target

ROUNDS, PRIOR = 2000, 1e-10


def instance(num_secrets: int, seed: int) -> tuple[hush.Incidence, np.ndarray, np.ndarray]:
    """Incidence, rates and ceilings, at the paper's density whatever the number of secrets."""
    rng = np.random.default_rng(seed)
    num_examples = 17 * num_secrets
    counts = rng.integers(50, 101, num_secrets)
    secret = np.repeat(np.arange(num_secrets), counts)
    example = rng.integers(0, num_examples, secret.size)
    incidence = hush.Incidence.from_pairs(example, secret, num_examples=num_examples, num_secrets=num_secrets)
    rates = 2048 / 1.7e6 * rng.uniform(0.9, 1.1, num_examples)
    return incidence, rates, rng.uniform(2e-4, 1e-3, num_secrets)


def time_hush(incidence: hush.Incidence, rates: np.ndarray, ceiling: np.ndarray, bound: Any) -> dict[str, Any]:
    begin = time.perf_counter()
    found = hush.calibrate(incidence, prior=PRIOR, ceiling=ceiling, rates=rates, rounds=ROUNDS, bound=bound)
    seconds = time.perf_counter() - begin
    print(f"hush {bound}: {seconds:.2f} s, {found}")
    return {"seconds": seconds, "noise_multiplier": found.noise_multiplier, "binding": int(found.binding.size)}


def calibrate_alone(rates: np.ndarray, ceiling: float) -> hush.Calibration:
    """The same question to hush: one secret, by KL."""
    size = rates.size
    one = hush.Incidence.from_pairs(np.arange(size), np.zeros(size, dtype=int), num_examples=size, num_secrets=1)
    return hush.calibrate(one, prior=PRIOR, ceiling=ceiling, rates=rates, rounds=ROUNDS, bound="kl")


def time_peer(rates: np.ndarray, ceiling: float) -> dict[str, Any]:
    """dp_accounting: least noise for one secret by KL, a bisection over its mixture-of-Gaussians loss distribution."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from scipy.stats import poisson_binom

    count = poisson_binom(rates).pmf(np.arange(rates.size + 1))
    keep = count > 1e-30
    sensitivities, probabilities = np.arange(rates.size + 1)[keep], count[keep] / count[keep].sum()
    target = float(kl_target(PRIOR, ceiling))

    def divergence(sigma: float) -> float:
        loss = pld.from_mixture_gaussian_mechanism(
            standard_deviation=sigma,
            sensitivities=sensitivities,
            sampling_probs=probabilities,
            use_connect_dots=True,
        )
        pmf = loss._pmf_remove.to_dense_pmf()  # the direction with the secret against without
        values = (pmf._lower_loss + np.arange(pmf._probs.size)) * pmf._discretization
        return ROUNDS * float(np.dot(pmf._probs, values))

    begin = time.perf_counter()
    low, high = 10.0, 200.0
    while high > low * 1.001:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if divergence(middle) <= target else (middle, high)
    return {"seconds": time.perf_counter() - begin, "noise_multiplier": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--secrets", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=3, help="secrets that dp_accounting works on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "accounting.json")
    args = parser.parse_args()
    incidence, rates, ceiling = instance(args.secrets, args.seed)
    print(incidence)
    ours = {bound: time_hush(incidence, rates, ceiling, bound) for bound in ("blowup", "kl", "renyi")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak:.2f} GB")
    peers = []
    for secret in np.random.default_rng(args.seed).choice(args.secrets, args.sample, replace=False).tolist():
        own = rates[incidence.examples_of(secret)]
        peer = time_peer(own, float(ceiling[secret]))
        begin = time.perf_counter()
        alone = calibrate_alone(own, float(ceiling[secret]))
        peer |= {"hush_seconds": time.perf_counter() - begin, "hush_noise_multiplier": alone.noise_multiplier}
        print(f"dp_accounting, secret of {own.size} examples: {peer}")
        peers.append(peer)
    extrapolated = float(np.mean([peer["seconds"] for peer in peers])) * args.secrets
    ratios = {bound: extrapolated / ours[bound]["seconds"] for bound in ours}
    print(f"dp_accounting for all: {extrapolated / 86400:.1f} days; hush is faster by {ratios}")
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "versions": {"hush": hush.__version__, "numpy": np.__version__, "scipy": scipy.__version__},
        "secrets": args.secrets,
        "entries": incidence.num_entries,
        "hush": ours,
        "peak_memory_gb": peak,
        "dp_accounting_sample": peers,
        "dp_accounting_extrapolated_seconds": extrapolated,
        "ratio": ratios,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
