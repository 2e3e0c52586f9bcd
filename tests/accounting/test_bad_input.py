"""Bad input gets a clear error, or a defined answer, before any computation."""

from typing import Any

import numpy as np
import pytest

import hush

GOOD: dict[str, Any] = {"noise_multiplier": 1.0, "rounds": 10, "prior": 1e-3}
NAN, INF = float("nan"), float("inf")


def _incidence() -> hush.Incidence:
    return hush.Incidence.from_pairs([0, 1, 2], [0, 0, 1], num_examples=3, num_secrets=2)


PLAN: dict[str, Any] = {"prior": 1e-6, "ceiling": 1e-2, "rates": 0.1, "rounds": 10}
LIMIT: dict[str, Any] = {"noise_multiplier": 1.0, "rounds": 10}


@pytest.mark.parametrize(
    "rates",
    [[NAN], [0.1, NAN], [-0.1], [1.0000001], [INF], [[0.1, 0.2]], ["a"], [None], [0.1, [0.2]], [1j], {}, [10**400]],
)
def test_rates_must_be_probabilities(rates: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="rate"):
        hush.posterior(rates, **GOOD)
    with pytest.raises(hush.InvalidInput, match="rate"):
        hush.calibrate(_incidence(), **(PLAN | {"rates": rates}))


@pytest.mark.parametrize("sigma", [-1.0, -1e-300, NAN, INF, "a", None, 1j, [1.0, 2.0], 10**400])
def test_noise_must_be_a_finite_number_from_zero(sigma: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="noise_multiplier"):
        hush.posterior([0.1], **(GOOD | {"noise_multiplier": sigma}))
    with pytest.raises(hush.InvalidInput, match="noise_multiplier"):
        hush.capacity(1e-6, 1e-2, **(LIMIT | {"noise_multiplier": sigma}))


@pytest.mark.parametrize("rounds", [0, -1, 1.0, 2.5, True, False, np.True_, "7", None, NAN, [3], 10**18])
def test_rounds_must_be_a_whole_number_from_one(rounds: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="rounds"):
        hush.posterior([0.1], **(GOOD | {"rounds": rounds}))
    with pytest.raises(hush.InvalidInput, match="rounds"):
        hush.calibrate(_incidence(), **(PLAN | {"rounds": rounds}))
    with pytest.raises(hush.InvalidInput, match="rounds"):
        hush.capacity(1e-6, 1e-2, **(LIMIT | {"rounds": rounds}))


def test_rounds_may_be_a_numpy_integer() -> None:
    changed: dict[str, Any] = GOOD | {"rounds": np.int64(10)}
    assert hush.posterior([0.1], **changed) == hush.posterior([0.1], **GOOD)


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, 1.1, NAN, INF, "a", None, [0.1, NAN], [0.1, 0.0], 1j, True, 10**400])
def test_priors_must_lie_strictly_between_zero_and_one(prior: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="prior"):
        hush.posterior([0.1], **(GOOD | {"prior": prior}))
    with pytest.raises(hush.InvalidInput, match="prior"):
        hush.calibrate(_incidence(), **(PLAN | {"prior": prior}))
    with pytest.raises(hush.InvalidInput, match="prior"):
        hush.capacity(prior, 0.5, **LIMIT)


@pytest.mark.parametrize("ceiling", [1e-7, 0.0, 1.0, -0.1, 2.0, NAN, INF, "a", None, [1e-2, 1e-7], [1e-2, NAN], 1j])
def test_ceilings_must_lie_from_the_prior_to_below_one(ceiling: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="ceiling"):
        hush.calibrate(_incidence(), **(PLAN | {"ceiling": ceiling}))
    with pytest.raises(hush.InvalidInput, match="ceiling"):
        hush.capacity(1e-6, ceiling, **LIMIT)


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": [0.1, 0.2]},
        {"rates": [0.1] * 4},
        {"rates": []},
        {"prior": [1e-6]},
        {"prior": [1e-6] * 3},
        {"ceiling": [1e-2] * 3},
        {"prior": [[1e-6, 1e-5], [1e-6, 1e-5]], "ceiling": [[1e-2] * 3, [1e-2] * 3]},
        {"prior": [[1e-6, 1e-5]], "ceiling": 0.1},
        {"prior": np.empty((2, 0)), "ceiling": 0.1},
        {"prior": np.full((2, 1, 1), 1e-6)},
    ],
)
def test_lengths_must_match(changes: dict[str, Any]) -> None:
    with pytest.raises(hush.InvalidInput):
        hush.calibrate(_incidence(), **(PLAN | changes))


def test_capacity_refuses_lengths_that_do_not_match() -> None:
    with pytest.raises(hush.InvalidInput):
        hush.capacity([1e-6, 1e-5], [1e-2, 1e-2, 1e-2], **LIMIT)
    with pytest.raises(hush.InvalidInput):
        hush.capacity([[1e-6, 1e-5]], [[1e-2, 1e-2, 1e-2]], **LIMIT)


@pytest.mark.parametrize("bound", ["KL", "", "tight", None, 3])
def test_bounds_go_by_their_names(bound: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="bound"):
        hush.posterior([0.1], **GOOD, bound=bound)
    with pytest.raises(hush.InvalidInput, match="bound"):
        hush.calibrate(_incidence(), **PLAN, bound=bound)
    with pytest.raises(hush.InvalidInput, match="bound"):
        hush.capacity(1e-6, 1e-2, **LIMIT, bound=bound)


def test_a_lower_bound_is_one_of_the_blowup_only() -> None:
    for bound in ("renyi", "kl"):
        with pytest.raises(hush.InvalidInput, match="lower"):
            hush.posterior([0.1], **GOOD, bound=bound, side="lower")
    unknown: Any = "middle"
    with pytest.raises(hush.InvalidInput, match="side"):
        hush.posterior([0.1], **GOOD, side=unknown)


@pytest.mark.parametrize("accuracy", [0.0, -1e-3, 1.0, NAN, INF, "a", None, 10**400])
def test_accuracy_must_be_sensible(accuracy: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="accuracy"):
        hush.posterior([0.1], **GOOD, accuracy=accuracy)
    with pytest.raises(hush.InvalidInput, match="accuracy"):
        hush.calibrate(_incidence(), **PLAN, accuracy=accuracy)
    with pytest.raises(hush.InvalidInput, match="accuracy"):
        hush.capacity(1e-6, 1e-2, **LIMIT, accuracy=accuracy)


@pytest.mark.parametrize("most", [0.0, -1.0, 1e7, NAN, INF, "a", None])
def test_the_most_that_a_capacity_may_be_must_be_sensible(most: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="most"):
        hush.capacity(1e-6, 1e-2, **LIMIT, most=most)


@pytest.mark.parametrize(
    "rates", [np.array([0.1, 0.2], dtype=np.float32), np.array([0, 1]), (0.1, 0.2), range(2), [True, False], 0.25]
)
def test_rates_may_be_any_flat_sequence_of_numbers(rates: Any) -> None:
    found = hush.posterior(rates, **GOOD)
    assert 1e-3 <= found <= 1.0
    flat = np.atleast_1d(np.asarray(rates, dtype=np.float64))
    assert found == hush.posterior(flat, **GOOD)


def test_inputs_are_left_alone() -> None:
    rates, priors = np.array([0.3, 0.0, 0.1]), np.array([0.1, 1e-6])
    kept = rates.copy(), priors.copy()
    hush.posterior(rates, noise_multiplier=1.0, rounds=10, prior=priors)
    assert np.array_equal(rates, kept[0])
    assert np.array_equal(priors, kept[1])
    rates.flags.writeable = False
    found = hush.posterior(rates, noise_multiplier=1.0, rounds=10, prior=priors)
    assert isinstance(found, np.ndarray)
    assert found.flags.writeable


@pytest.mark.parametrize("prior", [5e-324, 1e-310, 9e-301])
def test_priors_below_the_stated_range_are_refused(prior: float) -> None:
    for bound in ("blowup", "renyi", "kl"):
        with pytest.raises(hush.InvalidInput, match="prior"):
            hush.posterior([0.1], noise_multiplier=1.0, rounds=10, prior=prior, bound=bound)
