"""Stage 3 for a sweep: one graph under several capacities.

Points a factor of two apart have too little in common for a start to help (measured), but nothing to wait for either:
they are solved a few at a time, each as if it were alone, which keeps every core busy where one solve cannot. What
does not depend on the capacities is found once (see Program.arrangement).
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from numpy.typing import ArrayLike

from hush.weights.program import Program
from hush.weights.solve import Weights, solve_program

__all__ = ["solve_several"]

AT_ONCE = 4  # each needs its own reduced program: about 0.3 GB at 10 million entries


def solve_several(program: Program, capacities: Iterable[ArrayLike], *, tolerance: float = 1e-4) -> Iterator[Weights]:
    """As ``solve_program`` under each of the capacities, in their order; the answers do not depend on the cores."""
    cores = os.cpu_count() or 1
    workers = min(AT_ONCE, cores)

    def solve(capacity: ArrayLike) -> Weights:
        return solve_program(program.with_capacity(capacity), tolerance=tolerance, threads=cores // workers)

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(solve, capacities)
