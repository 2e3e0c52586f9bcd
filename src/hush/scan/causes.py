"""Which causes account for most pairs of a secret: reasons that differ only in the example are one cause.

A reason is a sentence about one example. If a secret is in far more examples than expected, most of its pairs usually
have one cause, such as the import of one file; this finds it. A pair with several reasons counts for each of them.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa

from hush.scan.reasons import OwnerFiles

__all__ = ["Cause", "cause_of", "causes"]


_COPY = re.compile(r"(exact copy of|near copy of|in a chain of near copies with) example .*", re.DOTALL)
_FILE = re.compile(r"file .*? (?=imports |is (?:under|owned|by) )", re.DOTALL)
_DETAILS = re.compile(r"(?<= of )([^:]*?)(?: through .* \(\d+ steps?\)| \(\d+ steps?\)|: \d+% of its .*)\Z", re.DOTALL)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause, in words that continue "the example …", and the number of a secret's pairs that have it."""

    cause: str
    pairs: int


def cause_of(reason: str) -> str:
    """A reason without what it says about its own example.

    >>> cause_of("file web/page.py imports billing/core.py of billing through web/cart.py (2 steps)")
    'imports billing/core.py of billing'
    >>> cause_of("file web/page.py is by contributors of billing: 80% of its commits by ana@acme.com")
    'is by contributors of billing'
    >>> cause_of("exact copy of example 12")
    'exact copy of another example'
    """
    reason = _COPY.sub(r"\1 another example", reason)
    without_file = _FILE.sub("", reason, count=1) if _FILE.match(reason) else reason
    return reason if without_file == reason else _DETAILS.sub(r"\1", without_file)


def causes(owner: OwnerFiles, secrets: Collection[int]) -> Mapping[int, tuple[Cause, ...]]:
    """For each of these secrets its causes, those of most pairs first."""
    names: dict[str, int] = {}
    triples = [np.empty((0, 3), dtype=np.int64)]
    for batch in owner.reasons():
        kept = np.isin(batch.column("secret").to_numpy(), list(secrets))
        if not kept.any():
            continue
        rows = batch.filter(pa.array(kept))
        reasons = rows.column("reason").dictionary_encode()
        number = [names.setdefault(cause_of(reason), len(names)) for reason in reasons.dictionary.to_pylist()]
        cause = np.array(number, dtype=np.int64)[reasons.indices.to_numpy()]
        columns = (rows.column("secret").to_numpy(), cause, rows.column("example").to_numpy())
        triples.append(np.unique(np.stack(columns, axis=1), axis=0))
    pairs = np.unique(np.concatenate(triples), axis=0)  # an example may have the same cause twice
    counts = np.unique(pairs[:, :2], axis=0, return_counts=True)
    found: dict[int, list[Cause]] = {secret: [] for secret in secrets}
    text = list(names)
    for (secret, number), count in zip(counts[0].tolist(), counts[1].tolist(), strict=True):
        found[secret].append(Cause(cause=text[number], pairs=count))
    return {secret: tuple(sorted(each, key=lambda one: (-one.pairs, one.cause))) for secret, each in found.items()}
