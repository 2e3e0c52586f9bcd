"""Inner loops over the entries of the program, compiled by Numba. Import only inside functions: loading it is slow.

Every loop releases the interpreter lock, so that callers run disjoint ranges of columns on threads; no loop uses
Numba's own threads, and the result does not depend on how many threads there are. Shapes: N columns, S rows.
"""

# pyright: basic, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    def _compiled[F: Callable[..., Any]](function: F) -> F: ...
else:
    from numba import njit

    _compiled = njit(cache=True, nogil=True, boundscheck=False)
