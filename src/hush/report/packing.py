"""The rows of the secrets' table as one compact block of bytes, which the page unpacks in a moment.

Layout: all float64 columns, then all int32 columns, then ids (and texts, if the owner asked) as JSON; little-endian,
deflated, base64. The page reads them as typed arrays: 100,000 rows take a few megabytes and no parsing of numbers.

Legend: R rows.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hush.report.markup import printable
from hush.report.numbers import SecretNumbers

__all__ = ["MOST_ROWS", "PackedRows", "packed_rows"]

MOST_ROWS = 100_000


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PackedRows:
    """content: base64 of the deflated block; layout: what the page needs to know to read it; left_out: rows beyond."""

    content: str
    layout: Mapping[str, Any]
    rows: int
    left_out: int


def packed_rows(ids: Sequence[str], numbers: SecretNumbers, texts: Sequence[str] | None) -> PackedRows:
    """A row for each secret, in the plan's order; beyond MOST_ROWS only those closest to their ceilings."""
    chosen = _chosen(numbers)
    floats = {
        "prior": numbers.prior_S, "posterior": numbers.posterior_S, "ceiling": numbers.ceiling_S,
        "after": numbers.after_S,
    }  # fmt: skip
    wholes = {"before": numbers.before_S, "binding": numbers.binding_S}
    columns: list[tuple[str, NDArray[Any]]] = [
        *((name, column[chosen].astype("<f8")) for name, column in floats.items()),
        *((name, column[chosen].astype("<i4")) for name, column in wholes.items()),
    ]
    words: dict[str, Sequence[str]] = {"ids": ids} if texts is None else {"ids": ids, "texts": texts}
    places: list[int] = chosen.tolist()
    names = {name: [printable(each[row]) for row in places] for name, each in words.items()}
    tail = json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()
    block = b"".join(column.tobytes() for _, column in columns) + tail
    return PackedRows(
        content=base64.b64encode(zlib.compress(block, 9)).decode("ascii"),
        layout={"rows": len(chosen), "columns": [[name, column.dtype.str[1:]] for name, column in columns]},
        rows=len(chosen),
        left_out=len(ids) - len(chosen),
    )


def _chosen(numbers: SecretNumbers) -> NDArray[np.int64]:
    order = np.argsort(-numbers.share_S, kind="stable")
    return np.sort(order[:MOST_ROWS])
