"""The game of a promise about slots: an honest owner is never beaten, and each broken condition is noticed."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from broken_steps import BROKEN, CANDIDATES, broken_owners, literal_scan, small_game
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

import hush
from hush.audit import game as module
from hush.audit.game import MARK, Arena, Steps, arenas_of, log_likelihoods, play, prepare, rule_scan
from hush.audit.statistics import exceeded
from hush.errors import InvalidInput

RUNS = 600


def seeded(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# An owner who keeps the conditions.


@pytest.mark.parametrize("part", ["slot", "difference"])
def test_an_honest_owner_keeps_prior_and_bound_and_the_attack_works(part: str) -> None:
    played = play(small_game(part=part), runs=RUNS, rng=seeded(0))
    assert [row.status for row in played.verdict().rows] == ["kept", "kept"]
    assert played.with_model.lower() > played.prior


def test_an_honest_owner_is_not_flagged_in_ten_repeated_audits() -> None:
    played = [play(small_game(), runs=200, rng=seeded(1000 + audit)) for audit in range(10)]
    successes = [success for each in played for success in (each.without_model, each.with_model)]
    bounds = [bound for each in played for bound in (each.prior, each.certified)]
    assert not exceeded(successes, bounds).any()


def test_other_secrets_beside_the_drawn_one_and_whole_examples_change_nothing() -> None:
    """A second secret in the same text, one that makes its text secret as a whole, and both beside the drawn one."""
    texts = ["xx {secret} yduy", "y {secret} xw", "yxvx", "xyxxy", "yyxyx"]
    scan = partial(literal_scan, others=["du"], whole=["v", "w"])
    game = small_game(texts=texts, steps=Steps(scan=scan))
    (arena,) = arenas_of(game)
    assert arena.private_N.tolist() == [0, 1, 2]
    assert arena.public_W.tolist() == [0, 3, 4]
    played = play(game, runs=RUNS, rng=seeded(1))
    assert played.verdict().status == "kept"
    assert played.with_model.lower() > played.prior


def test_an_uneven_generator_is_held_against_its_largest_probability() -> None:
    chance = np.geomspace(1, 30, len(CANDIDATES))
    game = small_game(generator=(chance / chance.sum()).tolist(), ceiling=0.3)
    played = play(game, runs=RUNS, rng=seeded(2))
    assert played.prior == pytest.approx(30 / chance.sum())
    assert played.without_model.lower() <= played.prior <= played.without_model.upper()
    assert played.verdict().status == "kept"


def test_the_certified_bound_is_that_of_the_examples_with_the_secret() -> None:
    (arena,) = arenas_of(small_game())
    noise = arena.plan.noise_multiplier
    posterior = hush.posterior(arena.rate_N, noise_multiplier=noise, rounds=40, prior=1 / len(CANDIDATES))
    assert posterior == pytest.approx(float(arena.plan.posterior[0, 0]), rel=1e-3)


@pytest.mark.parametrize("learning_rate", [1.0, 4.0, 16.0])
def test_no_model_gives_the_secret_more_than_the_bound_on_average(learning_rate: float) -> None:
    """Sampling from the model is an attack, so its log-loss at a whole secret has a limit, however it is trained."""
    game = small_game(
        texts=["x{secret}", "xy", "yx"], candidates=list("abcdefgh"), ceiling=0.8, rounds=5, batch_size=1.0,
        learning_rate=learning_rate,
    )  # fmt: skip
    (arena,) = arenas_of(game)
    truth_R = seeded(8).integers(8, size=2000)
    last_RVV = module._train(arena, truth_R, seeded(9))[:, -1]
    tokens = sorted({*"abcdefghxy", "[secret]"})
    secret_R = np.array([tokens.index(game.candidates[int(truth)]) for truth in truth_R])
    chance_R = softmax(last_RVV[:, tokens.index("x")], axis=1)[np.arange(2000), secret_R]
    certified = float(arena.plan.posterior[0, 0])
    assert 1 / 8 < chance_R.mean() <= certified
    assert -np.log(chance_R).mean() >= np.log(1 / certified)


# Broken owners.


@pytest.mark.parametrize("fault", BROKEN)
def test_every_broken_condition_is_noticed_where_it_shows(fault: str) -> None:
    played = play(small_game(steps=BROKEN[fault]), runs=RUNS, rng=seeded(3))
    without_model, with_models = (row.status for row in played.verdict().rows)
    if fault == "a shared draw":  # nothing that is seen before training depends on the secret
        assert (without_model, with_models) == ("kept", "failed")
    else:
        assert without_model == "failed"
    if fault == "one occurrence left":  # the skeleton shows the secret
        assert with_models == "failed"
        assert played.with_model.rate == 1


@pytest.mark.parametrize("fault", ["none", *BROKEN])
def test_with_the_products_scan_faults_are_noticed_and_an_honest_owner_is_not(fault: str) -> None:
    owners = {"none": Steps()} | broken_owners(rule_scan)
    game = small_game(steps=owners[fault], candidates=CANDIDATES[2::3], ceiling=0.3)
    assert play(game, runs=RUNS, rng=seeded(14)).verdict().failed == (fault != "none")


def test_a_prior_stated_below_the_generators_is_noticed() -> None:
    played = play(small_game(prior=1e-3, ceiling=0.01), runs=RUNS, rng=seeded(4))
    assert played.verdict().rows[0].status == "failed"


def test_less_noise_than_planned_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    halved = property(lambda arena: arena.plan.training_noise_multiplier * arena.plan.clip_norm / 2)
    with monkeypatch.context() as patch:
        patch.setattr(Arena, "noise_deviation", halved)
        played = play(small_game(), runs=RUNS, rng=seeded(5))
    assert [row.status for row in played.verdict().rows] == ["kept", "failed"]


@pytest.mark.parametrize("fault", BROKEN)
def test_faults_are_noticed_whatever_the_seed(fault: str) -> None:
    games = [play(small_game(steps=BROKEN[fault]), runs=300, rng=seeded(seed)) for seed in (10, 11)]
    assert all(played.verdict().failed for played in games)


# What the attacker sees, and how it scores.


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from(["x", "y", " ", MARK]), max_size=12).map("".join), min_size=1, max_size=4),
    fillings=st.lists(st.text("abc", min_size=1, max_size=6), min_size=2, max_size=4, unique=True),
    window=st.integers(1, 6),
)
def test_what_comes_before_training_is_the_same_for_every_filling(
    texts: list[str], fillings: list[str], window: int
) -> None:
    texts = [*texts, f"x{MARK}"]
    game = small_game(texts=texts, candidates=fillings, window=window)
    made = [prepare(game, filling) for filling in fillings]
    assert len({each.public for each in made}) == 1
    # The tokens are those of the product's skeletons, and no letter of a secret is among them.
    for filling, each in zip(fillings, made, strict=True):
        filled = [text.replace(MARK, filling) for text in texts]
        _, spans = literal_scan(filled, filling)
        skeletons = ["".join(tokens) for tokens in each.skeletons if tokens is not None]
        assert skeletons == [spans.skeleton(example, text) for example, text in enumerate(filled)]
        assert not any(set(skeleton.replace("[secret]", "")) & set("abc") for skeleton in skeletons)


@pytest.mark.parametrize("fault", ["none", "a shared draw"])
def test_the_score_is_the_log_density_of_the_private_sums(fault: str) -> None:
    """Second route: gradients by the definition, one normal density for each draw, no shared algebra."""
    steps = BROKEN.get(fault, Steps(scan=literal_scan))
    game = small_game(candidates=CANDIDATES[:5], rounds=2, ceiling=0.5, batch_size=0.8, steps=steps, part="difference")
    (arena,) = arenas_of(game)
    truth_R = np.array([0, 1, 2, 3, 4, 0])
    models = module._train(arena, truth_R, seeded(6))
    score_RM = log_likelihoods(arena, models)
    plan, deviation = arena.plan, arena.noise_deviation
    for run, candidate in product(range(6), range(5)):
        total = 0.0
        for round in range(2):
            start, middle, end = models[run, 2 * round : 2 * round + 3]
            noisy = (middle - end) * plan.batch_size / game.learning_rate
            probability = softmax(middle, axis=1)
            terms = []
            for draw in product([False, True], repeat=2):
                public = arena.public_steps(round, np.array([draw]))[0]
                step = game.learning_rate * (public.sum(axis=1, keepdims=True) * softmax(start, axis=1) - public)
                if np.abs(start - step - middle).max() > 1e-9:
                    continue
                mean = np.zeros_like(noisy)
                chance = 1.0
                for example, is_drawn in enumerate(draw):
                    chance *= arena.rate_N[example] if is_drawn else 1 - arena.rate_N[example]
                    counts = arena.count_MNVV[candidate, example]
                    gradient = counts.sum(axis=1, keepdims=True) * probability - counts
                    mean += is_drawn * gradient * min(1.0, plan.clip_norm / np.linalg.norm(gradient))
                square = np.square(noisy - mean).sum() - np.square(noisy).sum()
                terms.append(np.log(chance) - square / (2 * deviation**2))
            total += logsumexp(terms)
        assert score_RM[run, candidate] == pytest.approx(total, rel=1e-9, abs=1e-9)


def test_gradients_are_those_of_the_loss() -> None:
    rng = seeded(7)
    logits, counts = rng.normal(size=(4, 4)), rng.integers(0, 3, (4, 4)).astype(float)

    def loss(at: np.ndarray) -> float:
        return float(-(counts * np.log(softmax(at, axis=1))).sum())

    gradient = module._gradient(counts, softmax(logits, axis=1))
    for place in np.ndindex(4, 4):
        bump = np.zeros((4, 4))
        bump[place] = 1e-5
        assert (loss(logits + bump) - loss(logits - bump)) / 2e-5 == pytest.approx(gradient[place], abs=1e-7)


@pytest.mark.parametrize(
    "changes",
    [
        {"candidates": ["a"]},
        {"candidates": ["a", "a"]},
        {"generator": [1.0]},
        {"texts": ["xyx"]},
        {"window": 0},
        {"part": "whole"},
    ],
)
def test_games_that_cannot_be_played_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        small_game(**changes)


def test_a_repr_shows_no_candidate() -> None:
    game = replace(small_game(), candidates=["hunter", "winter"], texts=["the {secret}"])
    assert "hunter" not in repr(game)
