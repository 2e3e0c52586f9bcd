"""Small problems to plan for: random ones, and one with a bit of everything."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import hush
from hush.slots import Slots, slots_of_spans


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A graph and what is promised about it."""

    incidence: hush.Incidence
    prior: Any
    ceiling: Any
    rounds: int

    @property
    def promises(self) -> dict[str, Any]:
        """Arguments that planning and sweeping share."""
        return {"prior": self.prior, "ceiling": self.ceiling, "rounds": self.rounds}

    @property
    def has_secret(self) -> np.ndarray:
        """Which examples contain a secret."""
        return self.incidence.secrets_per_example > 0


def graph(rng: np.random.Generator, num_examples: int, sizes: list[int]) -> hush.Incidence:
    """Secrets of these sizes in random examples."""
    lists = [rng.choice(num_examples, size, replace=False) for size in sizes]
    example = np.concatenate([*lists, np.empty(0)]).astype(np.int64)
    secret = np.repeat(np.arange(len(sizes)), sizes)
    return hush.Incidence.from_pairs(example, secret, num_examples=num_examples, num_secrets=len(sizes))


def some_slots(rng: np.random.Generator, incidence: hush.Incidence, *, share: float = 0.6) -> Slots:
    """Slots for the secrets of about this share of the examples with a secret; some secrets share a slot."""
    secret_E = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
    hides_E = (rng.random(incidence.num_examples) < share)[incidence.example_of_entry]
    example, secret = incidence.example_of_entry[hides_E], secret_E[hides_E]
    begin = rng.integers(0, 60, len(example))
    return slots_of_spans(
        incidence, ["names", "words"], example=example, begin=begin, end=begin + rng.integers(1, 9, len(example)),
        rule=rng.integers(0, 2, len(example)), secret=secret,
    ).slots  # fmt: skip


def office() -> Instance:
    """100 examples, 8 secrets: one in no example, examples without a secret, two points and two kinds of ceiling."""
    incidence = graph(np.random.default_rng(5), 100, [0, 3, 25, 30, 28, 1, 12, 20])
    ceiling = np.stack([np.array([1e-3, 3e-3] * 4), np.full(8, 0.3)], axis=1)
    return Instance(incidence=incidence, prior=np.array([[1e-8, 1e-3]] * 8), ceiling=ceiling, rounds=50)


@st.composite
def instances(draw: st.DrawFn, *, most_secrets: int = 5, least_examples: int = 1) -> Instance:
    """A random small problem; few distinct priors, since each costs a search of its own."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(least_examples, 40))
    m = draw(st.integers(0, most_secrets))
    sizes = [draw(st.integers(0, min(n, 12))) for _ in range(m)]
    points = draw(st.integers(1, 2))
    prior = rng.choice(10.0 ** rng.uniform(-10, -0.5, 2), (m, points))
    ceiling = prior + (1 - prior) * rng.choice(10.0 ** rng.uniform(-3, -0.2, 2), (m, 1))
    return Instance(incidence=graph(rng, n, sizes), prior=prior, ceiling=ceiling, rounds=draw(st.integers(1, 200)))
