"""What the accountant is asked, checked once: rates, noise, rounds, priors."""

import operator
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.counts import Array
from hush.errors import InvalidInput

Bound = Literal["blowup", "renyi", "kl"]
Side = Literal["upper", "lower"]
MOST_ROUNDS = 10**9
LEAST_PRIOR = 1e-300  # a smaller one comes too close to the smallest double


def checked_rates(rates: ArrayLike, *, length: int | None = None) -> Array:
    """Sampling probabilities as a flat array; a single number stands for `length` equal ones."""
    try:
        array = np.asarray(rates, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("rates must be numbers, one sampling probability for each example") from error
    if array.ndim == 0:
        array = np.full(1 if length is None else length, float(array))
    if array.ndim != 1 or (length is not None and array.size != length):
        wanted = "a flat sequence" if length is None else f"one number or {length} of them, one for each example"
        raise InvalidInput(f"rates has shape {array.shape}; pass {wanted}")
    wrong = ~((array >= 0) & (array <= 1))  # written so that NaN is wrong
    if wrong.any():
        where = int(wrong.argmax())
        raise InvalidInput(f"rates[{where}]={array[where]} is not a probability; every rate must lie in [0, 1]")
    return array


def checked_number(name: str, value: Any) -> float:
    """One number as a float; its range is for the caller to check."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{name}={value!r}; pass a number that a float can hold") from error


def checked_noise(noise_multiplier: float) -> float:
    """A noise multiplier, finite and at least 0."""
    sigma = checked_number("noise_multiplier", noise_multiplier)
    if not 0 <= sigma < np.inf:
        raise InvalidInput(f"noise_multiplier={sigma}; pass a finite number >= 0 (0 means no noise)")
    return sigma


def checked_rounds(rounds: SupportsIndex) -> int:
    """A whole number of rounds, at least 1."""
    try:
        count = operator.index(rounds)
    except TypeError as error:
        raise InvalidInput(f"rounds={rounds!r} is not a whole number") from error
    if isinstance(rounds, bool) or not 1 <= count <= MOST_ROUNDS:
        raise InvalidInput(f"rounds={rounds!r}; pass a whole number from 1 to {MOST_ROUNDS}")
    return count


def checked_priors(prior: ArrayLike) -> Array:
    """Priors from 1e-300 up to less than 1, in the shape they were given."""
    try:
        array = np.asarray(prior, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("prior must be a number or an array of numbers") from error
    wrong = ~((array >= LEAST_PRIOR) & (array < 1))
    if wrong.any():
        raise InvalidInput(f"prior={array[wrong].flat[0]}; pass priors from {LEAST_PRIOR} up to less than 1")
    return array


def checked_accuracy(accuracy: float) -> float:
    """The relative excess to aim for; it steers how fine the computation is, never whether it is safe."""
    number = checked_number("accuracy", accuracy)
    if not 1e-6 <= number <= 0.1:
        raise InvalidInput(f"accuracy={accuracy!r}; pass a relative excess between 1e-6 and 0.1")
    return number


def checked_choice(name: str, value: str, choices: object) -> None:
    """One of the strings of a Literal type."""
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidInput(f"{name}={value!r}; choose one of {', '.join(map(repr, allowed))}")
