"""Stage 7, what people look at: figures as files, and one self-contained page.

inputs: what the page is made from -> numbers, methods, packing -> plots, scatter, attacks -> headline, sections
-> page -> report: all of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.report.numbers import MethodNoise, noise_by_method
    from hush.report.report import Report

__all__ = ["MethodNoise", "Report", "noise_by_method"]


def __getattr__(name: str) -> object:
    """Loaded on first use: pictures alone need none of it."""
    from importlib import import_module

    home = {"MethodNoise": "numbers", "Report": "report", "noise_by_method": "numbers"}
    if name not in home:
        raise AttributeError(f"module 'hush.report' has no attribute {name!r}")
    return getattr(import_module(f"hush.report.{home[name]}"), name)
