"""Stage 4, the plan: how often each example is drawn and how much noise is added, frozen.

model: the plan; invariants: what every plan satisfies; remarks: what the certificate says of one alone; make: how one
is chosen; files: how it is kept.
"""

from hush.plan.make import make_plan, noise_without_forcing
from hush.plan.plan import Plan

__all__ = ["Plan", "make_plan", "noise_without_forcing"]
