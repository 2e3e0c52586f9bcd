"""Stage 3 for a sweep: one graph under several capacities.

What does not depend on the capacities is found once (see Program.arrangement). A point whose capacities are a share of
another's, both so small that no upper bound counts, has the other's answer times this share. Of the other points every
second one starts halfway between the answers beside it: points a factor of two apart have too little in common for a
start from one of them alone to help (measured). Points that wait for none are solved first, a few at a time, which
keeps every core busy where one solve cannot. Every answer is certified by itself, wherever it came from.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike

from hush.weights.certify import certify
from hush.weights.program import Array, Program
from hush.weights.solve import Start, Weights, checked_tolerance, solved, weights_of

__all__ = ["solve_several"]

AT_ONCE = 4  # each needs its own reduced program: about 0.3 GB at 10 million entries


def solve_several(program: Program, capacities: Iterable[ArrayLike], *, tolerance: float = 1e-4) -> Iterator[Weights]:
    """As ``solve_program`` under each of the capacities, in their order; the answers do not depend on the cores.

    Neighbours in this order should be neighbours in strength: then they help each other.
    """
    goal = checked_tolerance(tolerance)
    points = [program.with_capacity(capacity) for capacity in capacities]
    larger = _larger(points, float(program.upper_N.min()) if program.num_columns else 0.0)
    between = {k for k in range(1, len(points) - 1, 2) if k not in larger and k not in larger.values()}
    cores = os.cpu_count() or 1
    workers = min(AT_ONCE, cores)
    answers: dict[int, Future[Weights]] = {}

    def solve(k: int) -> Weights:
        """Waits only for points that were begun before it."""
        if k in larger:
            found = _share_of(points[k], points[larger[k]], answers[larger[k]].result(), goal)
            if found is not None:
                return found
        start = _halfway(answers[k - 1].result(), answers[k + 1].result()) if k in between else None
        return solved(points[k], goal, start=start, threads=cores // workers)

    with ThreadPoolExecutor(workers) as pool:
        for k in sorted(range(len(points)), key=lambda k: (k in between, k in larger)):
            answers[k] = pool.submit(solve, k)
        try:
            for k in range(len(points)):
                yield answers[k].result()
        finally:
            pool.shutdown(cancel_futures=True)  # where the sweep is left early


def _larger(points: Sequence[Program], least_upper: float) -> dict[int, int]:
    """For each point that is a share of another, both without upper bounds that count, the largest such point.

    A weight is at most the capacity of any secret it touches, so capacities up to the upper bounds make those idle.
    """
    larger: dict[int, int] = {}
    families: list[int] = []
    small = [k for k, point in enumerate(points) if _most(point) <= least_upper]
    for k in sorted(small, key=lambda k: -_most(points[k])):
        for family in families:
            share = _most(points[k]) / _most(points[family])
            if np.allclose(points[k].capacity_S, share * points[family].capacity_S, rtol=1e-9, atol=0.0):
                larger[k] = family
                break
        else:
            if _most(points[k]) > 0:
                families.append(k)
    return larger


def _most(program: Program) -> float:
    return float(program.capacity_S.max(initial=0.0))


def _share_of(program: Program, larger: Program, answer: Weights, goal: float) -> Weights | None:
    """The answer to a larger point as one to this point, if it is good enough.

    It is in exact arithmetic: of columns with rows both the sum and the gap shrink alike; others do not change.
    """
    begin = time.perf_counter()
    share = _most(program) / _most(larger)
    proof = certify(program, share * answer.values, answer.dual, tolerance=goal)
    if not proof.gap <= goal:
        return None
    return weights_of(program, proof, answer.start, answer.solver, time.perf_counter() - begin)


def _halfway(left: Weights, right: Weights) -> Start:
    values: Array = (left.values + right.values) / 2
    return values, (left.start + right.start) / 2
