"""The report of an audit: one record of names, counts and numbers, for a program; and the same as a page to read."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hush import __version__
from hush.audit.audited_run import AuditedRun
from hush.audit.comparison import Excess
from hush.audit.exposure import Ranked, by_chance
from hush.audit.headline import headline
from hush.audit.verdict import Verdict
from hush.audit.work_extraction import Found
from hush.rounding import counted, rounded_down, rounded_up

__all__ = [
    "audit_record",
    "audit_text",
    "cell_cells",
    "discoverable_line",
    "exposure_line",
    "row_cells",
]

Record = dict[str, Any]
SAMPLES = (1, 100, 10_000)
COLUMNS = ("attack", "secret", "prior", "certified", "ceiling", "reached", "lower", "upper", "result")
_NOTES = (
    "A lower limit above the certified bound breaks the promise. All rows together are wrong about that with "
    "probability at most the level.",
    "Limits are one-sided. A wide interval says that little was tried, not that little can be reached.",
    "This audit was computed from data with secrets. Publishing its numbers is a release that no plan accounts for.",
)


def audit_record(
    run: AuditedRun,
    verdict: Verdict,
    found: Sequence[Found],
    ranks: Sequence[Ranked],
    notices: Sequence[str],
) -> Record:
    """Everything that the page says; no text of any secret or example."""
    return {
        "verdict": verdict.status,
        "level": verdict.level,
        "hush": __version__,
        "model": run.digest,
        "certified": not run.why_not,
        "why_not": run.why_not,
        "noise_multiplier": run.plan.training_noise_multiplier,
        "rounds": run.plan.rounds,
        "rows": [row.to_dict() for row in verdict.rows],
        "extraction": [_extraction(one, verdict.level) for one in found],
        "exposure": _exposure(ranks) if ranks else None,
        "notices": list(notices),
    }


def row_cells(row: Record, *, digits: int = 3) -> tuple[str, ...]:
    """A row of the verdict as a reader sees it; bounds and limits are rounded to the safe side."""
    tried = "–"
    if row["runs"] is not None:
        reached = row["reached"]
        tried = f"{row['hits']} of {row['runs']}" if reached is None else f"{reached:.{digits}g} in {row['runs']}"
    return (
        row["attack"],
        row["name"],
        _down(row["prior"], digits),
        *(_up(row[name], digits) for name in ("certified", "ceiling")),
        tried,
        _down(row["lower"], digits),
        _up(row["upper"], digits),
        row["status"].upper() if row["status"] == "failed" else row["status"],
    )


def audit_text(record: Record) -> str:
    """A page in Markdown."""
    marks = f"\n> **Nothing is certified here: {record['why_not']}**\n" if record["why_not"] else ""
    lines = [f"# Audit\n{marks}", f"**{headline(record)}**", "", f"Level of error: {record['level']:g}", ""]
    lines += _table(COLUMNS, [row_cells(row) for row in record["rows"]])
    for one in record["extraction"]:
        lines += [f"## Extraction: {one['what']}", "", _left_out(one), ""]
        lines += _table(
            ("prompt", "continuation", "came out", "lower", "upper", "anyway"), map(cell_cells, one["cells"])
        )
        lines += [discoverable_line(one), ""] if one["discoverable"] else []
    if record["exposure"] is not None:
        lines += ["## Exposure of canaries", "", exposure_line(record["exposure"]), ""]
    lines += ["## To know", "", *(f"- {line}" for line in (*record["notices"], *_NOTES)), ""]
    return "\n".join(lines)


def cell_cells(cell: Record) -> tuple[str, ...]:
    """A cell of an extraction as a reader sees it; "anyway": of a reference model, or of held-out texts."""
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


def exposure_line(exposure: Record) -> str:
    """What became of the canaries, in a sentence."""
    beside = "" if not exposure["with_reference"] else ", less what the reference model finds likely anyway"
    return (
        f"Ranked first among {counted(exposure['ranked'], 'candidate')}{beside}: {exposure['named']} of "
        f"{counted(exposure['canaries'], 'canary', 'canaries')}; mean exposure {exposure['mean']:.2f} bits, most "
        f"{exposure['most']:.2f}, by chance {exposure['by_chance']:.2f}. Canaries of one run share its model: the "
        "first one counts, the others describe."
    )


def _extraction(found: Found, level: float) -> Record:
    cells = zip(found.cells, found.over_reference, found.over_held_out, strict=True)
    return {
        "what": found.what,
        "sequences": len(found.sequences),
        "left_out": asdict(found.sequences.left_out),
        "discoverable": _discoverable(found),
        "cells": [
            {
                "prompt": cell.prompt,
                "continuation": cell.continuation,
                "hits": cell.success.hits,
                "tried": cell.success.runs,
                "short": cell.short,
                "lower": cell.success.lower(level),
                "upper": cell.success.upper(level),
                "reference": _excess(reference),
                "held_out": _excess(held_out),
            }
            for cell, reference, held_out in cells
        ],
    }


def _discoverable(found: Found) -> list[Record]:
    """How many secrets at least one of so many samples says, more likely than not."""
    if found.discovery is None:
        return []
    prompt = found.discovery.grid.prompts[0]
    cells = [(samples, found.discovery.cell(prompt, n=samples, p=0.5).success) for samples in SAMPLES]
    return [
        {"prompt": prompt, "samples": samples, "p": 0.5, "hits": success.hits, "tried": success.runs}
        for samples, success in cells
    ]


def discoverable_line(one: Record) -> str:
    """The same in a sentence; empty where it was not tried."""
    rows = one["discoverable"]
    said = "; ".join(f"of {counted(row['samples'], 'sample')}: {row['hits']} of {row['tried']}" for row in rows)
    return f"Said by one of several samples with probability 0.5 or more: {said}." if rows else ""


def _excess(excess: Excess | None) -> Record | None:
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


def _exposure(ranks: Sequence[Ranked]) -> Record:
    bits = [one.exposure for one in ranks]
    alone = [one if one.alone is None else replace(one, rank=one.alone) for one in ranks]
    return {
        "canaries": len(ranks),
        "ranked": ranks[0].ranked,
        "named": sum(one.rank == 1 for one in ranks),
        "mean": float(np.mean(bits)),
        "median": float(np.median(bits)),
        "most": float(np.max(bits)),
        "by_chance": by_chance(ranks[0].ranked),
        "with_reference": ranks[0].alone is not None,
        "mean_without_reference": float(np.mean([one.exposure for one in alone])),
    }


def _left_out(one: Record) -> str:
    left = ", ".join(f"{count} {name}" for name, count in one["left_out"].items() if count)
    return counted(one["sequences"], "sequence") + (f"; left out: {left}" if left else "")


def _table(columns: Sequence[str], rows: Any) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return [*lines, *("| " + " | ".join(_safe(cell) for cell in row) + " |" for row in rows), ""]


def _safe(text: str) -> str:
    """An id that can neither break a line nor a table, nor pass for something else on the page."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return "".join(f"\\{letter}" if letter in "\\`*_|<>[]#" else letter for letter in shown)


def _up(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else rounded_up(value, digits)


def _down(value: float | None, digits: int) -> str:
    return "–" if value is None else rounded_down(value, digits)
