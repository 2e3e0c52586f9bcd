"""Stage 3, the weights: how often each example is used, so that little noise is needed and much data is kept.

linear_program: the program, candidates and the certified answer. presolve: exact reductions. newton: the solver for
large programs. solve: all of it in one call. choose: three kinds of capacity, and the noise that they lead to.
accounts: what one release, or one of several, may do. frontier: a sweep over capacities, and what would help where no
plan exists. shift_capacity: the same without an accountant, a forecast.
"""

from hush.weights.frontier import Frontier, frontier, frontiers
from hush.weights.linear_program import Program, Weights
from hush.weights.solve import solve_program, solve_several, solve_weights

__all__ = ["Frontier", "Program", "Weights", "frontier", "frontiers", "solve_program", "solve_several", "solve_weights"]
