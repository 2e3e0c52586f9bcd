"""Plans and what goes with them, small ones made in earnest and a large one put together."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from hush.incidence import Incidence
from hush.plan import Plan, make_plan

LARGE = 100_000
AUDIT: dict[str, Any] = {
    "verdict": "kept",
    "level": 0.01,
    "rows": [
        {"attack": "mechanism", "name": "s-2", "prior": 1e-10, "certified": 9e-4, "ceiling": 1e-3, "hits": 3,
         "runs": 9000, "lower": 5e-5, "upper": 9.7e-4, "status": "kept"},
        {"attack": "naming", "name": "canary-1", "prior": 1e-4, "certified": 0.2, "ceiling": 0.25, "hits": 0,
         "runs": 1, "lower": 0.0, "upper": 0.99, "status": "kept"},
        {"attack": "extraction", "name": "all", "prior": None, "certified": None, "ceiling": None, "hits": 1,
         "runs": 40, "lower": 2e-4, "upper": 0.2, "status": "not comparable"},
    ],
    "notices": ["no reference model was given"],
}  # fmt: skip
TRAINING = [
    {"round": round_, "run": run, "eval_loss": 3.0 + offset - round_ / 50, "eval_accuracy": round_ / 100}
    for offset, run in enumerate(("no protection", "hush"))
    for round_ in range(0, 50, 10)
]


@cache
def small_plan(ids: tuple[str, ...] | None = None, secrets: int = 12) -> Plan:
    """A plan that was really made."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 30, secrets)
    incidence = Incidence.from_pairs(
        np.concatenate([rng.choice(300, size, replace=False) for size in sizes]),
        np.repeat(np.arange(secrets), sizes),
        num_examples=300,
        num_secrets=secrets,
    )
    names = tuple(f"s-{secret}" for secret in range(secrets)) if ids is None else ids
    return make_plan(incidence, prior=1e-10, ceiling=1e-3, batch_size=20, rounds=50, secret_ids=names)


def put_together(
    counts: np.ndarray, shares: np.ndarray, *, num_examples: int, ids: Sequence[str] | None = None
) -> Plan:
    """A plan whose posteriors have these shares of their ceilings: nothing is proven, everything can be drawn."""
    total = int(counts.sum())
    secret = np.repeat(np.arange(len(counts)), counts)
    first = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    example = (np.repeat(np.arange(len(counts)) * 7919, counts) + first) % num_examples
    rng = np.random.default_rng(1)
    ceiling = rng.uniform(2e-4, 1e-3, (len(counts), 1))
    posterior = np.minimum(np.maximum(ceiling * shares[:, None], 1e-10), ceiling)
    weights = np.where(rng.random(num_examples) < 0.2, rng.random(num_examples), 1.0)
    return Plan(
        incidence=Incidence.from_pairs(example, secret, num_examples=num_examples, num_secrets=len(counts)),
        secret_ids=tuple(f"rare-words-{place:06d}" for place in range(len(counts))) if ids is None else tuple(ids),
        prior=np.full_like(ceiling, 1e-10),
        ceiling=ceiling,
        posterior=posterior,
        binding=np.flatnonzero(shares > 0.995),
        weights=weights,
        noise_multiplier=3.0,
        rounds=1000,
        batch_size=512.0,
        clip_norm=1.0,
        bound="blowup",
        capacity="accounted",
        weights_gap=0.0,
        noise_scale=1.0,
        created="2026-01-31T12:00:00+00:00",
    )


@cache
def large_plan() -> Plan:
    """As many secrets as a page has to hold."""
    rng = np.random.default_rng(2)
    counts = np.minimum(rng.zipf(1.7, LARGE), 400)
    shares = np.minimum(1e-7 * np.exp(counts**0.7 * rng.uniform(0.8, 1.2, LARGE)), 1.0)
    return put_together(counts, shares, num_examples=300_000)
