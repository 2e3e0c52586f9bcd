"""Which setting of an arm is run with all seeds: the best of those tried, by the log alone."""

from typing import Any

import numpy as np

from experiments.code_base.arms import Arm
from experiments.code_base.scales import Setting
from experiments.runs import RunLog

__all__ = ["arm_key", "best_of", "final_key", "tuned", "tuning_key"]

Key = dict[str, Any]


def arm_key(scale: str, arm: Arm) -> Key:
    return {"scale": scale, "arm": arm.name, "noise_scale": arm.noise_scale}


def tuning_key(scale: str, arm: Arm, setting: Setting) -> Key:
    return {**arm_key(scale, arm), "tried": [setting.trained, setting.learning_rate]}


def final_key(scale: str, arm: Arm, setting: Setting, seed: int) -> Key:
    return {**arm_key(scale, arm), "chosen": [setting.trained, setting.learning_rate], "seed": seed}


def tuned(log: RunLog, arm: Arm) -> dict[Setting, float]:
    """Validation losses of the settings that were tried; one that diverged counts as infinite."""
    found: dict[Setting, float] = {}
    for entry in log.entries():
        key = entry["key"]
        if "tried" in key and (key["arm"], key["noise_scale"]) == (arm.name, arm.noise_scale):
            loss = float(entry["outcome"]["validation_loss"])
            trained, rate = key["tried"]
            found[Setting(trained=trained, learning_rate=rate)] = loss if np.isfinite(loss) else np.inf
    return found


def best_of(losses: dict[Setting, float]) -> Setting | None:
    return min(losses, key=losses.__getitem__, default=None)
