"""What the study's runs say: a table of cases, a table of noise, and the figures that its page quotes."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.blowup_feasible.cases import PRIOR, RATE, ROUNDS, PeerCase, Promise, Scale
from experiments.runs import RunLog, provenance

__all__ = ["Asked", "case_rows", "noise_rows", "write_report"]

WRONG, PAPERS = 0.01, 2e4  # a mass this far from 1 is called wrong; what the paper reports


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A case and why it is asked: for the noise of a promise, by KL or by the blow-up function, or in the scan."""

    case: PeerCase
    promise: Promise | None
    noise_from: str


def case_rows(log: RunLog, asked: Iterable[Asked]) -> list[dict[str, Any]]:
    """One row for each case that both libraries have answered."""
    rows: list[dict[str, Any]] = []
    for one in asked:
        case, point = one.case, one.case.point
        peer, ours = log.outcome(case.key()), log.outcome(point.key("hush"))
        if peer is None or ours is None:
            continue
        simulated = log.outcome(point.key("simulation")) or {}
        rows.append(
            {
                "examples": point.examples,
                "prior": point.prior,
                "ceiling": None if one.promise is None else one.promise.ceiling,
                "noise_from": one.noise_from,
                "noise_multiplier": point.noise_multiplier,
                "interval": case.interval,
                "table": case.table,
                "peer_mass_with": peer["with"]["mass"],
                "peer_mass_without": peer["without"]["mass"],
                "peer_log10_exact_mass_with": peer["with"]["log10_mass_if_composed_exactly"],
                "peer_log10_exact_mass_without": peer["without"]["log10_mass_if_composed_exactly"],
                "peer_extended_mass_with": peer["with"]["mass_in_extended_precision"],
                "peer_extended_mass_without": peer["without"]["mass_in_extended_precision"],
                "peer_mass_at_infinity": peer["with"]["mass_at_infinity"],
                "peer_smallest_loss_with": peer["with"]["smallest_loss"],
                "peer_smallest_loss_without": peer["without"]["smallest_loss"],
                "peer_posterior_curve_without": peer["posterior"]["curve, without"],
                "peer_posterior_curve_with": peer["posterior"]["curve, with"],
                "peer_posterior_thresholds": peer["posterior"]["thresholds, with"],
                "peer_second_moment": peer["second_moment"],
                "peer_cpu_seconds": peer["cpu_seconds"],
                "peer_peak_mb": peer["peak_mb"],
                "peer_points": peer["with"]["points"],
                "hush_mass_with": ours["mass_with"],
                "hush_mass_without": ours["mass_without"],
                "hush_lower": ours["lower"],
                "hush_upper": ours["upper"],
                "hush_relative_width": ours["upper"] / ours["lower"] - 1,
                "hush_cpu_seconds": ours["cpu_seconds"],
                "hush_peak_mb": ours["peak_mb"],
                "simulated": simulated.get("posterior"),
                "simulated_standard_error": simulated.get("standard_error"),
            }
        )
    return rows


def noise_rows(log: RunLog, scale: Scale) -> list[dict[str, Any]]:
    """One row for each promise of the three panels: noise by each bound, and what the tight one saves."""
    rows: list[dict[str, Any]] = []
    for panel, promises in (
        ("examples", scale.by_examples),
        ("prior", scale.by_prior),
        ("ceiling", scale.by_ceiling),
    ):
        for promise in promises:
            found = log.outcome(promise.key())
            if found is not None:
                about = {"panel": panel, **{name: value for name, value in promise.key().items() if name != "part"}}
                ratios = {f"{bound}_over_blowup": found[bound] / found["blowup"] for bound in ("kl", "renyi")}
                rows.append(about | found | ratios)
    return rows


def write_report(log: RunLog, asked: Sequence[Asked], scale: Scale, folder: Path) -> None:
    rows, noise = case_rows(log, asked), noise_rows(log, scale)
    _write_csv(folder / "table.csv", rows)
    _write_csv(folder / "noise.csv", noise)
    summary = {
        **provenance(),
        "setting": {"rate": RATE, "rounds": ROUNDS, "prior": PRIOR},
        "runs": len(log.entries()),
        "cases": len(rows),
        "peer_mass": {
            noise_from: _mass_errors([row for row in rows if row["noise_from"] == noise_from])
            for noise_from in ("kl", "blowup", "scan")
        },
        "scan": {str(examples): _scan(rows, examples) for examples in (1, 100)},
        "readings": _readings(rows),
        "hush": _hush(rows),
        "noise_over_blowup": {
            panel: {
                bound: _range([row[f"{bound}_over_blowup"] for row in noise if row["panel"] == panel])
                for bound in ("kl", "renyi")
            }
            for panel in ("examples", "prior", "ceiling")
        },
        "anatomy": [
            {name: value for name, value in entry["outcome"].items() if name.startswith("mass")}
            for entry in log.entries()
            if entry["key"]["part"] == "anatomy"
        ],
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def _mass_errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Largest distance of a recomputed mass from 1, by interval, for the library's default way to build tables."""
    found: dict[str, Any] = {}
    for row in rows:
        if row["table"] == "connect the dots":
            worst = found.setdefault(f"interval {row['interval']:g}", {"with": 0.0, "without": 0.0})
            for side in worst:
                mass = row[f"peer_mass_{side}"]
                worst[side] = None if None in (mass, worst[side]) else max(worst[side], abs(mass - 1))
    return found


def _scan(rows: list[dict[str, Any]], examples: int) -> dict[str, Any]:
    """The largest noise at which a mass is wrong, and at which it is as wrong as the paper says."""
    scan = [row for row in rows if row["noise_from"] == "scan" and row["examples"] == examples]
    found: dict[str, Any] = {}
    for side in ("with", "without"):
        for name, far in (("wrong", WRONG), ("as_the_paper_says", PAPERS)):
            failing = [row["noise_multiplier"] for row in scan if _error(row[f"peer_mass_{side}"]) >= far]
            found[f"{side}, {name}"] = max(failing, default=None)
    return found


def _readings(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Each reading over hush's upper side: a range over the promises, by table and interval."""
    found: dict[str, Any] = {}
    for row in rows:
        if row["noise_from"] == "blowup" and row["prior"] == PRIOR:
            into = found.setdefault(f"{row['table']}, interval {row['interval']:g}", {})
            for reading in ("curve_without", "curve_with", "thresholds"):
                value = row[f"peer_posterior_{reading}"]
                into.setdefault(reading, []).append(None if value is None else value / row["hush_upper"])
    return {name: {reading: _range(values) for reading, values in found[name].items()} for name in sorted(found)}


def _hush(rows: list[dict[str, Any]]) -> dict[str, Any]:
    simulated = [row for row in rows if row["simulated_standard_error"]]  # without a single hit there is none
    return {
        "largest_mass_error": max(
            (_error(row[f"hush_mass_{s}"]) for row in rows for s in ("with", "without")), default=0
        ),
        "relative_width": _range([row["hush_relative_width"] for row in rows]),
        "cpu_seconds": _range([row["hush_cpu_seconds"] for row in rows]),
        "peer_over_hush_cpu_seconds": _range([row["peer_cpu_seconds"] / row["hush_cpu_seconds"] for row in rows]),
        "simulated_less_hush_in_standard_errors": _range(
            [(row["simulated"] - row["hush_upper"]) / row["simulated_standard_error"] for row in simulated]
        ),
    }


def _error(mass: float | None) -> float:
    return float("inf") if mass is None else abs(mass - 1)


def _range(values: list[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return [min(known), max(known)] if known else None


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.10g}" if isinstance(v, float) else v for k, v in row.items()})
