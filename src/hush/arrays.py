"""Types and checks of arrays that every stage shares: ``Array``, ``Progress``, and indices of rows.

Single numbers are checked in ``hush.numbers``.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InvalidInput

__all__ = ["Array", "Progress", "checked_indices", "chosen_indices"]

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]  # called with (done, total)


def checked_indices(name: str, values: ArrayLike, size: int) -> NDArray[np.int64]:
    """A flat array of whole numbers in [0, size), duplicates allowed; ``values`` itself if it is one already."""
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
            position = int(np.flatnonzero(array == extreme)[0])
            raise InvalidInput(f"{name}[{position}]={extreme} is outside [0, {size}); indices count from 0")
    return array.astype(np.int64, copy=False)


def chosen_indices(name: str, chosen: ArrayLike, size: int) -> NDArray[np.int64]:
    """The rows of a selection: a boolean mask over all rows, or distinct indices, in the order given."""
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
