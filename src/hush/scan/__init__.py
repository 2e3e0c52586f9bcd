"""Scanning: which secrets a corpus holds, and which examples contain them. How a rule becomes an incidence:

1. rules/ reads the rules file (schema.py: the fields of each kind of rule; promises.py: prior and ceiling).
2. scanner.py turns each rule into a finder of finders/ or code/ (table ``FINDERS``); hits.py is their interface.
3. shard_tasks.py runs the finders over each shard, through an engine: engines.py here, engine_ray.py on a cluster.
4. For rules that hide spans, variants.py searches for all other forms of the secrets (normal_form.py).
5. collect.py gathers the shards' hits; long_texts/ divides long texts into several examples; assemble.py adds what
   copies inherit (copy_inheritance.py, near_copies.py) and numbers the secrets; coverage.py says which spans are slots,
   and how much text is secret.
6. result.py holds the ``Scan`` and its folder; reasons.py the owner's files in it, review.py the page to look through.
7. redact.py writes the texts without their secrets, checked by a second route (remaining.py).

Names load on first use, so importing this package is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.scan.long_texts import ModelTokens
    from hush.scan.result import Reason, Scan
    from hush.scan.rules import Rules, load_rules
    from hush.scan.scanner import scan

__all__ = ["ModelTokens", "Reason", "Rules", "Scan", "load_rules", "scan"]


_HOME = {
    "ModelTokens": "hush.scan.long_texts",
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
