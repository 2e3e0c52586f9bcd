"""Weights for capacities that come from the accountant: the flattest rates at a given noise.

At a given noise the accountant allows secret j an expected count of s_j per round. Rates are batch_size * w / sum(w),
so with k = sum(w) / batch_size the program is: the largest k for which weights in [0, 1] of sum k * batch_size exist
with the weights of each secret's examples at most k * s_j together. The largest sum V(k) for a given k is a linear
program, concave in k, so Newton's method on V(k) = k * batch_size from above, with the dual as slope, never steps
below the answer. Soundness never rests on this: whatever weights come out, the accountant certifies them.
"""

import math

from hush.errors import InfeasiblePlan
from hush.weights.program import Array, Program
from hush.weights.solve import Weights, solve_program

MOST_STEPS = 40


class TooLittleNoise(InfeasiblePlan):
    """No rates reach the batch size at this noise. `most` holds the rates, as weights, of the largest batch."""

    def __init__(self, batch_size: float, most: Weights) -> None:
        self.most = most
        self.largest_batch = max(0, math.floor(most.objective * (1 - 2e-3)))  # a little less, so that it surely works
        holds = f"at most {self.largest_batch} examples; lower batch_size or" if self.largest_batch else "none;"
        super().__init__(
            f"batch_size={batch_size:g} is more than this noise allows: with every secret drawn as often as its "
            f"promise permits a batch holds {holds} raise the noise"
        )


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
    total = float(program.num_columns) if warm_start is None else warm_start.bound
    scale = max(total / batch_size, 1.0)
    found = warm_start
    for _ in range(MOST_STEPS):
        found = solve_program(program.with_capacity(scale * count_S), tolerance=tolerance, warm_start=found)
        if found.objective >= batch_size * max(1.0, scale * (1 - 2 * tolerance)):
            return found
        if scale == 1.0:  # rates are the weights themselves, and still too few
            raise TooLittleNoise(batch_size, found)
        slope = float(count_S @ found.dual)
        level = found.bound - scale * slope  # V(k) <= k * slope + level for every k, by duality
        crossing = level / (batch_size - slope) if slope < batch_size else found.bound / batch_size
        scale = max(1.0, min(crossing, found.bound / batch_size))
    if found is None or found.objective < batch_size:
        raise InfeasiblePlan(f"no weights for batch_size={batch_size:g} were found in {MOST_STEPS} steps; lower it")
    return found  # nearly there: these rates need a little more noise, which the accountant will say
