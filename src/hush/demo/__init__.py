"""The demo: a small code-completion model on Python's standard library, as if that were a company's code base.

company (the files, and how much is trained) → arms (four trainings side by side) → run (all of it, with its console
output and its report). noise_table is the other demo: the table and figure of the least noise.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.demo.noise_table import run_noise_table
    from hush.demo.run import run_demo

__all__ = ["run_demo", "run_noise_table"]


def __getattr__(name: str) -> object:
    """Import a demo on first use: the table needs no torch."""
    from importlib import import_module

    modules = {"run_demo": "run", "run_noise_table": "noise_table"}
    if name not in modules:
        raise AttributeError(f"module 'hush.demo' has no attribute {name!r}")
    return getattr(import_module(f"hush.demo.{modules[name]}"), name)
