"""What ``hush rehearse`` says beforehand, against what the same training then reached.

    python benchmarks/rehearsal.py --work FOLDER [--only texts-spans-20] [--minutes 4] [--output FILE]

FOLDER is that of ``never_worse.py``: each of its settings with spans is one case, with its data, its config and the
losses that dropping, redacting and hush really reached. The rehearsal sees what is public of the data, and tries no
other settings than those of the config, with which the real training was done. For each case: whether the real losses
lie in the 90 % ranges, the interval score of the ranges (their width, and 20 times how far a loss lies outside
[Gneiting and Raftery 2007]), and whether the choice was right, judged by the real losses.

In settings with whole examples as secrets the real secrets are of another subject than what is public, which no
rehearsal can know; they are not used. A finished case is not repeated; each prints one line.
"""

import argparse
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from never_worse_settings import all_settings

from hush.rehearse import Outcome, RehearsalSettings
from hush.rehearse.outcome import LEVEL, ORDINARY_MARGIN
from hush.run.config import load_config
from hush.run.rehearsal import rehearse_config

WAYS = ("dropping", "redacting", "hush")
CONTENT = ("ordinary", "like")


def run_case(name: str, work: Path, settings: RehearsalSettings) -> dict[str, Any]:
    """Rehearse the config of a setting, and compare with what its training reached."""
    real = json.loads((work / f"{name}.json").read_text(encoding="utf-8"))
    begin = time.perf_counter()
    outcome = rehearse_config(load_config(work / name / "hush.yaml"), settings=settings).outcome
    seconds = time.perf_counter() - begin
    rows = [_row(outcome, real, way, content) for way in WAYS for content in CONTENT]
    best = _really_best(real, outcome.like_share)
    return {
        "case": name,
        "rounds_trained": real["rounds_trained"],
        "said": outcome.sentence,
        "choice": outcome.choice,
        "gains": outcome.gains,
        "really_best": best,
        "choice_was_right": outcome.choice == best,
        "scale": outcome.scale,
        "forecasts": [row for row in rows if row is not None],
        "seconds": round(seconds, 1),
    }


def _row(outcome: Outcome, real: dict[str, Any], way: Any, content: str) -> dict[str, Any] | None:
    """One forecast beside the loss that was reached; None for hush where the real run trained no rounds."""
    if way == "hush" and not real["rounds_trained"]:
        return None
    interval, reached = getattr(outcome.arm(way), content), real["losses"][way][content]
    outside = max(interval.low - reached, reached - interval.high, 0.0)
    return {
        "way": way,
        "content": content,
        "expected": round(interval.expected, 4),
        "low": round(interval.low, 4),
        "high": round(interval.high, 4),
        "reached": round(reached, 4),
        "covered": outside == 0,
        "interval_score": round(interval.high - interval.low + 2 / (1 - LEVEL) * outside, 4),
    }


def _really_best(real: dict[str, Any], share: float) -> str:
    """Which way to take, by the rule of a rehearsal, from the real losses; hush only where it trained rounds.

    share: of the data, that is like the secrets.
    """
    dropping, redacting, hush = (real["losses"][way] for way in WAYS)
    near = all(hush["ordinary"] <= (1 + ORDINARY_MARGIN) * other["ordinary"] for other in (dropping, redacting))
    by_stream = min(0.0, hush["ordinary"] - redacting["ordinary"])
    gains = real["rounds_trained"] and hush["like"] - redacting["like"] < by_stream
    if near and gains and hush["like"] < dropping["like"]:
        return "hush"
    mixed = {
        way: (1 - share) * losses["ordinary"] + share * losses["like"]
        for way, losses in (("dropping", dropping), ("redacting", redacting))
    }
    return "redacting" if mixed["redacting"] < mixed["dropping"] else "dropping"


def line_of(result: dict[str, Any]) -> str:
    """One line for people."""
    rows = result["forecasts"]
    shown = "  ".join(
        f"{row['way']}/{row['content']} {row['low']:.3f} to {row['high']:.3f}: {row['reached']:.3f}"
        f"{'' if row['covered'] else ' OUTSIDE'}"
        for row in rows
    )
    right = "right" if result["choice_was_right"] else f"WRONG, {result['really_best']} was"
    return f"{result['case']:16} {shown}; takes {result['choice']}: {right} ({result['seconds']:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="the folder of never_worse.py")
    parser.add_argument("--minutes", type=float, help="of each rehearsal; by default its work is that of the training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of settings, such as texts-spans-20")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    settings = RehearsalSettings(minutes=asked.minutes, tries=1, seeds=asked.seeds)
    results: list[dict[str, Any]] = []
    for setting in all_settings():
        if setting.scope != "spans" or not (asked.work / f"{setting.name}.json").is_file():
            continue
        if asked.only and setting.name not in asked.only:
            continue
        path = asked.work / f"rehearsal-{setting.name}.json"
        if not path.is_file():
            result = run_case(setting.name, asked.work, settings)
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        results.append(json.loads(path.read_text(encoding="utf-8")))
        print(line_of(results[-1]), flush=True)
    rows = [row for result in results for row in result["forecasts"]]
    if not rows:
        raise SystemExit("no setting with spans is finished in this folder; run never_worse.py first")
    summary = {
        "cases": len(results),
        "won_by_hush": sum(result["really_best"] == "hush" for result in results),
        "choices_right": sum(result["choice_was_right"] for result in results),
        "intervals": len(rows),
        "covered": sum(row["covered"] for row in rows),
        "mean_width": round(sum(row["high"] - row["low"] for row in rows) / len(rows), 4),
        "mean_interval_score": round(sum(row["interval_score"] for row in rows) / len(rows), 4),
    }
    print(summary)
    if asked.output is not None:
        record = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
            "torch": torch.__version__,
            "level": LEVEL,
            "settings": settings.model_dump(),
            **summary,
            "results": results,
        }
        asked.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
