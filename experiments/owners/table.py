"""What the study says: the plans of every promise, and the table of the runs that validation prefers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.owners.arms import all_arms
from experiments.runs import RunLog, interval, provenance

__all__ = ["plan_table", "promises", "table"]

NAMES = {"hush": "hush", "bounding": "contribution bounding", "paper": "the paper"}
PLAN_HEAD = (
    "| arm | examples kept, by weight | noise multiplier | signal | its limit | batch at the elbow |\n|---"
    + "|---:" * 5
)

HEAD = "| arm | metric | trained | model | seeds | test loss | 95 % radius | exposure of canaries |\n" + "|---" * 8
PLAN_FIELDS = ("noise_multiplier", "bound", "capacity", "kept_weight", "examples", "effective_size", "signal", "limit",
               "elbow", "infeasible", "seconds")  # fmt: skip


def promises(incidence: Any, plans: Path, *, batch_size: int, rounds: int) -> dict[str, Any]:
    """The record of all plans, with what they are about."""
    records = []
    for arm in all_arms():
        path = plans / f"{arm.name}.json"
        if path.exists():
            stated = json.loads(path.read_text())
            records.append(
                {"name": arm.name, "method": arm.method, "level": arm.level, "promise": arm.promise, "part": arm.part}
                | {name: stated[name] for name in PLAN_FIELDS if name in stated}
            )
    return {
        "what": "plans of every arm, with all of their noise; no model is trained for this",
        "batch_size": batch_size, "rounds": rounds, "examples": incidence.num_examples,
        "owners": incidence.num_secrets, "pairs": incidence.num_entries,
        "most examples of an owner": int(incidence.examples_per_secret.max()), **provenance(), "plans": records,
    }  # fmt: skip


def plan_table(record: dict[str, Any], promise: str, part: int = 1) -> str:
    """Markdown: the plans of one promise on one part of the data, by method and by how much is kept."""
    chosen = [plan for plan in record["plans"] if (plan["promise"], plan["part"]) == (promise, part)]
    lines = [f"{PLAN_HEAD}|"]
    for plan in sorted(chosen, key=lambda plan: (list(NAMES).index(plan["method"]), plan["level"])):
        level = {"hush": f"at the noise of cap {plan['level']}", "bounding": f"cap {plan['level']}",
                 "paper": f"program, step {plan['level']}"}[plan["method"]]  # fmt: skip
        name = f"{NAMES[plan['method']]}, {level if plan['level'] else 'all data'}"
        if "infeasible" in plan:
            lines.append(f"| {name} | infeasible | | | | |")
            continue
        signal = f"{plan['signal']:,.0f} | {plan['limit']:,.0f} | {plan['elbow']:,.0f}"
        lines.append(f"| {name} | {100 * plan['kept_weight']:.1f} % | {plan['noise_multiplier']:.3g} | {signal} |")
    return "\n".join(lines)


def table(log: RunLog, chosen: Sequence[dict[str, Any]], seeds: int) -> str:
    """Markdown: every arm at the learning rate that validation prefers; loss and exposure are means over the seeds."""
    lines = [f"{HEAD}|"]
    for key in chosen:
        found = [log.outcome({**key, "seed": seed}) for seed in range(seeds)]
        done = [outcome for outcome in found if outcome is not None]
        mean, radius = interval([outcome["test"] for outcome in done])
        shown = f"{radius:.3f}" if len(done) > 1 else ""
        exposure = sum(outcome["exposure"] for outcome in done) / len(done)
        arm = key["arm"] if key["part"] == 1 or "of" in key["arm"] else f"{key['arm']}, 1 / {key['part']}"
        metric = "" if key["exponent"] is None else "books"
        named = f"{arm} | {metric} | {key['trained']} | {key['model']}"
        lines.append(f"| {named} | {len(done)} | {mean:.3f} | {shown} | {exposure:.2f} |")
    return "\n".join(lines)
