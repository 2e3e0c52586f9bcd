"""hush: train a model on data that holds secrets, with a proven ceiling on what anyone can reconstruct from it.

This module holds the public names. Each loads its module on first use, so that ``import hush`` is fast and imports no
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.accounting import (
        Calibration,
        calibrate,
        capacity,
        joint_posterior,
        joint_posteriors,
        posterior,
        posteriors,
    )
    from hush.errors import CannotCertify, HushError, InfeasiblePlan, InvalidInput
    from hush.incidence import Incidence
    from hush.plan import Plan, make_plan
    from hush.plan.attest import attest
    from hush.plan.verify import verify
    from hush.protection import Protection
    from hush.secret_table import Secrets
    from hush.weights import Frontier, Weights, frontier, frontiers, solve_weights

__all__ = [
    "Calibration",
    "CannotCertify",
    "Frontier",
    "HushError",
    "Incidence",
    "InfeasiblePlan",
    "InvalidInput",
    "Plan",
    "Protection",
    "Secrets",
    "Weights",
    "__version__",
    "attest",
    "calibrate",
    "capacity",
    "frontier",
    "frontiers",
    "joint_posterior",
    "joint_posteriors",
    "make_plan",
    "posterior",
    "posteriors",
    "solve_weights",
    "verify",
]


__version__ = "0.2.0"


_HOME = {
    "Calibration": "hush.accounting",
    "CannotCertify": "hush.errors",
    "Frontier": "hush.weights",
    "HushError": "hush.errors",
    "Incidence": "hush.incidence",
    "InfeasiblePlan": "hush.errors",
    "InvalidInput": "hush.errors",
    "Plan": "hush.plan",
    "Protection": "hush.protection",
    "Secrets": "hush.secret_table",
    "Weights": "hush.weights",
    "attest": "hush.plan.attest",
    "calibrate": "hush.accounting",
    "capacity": "hush.accounting",
    "frontier": "hush.weights",
    "frontiers": "hush.weights",
    "joint_posterior": "hush.accounting",
    "joint_posteriors": "hush.accounting",
    "make_plan": "hush.plan",
    "posterior": "hush.accounting",
    "posteriors": "hush.accounting",
    "solve_weights": "hush.weights",
    "verify": "hush.plan.verify",
}


def __getattr__(name: str) -> object:
    if name in ("scan", "train", "audit"):  # packages, imported when they are used: training needs torch
        return import_module(f"hush.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'hush' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
