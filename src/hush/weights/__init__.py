"""Stage 3, the weights: how often each example is used, so that the noise is small and the kept data large.

program: the linear program as data -> reduce: what can be decided exactly beforehand -> solvers: candidates
-> certify: feasibility and duality gap from the numbers -> solve: all of it in one call -> several: for a sweep.
choose: capacities of three kinds, and the noise they lead to -> frontier: a sweep of them; limits: what would help
where nothing is feasible.
"""

from hush.weights.frontier import Frontier, frontier
from hush.weights.linear_program import Program
from hush.weights.solve import Weights, solve_program, solve_several, solve_weights

__all__ = ["Frontier", "Program", "Weights", "frontier", "solve_program", "solve_several", "solve_weights"]
