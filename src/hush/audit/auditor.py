"""A whole audit of one run: every attack that its inputs allow, the verdict, and a report.

What it reads of the data stays in the audit's own folder. An audit on data with secrets is itself computed from them:
publishing its numbers is a release that no plan accounts for.

The report of an audit: one record of names, counts and numbers, for a program; and the same as a page to read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from hush import __version__
from hush.audit.canaries import Planting
from hush.audit.exposure import Ranked, by_chance, chance_of_ranks
from hush.audit.extraction_audit import Found, examples_found, secrets_found
from hush.audit.folders import AuditedRun
from hush.audit.headline import headline
from hush.audit.session import AuditFolder, AuditInputs, Told, Work
from hush.audit.settings import AuditSettings
from hush.audit.statistics import Excess
from hush.audit.steps import closest_secrets, exposed, simulated
from hush.audit.verdict import (
    Attempt,
    Verdict,
    extraction_attempts,
    judge,
    mechanism_attempt,
    named_run,
    naming_attempt,
)
from hush.certificate import DATA_FINGERPRINT
from hush.numbers import counted, rounded_down, rounded_up
from hush.train.fit import usable_device

__all__ = [
    "Audit",
    "audit",
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
        "extraction": [_extraction_record(one, verdict.level) for one in found],
        "exposure": _exposure_record(ranks) if ranks else None,
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


def _extraction_record(found: Found, level: float) -> Record:
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


def _exposure_record(ranks: Sequence[Ranked]) -> Record:
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


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Audit:
    """A finished audit. record is the report: names, counts and numbers. The rest is for the owner."""

    verdict: Verdict
    found: tuple[Found, ...]
    ranks: tuple[Ranked, ...]
    notices: tuple[str, ...]
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"Audit({self.verdict.status}, {len(self.verdict.rows)} rows)"


def audit(
    run: AuditedRun,
    inputs: AuditInputs | None = None,
    *,
    folder: str | Path,
    settings: AuditSettings | None = None,
    progress: Told | None = None,
) -> Audit:
    """Attack a run with all that the inputs allow, and write the report into a folder; an unfinished one goes on.

    Guarantee: if training kept its promises and every stated prior is right, the verdict is "failed" with probability
    at most ``settings.level``.
    """
    work = Work(
        run=run,
        inputs=inputs or AuditInputs(),
        settings=settings or AuditSettings(),
        folder=AuditFolder(folder),
        told=progress or (lambda _what, _done, _total: None),
    )
    usable_device(work.settings.device)  # before any work
    if work.inputs.corpus is not None and work.inputs.planting is not None:
        work.inputs.planting.check_data(work.inputs.corpus.texts())
    unchecked = _data_notices(work) if work.inputs.corpus is not None or work.inputs.planting is not None else []
    work.notices.extend(unchecked)
    wanted = work.settings.attacks
    attempts = _mechanism(work) if "mechanism" in wanted else []
    found = _attack_extraction(work) if "extraction" in wanted and work.inputs.corpus is not None else []
    planting, naming = work.inputs.planting, None
    for one in found:
        classes = work.inputs.places.classes if work.inputs.places else {}
        attempts += extraction_attempts(run, one.hit_of, classes, canary_prior=work.canary_prior)
    ranks = _attack_exposure(work, planting) if "exposure" in wanted and planting is not None else []
    if ranks and planting is not None:
        naming = named_run(run, planting.canaries[0], planting.id, ranks[0])
        attempts.append(naming_attempt(run, planting.canaries[0], [naming, *work.inputs.earlier]))
    attacked = {secret for one in found for secret in one.hit_of} | {run.secret(one.id) for one in ranks}
    work.notices.extend(_hardly_trained(run, attacked))
    verdict = judge(attempts, level=work.settings.level)
    if verdict.status == "model not judged" and not verdict.powerless:
        work.notices.append(
            "no attack on the model itself was judged: pass canaries, or data with the places of its secrets, and see "
            "that training does not cut them off"
        )
    if verdict.powerless:
        work.notices.append(
            f"{counted(verdict.powerless, 'row')} could not have failed, whatever came out: from so few tries no limit "
            "reaches the bound, or nothing that came out would have counted; promise canaries less than the level, "
            "rank more of their candidates, add independent runs, or simulate more"
        )
    record = audit_record(run, verdict, found, ranks, work.notices)
    record["naming"] = None if naming is None else asdict(naming)
    record["data_checked"] = not unchecked
    hit_of = {run.plan.secret_ids[secret]: hit for one in found for secret, hit in one.hit_of.items()}
    work.folder.write(record, audit_text(record), {"came_out": hit_of, "canaries": [asdict(one) for one in ranks]})
    return Audit(verdict=verdict, found=tuple(found), ranks=tuple(ranks), notices=tuple(work.notices), record=record)


def _data_notices(work: Work) -> list[str]:
    """Where nobody knows whether the model was trained on the data or canaries that it is attacked with."""
    other = "a model attacked with data or canaries of another training gives nothing away"
    if not work.inputs.compared:
        return [f"nobody checked that these are the data of the plan: {other}; pass --key, or compared=True in Python"]
    if work.run.plan.data_fingerprint is not None and DATA_FINGERPRINT not in work.run.certificate.fingerprints:
        return [f"training did not check that it saw the data of the plan, and its certificate names none: {other}"]
    return []


def _hardly_trained(run: AuditedRun, secrets: Iterable[int]) -> list[str]:
    """Where the plan leaves secrets out, or nearly so, of which no training would give anything away."""
    plan = run.plan
    draws = [plan.rounds * float(plan.rates[plan.incidence.examples_of(secret)].sum()) for secret in secrets]
    few = sum(drawn < 1 for drawn in draws)
    if not few:
        return []
    return [
        f"of {counted(len(draws), 'secret')} that were attacked on the model, the plan draws {few:,} less than once in "
        "the whole training, on average: that these do not come out says little about training"
    ]


def _mechanism(work: Work) -> list[Attempt]:
    chosen = closest_secrets(work.run, work.settings.secrets)
    if not chosen:
        work.notices.append("the plan has no secrets, so that there is no mechanism to attack")
        return []
    found = simulated(
        work.run,
        chosen,
        work.pieces("mechanism", [work.settings.secrets, work.settings.trials]),
        trials=work.settings.trials,
        seed=work.settings.seed,
        progress=work.bar("Simulating the worst case"),
    )
    return [mechanism_attempt(work.run, *which, attack) for which, attack in zip(chosen, found, strict=True)]


def _attack_extraction(work: Work) -> list[Found]:
    places = work.inputs.places
    found = [] if places is None or not len(places) else [secrets_found(work, places)]
    if not work.models.masked:
        if places is None or work.inputs.held_out is not None:
            found.append(examples_found(work))
    elif places is None:
        work.notices.append("a masked language model is tried where secrets stand: pass a scan, canaries or spans")
    return [one for one in found if one is not None]


def _attack_exposure(work: Work, planting: Planting) -> list[Ranked]:
    """Ranks by the model, less what the reference finds likely anyway if there is one."""
    canaries, candidates, models = planting.canaries, planting.candidates, work.models
    if models.masked:
        work.notices.append("canaries are ranked on causal language models only, so these were not")
        return []
    for canary in canaries:
        listed = set(work.run.plan.incidence.examples_of(work.run.secret(canary.id)).tolist())
        if not listed.issuperset(canary.examples):
            work.notices.append(f"the plan does not list every example of {canary.id}: its bound is for fewer")
    content = [f"{one.id} {one.truth} {one.template.before}\0{one.template.after}" for one in canaries]
    asked = [work.settings.candidates, models.max_length, work.reference_id]
    ranks = exposed(
        models.subject,
        models.tokenizer,
        canaries,
        candidates,
        work.pieces("exposure", asked, [repr(candidates.to_dict()), *content]),
        max_length=models.max_length,
        most=work.settings.candidates,
        reference=models.reference,
        batch_size=work.settings.micro_batch,
        seed=work.settings.seed,
        progress=work.bar("Ranking candidates"),
    )
    if not ranks[0].told:
        work.notices.append(
            f"{ranks[0].id} cannot be named: to the tokenizer it is the same as other candidates; plant some that it "
            "tells apart"
        )
    anyway = [one.anyway for one in ranks if one.anyway is not None]
    if anyway:
        ranked = ranks[0].ranked
        work.refuse_reference(chance_of_ranks(anyway, ranked), least=chance_of_ranks([1] * len(anyway), ranked))
    return ranks
