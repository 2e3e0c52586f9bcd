"""Several releases: against one release, closed forms, direct convolution, simulation, and in groups and limits."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

import hush
from hush.accounting import releases
from hush.accounting.accountant import lower_posterior, upper_posterior
from hush.accounting.counts import count_law
from hush.accounting.one_round import Part
from hush.accounting.releases import Shape, alike, limit_capacity, limit_posterior
from hush.errors import InvalidInput

TIGHT = 1 + 3e-3  # two upper bounds of one number, each within 1e-3 of it


@st.composite
def chains(draw: st.DrawFn, most: int = 4) -> tuple[list[list[float]], dict[str, Any]]:
    """Rates, and noise and rounds, of a few unlike releases."""
    count = draw(st.integers(1, most))
    rates = [
        [draw(st.floats(1e-4, 0.5))] * draw(st.integers(1, 12)) + draw(st.lists(st.floats(1e-4, 0.9), max_size=2))
        for _ in range(count)
    ]
    noise = [float(10 ** draw(st.floats(-0.4, 1.5))) for _ in range(count)]
    return rates, {"noise_multipliers": noise, "rounds": [draw(st.integers(1, 300)) for _ in range(count)]}


priors = st.floats(-10, -0.5).map(lambda exponent: 10.0**exponent)


@given(
    rate=st.floats(1e-4, 0.5),
    sigma=st.floats(0.4, 20.0),
    rounds=st.lists(st.integers(1, 400), min_size=2, max_size=5),
    prior=priors,
)
@settings(max_examples=40)
def test_equal_releases_agree_with_one_release_of_as_many_rounds(
    rate: float, sigma: float, rounds: list[int], prior: float
) -> None:
    law, at = count_law(np.full(5, rate), tail=1e-30), np.array([prior])
    apart = [Part(law=law, sigma=sigma, rounds=each) for each in rounds]
    whole = [Part(law=law, sigma=sigma, rounds=sum(rounds))]
    upper, expected = (upper_posterior(parts, at, bound="blowup", accuracy=1e-3)[0] for parts in (apart, whole))
    assert upper == pytest.approx(expected, rel=1e-5)
    lower, below = (lower_posterior(parts, at, accuracy=1e-3)[0] for parts in (apart, whole))
    assert lower == pytest.approx(below, rel=1e-5)
    assert lower <= upper
    for bound in ("kl", "renyi"):
        joint, single = (upper_posterior(parts, at, bound=bound, accuracy=1e-3)[0] for parts in (apart, whole))
        assert joint == pytest.approx(single, rel=1e-9)
    # Through the front door they are taken together, to the last digit.
    joint = hush.joint_posterior(
        [np.full(5, rate)] * len(rounds), noise_multipliers=[sigma] * len(rounds), rounds=rounds, prior=prior
    )
    assert joint == hush.posterior(np.full(5, rate), noise_multiplier=sigma, rounds=sum(rounds), prior=prior)


@given(chain=chains(), prior=priors, seed=st.integers(0, 2**31))
@settings(max_examples=40)
def test_the_order_of_the_releases_does_not_matter(
    chain: tuple[list[list[float]], dict[str, Any]], prior: float, seed: int
) -> None:
    rates, shapes = chain
    order = np.random.default_rng(seed).permutation(len(rates))
    other: dict[str, Any] = {name: [values[r] for r in order] for name, values in shapes.items()}
    choices: list[dict[str, Any]] = [{}, {"side": "lower"}, {"bound": "renyi"}, {"bound": "kl"}]
    for choice in choices:
        first = hush.joint_posterior(rates, prior=prior, **shapes, **choice)
        assert hush.joint_posterior([rates[r] for r in order], prior=prior, **other, **choice) == pytest.approx(
            first, rel=1e-6
        )


@given(chain=chains(), prior=priors, more=st.floats(1.0, 3.0))
@settings(max_examples=40)
def test_adding_a_release_never_tells_less_and_more_noise_never_more(
    chain: tuple[list[list[float]], dict[str, Any]], prior: float, more: float
) -> None:
    rates, shapes = chain
    upper, lower = (hush.joint_posterior(rates, prior=prior, **shapes, side=side) for side in ("upper", "lower"))
    assert prior <= lower <= upper <= 1
    fewer: dict[str, Any] = {name: values[1:] for name, values in shapes.items()}
    if len(rates) > 1:
        assert hush.joint_posterior(rates[1:], prior=prior, **fewer, side="lower") <= upper
        assert hush.joint_posterior(rates[1:], prior=prior, **fewer) <= upper * TIGHT
    noisier: dict[str, Any] = shapes | {
        "noise_multipliers": [more * shapes["noise_multipliers"][0], *shapes["noise_multipliers"][1:]]
    }
    assert hush.joint_posterior(rates, prior=prior, **noisier, side="lower") <= upper
    assert hush.joint_posterior(rates, prior=prior, **noisier) <= upper * TIGHT
    for bound in ("renyi", "kl"):
        assert hush.joint_posterior(rates, prior=prior, **shapes, bound=bound) >= lower


@pytest.mark.parametrize(
    ("chain", "prior", "reach"),
    [
        ([([0.001], 1.0, 3), ([0.01], 0.9, 2)], 1e-10, 40.0),  # big jumps
        ([([0.001], 0.8, 2), ([0.2, 0.1, 0.05], 1.5, 3)], 1e-6, 30.0),
        ([([0.02] * 10, 0.8, 2), ([0.5, 0.5], 2.0, 3), ([0.9, 0.3], 3.0, 1)], 1e-8, 40.0),
        ([([0.3], 1.2, 4), ([1.0], 4.0, 2)], 0.1, 10.0),
    ],
)
def test_unlike_releases_lie_in_the_bracket_of_a_direct_convolution(
    reference: ModuleType, chain: list[tuple[list[float], float, int]], prior: float, reach: float
) -> None:
    parts = [reference.Release(np.array(rates), sigma, rounds) for rates, sigma, rounds in chain]
    bracket = reference.joint_bracket(parts, prior, step=3e-3, reach=reach)
    assert bracket.high <= bracket.low * 1.02
    ask: dict[str, Any] = {
        "noise_multipliers": [part.sigma for part in parts],
        "rounds": [part.rounds for part in parts],
    }
    upper, lower = (
        hush.joint_posterior([part.rates for part in parts], prior=prior, **ask, side=side)
        for side in ("upper", "lower")
    )
    assert bracket.low <= upper <= bracket.high * 1.003
    assert bracket.low * 0.997 <= lower <= bracket.high


@pytest.mark.parametrize("prior", [1e-6, 1e-3, 0.1])
def test_unlike_releases_agree_with_a_simulation(reference: ModuleType, prior: float) -> None:
    rng = np.random.default_rng(4)
    chain = [(np.full(20, 0.01), 1.2, 60), (np.full(5, 0.1), 2.0, 30), (np.array([0.5]), 3.0, 10)]
    simulation, *others = (
        reference.Simulation(rates, sigma, rounds, runs=40_000, rng=rng) for rates, sigma, rounds in chain
    )
    for other in others:
        simulation.and_then(other)
    found = simulation.posterior(prior)
    upper = hush.joint_posterior(
        [rates for rates, _, _ in chain],
        noise_multipliers=[sigma for _, sigma, _ in chain],
        rounds=[rounds for _, _, rounds in chain],
        prior=prior,
    )
    assert abs(upper - found.value) <= 5 * found.error + 3e-3 * upper


@given(
    noise=st.lists(st.floats(0.3, 50.0), min_size=2, max_size=6),
    rounds=st.lists(st.integers(1, 50), min_size=6, max_size=6),
    prior=st.floats(-100, -0.4).map(lambda exponent: 10.0**exponent),
)
@settings(max_examples=40)
def test_releases_of_an_example_in_every_batch_add_up_like_gaussians(
    noise: list[float], rounds: list[int], prior: float
) -> None:
    used = rounds[: len(noise)]
    shift = np.sqrt(sum(times / sigma**2 for sigma, times in zip(noise, used, strict=True)))
    exact = float(ndtr(ndtri(prior) + shift))
    ask: dict[str, Any] = {"noise_multipliers": noise, "rounds": used, "prior": prior}
    upper, lower = (hush.joint_posterior([[1.0]] * len(noise), **ask, side=side) for side in ("upper", "lower"))
    assert lower * (1 - 1e-12) <= exact <= upper * (1 + 1e-12)
    if exact < 0.5:
        assert upper <= exact * 1.01


def test_unlike_releases_agree_with_dp_accounting(reference: ModuleType) -> None:
    chain = [([0.3, 0.3], 1.0, 5), ([0.05] * 4, 0.8, 20)]
    step, total = 1e-3, None
    for rates, sigma, rounds in chain:
        mass = reference.count_masses(np.array(rates))
        distribution = privacy_loss_distribution.from_mixture_gaussian_mechanism(
            sigma, list(range(mass.size)), mass.tolist(), value_discretization_interval=step, use_connect_dots=True
        ).self_compose(rounds)
        total = distribution if total is None else total.compose(distribution)
    assert total is not None
    log_t = np.arange(0.0, 5.0, 0.05)
    excess = np.array(total._pmf_remove.get_delta_for_epsilon(log_t.tolist()))
    ask: dict[str, Any] = {
        "noise_multipliers": [sigma for _, sigma, _ in chain],
        "rounds": [rounds for _, _, rounds in chain],
    }
    for prior in (1e-2, 0.1):
        expected = float((np.exp(log_t) * prior + excess).min())
        assert hush.joint_posterior([rates for rates, _, _ in chain], prior=prior, **ask) == pytest.approx(
            expected, rel=5e-3
        )


def test_divergences_of_unlike_releases_add_up(reference: ModuleType) -> None:
    from hush.accounting.divergences import kl_posterior, renyi_posterior

    chain = [(np.array([0.3, 0.2]), 2.0, 10), (np.array([0.05]), 1.5, 100)]
    ask: dict[str, Any] = {"noise_multipliers": [2.0, 1.5], "rounds": [10, 100], "prior": 1e-4}
    rates = [each for each, _, _ in chain]
    divergence = sum(rounds * reference.kl_by_quadrature(each, sigma) for each, sigma, rounds in chain)
    expected = float(kl_posterior(divergence, 1e-4))
    found = hush.joint_posterior(rates, **ask, bound="kl")
    assert expected * (1 - 1e-6) <= found <= expected * 1.003
    whole = min(
        float(
            renyi_posterior(
                sum(
                    rounds * np.log(reference.moment_in_closed_form(each, sigma, order))
                    for each, sigma, rounds in chain
                ),
                1e-4,
                order,
            )
        )
        for order in (2, 3, 4, 5, 6)
    )
    assert hush.joint_posterior(rates, **ask, bound="renyi") <= whole * 1.003


@given(chain=chains(3), prior=priors, rate=st.floats(1e-6, 0.9), times=st.integers(1, 20))
@settings(max_examples=30)
def test_a_release_without_noise_tells_the_secret_exactly_when_it_draws_it(
    chain: tuple[list[list[float]], dict[str, Any]], prior: float, rate: float, times: int
) -> None:
    rates, shapes = chain
    drawn = -np.expm1(times * np.log1p(-rate))
    more: dict[str, Any] = {
        "noise_multipliers": [*shapes["noise_multipliers"], 0.0],
        "rounds": [*shapes["rounds"], times],
    }
    for bound in ("blowup", "renyi", "kl"):
        rest = hush.joint_posterior(rates, prior=prior, **shapes, bound=bound)
        found = hush.joint_posterior([*rates, [rate]], prior=prior, **more, bound=bound)
        assert found == pytest.approx(drawn + (1 - drawn) * rest, rel=1e-6)
    lower = hush.joint_posterior([*rates, [rate]], prior=prior, **more, side="lower")
    attack = drawn + (1 - drawn) * hush.joint_posterior(rates, prior=prior, **shapes, side="lower")
    assert attack * (1 - 1e-5) <= lower <= attack * (1 + 1e-5)
    silent: dict[str, Any] = shapes | {"noise_multipliers": [0.0] * len(rates)}
    idle = sum(t * np.log1p(-np.array(each)).sum() for each, t in zip(rates, shapes["rounds"], strict=True))
    assert hush.joint_posterior(rates, prior=prior, **silent) == pytest.approx(
        -np.expm1(np.log1p(-prior) + idle), rel=1e-9
    )


def test_a_release_without_the_secret_changes_nothing() -> None:
    ask: dict[str, Any] = {"noise_multipliers": [2.0, 0.0, 0.5], "rounds": [100, 10, 1000], "prior": [1e-6, 0.1]}
    alone = hush.posterior([0.01] * 20, noise_multiplier=2.0, rounds=100, prior=[1e-6, 0.1])
    joint = hush.joint_posterior([[0.01] * 20, [], [0.0]], **ask)
    assert joint == pytest.approx(alone, rel=1e-6)
    assert np.asarray(hush.joint_posterior([[], [], []], **ask)).tolist() == [1e-6, 0.1]


# Many secrets.


def graphs_of(rng: np.random.Generator, secrets: int, count: int) -> list[hush.Incidence]:
    """A corpus that grows: every release has the examples of the one before it, and more."""
    size = rng.integers(1, 30, secrets)
    secret = np.repeat(np.arange(secrets), size)
    example = rng.integers(0, 40 * secrets, secret.size)
    found = []
    for share in np.linspace(0.6, 1.0, count):
        there = example < share * 40 * secrets
        found.append(
            hush.Incidence.from_pairs(example[there], secret[there], num_examples=40 * secrets, num_secrets=secrets)
        )
    return found


@pytest.mark.parametrize("groups", [3, 40, 10_000])
def test_no_group_gives_a_secret_less_than_it_has_alone(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "JOINT_GROUPS", groups)
    rng = np.random.default_rng(7)
    graphs = graphs_of(rng, 60, 3)
    rates = [rng.uniform(0, 0.02, graph.num_examples) for graph in graphs]
    rates[1][:] = 0.01  # secrets of equal rates take a shorter way
    shapes: dict[str, Any] = {"noise_multipliers": [1.0, 2.0, 1.5], "rounds": [50, 200, 100]}
    prior = 10 ** rng.uniform(-8, -2, (60, 2))
    reports: list[tuple[int, int]] = []
    joint = hush.joint_posteriors(graphs, rates=rates, prior=prior, **shapes, progress=lambda *at: reports.append(at))
    assert reports[-1][0] == reports[-1][1]
    for j in range(60):
        own = [rate[graph.examples_of(j)] for graph, rate in zip(graphs, rates, strict=True)]
        alone = hush.joint_posterior(own, prior=prior[j], **shapes)
        assert np.all(joint[j] >= alone * (1 - 1e-3))
        if groups > 60:
            assert np.all(joint[j] <= alone * 1.01)


def test_one_graph_is_the_case_of_one_release() -> None:
    graph = graphs_of(np.random.default_rng(2), 50, 1)[0]
    joint = hush.joint_posteriors([graph], rates=[0.01], prior=1e-6, noise_multipliers=[1.5], rounds=[300])
    single = hush.posteriors(graph, rates=0.01, prior=1e-6, noise_multiplier=1.5, rounds=300)
    assert joint == pytest.approx(single, rel=2e-2)


@given(
    measure=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=60), most=st.integers(1, 20)
)
def test_groups_hold_every_member_once(measure: list[tuple[float, float]], most: int) -> None:
    groups = alike(np.array(measure), np.arange(len(measure)), most)
    assert len(groups) <= most
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(measure)))


# Limits of a series.


@given(
    limit=st.floats(1e-3, 1.0),
    noise=st.lists(st.floats(0.6, 10.0), min_size=1, max_size=4),
    rounds=st.integers(1, 300),
    prior=priors,
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_nothing_inside_the_limits_of_a_series_tells_more(
    limit: float, noise: list[float], rounds: int, prior: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shapes = [Shape(noise_multiplier=sigma, rounds=rounds) for sigma in noise]
    promised = float(limit_posterior([limit], shapes, prior=prior)[0])
    parts = [rng.dirichlet(np.ones(rng.integers(1, 6))) * limit * rng.uniform(0.5, 1.0) for _ in noise]
    inside = [-np.expm1(-part) for part in parts]  # the sum of -log(1 - rate) is at most the limit
    noisier = [sigma * rng.uniform(1.0, 1.5) for sigma in noise]
    fewer = [int(rng.integers(1, rounds + 1)) for _ in noise]
    lower, upper = (
        hush.joint_posterior(inside, noise_multipliers=noisier, rounds=fewer, prior=prior, side=side)
        for side in ("lower", "upper")
    )
    assert lower <= promised
    assert upper <= promised * TIGHT


def test_limits_may_differ_between_secrets_and_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [Shape(noise_multiplier=2.0, rounds=100), Shape(noise_multiplier=3.0, rounds=400)]
    rng = np.random.default_rng(3)
    limits = rng.uniform(0, 0.3, (50, 2))
    limits[7] = 0
    many = limit_posterior(limits, shapes, prior=[[1e-8, 1e-3]] * 50)
    assert many.shape == (50, 2)
    assert many[7].tolist() == [1e-8, 1e-3]
    for j in (0, 7, 21):
        alone = limit_posterior(limits[[j]], shapes, prior=[[1e-8, 1e-3]])[0]
        assert many[j] == pytest.approx(alone, rel=1e-6)  # few enough for a group each
    monkeypatch.setattr(releases, "LIMIT_GROUPS", 9)
    shared = limit_posterior(limits, shapes, prior=[[1e-8, 1e-3]] * 50)
    assert np.all(shared >= many * (1 - 1e-2))
    assert np.all(shared <= limit_posterior(limits.max(axis=0)[None], shapes, prior=[[1e-8, 1e-3]]) * (1 + 1e-2))
    same = limit_posterior([0.1], shapes, prior=1e-8)
    assert same == pytest.approx(limit_posterior([[0.1, 0.1]], shapes, prior=1e-8), rel=1e-9)


@pytest.mark.parametrize("ceiling", [1e-4, 1e-2])
def test_the_largest_limit_is_proven_and_one_percent_more_breaks_the_promise(ceiling: float) -> None:
    shapes = [Shape(noise_multiplier=2.0, rounds=200), Shape(noise_multiplier=1.5, rounds=100)]
    limit = limit_capacity(1e-8, ceiling, shapes=shapes)
    assert limit_posterior(limit, shapes, prior=1e-8)[0] <= ceiling
    assert limit_posterior(1.01 * limit, shapes, prior=1e-8)[0] > ceiling
    # The first release has spent a part; what is left is for the second.
    past = [[float(limit[0]) * 0.5]]
    left = limit_capacity(1e-8, ceiling, shapes=shapes, past=past)
    assert left[0] > limit[0]
    assert limit_posterior([[past[0][0], left[0]]], shapes, prior=1e-8)[0] <= ceiling
    assert limit_posterior([[past[0][0], 1.01 * left[0]]], shapes, prior=1e-8)[0] > ceiling
    assert limit_capacity(1e-8, ceiling, shapes=shapes, past=[[50.0]]).tolist() == [0.0]


def test_a_series_of_equal_noise_is_one_training_of_all_rounds() -> None:
    shapes = [Shape(noise_multiplier=2.0, rounds=100)] * 5
    many = limit_capacity(1e-8, [1e-4, 1e-2], shapes=shapes)
    assert many == pytest.approx(hush.capacity(1e-8, [1e-4, 1e-2], noise_multiplier=2.0, rounds=500), rel=1e-12)


def test_many_secrets_with_pasts_of_their_own_get_limits_that_hold() -> None:
    rng = np.random.default_rng(5)
    shapes = [Shape(noise_multiplier=2.0, rounds=100)] * 2
    past = rng.uniform(0, 0.2, (40, 1))
    limits = limit_capacity([1e-8] * 40, [1e-3] * 40, shapes=shapes, past=past)
    found = limit_posterior(np.column_stack([past, limits]), shapes, prior=1e-8)
    assert np.all(found[limits > 0] <= 1e-3 * (1 + 1e-3))
    assert 10 < np.count_nonzero(limits) <= 40


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: hush.joint_posterior([], noise_multipliers=[], rounds=[], prior=0.1), "noise_multipliers"),
        (lambda: hush.joint_posterior([[0.1]], noise_multipliers=[1.0, 2.0], rounds=[1, 1], prior=0.1), "rates"),
        (lambda: hush.joint_posterior([[0.1]], noise_multipliers=[1.0], rounds=[1, 1], prior=0.1), "rounds"),
        (lambda: hush.joint_posterior([[0.1]], noise_multipliers=[-1.0], rounds=[1], prior=0.1), "noise_multiplier"),
        (
            lambda: hush.joint_posterior([[0.1]] * 200, noise_multipliers=[1.0] * 200, rounds=[10**9] * 200, prior=0.1),
            "rounds",
        ),
        (lambda: limit_posterior([-1.0], [Shape(noise_multiplier=1.0, rounds=1)], prior=0.1), "limit"),
        (lambda: limit_posterior([[1.0, 2.0, 3.0]], [Shape(noise_multiplier=1.0, rounds=1)] * 2, prior=0.1), "limit"),
        (lambda: limit_capacity(1e-3, 0.1, shapes=[Shape(noise_multiplier=1.0, rounds=1)], past=[[0.1]]), "past"),
        (lambda: limit_capacity(1e-3, 0.1, shapes=[]), "shapes"),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        call()
    assert raised.value.setting == named


def test_graphs_of_different_secrets_are_refused() -> None:
    one, two = graphs_of(np.random.default_rng(0), 3, 1)[0], graphs_of(np.random.default_rng(0), 4, 1)[0]
    with pytest.raises(InvalidInput, match="has 4 secrets, the first 3"):
        hush.joint_posteriors([one, two], rates=[0.1, 0.1], prior=0.1, noise_multipliers=[1.0, 1.0], rounds=[1, 1])
