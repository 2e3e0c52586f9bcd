"""Checks of the accountant's arguments: rates, noise, rounds, priors, accuracy and choices.

Each raises InvalidInput that names the setting. Plain numbers are checked in ``hush.numbers``. Label (E3) refers to
docs/proofs.md.
"""

import operator
from typing import Literal, SupportsIndex, get_args

import numpy as np
from numpy.typing import ArrayLike

from hush.arrays import Array
from hush.errors import InvalidInput, Setting
from hush.numbers import checked_number

Bound = Literal["blowup", "renyi", "kl"]
Side = Literal["upper", "lower"]
MAX_ROUNDS = 10**9
LEAST_PRIOR = 1e-300  # a smaller one comes too close to the smallest double (E3)


def checked_rates(rates: ArrayLike, *, length: int | None = None) -> Array:
    """Sampling probabilities as a flat array; a single number stands for `length` equal ones."""
    try:
        array = np.asarray(rates, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            Setting("rates"), " must be numbers, one sampling probability for each example", setting="rates"
        ) from error
    if array.ndim == 0:
        array = np.full(1 if length is None else length, float(array))
    if array.ndim != 1 or (length is not None and array.size != length):
        expected = "a flat sequence" if length is None else f"one number or {length} of them, one for each example"
        raise InvalidInput(Setting("rates"), f" has shape {array.shape}; pass {expected}", setting="rates")
    wrong = ~((array >= 0) & (array <= 1))  # NaN is wrong
    if wrong.any():
        position = int(wrong.argmax())
        raise InvalidInput(
            Setting("rates"),
            f"[{position}]={array[position]} is not a probability; every rate must lie in [0, 1]",
            setting="rates",
        )
    return array


def checked_noise(noise_multiplier: float) -> float:
    """A noise multiplier, finite and at least 0."""
    sigma = checked_number("noise_multiplier", noise_multiplier)
    if not 0 <= sigma < np.inf:
        raise InvalidInput("pass a finite number >= 0 (0 means no noise)", setting="noise_multiplier", value=sigma)
    return sigma


def checked_rounds(rounds: SupportsIndex) -> int:
    """A whole number of rounds, at least 1."""
    remedy = f"pass a whole number from 1 to {MAX_ROUNDS}"
    try:
        count = operator.index(rounds)
    except TypeError as error:
        raise InvalidInput(remedy, setting="rounds", value=rounds) from error
    if isinstance(rounds, bool) or not 1 <= count <= MAX_ROUNDS:
        raise InvalidInput(remedy, setting="rounds", value=rounds)
    return count


def checked_priors(prior: ArrayLike) -> Array:
    """Priors from 1e-300 up to less than 1, in the shape they were given."""
    try:
        array = np.asarray(prior, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(Setting("prior"), " must be a number or an array of numbers", setting="prior") from error
    wrong = ~((array >= LEAST_PRIOR) & (array < 1))
    if wrong.any():
        value = float(array[wrong].flat[0])
        raise InvalidInput(f"pass priors from {LEAST_PRIOR} up to less than 1", setting="prior", value=value)
    return array


def checked_accuracy(accuracy: float) -> float:
    """The relative excess to aim for; it determines how fine the computation is, never whether it is safe."""
    number = checked_number("accuracy", accuracy)
    if not 1e-6 <= number <= 0.1:
        raise InvalidInput("pass a relative excess between 1e-6 and 0.1", setting="accuracy", value=accuracy)
    return number


def checked_choice(name: str, value: str, choices: object) -> None:
    """One of the strings of a Literal type."""
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidInput(f"choose one of {', '.join(map(repr, allowed))}", setting=name, value=value)


def check_side(bound: Bound, side: Side) -> None:
    """A known bound and side; the lower side is an attack, which has no other bound."""
    checked_choice("bound", bound, Bound)
    checked_choice("side", side, Side)
    if side == "lower" and bound != "blowup":
        raise InvalidInput(
            Setting("side"), "='lower' is an attack, for which bounds do not matter; drop ", Setting("bound"),
            f"={bound!r}", setting="bound",
        )  # fmt: skip
