"""Stage 7, the report: one self-contained HTML page about a plan, its training and its audit; and figures as files.

markup    escaping, safe rounding and small tables, used by every part of the page
numbers   what the page shows of a plan, as arrays: secrets, curves, noise by method
plots     the interactive plots of the page, as data for Plotly; attacks: the same for an audit
sections  the headline and the sections; page: the HTML around them, with the scripts in assets/
report    the public class Report, and the readers of what it is made from
figures   static pictures by matplotlib
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.report.numbers import MethodNoise, noise_by_method
    from hush.report.report import Report

__all__ = ["MethodNoise", "Report", "noise_by_method"]


def __getattr__(name: str) -> object:
    """Load a public name on first use: figures alone need none of them."""
    from importlib import import_module

    home = {"MethodNoise": "numbers", "Report": "report", "noise_by_method": "numbers"}
    if name not in home:
        raise AttributeError(f"module 'hush.report' has no attribute {name!r}")
    return getattr(import_module(f"hush.report.{home[name]}"), name)
