"""What was found by its surroundings is looked for everywhere: a password is one, too, where nobody calls it so.

A pattern with a context, a detector of credentials or of names sees a secret in one example and misses the same text in
another. Once all shards were searched, the texts that such rules found are searched for as literals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hush.corpus.shards import Readable
from hush.scan.finders.literals import Literals
from hush.scan.hits import Hits

__all__ = ["Elsewhere", "LookAgain"]

REASON = "the same text as one that this rule found elsewhere"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Elsewhere:
    """What a shard holds of texts that were found before: hits for each rule, and how many examples were read."""

    hits: tuple[Hits, ...]
    examples: int


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class LookAgain:
    """Searches a shard for the texts that rules found, one list of literals for each rule.

    columns: all that the scan reads, since which rows are broken must not depend on who asks.
    """

    literals: Sequence[Literals]
    columns: tuple[str, ...]
    skip_bad: bool = False

    def __call__(self, shard: Readable) -> Elsewhere:
        hits: list[list[tuple[int, Hits]]] = [[] for _ in self.literals]
        before = 0
        for block in shard.blocks(self.columns, skip_bad=self.skip_bad):
            if len(block):
                for one, found in zip(self.literals, hits, strict=True):
                    if one.values:
                        found.append((before, _with_reason(one.find(block))))
                before += len(block)
        return Elsewhere(hits=tuple(Hits.merged(found) for found in hits), examples=before)

    def __repr__(self) -> str:
        return f"LookAgain({len(self.literals)} rules)"


def _with_reason(hits: Hits) -> Hits:
    return replace(hits, reason_H=np.zeros(len(hits), dtype=np.int64), reasons=(REASON,))
