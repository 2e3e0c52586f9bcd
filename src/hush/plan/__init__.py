"""Stage 4, the plan: how often each example is drawn and how much noise is added, frozen.

plan: the plan and its invariants. make: from promises to a plan. settings: its settings, stated once. files: a plan as
a folder, and signatures. verify: everything that a folder states, recomputed. posteriors: every posterior again.
carried: what a folder carries and no check proves.
"""

from hush.plan.make import make_plan, noise_without_forcing
from hush.plan.plan import Plan

__all__ = ["Plan", "make_plan", "noise_without_forcing"]
