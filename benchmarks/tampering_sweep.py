"""Does any plan or release that was tampered with pass verification although it matters?

Makes random small plans and releases, tampers with each in a random way (raw bytes and files; single fields with all
digests made to fit; whole plans rewritten consistently; certificates, models, signatures and folders of releases), and
verifies the result, sometimes with the owner's key, graph and promises. What passes must not matter, by a judge that
shares nothing with verification but the readers of files:

- a stated posterior is never below what an explicit attack reaches (``posterior(side="lower")``), a ceiling never too;
- every other difference from the original is one that verification lists (``unchecked``, ``unproven``), makes a promise
  smaller, or cannot be told from the files: then it must fail with the owner's graph, promises or key.

Writes benchmarks/results/tampering_sweep.json and exits with 1 if anything passed that matters.

    .venv/bin/python benchmarks/tampering_sweep.py --count 2000 --seed 1
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from tampering import TAMPERINGS, Case, Rng, every_file, make_case

import hush
from hush.certificate import Certificate
from hush.plan.carried import OPTIONAL_FILES
from hush.plan.files import SLOTS_FILE, TABLES
from hush.plan.verify import Verification
from hush.slots import Slots
from hush.storage import folder_digest

HERE = Path(__file__).resolve().parent
ROUNDING = 1e-9  # relative: what another machine may round otherwise
LARGER_CURVE = 6e-3  # relative: by which points of the curve may be stated too large
UNPROVEN = ("created", "clip_norm", "weights_gap", "capacity", "data_fingerprint", "skeleton_fingerprint", "held_out")
OWNERS = {"incidence": "incidence.parquet", "secret_ids": "secrets.parquet: id", "prior": "secrets.parquet: prior",
          "ceiling": "secrets.parquet: ceiling"}  # fmt: skip

TAMPERINGS_PER_PLAN = 4
SIGNATURES = ("plan.sig", "certificate.sig")


def objections(case: Case, original: Path, found: Verification, own: dict[str, Any]) -> list[str]:
    """Why this folder must not pass; empty if what differs from the original does not matter."""
    plan = hush.Plan.load(case.plan_folder)
    problems = [f"secret {secret}: an attack reaches more than is stated" for secret in _refuted(plan)]
    for field in fields(hush.Plan):
        before, after = getattr(case.plan, field.name), getattr(plan, field.name)
        if not (np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after):
            problems += _about_field(field.name, case, plan, found, own)
    files = {path.relative_to(original) for path in every_file(original)}
    files |= {path.relative_to(case.root) for path in every_file(case.root)}
    for name in sorted(files):
        old, new = original / name, case.root / name
        if not (old.is_file() and new.is_file() and old.read_bytes() == new.read_bytes()):
            problems += _about_file(name, case, original, found, own)
    return problems


def _refuted(plan: hush.Plan) -> list[int]:
    """Secrets for which the explicit attack does better than the plan states."""
    refuted: list[int] = []
    for secret in range(plan.incidence.num_secrets):
        reached = hush.posterior(
            plan.rates[plan.incidence.examples_of(secret)],
            noise_multiplier=plan.noise_multiplier,
            rounds=plan.rounds,
            prior=plan.prior[secret],
            side="lower",
        )
        if np.any(reached > plan.posterior[secret] * (1 + ROUNDING)) or np.any(plan.posterior > plan.ceiling):
            refuted.append(secret)
    return refuted


def _about_field(name: str, case: Case, plan: hush.Plan, found: Verification, own: dict[str, Any]) -> list[str]:
    if "public_key" in own:
        return [f"{name} of the plan changed, and the key did not tell"]
    if name in UNPROVEN:
        value = getattr(plan, name)
        proven = value is None or (name == "capacity" and value == "none")
        said = proven or any(line.startswith(f"plan.json: {name} ") for line in found.unproven)
        return [] if said else [f"{name} changed and is not listed"]
    if name == "slots":
        stated = "plan.json: no slots, " if plan.slots is None else "slots.parquet: "
        listed = any(line.startswith(stated) for line in found.unproven)
        return (
            [] if listed and "slots" not in own else ["slots changed, though the owner's were given or are not listed"]
        )
    if name in OWNERS:
        given = "incidence" in own if name == "incidence" else "secrets" in own
        listed = any(line.startswith(OWNERS[name]) for line in found.unproven)
        return [] if listed and not given else [f"{name} changed, though the owner's was given or it is not listed"]
    if name == "binding":
        return _about_binding(plan)
    return []  # noise, rounds, batch, weights, bound, posteriors: the attack judges; a smaller promise may be stated


def _about_binding(plan: hush.Plan) -> list[str]:
    """A secret clearly binds if an attack breaks its promise with less noise; clearly not, far below its ceiling."""
    problems: list[str] = []
    for secret in range(plan.incidence.num_secrets):
        rates = plan.rates[plan.incidence.examples_of(secret)]
        ask: dict[str, Any] = {"rounds": plan.rounds, "prior": plan.prior[secret]}
        less = hush.posterior(rates, noise_multiplier=0.995 * plan.noise_multiplier, side="lower", **ask)
        upper = hush.posterior(rates, noise_multiplier=0.95 * plan.noise_multiplier, bound=plan.bound, **ask)
        listed = secret in plan.binding
        if not listed and np.any(less > 1.02 * plan.ceiling[secret]) and np.all(plan.prior[secret] > 1e-20):
            problems.append(f"secret {secret} binds and is not listed")
        if listed and np.all(upper < 0.5 * plan.ceiling[secret]):
            problems.append(f"secret {secret} is listed and does not bind")
    return problems


def _about_file(name: Path, case: Case, original: Path, found: Verification, own: dict[str, Any]) -> list[str]:
    inside = name.parts[1:] if case.released and name.parts[0] == "plan" else name.parts
    listed = any(line.split(" (")[0].rstrip("/") in (str(name), name.parts[0]) for line in found.unchecked)
    if case.released and name.parts[0] == "model":
        named = json.loads((case.root / "certificate.json").read_text())["fingerprints"]["model"]
        fits = named == folder_digest(case.root / "model")
        return [] if fits and "public_key" not in own else [f"{name} changed, and the key did not tell"]
    if inside[0] in ("plan.json", *TABLES, SLOTS_FILE):
        return []  # their fields were compared, and what else they hold is listed or of no effect
    if inside[0] in ("certificate.json", "certificate.md"):
        return _about_certificate(name, case, original, own)
    may_go = OPTIONAL_FILES.fullmatch(name.parts[0]) or (name.name in SIGNATURES and "public_key" not in own)
    gone = bool(may_go) and not (case.root / name).exists()  # it was listed while it was there
    return [] if listed or gone else [f"{name} changed and is not listed"]


def _about_certificate(name: Path, case: Case, original: Path, own: dict[str, Any]) -> list[str]:
    if name.suffix == ".md":
        page = Certificate.from_dict(json.loads((case.root / name.with_suffix(".json")).read_text())).to_markdown()
        return [] if (case.root / name).read_bytes() == page.encode() else [f"{name} says something else"]
    before = json.loads((original / name).read_text())
    after = json.loads((case.root / name).read_text())
    plan = hush.Plan.load(case.plan_folder)
    trained = after.get("trained_parameters")  # listed as stated, not proven; what follows from it is
    planned = (plan.certificate if trained is None else plan.run_certificate(trained)).to_dict()
    if trained is not None and not (plan.posterior_of_run(trained) <= plan.ceiling).all():
        return [f"{name}: a ceiling is passed"]
    problems: list[str] = []
    for field in before | after:
        stated, expected = after.get(field), json.loads(json.dumps(planned.get(field)))
        allowed = stated in (before.get(field), expected)
        if field == "curve" and planned[field].keys() == after[field].keys():
            points = [pair for key in planned[field]
                      for pair in zip(planned[field][key], after[field][key], strict=True)]  # fmt: skip
            allowed |= all(a[0] == b[0] and 1 - LARGER_CURVE <= b[1] / a[1] <= 1 + LARGER_CURVE for a, b in points)
        if field == "marks":  # a run may add one
            allowed |= after[field][: len(planned[field])] == list(planned[field])
        if field == "fingerprints":  # a run need not name the data, and names its model
            free = {"model", "data (keyed)", "skeletons (keyed)"}
            allowed |= all(planned[field].get(key) == value for key, value in after[field].items() if key not in free)
        if not allowed and field != "versions":
            problems.append(f"{name}: {field} changed")
    return problems if "public_key" not in own else [*problems, f"{name} changed, and the key did not tell"]


# The sweep.


def results_for(seed: int) -> list[dict[str, Any]]:
    """One plan or release, tampered with several times: make, tamper, verify, judge."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as temporary:
        case = make_case(rng, Path(temporary) / "case")
        honest = [] if hush.verify(case.root).passed else ["the honest folder failed"]
        original = Path(temporary) / "original"
        case.root.rename(original)
        results: list[dict[str, Any]] = []
        for _ in range(TAMPERINGS_PER_PLAN):
            shutil.rmtree(case.root, ignore_errors=True)
            shutil.copytree(original, case.root)
            kind, passed, problems = _tampered(rng, case, original)
            results.append(
                {
                    "seed": seed,
                    "kind": kind,
                    "released": case.released,
                    "passed": passed,
                    "problems": honest + problems,
                }
            )
    return results


def _tampered(rng: Rng, case: Case, original: Path) -> tuple[str, bool, list[str]]:
    names = list(TAMPERINGS)
    share = np.array([TAMPERINGS[name][0] for name in names])
    kind = names[int(rng.choice(len(names), p=share / share.sum()))]
    kind = TAMPERINGS[kind][1](rng, case) or kind
    own: dict[str, Any] = {}
    signed = any((original / name).is_file() for name in SIGNATURES)
    if signed and rng.random() < 0.5:
        own["public_key"] = case.public_key
    if rng.random() < 0.3:
        slots = Slots.none(case.plan.incidence) if case.plan.slots is None else case.plan.slots
        own |= {"incidence": case.plan.incidence, "secrets": case.secrets, "slots": slots}
    found = hush.verify(case.root, **own)  # whatever the folder holds, it answers
    return kind, found.passed, objections(case, original, found, own) if found.passed else []


def summary(results: list[dict[str, Any]], *, seed: int, seconds: float, command: str) -> dict[str, Any]:
    """What is recorded of a sweep."""
    made, passed = Counter(each["kind"] for each in results), Counter(r["kind"] for r in results if r["passed"])
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "hardware": f"{os.cpu_count()} × {platform.processor() or platform.machine()}, {platform.system()}",
        "versions": {"hush": hush.__version__, "python": platform.python_version(), "numpy": np.__version__},
        "seed": seed,
        "tampered": len(results),
        "plans and releases": len({each["seed"] for each in results}),
        "releases": sum(each["released"] for each in results),
        "failed verification": sum(not each["passed"] for each in results),
        "passed and does not matter": sum(each["passed"] and not each["problems"] for each in results),
        "passed and matters": sum(bool(each["problems"]) for each in results),
        "seconds": round(seconds, 1),
        "by kind": {kind: {"made": made[kind], "passed": passed[kind]} for kind in sorted(made)},
        "problems": [each for each in results if each["problems"]],
    }


def main() -> int:
    """Run the sweep, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=HERE / "results" / "tampering_sweep.json")
    arguments = parser.parse_args()

    def show(results: list[dict[str, Any]]) -> None:
        if results[-1]["problems"]:
            print(f"\n{results[-1]}", flush=True)
        if len(results) % 50 == 0:
            wrong = sum(bool(each["problems"]) for each in results)
            print(f"{len(results)}/{arguments.count}, {wrong} passed that matter", flush=True)

    begin, results, record = time.perf_counter(), list[dict[str, Any]](), dict[str, Any]()
    seeds = range(-(-arguments.count // TAMPERINGS_PER_PLAN))
    command = f"benchmarks/tampering_sweep.py --count {arguments.count} --seed {arguments.seed}"
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.workers) as pool:
        for several in pool.map(results_for, [arguments.seed * 1_000_000 + number for number in seeds]):
            for result in several:
                results.append(result)
                show(results)
            record = summary(results, seed=arguments.seed, seconds=time.perf_counter() - begin, command=command)
            arguments.output.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{record['passed and matters']} of {record['tampered']} matter; written to {arguments.output}")
    return 1 if record["passed and matters"] else 0


if __name__ == "__main__":
    sys.exit(main())
