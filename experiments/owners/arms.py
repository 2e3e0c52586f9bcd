"""The arms: which method, under which promise, how far it gives data up for less noise, on which share of the data.

Three methods. ``bounding`` keeps at most so many abstracts of an author, the cap, and draws those alike; its noise is
from hush's tight bound, so only what is kept differs. ``hush`` has capacities from the accountant, at the same noise as
bounding with that cap: what is compared is the data kept. ``paper`` is the paper's program under its KL bound, at
strengths of 2^-cap of what keeps all. Level 0 keeps everything.
"""

import io
import json
import lzma
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import hush
from experiments.owners.data import kept_by_cap
from experiments.secret_words.arms import CLIP_NORM, PRIOR
from hush.plan.signal import plan_budget
from hush.weights.choose import make_chooser

__all__ = ["CAPS", "PAPER_STEPS", "SMALLER", "Arm", "Method", "Planned", "Promise", "all_arms", "make_plans"]

CEILING = 1e-3  # the one for all
CEILINGS = -4.0, -1.0  # decimal exponents between which those of a company lie
CAPS = 4, 8, 24
PAPER_STEPS = 3, 6, 9  # of the sweep c = 2^k of the paper
SMALLER = 4, 16  # one part in so many of the data
_STATED = ("noise_multiplier", "rounds", "batch_size", "clip_norm", "bound", "capacity", "weights_gap", "noise_scale",
           "created")  # fmt: skip

Method = Literal["hush", "bounding", "paper"]
Promise = Literal["one", "decades"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    method: Method
    level: int
    promise: Promise = "one"
    part: int = 1  # one part in so many of the abstracts

    @property
    def name(self) -> str:
        return f"{self.promise}-{self.method}-{self.level:02d}-of-{self.part}"

    def ceilings(self, secrets: int) -> NDArray[np.float64]:
        """The promises: one ceiling, or one for each owner, log-uniform over three decades."""
        if self.promise == "one":
            return np.full(secrets, CEILING)
        return 10.0 ** np.random.default_rng(0).uniform(*CEILINGS, secrets)


def all_arms() -> list[Arm]:
    """In the order of planning: what is planned in seconds first, and bounding before hush, which takes its noise."""
    promised: tuple[Promise, ...] = ("one", "decades")
    arms = [Arm(method="hush", level=0, promise=promise) for promise in promised]
    for method in ("bounding", "hush"):
        arms += [Arm(method=method, level=cap, promise=promise) for cap in CAPS for promise in promised]
    arms += [Arm(method="paper", level=step, promise=promise) for step in (0, *PAPER_STEPS) for promise in promised]
    smaller: tuple[tuple[Method, int], ...] = (
        ("hush", 0), ("bounding", CAPS[0]), ("hush", CAPS[0]), ("paper", PAPER_STEPS[-1])
    )  # fmt: skip
    return arms + [Arm(method=method, level=level, part=part) for part in SMALLER for method, level in smaller]


@dataclass(frozen=True, eq=False, kw_only=True)
class Planned:
    """The plan of an arm, and which rows of the training part it is about."""

    plan: hush.Plan
    rows: NDArray[np.int64]

    def save(self, stem: Path, **said: Any) -> None:
        """Without the graph, which all arms share: small enough to travel to another machine."""
        plan, raw = self.plan, io.BytesIO()
        np.savez(raw, rows=self.rows, weights=plan.weights, posterior=plan.posterior, binding=plan.binding)
        stem.with_suffix(".xz").write_bytes(lzma.compress(raw.getvalue()))
        stem.with_suffix(".json").write_text(
            json.dumps({name: getattr(plan, name) for name in _STATED} | record_of(plan) | said, indent=1) + "\n"
        )

    @classmethod
    def load(cls, stem: Path, arm: Arm, incidence: hush.Incidence) -> "Planned":
        """The same plan. ``hush.Plan`` refuses posteriors above their ceilings; ``hush.verify`` proves them again."""
        stated = json.loads(stem.with_suffix(".json").read_text())
        with np.load(io.BytesIO(lzma.decompress(stem.with_suffix(".xz").read_bytes()))) as stored:
            arrays = {name: stored[name] for name in ("weights", "posterior", "binding")}
            rows = stored["rows"]
        count = incidence.num_secrets
        ids = tuple(f"secret-{owner:06d}" for owner in range(count))
        plan = hush.Plan(
            incidence=incidence.select(examples=rows), secret_ids=ids,
            prior=np.full((count, 1), PRIOR), ceiling=arm.ceilings(count)[:, None], **arrays,
            **{name: stated[name] for name in _STATED},
        )  # fmt: skip
        return cls(plan=plan, rows=rows)


def record_of(plan: hush.Plan) -> dict[str, Any]:
    """What the study says of a plan: the data that is kept, and the forecast signal."""
    budget = plan_budget(plan).record()
    return {"effective_size": plan.effective_size, **{name: budget[name] for name in ("signal", "limit", "elbow")}}


def make_plans(incidence: hush.Incidence, folder: Path, *, batch_size: int, rounds: int) -> None:
    """Plan every arm that is not planned yet; a point that nothing feasible is left for only says so."""
    folder.mkdir(parents=True, exist_ok=True)
    for arm in all_arms():
        stem = folder / arm.name
        if stem.with_suffix(".json").exists():
            continue
        begin = time.perf_counter()
        try:
            planned = _planned(arm, incidence, folder, batch_size=batch_size, rounds=rounds)
        except hush.InfeasiblePlan as error:
            stem.with_suffix(".json").write_text(json.dumps({"infeasible": str(error)}) + "\n")
            continue
        weight = planned.plan.total_weight / (incidence.num_examples // arm.part)
        planned.save(
            stem, arm=asdict(arm), kept_weight=weight, examples=planned.plan.incidence.num_examples,
            seconds=round(time.perf_counter() - begin, 1),
        )  # fmt: skip
        print(f"{arm.name}: noise {planned.plan.noise_multiplier:.4g}, weight kept {weight:.1%}", flush=True)


def _planned(arm: Arm, incidence: hush.Incidence, folder: Path, *, batch_size: int, rounds: int) -> Planned:
    rows = np.arange(incidence.num_examples // arm.part)
    graph = incidence if arm.part == 1 else incidence.select(examples=rows)
    if arm.method == "bounding":
        rows = kept_by_cap(graph, arm.level)
        graph = graph.select(examples=rows)
    settings: dict[str, Any] = {
        "prior": PRIOR,
        "ceiling": arm.ceilings(incidence.num_secrets),
        "batch_size": batch_size,
        "rounds": rounds,
        "bound": "kl" if arm.method == "paper" else "blowup",
    }
    kinds: dict[str, Any] = {"capacity": "none"}
    if arm.method == "paper" and arm.level:
        largest = make_chooser(graph, **settings, tolerance=1e-4).strength_that_keeps_all
        kinds = {"capacity": "paper", "strength": largest * 2.0**-arm.level}
    elif arm.method == "hush" and arm.level:
        bounded = folder / Arm(method="bounding", level=arm.level, promise=arm.promise, part=arm.part).name
        noise = json.loads(bounded.with_suffix(".json").read_text()).get("noise_multiplier")
        if noise is None:
            raise hush.InfeasiblePlan("contribution bounding has no plan at this cap")
        kinds = {"capacity": "accounted", "noise_multiplier": noise}
    return Planned(plan=hush.make_plan(graph, **settings, **kinds, clip_norm=CLIP_NORM), rows=rows)
