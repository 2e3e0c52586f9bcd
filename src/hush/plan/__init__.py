"""Stage 4, the plan: how often each example is drawn and how much noise is added, frozen.

model: the plan; make: how one is chosen; files: how it is kept.
"""

from hush.plan.make import make_plan
from hush.plan.model import Plan

__all__ = ["Plan", "make_plan"]
