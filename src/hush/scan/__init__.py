"""Which secrets there are, and which examples contain them: from a corpus and a rules file to what a plan needs.

rules, rule_kinds, promises: what to look for and what it is promised; prepare: rules become finders; finders, code,
copies: ways to find; pipeline and engines: over all data, here or on a cluster; outcome, numbering: public numbers,
private reasons; result, files: what comes out, and its folder; review: a page to look through; run: the one function
that does it all.

Names load on first use, so that importing this is light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.scan.result import Reason, Scan
    from hush.scan.rules import Rules, load_rules
    from hush.scan.scanner import scan

__all__ = ["Reason", "Rules", "Scan", "load_rules", "scan"]


_HOME = {
    "Reason": "hush.scan.result",
    "Rules": "hush.scan.rules",
    "Scan": "hush.scan.result",
    "load_rules": "hush.scan.rules",
    "scan": "hush.scan.scanner",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hush.scan' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
