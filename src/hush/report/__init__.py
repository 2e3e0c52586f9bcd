"""Stage 7, what people look at: figures as files, and one self-contained page.

inputs: what the page is made from -> numbers, methods, packing -> plots, scatter, attacks -> headline, sections
-> page -> report: all of it in one call.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.report.methods import MethodNoise, noise_by_method
    from hush.report.report import write_report

__all__ = ["MethodNoise", "noise_by_method", "write_report"]


def __getattr__(name: str) -> object:
    """Loaded on first use: pictures alone need none of it."""
    from importlib import import_module

    home = {"MethodNoise": "methods", "noise_by_method": "methods", "write_report": "report"}
    if name not in home:
        raise AttributeError(f"module 'hush.report' has no attribute {name!r}")
    return getattr(import_module(f"hush.report.{home[name]}"), name)
