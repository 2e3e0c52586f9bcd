"""Numbers shown, below every stage: an upper bound rounded up, a lower one down, so that what is read is true.

How callers name examples and secrets, below every stage: whole numbers, checked once and in one way.
"""

import operator
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InvalidInput

__all__ = ["checked_indices", "checked_size", "chosen_indices", "counted", "is_number", "rounded_down", "rounded_up"]


def rounded_up(value: float, digits: int = 4) -> str:
    """So many significant digits, never below the value.

    >>> rounded_up(0.00099621), rounded_up(30.9919), rounded_up(1e-10), rounded_up(1234.5)
    ('0.0009963', '31.00', '1.000e-10', '1235')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """So many significant digits, never above the value.

    >>> rounded_down(0.00099629)
    '0.0009962'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def counted(number: int, what: str, several: str | None = None) -> str:
    """A number of things, in words that fit it.

    >>> counted(1, "secret"), counted(2000, "secret"), counted(0, "canary", "canaries")
    ('1 secret', '2,000 secrets', '0 canaries')
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def is_number(value: object) -> bool:
    """Whether this can be shown as a number: a file may hold NaN, and whole numbers that no float holds.

    >>> is_number(3), is_number(True), is_number(float("nan")), is_number(10**400)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _rounded(value: float, digits: int, direction: str) -> str:
    shortest = Decimal(repr(float(value)))  # 1e-10 stays 1e-10, though the float is a little more
    if not shortest:
        return "0"
    step = Decimal(1).scaleb(shortest.adjusted() - digits + 1)
    return f"{float(shortest.quantize(step, rounding=direction)):#.{digits}g}".removesuffix(".")


def checked_size(name: str, value: SupportsIndex) -> int:
    """A whole number >= 0."""
    try:
        size = operator.index(value)
    except TypeError as error:
        raise InvalidInput(f"{name}={value!r} is not a whole number; pass an int") from error
    if isinstance(value, bool | np.bool_) or size < 0:
        raise InvalidInput(f"{name}={value!r} is not a size; pass a whole number >= 0")
    return size


def checked_indices(name: str, values: ArrayLike, size: int) -> NDArray[np.int64]:
    """A flat array of whole numbers in [0, size), duplicates allowed; not a copy where ``values`` already is one."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidInput(f"{name} has rows of different lengths; pass a flat sequence of whole numbers") from error
    if array.ndim != 1:
        raise InvalidInput(f"{name} has shape {array.shape}; pass a flat sequence of whole numbers")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"{name} holds {array.dtype} values; pass whole numbers (cast them to an integer type)")
    for extreme in (array.min(), array.max()):
        if not 0 <= extreme < size:
            where = int(np.flatnonzero(array == extreme)[0])
            raise InvalidInput(f"{name}[{where}]={extreme} is outside [0, {size}); indices count from 0")
    return array.astype(np.int64, copy=False)


def chosen_indices(name: str, chosen: ArrayLike, size: int) -> NDArray[np.int64]:
    """The rows a selection names: a boolean mask over all of them, or distinct indices in the order given."""
    array = np.asarray(chosen)
    if array.dtype.kind == "b":
        if array.shape != (size,):
            raise InvalidInput(f"the mask {name} has shape {array.shape}; it needs one entry for each of {size} rows")
        return np.flatnonzero(array).astype(np.int64)
    indices = checked_indices(name, array, size)
    repeated = np.flatnonzero(np.bincount(indices, minlength=size) > 1)
    if repeated.size:
        raise InvalidInput(f"{name} names {repeated[0]} more than once; name each row at most once")
    return indices
