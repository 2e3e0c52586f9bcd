"""The review of a scan: what its owner looks through before planning, as one HTML page on the owner's side.

The page shows the most widespread secrets and the first pairs; all of them are in reasons.parquet. Texts of secrets are
on it only where the owner asks for them.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hush.rounding import rounded_down, rounded_up
from hush.scan.histogram import histogram_of
from hush.scan.review_page import Cell, Table, page

if TYPE_CHECKING:
    from hush.protection import Protection
    from hush.scan.result import Scan

__all__ = ["review_html", "write_review"]

SECRETS = 2000  # shown of them, the most widespread ones
PAIRS = 2000  # rows shown, the first ones
CROWDED = 50  # examples with most secrets


def write_review(
    scan: "Scan", path: Path, *, source: str, notices: Sequence[str] = (), show_text: bool = False
) -> None:
    """Write the page to a new file that its owner alone can read. notices: sentences to show first."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(review_html(scan, source=source, notices=notices, show_text=show_text))


def review_html(scan: "Scan", *, source: str, notices: Sequence[str] = (), show_text: bool = False) -> str:
    """The page. Guarantee: unless show_text is given, no text of a secret is on it."""
    summary = scan.summary()
    tiles = {
        "examples": summary["examples"],
        "of them with secrets": summary["examples_with_secrets"],
        "secrets": summary["secrets"],
        "pairs": summary["pairs"],
        "pairs from copies alone": summary["pairs_from_copies"],
        "rows skipped": summary["skipped"],
    }
    shown = "This page shows the text of secrets." if show_text else "This page shows no text of a secret."
    return page(
        f"Scan of {source}",
        warning=f"{shown} It names files and ids: for the owner of the data only.",
        tiles=tiles.items(),
        tables=[*_notes(notices), *_tables(scan, show_text=show_text)],
    )


def _tables(scan: "Scan", *, show_text: bool) -> Iterator[Table]:
    summary = scan.summary()
    by_secret, by_example = scan.incidence.examples_per_secret, scan.incidence.secrets_per_example
    yield Table(
        title="Rules",
        columns=("rule", "secrets", "of them in some example", "pairs"),
        rows=[tuple(rule[name] for name in ("rule", "secrets", "secrets_found", "pairs")) for rule in summary["rules"]],
    )
    for title, counts, name in (
        ("Examples per secret", by_secret, "secrets"),
        ("Secrets per example", by_example, "examples"),
    ):
        bins = histogram_of(counts)
        rows = list(zip(bins.labels, bins.count, strict=True))
        yield Table(title=title, columns=(title.split()[0].lower(), name), rows=rows, bars=1)
    yield _secrets(scan, show_text=show_text)
    crowded = [int(each) for each in np.argsort(-by_example, kind="stable")[:CROWDED] if by_example[each]]
    ids = _ids(scan, crowded)
    yield Table(
        title="Examples with most secrets",
        columns=("example", "id", "secrets"),
        rows=[(each, ids.get(each), int(by_example[each])) for each in crowded],
    )
    yield _pairs(scan, show_text=show_text)


def _secrets(scan: "Scan", *, show_text: bool) -> Table:
    counts = scan.incidence.examples_per_secret
    order = np.argsort(-counts, kind="stable")[:SECRETS].tolist()
    rules = np.repeat(np.array([name for name, _ in scan.rules]), [count for _, count in scan.rules])
    rows: list[tuple[Cell, ...]] = [
        (scan.secrets.ids[each], str(rules[each]), int(counts[each]), _points(scan.secrets.protections[each]))
        + ((_text(scan, each),) if show_text else ())
        for each in order
    ]
    return Table(
        title="Secrets",
        note=_part(len(rows), len(counts), "the most widespread", "public/secrets.parquet"),
        columns=("id", "rule", "examples", "prior → ceiling", *(("text",) if show_text else ())),
        rows=rows,
    )


def _pairs(scan: "Scan", *, show_text: bool) -> Table:
    found = list(islice(scan.why(), PAIRS + 1))
    ids = _ids(scan, [reason.example for reason in found])
    rows: list[tuple[Cell, ...]] = []
    for reason in found[:PAIRS]:
        span = f"{reason.begin} to {reason.end}" if reason.has_span else ""
        text = (_text(scan, reason.secret),) if show_text else ()
        rows.append((reason.example, ids.get(reason.example), reason.secret_id, reason.reason, span, *text))
    more = len(found) > PAIRS
    return Table(
        title="Who contains what, and why",
        note=f"The first {PAIRS:,} rows; all of them are in reasons.parquet." if more else "",
        columns=("example", "id", "secret", "reason", "characters", *(("text",) if show_text else ())),
        rows=rows,
    )


def _notes(notices: Sequence[str]) -> Iterator[Table]:
    if notices:
        yield Table(title="Notes", columns=("note",), rows=[(said,) for said in notices])


def _ids(scan: "Scan", examples: Sequence[int]) -> dict[int, str]:
    """The ids of some examples, in one reading."""
    wanted, found, before = np.unique(examples), dict[int, str](), 0
    for batch in () if scan.owner is None or not len(wanted) else scan.owner.examples("id"):
        here = wanted[(wanted >= before) & (wanted < before + len(batch))]
        found |= zip(here.tolist(), batch.column("id").take(pa.array(here - before)).to_pylist(), strict=True)
        before += len(batch)
    return found


def _text(scan: "Scan", secret: int) -> str:
    return "" if scan.secrets.texts is None else scan.secrets.texts[secret]


def _points(protection: "Protection") -> str:
    return ", ".join(f"{rounded_down(prior, 3)} → {rounded_up(ceiling, 3)}" for prior, ceiling in protection.points)


def _part(shown: int, total: int, which: str, file: str) -> str:
    return "" if shown == total else f"{shown:,} of {total:,}, {which}; all of them are in {file}."
