"""How the pages of the studies are held to the committed results.

Whole tables are compared by the tests of each study. The tests of pages recompute what was written by hand: tables and
sentences with differences, shares, ratios and ranges. A page is compared with its line breaks taken out.
"""

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "at_most", "missing", "short", "table"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


def missing(page: str, said: Iterable[str]) -> list[str]:
    text = " ".join((ROOT / page).read_text().split())
    return [one for one in said if one not in text]


def table(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file, with numbers where they are."""
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text or None


def at_most(value: float, digits: int) -> str:
    """Rounded up: what a page calls a limit is one."""
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


def short(value: float, digits: int = 2) -> str:
    """1.2e-05 as a page writes it: 1.2e-5."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−", 1 if value < 0 else 0)
