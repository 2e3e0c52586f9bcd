"""hush: train on data that holds secrets, with a proven ceiling on what anyone can get back out of the model.

The public names. Each loads its module on first use, so that ``import hush`` is fast and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.accounting import Calibration, calibrate, capacity, posterior
    from hush.errors import CannotCertify, HushError, InfeasiblePlan, InvalidInput
    from hush.incidence import Incidence
    from hush.protection import Protection
    from hush.secret_table import Secrets

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "CannotCertify",
    "HushError",
    "Incidence",
    "InfeasiblePlan",
    "InvalidInput",
    "Protection",
    "Secrets",
    "__version__",
    "calibrate",
    "capacity",
    "posterior",
]

_HOME = {
    "Calibration": "hush.accounting",
    "CannotCertify": "hush.errors",
    "HushError": "hush.errors",
    "Incidence": "hush.incidence",
    "InfeasiblePlan": "hush.errors",
    "InvalidInput": "hush.errors",
    "Protection": "hush.protection",
    "Secrets": "hush.secret_table",
    "calibrate": "hush.accounting",
    "capacity": "hush.accounting",
    "posterior": "hush.accounting",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hush' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
