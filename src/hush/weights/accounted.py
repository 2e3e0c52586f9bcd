"""Weights for capacities that come from the accountant: the flattest rates at a given noise.

At a given noise the accountant allows secret j an expected count of s_j per round. Rates are batch_size * w / sum(w),
so with k = sum(w) / batch_size the program is: the largest k for which weights in [0, 1] of sum k * batch_size exist
with the weights of each secret's examples at most k * s_j together. The largest sum V(k) for a given k is a linear
program, concave in k, so Newton's method on V(k) = k * batch_size from above, with the dual as slope, never steps
below the answer. Soundness never rests on this: whatever weights come out, the accountant certifies them.
"""

from hush.errors import InfeasiblePlan
from hush.weights.program import Array, Program
from hush.weights.solve import Weights, solve_program

MOST_STEPS = 40


def flattest_weights(
    program: Program,
    count_S: Array,
    batch_size: float,
    *,
    tolerance: float = 1e-4,
    warm_start: Weights | None = None,
) -> Weights:
    """Weights of the largest sum whose rates draw secret j an expected count_S[j] times a round, or less.

    warm_start: the answer for larger counts, if there is one; it also tells where to begin.
    """
    total = float(program.num_columns) if warm_start is None else warm_start.objective * (1 + warm_start.gap)
    scale = total / batch_size
    for _ in range(MOST_STEPS):
        found = solve_program(program.with_capacity(scale * count_S), tolerance=tolerance, warm_start=warm_start)
        if found.objective >= scale * batch_size * (1 - 2 * tolerance):
            return found
        slope = float(count_S @ found.dual)
        level = found.bound - scale * slope  # V(k) <= k * slope + level for every k, by duality
        crossing = level / (batch_size - slope) if slope < batch_size else found.bound / batch_size
        scale, warm_start = min(crossing, found.bound / batch_size), found
        if scale < 1.0:
            break
    # Rates above 1 would be needed: what is the largest batch that rates up to 1 allow?
    most = solve_program(program.with_capacity(count_S), tolerance=tolerance, warm_start=warm_start)
    raise InfeasiblePlan(
        f"batch_size={batch_size:g} is more than this noise allows: with every secret drawn as often as its promise "
        f"permits a batch holds at most {most.objective:.6g} examples; lower batch_size or raise the noise"
    )
