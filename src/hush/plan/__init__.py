"""Stage 4, the plan: how often each example is drawn and how much noise is added, frozen.

plan: the plan and its invariants. make: from promises to a plan. settings: its settings, stated once. files: a plan as
a folder, and signatures. verify: everything that a folder states, recomputed. posteriors: every posterior again.
carried: what a folder carries and no check proves. Several releases under one promise: chain (what a plan of a chain
states), earlier (the releases before), after (what the next one may do), chain_files, verify_chain.
"""

from hush.plan.make import make_plan, noise_without_forcing
from hush.plan.plan import Plan

__all__ = ["Plan", "make_plan", "noise_without_forcing"]
