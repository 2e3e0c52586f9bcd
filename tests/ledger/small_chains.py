"""A chain that is planned in moments: forty rows, a few secrets, three announced releases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hush
from hush.keys import DataKey
from hush.ledger import Ledger
from hush.plan import Plan
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.scan.identities import Identities

KEY, OTHER_KEY = DataKey(bytes(range(32))), DataKey(bytes(32))
SERIES: Mapping[str, Any] = {"series": SeriesSettings(count=3, growth=2.0)}
FILTER: Mapping[str, Any] = {"filter": FilterSettings(share=0.3)}
ROWS = 40
PAIRS = {0: ["s-000000", "s-000001"], 1: ["s-000001"], 2: ["s-000002"], 3: ["s-000000"]}  # row: its secrets


def identities(ids: Sequence[str]) -> Identities:
    """Secrets of these ids, whose texts are their ids in capitals."""
    return Identities(
        key=KEY.id,
        ids=tuple(ids),
        rules=tuple("s" for _ in ids),
        fingerprints=tuple(KEY.fingerprint_identity("text", name.upper()) for name in ids),
    )


def graph(pairs: Mapping[int, Sequence[str]], *, rows: int = ROWS) -> tuple[hush.Incidence, list[str]]:
    """The incidence of these pairs, and the ids of its secrets in order."""
    ids = sorted({name for names in pairs.values() for name in names})
    entries = [(row, ids.index(name)) for row, names in pairs.items() for name in names]
    examples, secrets = zip(*entries, strict=True)
    return hush.Incidence.from_pairs(list(examples), list(secrets), num_examples=rows, num_secrets=len(ids)), ids


def row_fingerprints(texts: Sequence[str]) -> NDArray[np.uint8]:
    leaves = b"".join(KEY.fingerprint_row(text) for text in texts)
    return np.frombuffer(leaves, dtype=np.uint8).reshape(-1, 32)


def month(number: int = 0, *, rows: int = ROWS) -> NDArray[np.uint8]:
    """Rows of a month: those of the first, and some of its own at the end."""
    return row_fingerprints([f"row {row}" if row < ROWS - number else f"{number}: {row}" for row in range(rows)])


def planned(
    ledger: Ledger,
    folder: Path,
    pairs: Mapping[int, Sequence[str]] = PAIRS,
    *,
    kind: Mapping[str, Any] = SERIES,
    draw: Any = None,
) -> Path:
    """The folder of a plan after all releases of the ledger."""
    incidence, ids = graph(pairs)
    plan: Plan = hush.make_plan(
        incidence,
        prior=1e-6,
        ceiling=1e-2,
        batch_size=4 if draw else 8,
        rounds=10,
        keep=0.5,
        secret_ids=ids,
        draw=draw,
        after=ledger.predecessors(),
        ancestors=ledger.ancestors_of(ids),
        **kind,
    )
    plan.save(folder)
    return folder


def opened(folder: Path, pairs: Mapping[int, Sequence[str]] = PAIRS) -> Ledger:
    """A ledger that knows the secrets of these pairs."""
    ledger = Ledger.load_or_create(folder, KEY.id)
    return ledger.register(identities(graph(pairs)[1]))
