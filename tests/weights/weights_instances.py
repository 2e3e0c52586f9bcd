"""Random programs, small and awkward, and the independent route to their optimum."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

import hush
from hush.weights import Weights

Array = NDArray[np.float64]

# Round numbers make ties, which is where reductions and vertices go wrong; the rest make none.
capacities = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, float("inf")]),
    st.floats(1e-3, 10.0),
    st.floats(1e-9, 1e-3),
)
uppers = st.sampled_from([1.0, 1.0, 0.25, 7.0])


@st.composite
def problems(draw: st.DrawFn, most_examples: int = 12, most_secrets: int = 6) -> tuple[hush.Incidence, Array, float]:
    """Incidence, capacity of each secret, upper bound; with empty, full and repeated rows and columns."""
    n = draw(st.integers(0, most_examples))
    m = draw(st.integers(0, most_secrets))
    kinds = [st.integers(0, 2**n - 1), st.just(0), st.just(2**n - 1)]
    rows = draw(st.lists(st.one_of(kinds), min_size=m, max_size=m))
    if n and draw(st.booleans()):  # repeat the first column
        rows = [bits | (1 << (n - 1)) if bits & 1 else bits & ~(1 << (n - 1)) for bits in rows]
    pairs = [(i, j) for j, bits in enumerate(rows) for i in range(n) if bits >> i & 1]
    example, secret = ([pair[k] for pair in pairs] for k in (0, 1))
    incidence = hush.Incidence.from_pairs(
        np.array(example, dtype=np.int64), np.array(secret, dtype=np.int64), num_examples=n, num_secrets=m
    )
    capacity = np.array(draw(st.lists(capacities, min_size=m, max_size=m)), dtype=np.float64)
    return incidence, capacity, draw(uppers)


def paper_like(num_secrets: int, seed: int) -> tuple[hush.Incidence, Array]:
    """A small instance of the paper's density and the shape of its capacities."""
    rng = np.random.default_rng(seed)
    secret = np.repeat(np.arange(num_secrets), rng.integers(50, 101, num_secrets))
    num_examples = int(16.7 * num_secrets)
    example = rng.integers(0, num_examples, secret.size)
    incidence = hush.Incidence.from_pairs(example, secret, num_examples=num_examples, num_secrets=num_secrets)
    return incidence, rng.uniform(0.0027, 0.0151, num_secrets)


def optimum(incidence: hush.Incidence, capacity: Array, upper: float) -> float:
    """The largest sum of weights, straight from scipy on the program as it stands."""
    if incidence.num_examples == 0:
        return 0.0
    finite = np.isfinite(capacity)
    matrix = incidence.to_scipy().T.tocsr().astype(float)[np.flatnonzero(finite)]
    solve: Any = linprog  # its type stubs do not know sparse matrices
    found = solve(
        -np.ones(incidence.num_examples),
        A_ub=matrix if finite.any() else None,
        b_ub=capacity[finite] if finite.any() else None,
        bounds=(0, upper),
        method="highs",
    )
    assert found.status == 0
    return -float(found.fun)


def assert_certified(weights: Weights, incidence: hush.Incidence, capacity: np.ndarray, upper: float) -> None:
    """Feasible, and with a sum that is what it says and not above its bound."""
    matrix = incidence.to_scipy().T.astype(float)
    assert weights.values.shape == (incidence.num_examples,)
    assert (weights.values >= 0).all()
    assert (weights.values <= upper).all()
    assert (matrix @ weights.values <= capacity * (1 + 1e-12)).all()
    assert weights.objective == pytest.approx(weights.values.sum(), rel=1e-12)
    assert weights.objective <= weights.bound


CODE_BASE_EXAMPLES = 68_671  # files and chunks of one large code base
CODE_BASE_LARGEST = 66_660  # of which one secret is in nearly all


def code_base_like(seed: int, num_small: int) -> tuple[hush.Incidence, Array]:
    """Nested, duplicated and very large secrets as in a code base, and random shares of their sizes as capacities.

    Two chains of nested sets of examples, with repeated members, and small secrets in neighbouring or scattered
    examples, some of which are repeated or have a part that is a secret too.
    """
    rng = np.random.default_rng(seed)
    n, rows = CODE_BASE_EXAMPLES, list[NDArray[np.integer]]()
    for largest in (CODE_BASE_LARGEST, int(rng.integers(1000, n))):
        order = rng.permutation(n)
        sizes = [largest, *(largest * np.cumprod(rng.uniform(0.1, 1.0, 4))).astype(int)]
        rows += [order[: max(size, 1)] for size in sizes for _ in range(1 + (rng.random() < 0.4))]
    for _ in range(num_small):
        size = min(int(np.exp(rng.normal(3.5, 1.8))) + 1, n)
        first = int(rng.integers(0, n - size + 1))
        whole = np.arange(first, first + size) if rng.random() < 0.7 else rng.choice(n, size, replace=False)
        rows.append(whole)
        rows += [whole] * (rng.random() < 0.2) + [whole[: size // 2 + 1]] * (rng.random() < 0.2)
    size_S = np.array([len(row) for row in rows])
    secret = np.repeat(np.arange(len(rows)), size_S)
    incidence = hush.Incidence.from_pairs(np.concatenate(rows), secret, num_examples=n, num_secrets=len(rows))
    return incidence, size_S * np.exp(rng.uniform(np.log(1e-4), np.log(1.2), len(rows)))


def assert_exactly_certified(weights: Weights, incidence: hush.Incidence, capacity: Array) -> None:
    """Every capacity, the bound and the gap hold in exact arithmetic; the objective is off by a rounding."""
    for secret in range(incidence.num_secrets):
        values = weights.values[incidence.examples_of(secret)]
        assert math.fsum([*values.tolist(), -float(capacity[secret])]) <= 0  # fsum rounds once, at the end
    total = sum(map(Fraction, weights.values.tolist()), Fraction(0))
    price = [Fraction(0)] * incidence.num_examples
    bound = Fraction(0)
    for secret, dual in enumerate(map(Fraction, weights.dual.tolist())):
        if dual:
            bound += dual * Fraction(float(capacity[secret]))
            for example in incidence.examples_of(secret).tolist():
                price[example] += dual
    bound += Fraction(weights.upper) * sum(max(Fraction(0), 1 - cost) for cost in price)
    assert abs(Fraction(weights.objective) - total) <= total * Fraction(2) ** -52
    assert total <= bound <= Fraction(weights.bound)
    assert weights.objective <= weights.bound
    assert Fraction(weights.gap) * bound >= bound - total
