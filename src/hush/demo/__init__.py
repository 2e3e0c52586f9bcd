"""The demo: a small code-completion model on Python's standard library, as if that were a company's code base.

sizes (how much) -> company (the files) -> scores (what a model gives away) -> arms (four trainings) and workers (they
train side by side) -> story (what is said on the way), page (the report) -> run: all of it.
noise_table is the other demo: the table and the picture of the README.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.demo.noise_table import run_noise_table
    from hush.demo.run import run_demo

__all__ = ["run_demo", "run_noise_table"]


def __getattr__(name: str) -> object:
    """Loaded on first use: the table needs no torch."""
    from importlib import import_module

    home = {"run_demo": "run", "run_noise_table": "noise_table"}
    if name not in home:
        raise AttributeError(f"module 'hush.demo' has no attribute {name!r}")
    return getattr(import_module(f"hush.demo.{home[name]}"), name)
