"""Promises: one or several points, and as arrays."""

import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.protection import Protection, promise_arrays

PROBABILITY = st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)
POINT = st.tuples(PROBABILITY, PROBABILITY).map(lambda pair: (min(pair), max(pair)))
BROKEN = [(0.0, 0.5), (-0.1, 0.5), (0.5, 0.4), (0.5, 1.0), (0.5, math.inf), (math.nan, 0.5), (0.1, math.nan)]


@given(st.lists(POINT, min_size=1, max_size=5), st.randoms())
def test_order_and_repetition_of_points_never_change_a_protection(points, random) -> None:
    shuffled = points + points[:1]
    random.shuffle(shuffled)
    assert Protection.of(*shuffled) == Protection.of(*points)
    assert hash(Protection.of(*shuffled)) == hash(Protection.of(*points))
    assert Protection.of(*points).points == tuple(sorted(set(points)))


@given(st.lists(POINT, min_size=1, max_size=5))
def test_a_protection_survives_repr_pickle_and_copy(points) -> None:
    protection = Protection.of(*points)
    assert eval(repr(protection), {"Protection": Protection}) == protection
    assert pickle.loads(pickle.dumps(protection)) == protection
    assert copy.deepcopy(protection) == protection


@given(POINT)
def test_one_point_is_the_same_by_both_routes(point) -> None:
    assert Protection(*point) == Protection(prior=point[0], ceiling=point[1]) == Protection.of(point)


@given(st.lists(POINT, min_size=1, max_size=5))
def test_a_protection_holds_at_its_own_ceilings_and_never_above_any(points) -> None:
    best = {}
    for prior, ceiling in points:
        best[prior] = min(ceiling, best.get(prior, 1.0))
    protection = Protection.of(*points)
    assert protection.holds(best.__getitem__)
    for prior in best:
        assert not protection.holds((best | {prior: np.nextafter(best[prior], 2.0)}).__getitem__)


def test_an_undefined_posterior_never_counts_as_kept() -> None:
    assert not Protection(0.1, 0.9).holds(lambda prior: math.nan)


@pytest.mark.parametrize(("prior", "ceiling"), BROKEN)
def test_an_impossible_promise_is_refused_with_its_values(prior: float, ceiling: float) -> None:
    with pytest.raises(InvalidInput, match=f"prior={prior}, ceiling={ceiling}: .* raise the ceiling"):
        Protection(prior, ceiling)
    with pytest.raises(InvalidInput, match=f"secret 1 has prior={prior}, ceiling={ceiling} .*1 secrets of 3"):
        promise_arrays([0.1, prior, 0.1], [0.2, ceiling, 0.2], 3)


def test_a_promise_needs_at_least_one_pair_of_numbers() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        Protection.of()
    with pytest.raises(InvalidInput, match="pair of numbers"):
        Protection.of((0.1, 0.2, 0.3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match="pair of numbers"):
        Protection("low", 0.3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match="pair of numbers"):
        Protection(0.1, 10**400)


def test_a_protection_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Protection(0.1, 0.2).points = ()  # pyright: ignore[reportAttributeAccessIssue]


@given(st.integers(0, 5), st.integers(1, 3))
def test_every_shape_of_promise_broadcasts_to_one_row_per_secret(num_secrets, width) -> None:
    prior, ceiling = 0.25, 0.5
    for prior_shape in [(), (num_secrets,), (num_secrets, 1), (num_secrets, width)]:
        for ceiling_shape in [(), (num_secrets,), (num_secrets, 1), (num_secrets, width)]:
            arrays = promise_arrays(np.full(prior_shape, prior), np.full(ceiling_shape, ceiling), num_secrets)
            wide = width if (num_secrets, width) in (prior_shape, ceiling_shape) else 1
            assert {array.shape for array in arrays} == {(num_secrets, wide)}
            assert all((array == value).all() for array, value in zip(arrays, (prior, ceiling), strict=True))


def test_the_arrays_are_fresh_and_never_alias_the_callers() -> None:
    given_prior = np.full((2, 1), 0.1)
    prior_SQ, _ = promise_arrays(given_prior, 0.5, 2)
    prior_SQ[:] = 0.2
    assert (given_prior == 0.1).all()


@pytest.mark.parametrize(
    ("prior", "ceiling", "message"),
    [
        ([0.1, 0.1], 0.5, r"prior has shape \(2,\) but there are 3 secrets"),
        (0.1, np.full((2, 3), 0.5), r"ceiling has shape \(2, 3\)"),
        (0.1, np.full((3, 1, 1), 0.5), r"ceiling has shape \(3, 1, 1\)"),
        (np.full((3, 2), 0.1), np.full((3, 4), 0.5), "prior has 2 points per secret and ceiling 4"),
        (np.empty((3, 0)), 0.5, "at least 1"),
        ([[0.1], [0.1, 0.2], [0.1]], 0.5, "prior has rows of different lengths"),
        ("0.1", 0.5, "prior holds <U3 values"),
        (0.1, True, "ceiling holds bool values"),
        (0.1j, 0.5, "prior holds complex128 values"),
    ],
)
def test_lengths_and_types_that_do_not_fit_are_refused(prior, ceiling, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        promise_arrays(prior, ceiling, 3)


@given(st.floats(), st.floats())
def test_arrays_and_objects_accept_the_same_promises(prior: float, ceiling: float) -> None:
    assume(not 0 < prior <= ceiling < 1)
    with pytest.raises(InvalidInput):
        Protection(prior, ceiling)
    with pytest.raises(InvalidInput):
        promise_arrays(prior, ceiling, 1)
