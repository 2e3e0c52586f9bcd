"""Searching texts that a chat template made of conversations: what the text alone does not show.

A string may stand in the text in another form, such as escaped in the arguments of a tool call. The finders see those
strings as they were, too; what they find there and not in the text has no place in it, so the example is secret as a
whole. It is so, too, where the template looks at what strings say (``hush.data.chat``): a secret could then have
changed how the rest of the conversation is written.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.chat import Range
from hush.data.parts import Block
from hush.data.rendered import OPAQUE, UNESCAPED, ranges_of, stored_ranges
from hush.scan.hits import Hits

__all__ = ["RENDERED_COLUMNS", "answers_of_chunks", "with_unescaped"]


RENDERED_COLUMNS = (OPAQUE, UNESCAPED)
UNESCAPED_REASON = "in a string that the chat template writes in another form"


def with_unescaped(found: Hits, block: Block, search: Callable[[Block], Hits], *, hides_spans: bool = False) -> Hits:
    """The hits of a search in a block, and those in its unescaped strings. hides_spans: of a rule that hides spans."""
    if UNESCAPED not in block.columns:
        return found
    rows = np.flatnonzero(block.columns[UNESCAPED].is_valid().to_numpy(zero_copy_only=False))
    if len(rows):
        kept = pa.array(rows)
        part = Block(
            texts=block.columns[UNESCAPED].take(kept).cast(pa.large_string()),
            columns={name: column.take(kept) for name, column in block.columns.items()},
            rows=block.rows[rows],
            files=None if block.files is None else block.files[rows],
        )
        more = search(part)
        certain = found.select(~found.is_doubtful_H)
        known = set(zip(certain.example_H.tolist(), (found.keys[key] for key in certain.key_H.tolist()), strict=True))
        example_H = rows[more.example_H]
        new_H = [
            (example, more.keys[key]) not in known
            for example, key in zip(example_H.tolist(), more.key_H.tolist(), strict=True)
        ]
        reasons = tuple(f"{reason}; {UNESCAPED_REASON}" for reason in more.reasons)
        doubtful = frozenset(f"{reason}; {UNESCAPED_REASON}" for reason in more.doubtful)
        more = replace(more, example_H=example_H, reasons=reasons, doubtful=doubtful)
        more = _without_spans(more, np.ones(len(more), dtype=np.bool_)).select(np.array(new_H, dtype=np.bool_))
        found = Hits.merged([(0, found), (0, more)])
    if not hides_spans:
        return found
    is_opaque_N = block.columns[OPAQUE].is_valid().to_numpy(zero_copy_only=False)
    return _without_spans(found, is_opaque_N[found.example_H])


def _without_spans(hits: Hits, chosen_H: NDArray[np.bool_]) -> Hits:
    return replace(hits, begin_H=np.where(chosen_H, -1, hits.begin_H), end_H=np.where(chosen_H, -1, hits.end_H))


def answers_of_chunks(stored: list[str | None], chunks: list[list[Range]]) -> Iterator[str | None]:
    """Where the answers are in each chunk of each text, as they are stored.

    >>> list(answers_of_chunks(["2 6 8 9", None], [[(0, 5), (5, 10)], [(0, 3)]]))
    ['2 5', '0 1 3 4', None]
    """
    for answers, ranges in zip(map(ranges_of, stored), chunks, strict=True):
        for first, last in ranges:
            if answers is None:
                yield None
                continue
            inside = [(max(begin, first) - first, min(end, last) - first) for begin, end in answers]
            yield stored_ranges([(begin, end) for begin, end in inside if begin < end])
