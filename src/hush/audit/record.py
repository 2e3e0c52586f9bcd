"""The report of an audit: a record of names, counts and numbers for programs, and the same as a page of Markdown.

Neither holds the text of a secret or of an example. Bounds and limits are rounded to the safe side.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hush import __version__
from hush.audit.exposure import CanaryRank, chance_exposure, exposure_of_rank
from hush.audit.extraction_audit import ExtractionResult
from hush.audit.folders import AuditedRun
from hush.audit.headline import headline
from hush.audit.statistics import Excess
from hush.audit.verdict import Verdict
from hush.numbers import counted, rounded_down, rounded_up

__all__ = [
    "audit_record",
    "audit_text",
    "discoverable_line",
    "exposure_line",
    "extraction_cells",
    "row_cells",
]


Record = dict[str, Any]
SAMPLE_COUNTS = (1, 100, 10_000)  # samples for which (n, p)-discoverable extraction is reported
SAMPLE_PROBABILITY = 0.5  # the p of it: more likely than not
ROW_COLUMNS = ("attack", "secret", "prior", "certified", "ceiling", "reached", "lower", "upper", "result")
CELL_COLUMNS = ("prompt", "continuation", "came out", "lower", "upper", "anyway")
_NOTES = (
    "A lower limit above the certified bound breaks the promise. The probability that any row says so wrongly is at "
    "most the level.",
    "Limits are one-sided. A wide interval means that little was tried, not that little can be reached.",
    "This audit was computed from data with secrets. Publishing its numbers is a release that no plan accounts for.",
)


def audit_record(
    run: AuditedRun,
    verdict: Verdict,
    extractions: Sequence[ExtractionResult],
    ranks: Sequence[CanaryRank],
    notices: Sequence[str],
) -> Record:
    """Everything that the page shows, as plain data for JSON; no text of any secret or example."""
    return {
        "verdict": verdict.status,
        "level": verdict.level,
        "hush": __version__,
        "model": run.digest,
        "certified": not run.uncertified_reason,
        "why_not": run.uncertified_reason,
        "noise_multiplier": run.plan.training_noise_multiplier,
        "rounds": run.plan.rounds,
        "chain": _chain_record(run),
        "rows": [row.to_dict() for row in verdict.rows],
        "extraction": [_extraction_record(extraction, verdict.level) for extraction in extractions],
        "exposure": _exposure_record(ranks) if ranks else None,
        "notices": list(notices),
    }


def _chain_record(run: AuditedRun) -> Record | None:
    chain = run.plan.chain
    if chain is None:
        return None
    kind = "series" if chain.is_series else "filter"
    return {"kind": kind, "number": chain.number, "count": chain.count, "predecessors": list(chain.predecessors)}


def _extraction_record(extraction: ExtractionResult, level: float) -> Record:
    cells = zip(extraction.cells, extraction.over_reference, extraction.over_held_out, strict=True)
    return {
        "what": extraction.what,
        "sequences": len(extraction.sequences),
        "left_out": asdict(extraction.sequences.left_out),
        "discoverable": _discoverable_records(extraction),
        "cells": [
            {
                "prompt": cell.prompt,
                "continuation": cell.continuation,
                "hits": cell.success.hits,
                "tried": cell.success.runs,
                "short": cell.short,
                "lower": cell.success.lower(level),
                "upper": cell.success.upper(level),
                "reference": _excess_record(reference),
                "held_out": _excess_record(held_out),
            }
            for cell, reference, held_out in cells
        ],
    }


def _discoverable_records(extraction: ExtractionResult) -> list[Record]:
    """How many secrets are, more likely than not, in at least one of n samples."""
    if extraction.discovery is None:
        return []
    prompt, p = extraction.discovery.grid.prompts[0], SAMPLE_PROBABILITY
    cells = [(n, extraction.discovery.cell(prompt, n=n, p=p).success) for n in SAMPLE_COUNTS]
    return [
        {"prompt": prompt, "samples": n, "p": p, "hits": success.hits, "tried": success.runs} for n, success in cells
    ]


def _excess_record(excess: Excess | None) -> Record | None:
    if excess is None:
        return None
    return {
        "hits": excess.other.hits,
        "tried": excess.other.runs,
        "excess": excess.difference,
        "lower": excess.lower,
        "upper": excess.upper,
        "p_value": excess.p_value,
        "memorised": excess.is_memorised,
    }


def _exposure_record(ranks: Sequence[CanaryRank]) -> Record:
    bits = [rank.exposure for rank in ranks]
    without_reference = [rank if rank.alone is None else replace(rank, rank=rank.alone) for rank in ranks]
    return {
        "canaries": len(ranks),
        "ranked": ranks[0].ranked,
        "named": sum(rank.rank == 1 for rank in ranks),
        "mean": float(np.mean(bits)),
        "median": float(np.median(bits)),
        "most": float(np.max(bits)),
        "by_chance": chance_exposure(ranks[0].ranked),
        "with_reference": ranks[0].alone is not None,
        "mean_without_reference": float(np.mean([rank.exposure for rank in without_reference])),
        "releases": max(1, len(ranks[0].by_release)),
        "mean_by_release": [
            _mean_exposure([rank.by_release[place] for rank in ranks], ranks[0].ranked)
            for place in range(len(ranks[0].by_release))
        ],
        "mean_by_change": _mean_exposure([rank.by_change for rank in ranks], ranks[0].ranked),
    }


def _mean_exposure(ranks: Sequence[int | None], ranked: int) -> float | None:
    """Mean exposure of ranks; None where there are none."""
    known = [exposure_of_rank(rank, ranked) for rank in ranks if rank is not None]
    return float(np.mean(known)) if known else None


# The page.


def audit_text(record: Record) -> str:
    """The record as a page of Markdown."""
    banner = f"\n> **Nothing is certified here: {record['why_not']}**\n" if record["why_not"] else ""
    lines = [f"# Audit\n{banner}", f"**{headline(record)}**", "", f"Level of error: {record['level']:g}", ""]
    lines += _table(ROW_COLUMNS, [row_cells(row) for row in record["rows"]])
    for extraction in record["extraction"]:
        lines += [f"## Extraction: {extraction['what']}", "", _sequences_line(extraction), ""]
        lines += _table(CELL_COLUMNS, map(extraction_cells, extraction["cells"]))
        lines += [discoverable_line(extraction), ""] if extraction["discoverable"] else []
    if record["exposure"] is not None:
        lines += ["## Exposure of canaries", "", exposure_line(record["exposure"]), ""]
    lines += ["## Notes", "", *(f"- {line}" for line in (*record["notices"], *_NOTES)), ""]
    return "\n".join(lines)


def row_cells(row: Record, *, digits: int = 3) -> tuple[str, ...]:
    """The cells of a row of the verdict, as text."""
    tried = "–"
    if row["runs"] is not None:
        reached = row["reached"]
        tried = f"{row['hits']} of {row['runs']}" if reached is None else f"{reached:.{digits}g} in {row['runs']}"
    releases = row.get("releases", 1)
    together = f" ({releases} releases)" if releases > 1 else ""
    return (
        row["attack"],
        f"{row['name']}{together}",
        _down(row["prior"], digits),
        *(_up(row[name], digits) for name in ("certified", "ceiling")),
        tried,
        _down(row["lower"], digits),
        _up(row["upper"], digits),
        row["status"].upper() if row["status"] == "failed" else row["status"],
    )


def extraction_cells(cell: Record) -> tuple[str, ...]:
    """The cells of one length of prompt and continuation, as text; "anyway": from a reference or held-out texts."""
    anyway = [
        f"{name}: {cell[key]['hits']} of {cell[key]['tried']}"
        for name, key in (("reference", "reference"), ("held out", "held_out"))
        if cell[key] is not None
    ]
    return (
        str(cell["prompt"] or "all"),
        str(cell["continuation"]),
        f"{cell['hits']} of {cell['tried']}",
        rounded_down(cell["lower"], 3),
        _up(cell["upper"]),
        "; ".join(anyway) or "–",
    )


def discoverable_line(extraction: Record) -> str:
    """How many secrets samples contain, in a sentence; empty where it was not tried."""
    rows = extraction["discoverable"]
    counts = "; ".join(f"of {counted(row['samples'], 'sample')}: {row['hits']} of {row['tried']}" for row in rows)
    return (
        f"In at least one of several samples with probability {SAMPLE_PROBABILITY} or more: {counts}." if rows else ""
    )


def exposure_line(exposure: Record) -> str:
    """The exposure of the canaries, in a sentence."""
    relative = ", relative to the likelihood under the reference model" if exposure["with_reference"] else ""
    return (
        f"Ranked first among {counted(exposure['ranked'], 'candidate')}{relative}: {exposure['named']} of "
        f"{counted(exposure['canaries'], 'canary', 'canaries')}; exposure in bits: mean {exposure['mean']:.2f}, "
        f"largest {exposure['most']:.2f}, expected by chance {exposure['by_chance']:.2f}.{_by_release(exposure)} "
        "Canaries of one run share its model, so only the first one counts as a test."
    )


def _by_release(exposure: Record) -> str:
    """The exposure by each model alone, where several were attacked together."""
    if exposure.get("releases", 1) == 1:
        return ""
    alone = ", ".join(f"{mean:.2f}" for mean in exposure["mean_by_release"])
    return (
        f" They were ranked by the sum over the models of {exposure['releases']} releases; by each alone, oldest "
        f"first, the mean is {alone}, and by the change from the oldest to the newest {exposure['mean_by_change']:.2f}."
    )


def _sequences_line(extraction: Record) -> str:
    left_out = ", ".join(f"{count} {reason}" for reason, count in extraction["left_out"].items() if count)
    return counted(extraction["sequences"], "sequence") + (f"; left out: {left_out}" if left_out else "")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return [*lines, *("| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows), ""]


def _escaped(text: str) -> str:
    """Text that cannot break a line or a table, nor act as Markdown or HTML on the page."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return "".join(f"\\{letter}" if letter in "\\`*_|<>[]#" else letter for letter in shown)


def _up(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else rounded_up(value, digits)


def _down(value: float | None, digits: int) -> str:
    return "–" if value is None else rounded_down(value, digits)
