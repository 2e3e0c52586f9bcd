"""The Renyi filter: moments and budgets against high precision, and what is proven for releases that add up."""

from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import hush
from hush.accounting.counts import count_law, poisson_law
from hush.accounting.moments import (
    MAX_RELEASES,
    ORDERS,
    _end,
    _run_moments,
    calibrate_moments,
    choose_orders,
    conceded_allowance,
    filter_posterior,
    log_moments,
    moment_budget,
    moment_capacity,
)
from hush.errors import CannotCertify, InfeasiblePlan, InvalidInput

orders = st.floats(-2.5, 2.5).map(lambda exponent: 1 + 10.0**exponent)


@st.composite
def promises(draw: st.DrawFn) -> tuple[float, float]:
    """A prior, and a ceiling above it."""
    prior = 10.0 ** draw(st.floats(-20, -0.5))
    return prior, float(min(0.99, prior * 10.0 ** draw(st.floats(0.1, 12))))


@given(promise=promises(), order=orders, share=st.floats(0.0, 1.0))
@settings(max_examples=150)
def test_spending_up_to_the_budget_keeps_the_promise(promise: tuple[float, float], order: float, share: float) -> None:
    prior, ceiling = promise
    budget = float(moment_budget(prior, ceiling, order))
    assert prior <= filter_posterior(share * budget, prior, ceiling, order) <= ceiling


@given(promise=promises(), order=orders)
@settings(max_examples=100)
def test_the_budget_is_the_exact_one_rounded_down(
    reference: ModuleType, promise: tuple[float, float], order: float
) -> None:
    prior, ceiling = promise
    budget = float(moment_budget(prior, ceiling, order))
    with mpmath.workdps(400):
        kept = mpmath.mpf(ceiling) - MAX_RELEASES * mpmath.mpf(float(conceded_allowance(prior, ceiling)))
    exact = reference.binary_log_moment(prior, kept, order)
    assert budget <= exact
    assert budget >= exact * (1 - 1e-6) - 1e-300 or ceiling - prior < 1e-6 * prior


def test_the_allowances_of_all_releases_are_what_is_set_aside() -> None:
    prior, ceiling = 1e-10, 1e-3
    spent = filter_posterior(0.5, prior, ceiling, 2.0) - filter_posterior(0.5, prior, prior, 2.0)
    assert MAX_RELEASES * float(conceded_allowance(prior, ceiling)) <= spent <= 1.001e-3 * ceiling


@pytest.mark.parametrize(
    ("rates", "sigma", "rounds"),
    [([0.3, 0.2], 2.0, 10), ([0.05], 1.5, 100), ([0.01] * 3, 3.0, 1000), ([0.5], 100.0, 1000), ([1.0, 0.1], 3.0, 5)],
)
@pytest.mark.parametrize("order", [2, 3, 5])
def test_log_moments_are_those_in_closed_form(
    reference: ModuleType, rates: list[float], sigma: float, rounds: int, order: int
) -> None:
    law = count_law(np.array(rates), tail=1e-300)
    found = float(_run_moments(law, sigma, rounds, np.array([float(order)]), 1e-60)[0])
    mass = reference.count_masses(np.array(rates))
    with mpmath.workdps(40):  # log E_Q[R^order] by the sum over tuples of counts
        total = mpmath.mpf(0)
        for counts in np.ndindex(*[mass.size] * order):
            pairs = (sum(counts) ** 2 - sum(k * k for k in counts)) / 2
            total += mpmath.fprod(mpmath.mpf(float(mass[k])) for k in counts) * mpmath.exp(mpmath.mpf(pairs) / sigma**2)
        exact = rounds * mpmath.log(total)
    assert exact * (1 - 1e-9) <= found <= exact * 1.003


@given(
    rates=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=8),
    sigma=st.floats(0.5, 30.0),
    rounds=st.integers(1, 2000),
    log_conceded=st.floats(-30, -3),
)
@settings(max_examples=60)
def test_no_release_concedes_more_than_its_allowance(
    rates: list[float], sigma: float, rounds: int, log_conceded: float
) -> None:
    conceded = 10.0**log_conceded
    law = count_law(np.array(rates), tail=0.1 * conceded / rounds)
    end = _end(law, sigma, rounds, conceded)
    moments = _run_moments(law, sigma, rounds, np.array([2.0, 4.0]), conceded)
    if end is None:
        assert np.isinf(moments).all()
        return
    whole = count_law(np.array(rates), tail=0.0)
    beyond = float(whole.mass @ ndtr(whole.counts / sigma - end))
    assert -np.expm1(rounds * np.log1p(-beyond)) <= conceded
    assert 0 < moments[0] <= moments[1]


@given(
    rate=st.floats(1e-4, 0.3), examples=st.integers(1, 30), sigma=st.floats(0.6, 10.0), rounds=st.integers(1, 300),
    order=st.floats(1.1, 20.0), more=st.floats(1.0, 3.0),
)  # fmt: skip
@settings(max_examples=40)
def test_a_moment_grows_with_order_rate_and_rounds_and_falls_with_noise(
    rate: float, examples: int, sigma: float, rounds: int, order: float, more: float
) -> None:
    def moment(*, rate: float = rate, sigma: float = sigma, rounds: int = rounds, order: float = order) -> float:
        law = count_law(np.full(examples, rate), tail=1e-30)
        return float(_run_moments(law, sigma, rounds, np.array([order]), 1e-20)[0])

    here = moment() * (1 + 3e-3)
    assert moment(sigma=more * sigma) <= here
    assert moment(order=1 + (order - 1) / more) <= here
    assert moment(rate=rate / more) <= here
    assert moment(rounds=max(1, int(rounds / more))) <= here


@given(
    noise=st.lists(st.floats(0.7, 8.0), min_size=1, max_size=4),
    rate=st.floats(1e-3, 0.3),
    examples=st.integers(1, 20),
    promise=promises(),
    order=st.floats(1.2, 12.0),
)
@settings(max_examples=40)
def test_the_filters_posterior_is_never_below_an_attack_on_all_releases(
    noise: list[float], rate: float, examples: int, promise: tuple[float, float], order: float
) -> None:
    prior, ceiling = promise
    conceded = float(conceded_allowance(prior, ceiling))
    law = count_law(np.full(examples, rate), tail=0.01 * conceded)
    spent = sum(float(_run_moments(law, sigma, 20, np.array([order]), conceded)[0]) for sigma in noise)
    proven = float(filter_posterior(spent, prior, ceiling, order))
    lower = hush.joint_posterior(
        [np.full(examples, rate)] * len(noise), noise_multipliers=noise, rounds=[20] * len(noise), prior=prior,
        side="lower",
    )  # fmt: skip
    assert proven >= lower


def some_graph() -> tuple[hush.Incidence, np.ndarray]:
    """30 secrets in up to 20 examples each, and a rate for each example; the last secret is never drawn."""
    rng = np.random.default_rng(11)
    secret = np.repeat(np.arange(30), rng.integers(1, 21, 30))
    example = rng.integers(0, 200, secret.size)
    rates = rng.uniform(0, 0.02, 200)
    rates[example[secret == 29]] = 0.0
    return hush.Incidence.from_pairs(example, secret, num_examples=200, num_secrets=30), rates


def test_the_noise_found_spends_at_most_the_budget_and_half_a_percent_less_does_not() -> None:
    graph, rates = some_graph()
    prior, ceiling = np.full((30, 2), [1e-8, 1e-4]), np.full((30, 2), [1e-4, 0.1])
    order = choose_orders(prior, ceiling, intensity=0.1, rounds=300)
    conceded, budget = conceded_allowance(prior, ceiling), 0.3 * moment_budget(prior, ceiling, order)
    ask: dict[str, Any] = {"rates": rates, "rounds": 100, "order": order, "conceded": conceded}
    noise, spent, binding = calibrate_moments(graph, budget=budget, **ask)
    assert np.all(spent <= budget)
    assert np.all(spent[29] == 0)
    again = log_moments(graph, noise_multiplier=noise, **ask)
    assert np.all(again[29] == 0)
    assert again[:29].min() > 0
    for j in range(0, 29, 4):  # no group spends less for a secret than it spends alone
        law = count_law(rates[graph.examples_of(j)], tail=0.0)
        alone = _run_moments(law, noise, 100, order[j], float(conceded[j].min()))
        assert np.all(again[j] >= alone * (1 - 1e-3))
        assert np.all(spent[j] >= alone * (1 - 1e-3))
    less = log_moments(graph, noise_multiplier=noise * 0.99, **ask)
    assert (less > budget).any()
    assert binding.size
    assert (less > budget)[binding].any()


def test_a_capacity_is_proven_and_one_percent_more_is_not() -> None:
    order, conceded = np.array([[1.8], [3.0]]), np.array([[1e-9], [1e-8]])
    budget = moment_budget(1e-10, [[1e-3], [1e-2]], order)
    found = moment_capacity(order, budget, conceded=conceded, noise_multiplier=2.0, rounds=500)
    for s, alpha, most, least in zip(found, order[:, 0], budget[:, 0], conceded[:, 0], strict=True):
        law, more = (poisson_law(float(mean), tail=1e-13) for mean in (s, 1.01 * s))
        assert _run_moments(law, 2.0, 500, np.array([alpha]), least)[0] <= most
        assert _run_moments(more, 2.0, 500, np.array([alpha]), least)[0] > most
    nothing = moment_capacity(order, 0 * budget, conceded=conceded, noise_multiplier=2.0, rounds=500)
    assert nothing.tolist() == [0.0, 0.0]


def test_many_capacities_at_once_are_safe_and_nearly_what_each_gives_alone() -> None:
    order = np.linspace(1.5, 4.0, 40)[:, None]
    conceded, budget = np.full((40, 1), 1e-9), moment_budget(1e-10, 1e-3, order)
    ask = {"noise_multiplier": 2.0, "rounds": 500}
    many = moment_capacity(order, budget, conceded=conceded, **ask)
    for j in (0, 17, 39):
        alone = moment_capacity(order[[j]], budget[[j]], conceded=conceded[[j]], **ask)[0]
        assert 0.97 * alone <= many[j] <= alone * (1 + 2e-3)


@pytest.mark.parametrize("examples", [12, 50, 100])
def test_the_order_chosen_needs_little_more_noise_than_the_best(examples: int) -> None:
    rate, prior, ceiling = 2048 / 1.7e6, 1e-10, 1e-3
    graph = hush.Incidence.from_pairs(
        np.arange(examples), np.zeros(examples, dtype=int), num_examples=examples, num_secrets=1
    )

    def noise(order: np.ndarray) -> float:
        budget, conceded = moment_budget(prior, ceiling, order), np.full((1, 1), conceded_allowance(prior, ceiling))
        return calibrate_moments(graph, order=order, conceded=conceded, budget=budget, rates=rate, rounds=2000)[0]

    chosen = choose_orders(prior, ceiling, intensity=examples * rate, rounds=2000)
    assert chosen.tolist() == choose_orders(prior, ceiling, intensity=examples * rate, rounds=2000).tolist()
    assert noise(chosen) <= 1.03 * min(noise(np.array([[order]])) for order in ORDERS[95:230:8])
    tight = hush.calibrate(graph, prior=prior, ceiling=ceiling, rates=rate, rounds=2000).noise_multiplier
    assert tight < noise(chosen) < 1.2 * tight


def test_too_little_noise_spends_without_limit() -> None:
    graph, rates = some_graph()
    ask: dict[str, Any] = {
        "rates": rates,
        "rounds": 10,
        "order": np.full((30, 1), 2.0),
        "conceded": np.full((30, 1), 1e-9),
    }
    for noise in (0.0, 1e-3):
        spent = log_moments(graph, noise_multiplier=noise, **ask)
        assert np.isinf(spent[:29]).all()
        assert spent[29, 0] == 0


def test_a_budget_that_is_used_up_is_refused() -> None:
    graph, rates = some_graph()
    ask: dict[str, Any] = {
        "rates": rates,
        "rounds": 10,
        "order": np.full((30, 1), 2.0),
        "conceded": np.full((30, 1), 1e-9),
    }
    with pytest.raises(InfeasiblePlan, match="secret 3 has nothing left of its budget"):
        calibrate_moments(graph, budget=np.where(np.arange(30)[:, None] == 3, 0.0, 1.0), **ask)
    with pytest.raises(CannotCertify):
        calibrate_moments(graph, budget=np.full((30, 1), 1e-25), **ask)
    ask["rates"] = 0.0
    idle = calibrate_moments(graph, budget=np.zeros((30, 1)), **ask)
    assert idle[0] == 0.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"order": np.ones((30, 1))}, "order"),
        ({"order": np.full((29, 1), 2.0)}, "order"),
        ({"conceded": np.full((30, 2), 1e-9)}, "conceded"),
        ({"conceded": np.full((30, 1), 1.5)}, "conceded"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, np.ndarray], named: str) -> None:
    graph, rates = some_graph()
    ask: dict[str, Any] = {
        "rates": rates,
        "rounds": 10,
        "order": np.full((30, 1), 2.0),
        "conceded": np.full((30, 1), 1e-9),
    } | change
    with pytest.raises(InvalidInput) as raised:
        log_moments(graph, noise_multiplier=1.0, **ask)
    assert raised.value.setting == named


def test_what_was_calibrated_secret_by_secret_is_proven_again_though_many_secrets_share_bounds() -> None:
    """More secrets than groups, all drawn a little differently: a shared bound alone would miss the budget."""
    rng = np.random.default_rng(0)
    secrets = 1500
    secret = np.repeat(np.arange(secrets), 3)
    graph = hush.Incidence.from_pairs(np.arange(3 * secrets), secret, num_examples=3 * secrets, num_secrets=secrets)
    ask: dict[str, Any] = {
        "rates": 10 ** rng.uniform(-3, -1, 3 * secrets),
        "rounds": 50,
        "order": np.full((secrets, 1), 3.0),
        "conceded": np.full((secrets, 1), 1e-9),
    }
    budget = log_moments(graph, noise_multiplier=3.0, below=0.0, **ask) * 1.001  # as if every secret were to bind
    noise, _, binding = calibrate_moments(graph, budget=budget, **ask)
    shared = log_moments(graph, noise_multiplier=noise, **ask)
    again = log_moments(graph, noise_multiplier=noise, below=budget, **ask)
    assert (shared > budget).any()
    assert (again <= budget).all()
    assert (again <= shared).all()
    few = {name: ask[name][binding] for name in ("order", "conceded")}
    alone = log_moments(graph.select(secrets=binding), noise_multiplier=noise, **ask | few)
    assert (again[binding] <= alone * (1 + 1e-2)).all()
