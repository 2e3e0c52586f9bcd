"""The runs of the study, one after the other, each written as it ends: settings tried for every arm alike, then seeds.

A run needs the prepared folder and nothing else: no network, no planner, no code base.
"""

import json
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from experiments.code_base.arms import ARMS, Arm
from experiments.code_base.measures import Measures
from experiments.code_base.prepared import Prepared
from experiments.code_base.scales import Setting, Trained
from experiments.code_base.tables import base_of
from experiments.code_base.training import Learner, Table, make_model
from experiments.code_base.tuning import best_of, final_key, tuned, tuning_key
from experiments.runs import RunLog
from hush.errors import InvalidInput

__all__ = ["run_study"]


def run_study(
    prepared: Prepared, output: Path, *, minutes: float | None = None, compile: bool = True, device: str | None = None
) -> RunLog:
    """Train and measure everything that the log does not hold yet. A log of runs on other code is refused."""
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    compiled = compile and place.type == "cuda"
    log = RunLog(output / "runs.jsonl", minutes=minutes)
    _check_same_code(prepared, log)
    if place.type == "cuda":
        torch.set_float32_matmul_precision("high")
    learner = Learner(model=make_model(prepared.scale, place), scale=prepared.scale, compile=compiled)
    table = Table(prepared.trained, place)
    _pretrain(prepared, learner)
    measures = Measures.of(prepared, learner.model)
    study = _Study(prepared, learner, table, measures, log)
    log.run({"scale": prepared.scale.name, "arm": "base"}, lambda: study.base())
    real = tuple(arm for arm in ARMS if arm.noise_scale == 1)
    for arms in (real, tuple(arm for arm in ARMS if arm not in real)):  # simulations last, should time run out
        for arm in arms:
            study.tune(arm)
        for seed in range(prepared.scale.seeds):  # every arm once, then again: a study cut short compares all of them
            for arm in arms:
                study.repeat(arm, seed)
    return log


def _check_same_code(prepared: Prepared, log: RunLog) -> None:
    """A run's key does not say on which code base it was; the facts that the first run keeps do."""
    base = base_of(log)
    if base is not None and base["outcome"]["facts"] != json.loads(json.dumps(dict(prepared.facts))):
        raise InvalidInput(f"{log.path} holds runs on another code base; name another folder by --output")


def _pretrain(prepared: Prepared, learner: Learner) -> None:
    """The base model, of public code. It is made again by each call, from the same seed: that is faster than moving."""
    scale = prepared.scale
    begin = time.perf_counter()
    public = Table(prepared.public, learner.device)
    learner.plain(
        public, np.arange(len(public)), steps=scale.base_steps, batch=scale.base_batch, rate=scale.base_rate, seed=0
    )
    learner.keep_as_start()
    print(f"base model: {scale.base_steps} steps, {time.perf_counter() - begin:.0f} s", flush=True)


class _Study:
    def __init__(self, prepared: Prepared, learner: Learner, table: Table, measures: Measures, log: RunLog) -> None:
        self.prepared, self.learner, self.table, self.measures, self.log = prepared, learner, table, measures, log

    def base(self) -> dict[str, Any]:
        """Of the model that all arms begin with; prepared facts go along, so that figures need the log alone."""
        self.learner.put_back()
        scale = self.prepared.scale
        return {
            **self.measures.everything(),
            "facts": dict(self.prepared.facts),
            "parameters": sum(p.numel() for p in self.learner.model.parameters()),
            "few": sum(p.numel() for p in self.learner.model.parameters() if p.ndim == 1),
            "batch_size": scale.batch_size,
            "rounds": scale.rounds,
            "clip_norm": scale.clip_norm,
            "canary": {"prior": self.prepared.candidates.prior, "examples": scale.repeats},
        }

    def tune(self, arm: Arm) -> None:
        """One run of each setting; only its validation loss is looked at."""
        if arm.after is not None and self._best(arm.after) is None:
            return
        for setting in self.prepared.scale.tried:

            def work(setting: Setting = setting) -> dict[str, Any]:
                self._train(arm, setting, seed=-1)
                return {"validation_loss": self.measures.validation_loss()}

            self.log.run(tuning_key(self.prepared.scale.name, arm, setting), work)

    def repeat(self, arm: Arm, seed: int) -> None:
        setting = self._best(arm)
        if setting is None:
            return

        def work() -> dict[str, Any]:
            seconds = self._train(arm, setting, seed=seed)
            return {
                **self.measures.everything(),
                **self._promise(arm),
                "trained": setting.trained,
                "learning_rate": setting.learning_rate,
                "training_seconds": round(seconds, 2),
            }

        self.log.run(final_key(self.prepared.scale.name, arm, setting, seed), work)

    def _best(self, arm: Arm) -> Setting | None:
        """Of those tried; None while any is missing."""
        losses = tuned(self.log, arm)
        if not losses.keys() >= set(self.prepared.scale.tried):
            return None
        return best_of({setting: losses[setting] for setting in self.prepared.scale.tried})

    def _train(self, arm: Arm, setting: Setting, *, seed: int) -> float:
        """Seconds that it took. Under a plan there is no seed: draws and noise are the system's. A second training on
        the same examples takes them in another order."""
        scale = self.prepared.scale
        begin = time.perf_counter()
        if arm.after is None:
            self.learner.put_back()
        else:
            first = self._best(arm.after)
            assert first is not None  # noqa: S101 - tune() has seen to it
            self._train(arm.after, first, seed=seed)
        self.learner.choose(cast(Trained, setting.trained))
        if arm.plan is None:
            examples = self.prepared.free_N if arm.data == "without secrets" else np.arange(len(self.table))
            steps = scale.rounds * scale.batch_size // scale.plain_batch
            order = seed + 1 if arm.after is None else seed + 1001
            self.learner.plain(
                self.table, examples, steps=steps, batch=scale.plain_batch, rate=setting.learning_rate, seed=order
            )
        else:
            self.learner.private(self.table, _scaled(self.prepared, arm), setting)
        if self.learner.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def _promise(self, arm: Arm) -> dict[str, Any]:
        """What the plan says: the noise that was added, what is kept, and the certified posteriors."""
        if arm.plan is None:
            return {"noise_multiplier": 0.0, "certified": False}
        from hush.report.numbers import kept_weight

        plan = _scaled(self.prepared, arm)
        canaries = [number for number, name in enumerate(plan.secret_ids) if name.startswith("canary-")]
        return {
            "noise_multiplier": plan.training_noise_multiplier,
            "certified": plan.certificate.is_real,
            "kept_weight": kept_weight(plan),
            "kept_fraction": plan.kept_fraction,
            "largest_posterior": float(plan.posterior.max()),
            "largest_share_of_ceiling": float((plan.posterior / plan.ceiling).max()),
            "canary_posterior": float(plan.posterior[canaries].max()),
            "canary_ceiling": float(plan.ceiling[canaries].min()),
        }


def _scaled(prepared: Prepared, arm: Arm) -> Any:
    from dataclasses import replace

    plan = prepared.plans[arm.plan or ""]
    return plan if arm.noise_scale == 1 else replace(plan, noise_scale=arm.noise_scale)
