"""Arrays as every stage takes them: the one type of numbers, and indices checked once and in one way."""

import operator
from collections.abc import Callable
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InvalidInput

__all__ = ["Array", "Progress", "checked_indices", "checked_size", "chosen_indices"]

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]  # called with (done, total)


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
