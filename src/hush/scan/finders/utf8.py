"""The bytes under a block's texts, for finders that read them without making Python strings.

Shapes: N examples; an ``offset_N`` has N + 1 entries, text i is ``data[offset_N[i]:offset_N[i + 1]]``.
"""

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

__all__ = ["bytes_of", "frozen", "strings_of"]


def bytes_of(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 of all texts and where each begins and ends in it, without copying."""
    _, offsets, data = texts.buffers()
    if offsets is None or not len(texts):
        return frozen(np.empty(0, np.uint8)), frozen(np.zeros(1, np.int64))
    offset_N = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return frozen(np.frombuffer(data if data is not None else b"", np.uint8)), frozen(offset_N)


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """The array, not to be written to. Compiled loops take that kind only: each kind is compiled on its own."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def strings_of(data: NDArray[np.uint8], offset_N: NDArray[np.int64]) -> pa.LargeStringArray:
    """The way back."""
    buffers: Any = [pa.py_buffer(frozen(array)) for array in (offset_N, data)]
    return pa.LargeStringArray.from_buffers(len(offset_N) - 1, *buffers)
