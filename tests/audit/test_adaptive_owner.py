"""Owners who choose settings by looking at earlier models: product bounds are exceeded, filters and series hold."""

import numpy as np
import pytest
from adaptive_owner import (
    Game,
    NamingGame,
    Release,
    StoppingGame,
    crossing_game,
    filtered_game,
    log_moment,
    product_posterior,
    rarer,
    shifted,
)
from scipy import integrate, stats
from scipy.special import ndtr, ndtri

import hush
from hush.accounting import moments
from hush.accounting.arguments import Side
from hush.accounting.releases import Shape, joint_posterior, limit_posterior
from hush.audit.mechanism import MechanismAttack
from hush.audit.statistics import Success

LEVEL = 1e-6  # of each comparison with simulated games, so that no fresh seed would fail
ROUNDING = 1e-6  # relative; of quadrature
SIDES: tuple[Side, Side] = ("upper", "lower")
PROMISES = [(1e-10, 1e-3, 0.54), (1e-6, 1e-3, 0.34), (1e-2, 0.1, 0.15), (0.5, 0.9, 0.15)]


def stated(prior: float, *releases: Release, side: Side = "upper") -> float:
    """The product bound of the accountant on settings that happened."""
    return joint_posterior(
        [[release.rate] for release in releases],
        noise_multipliers=[release.noise for release in releases],
        rounds=[1] * len(releases),
        prior=prior,
        side=side,
    )


def attacked(game: Game, runs: int, rng: np.random.Generator) -> MechanismAttack:
    """The attack on simulated games, at the threshold that is best in theory."""
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


# --- the game itself


@pytest.mark.parametrize("release", [Release(rate=0.3, noise=0.8), Release(rate=1.0, noise=2.0)])
@pytest.mark.parametrize("threshold", [0.2, 1.0, 7.0])
def test_the_hockey_stick_is_the_integral_of_what_exceeds_the_threshold(release: Release, threshold: float) -> None:
    def excess(x: float) -> float:
        absent = stats.norm.pdf(x, 0, release.noise)
        present = (1 - release.rate) * absent + release.rate * stats.norm.pdf(x, 1, release.noise)
        return max(float(present - threshold * absent), 0.0)

    expected, _ = integrate.quad(excess, -20, 20, limit=400, points=[0.0, 0.5, 1.0])
    assert float(release.hockey_stick(threshold)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("prior", [0.5, 1e-2, 1e-6])
def test_settings_fixed_beforehand_reach_the_product_bound_of_the_accountant(prior: float) -> None:
    """Two routes to one number: a line integral of closed forms, and the accountant from above and below."""
    for second in (Release(rate=0.05, noise=0.4), Release(rate=0.9, noise=2.0), shifted(1.3)):
        first = Release(rate=0.4, noise=0.9)
        exact = product_posterior(prior, first, second)
        upper, lower = (stated(prior, first, second, side=side) for side in SIDES)
        assert lower * (1 - ROUNDING) <= exact <= upper * (1 + ROUNDING)


def test_certain_draws_have_the_closed_form() -> None:
    for prior in (0.5, 1e-3, 1e-10):
        exact = float(ndtr(ndtri(prior) + np.hypot(0.8, 1.7)))
        assert product_posterior(prior, shifted(0.8), shifted(1.7)) == pytest.approx(exact, rel=1e-6)


# --- the product bound, evaluated afterwards


@pytest.mark.parametrize(("prior", "value", "share"), PROMISES)
def test_an_owner_who_looks_exceeds_every_product_bound_that_could_be_stated(
    prior: float, value: float, share: float
) -> None:
    """Whatever the owner chooses the product states the same number, and yet the secret is found more often."""
    game = crossing_game(prior, value, share=share, noise=0.05)
    for second in game.seconds:
        assert stated(prior, game.first, second) == pytest.approx(value, rel=2e-3)
    exact, _ = game.best()
    assert exact > 1.02 * value
    if prior < 1e-5:
        assert exact > 1.7 * value


@pytest.mark.parametrize(("prior", "value", "share"), PROMISES[:2])
def test_simulated_games_exceed_it_too(prior: float, value: float, share: float) -> None:
    """By exact confidence limits, without any integral."""
    game = crossing_game(prior, value, share=share, noise=0.05)
    worst = max(stated(prior, game.first, second) for second in game.seconds)
    attack = attacked(game, 400_000, np.random.default_rng(1))
    assert attack.lower(LEVEL) > worst
    assert attack.lower(LEVEL) <= game.best()[0] <= attack.upper(LEVEL)


def test_one_of_two_words_is_named_more_often_than_either_product_states() -> None:
    game = crossing_game(0.5, 0.9, share=0.42, noise=0.05)
    naming = NamingGame(first=game.first, seconds=game.seconds)
    worst = max(stated(0.5, game.first, second) for second in game.seconds)
    for place in range(2):  # with settings fixed beforehand the bound is reached, not exceeded
        assert naming.success(choices=[place]) == pytest.approx(0.9, rel=1e-5)
    assert naming.success() > 0.9105 > worst
    named = naming.named(400_000, np.random.default_rng(2))
    success = Success(hits=int(named.sum()), runs=named.size)
    assert success.lower(LEVEL) > worst
    assert success.lower(LEVEL) <= naming.success() <= success.upper(LEVEL)


def test_settings_that_are_ordered_give_an_owner_who_looks_nothing() -> None:
    """More of the same, or less noise: one setting is the best after every first model, so choosing is no use."""
    for prior in (0.5, 1e-3, 1e-10):
        first = shifted(1.5)
        for seconds in (
            (shifted(0.1), shifted(1.0), shifted(2.0)),
            (Release(rate=0.1, noise=0.7), Release(rate=0.2, noise=0.7), Release(rate=0.2, noise=0.5)),
        ):
            chosen, _ = Game(prior=prior, first=first, seconds=seconds).best()
            assert chosen == pytest.approx(product_posterior(prior, first, seconds[-1]), rel=1e-9)


# --- what holds


@pytest.mark.parametrize(("prior", "ceiling"), [(1e-10, 1e-3), (1e-6, 1e-3), (1e-2, 0.1), (0.5, 0.9)])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_filter_holds_in_the_same_game(prior: float, ceiling: float, share: float) -> None:
    """The first release spends a share of the budget, and either of the second two spends exactly what is left."""
    order = float(moments.choose_orders(prior, ceiling, intensity=1.0, rounds=2)[0, 0])
    budget = float(moments.moment_budget(prior, ceiling, order))
    game = filtered_game(prior, budget, lambda release: accounted_moment(release, prior, ceiling, order), share=share)
    for second in game.seconds:
        spent = sum(accounted_moment(release, prior, ceiling, order) for release in (game.first, second))
        assert spent == pytest.approx(budget, rel=1e-9)
        exact = log_moment(game.first, order) + log_moment(second, order)
        assert 0.999 * budget <= exact  # what the accountant concedes makes it smaller
    success, _ = game.best()
    fixed = max(product_posterior(prior, game.first, second) for second in game.seconds)
    assert fixed <= success <= ceiling
    if prior < 0.5 and share > 0.5:
        assert success > 1.001 * fixed  # the owner does look, and gains by it


def accounted_moment(release: Release, prior: float, ceiling: float, order: float) -> float:
    graph = hush.Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)
    spent = moments.log_moments(
        graph,
        rates=release.rate,
        noise_multiplier=release.noise,
        rounds=1,
        order=[[order]],
        conceded=moments.conceded_allowance([[prior]], [[ceiling]]),
    )
    return float(spent[0, 0])


@pytest.mark.parametrize("prior", [0.5, 1e-2, 1e-6, 1e-10])
def test_limits_announced_beforehand_hold_whatever_is_chosen_inside_them(prior: float) -> None:
    first, second = Release(rate=0.2, noise=0.6), Release(rate=0.3, noise=0.6)
    seconds = (rarer(prior, first, second, noise=0.15), second)
    shapes = [Shape(noise_multiplier=0.6, rounds=1), Shape(noise_multiplier=0.15, rounds=1)]
    limit = -np.log1p(-np.array([[first.rate, max(seconds[0].rate, second.rate)]]))
    certified = float(limit_posterior(limit, shapes, prior=prior)[0])
    success, _ = Game(prior=prior, first=first, seconds=seconds).best()
    assert 1.002 * product_posterior(prior, first, second) < success <= certified


# --- when to stop


def test_a_product_bound_is_no_probability_of_what_it_was_stated_about() -> None:
    """Of the chains that stop early because the word is clear, far more are broken than their bound states.

    What does hold for certain draws, for each value v: the word is named while at most v is stated with probability at
    most v. An owner who stops there keeps within the limit that v stands for.
    """
    game = StoppingGame(shift=0.5, releases=12, odds=19)
    made, named = game.played(200_000, np.random.default_rng(3))
    bound = game.stated()
    for number in (3, 4, 6):
        at = made == number
        of_these = Success(hits=int(named[at].sum()), runs=int(at.sum()))
        assert of_these.lower(LEVEL) > bound[number - 1] + 0.05
    average = Success(hits=int(named.sum()), runs=named.size)
    assert average.lower(LEVEL) > bound[made - 1].mean() + 0.02
    for number in range(1, 13):
        inside = Success(hits=int((named & (made <= number)).sum()), runs=named.size)
        assert inside.lower(LEVEL) <= bound[number - 1]
