"""What a run would do now, how large it is, and about how long it takes: nothing is written, and little is read.

What the run would refuse is refused here too, as far as little tells.

Times are guesses from counts and typical speeds of a laptop's processor; they are wrong by several times either way.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from hush.console import counted
from hush.keys import DataKey
from hush.run.config import Config, settings_shown_as_keys
from hush.run.folder import Record, RunPaths, StageName
from hush.run.job import Job, files_of
from hush.run.pipeline import Stage, check_since, inputs_of, key_path, may_train, run_folder, stages_of
from hush.run.preflight import check_beforehand
from hush.run.stage_train import earlier_trainings, is_further, training_folder

__all__ = ["Forecast", "forecast"]


State = Literal["done", "runs", "goes on", "depends", "refused", "depends, refused"]

# Per second, on a processor; orders of magnitude.
READ, SCANNED, PLANNED = 300e6, 3e6, 2e5  # bytes, bytes, pairs
FLOPS, FLOPS_GPU = 1e10, 3e13  # of a core, of a GPU, as training reaches them
SIMULATED = 2e6  # rounds of the mechanism
ROUND = 0.02  # seconds that a round takes besides


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Of one stage. seconds: a guess, or None.

    state "depends": it runs if an earlier one comes to something new. "refused": it would train on the same data once
    more, which has to be asked for; "depends, refused": if an earlier one comes to something new.
    """

    stage: StageName
    state: State
    size: str
    seconds: float | None


def forecast(
    config: Config,
    *,
    output: str | Path | None = None,
    since: StageName | None = None,
    new_release: bool = False,
) -> tuple[Forecast, ...]:
    """What ``run_pipeline`` would do with the same arguments, which refuses what this refuses."""
    paths = RunPaths(run_folder(config, output).resolve())
    paths.check()
    job = _job(config, paths, new_release)
    check_since(paths, None if job is None else job.record, since, new_release)
    if job is None or may_train(job):
        with settings_shown_as_keys():
            check_beforehand(config)
    files = [path for _, path in files_of(config.source, code=config.rules.about_code)]
    found: list[Forecast] = []
    again = False
    for stage in stages_of(config):
        again = again or stage.name == since
        state = _state(stage, job, [one for one in found if one.stage in stage.needs], again)
        size, seconds = _sizes(stage.name, config, job, files, state)
        found.append(Forecast(stage=stage.name, state=state, size=size, seconds=None if state == "done" else seconds))
    return tuple(found)


def _job(config: Config, paths: RunPaths, new_release: bool) -> Job | None:
    """The run as it stands; None where it has not begun."""
    path = key_path(config, paths)
    if not path.is_file() or not paths.stages.is_file():
        return None
    key = DataKey.load(path)
    record = Record.load(paths.stages, key.id)
    return Job(config=config, paths=paths, key=key, record=record, new_release=new_release)


def _state(stage: Stage, job: Job | None, needed: list[Forecast], again: bool) -> State:
    if job is None or again:
        return "runs"
    is_train = stage.name == "train"
    if any(one.state != "done" for one in needed):
        if stage.name not in job.record.stages:
            return "runs"
        refused = is_train and not job.new_release and earlier_trainings(job.paths, job.record)
        return "depends, refused" if refused else "depends"
    done = job.record.stages.get(stage.name)
    if done is not None and done.inputs == inputs_of(stage, job) and stage.is_there(job):
        return "done"
    if is_train and not job.new_release and is_further(job, training_folder(job)):
        return "refused"
    return "goes on" if is_train and _rounds_done(training_folder(job)) else "runs"


def _rounds_done(folder: Path) -> int:
    states = [re.fullmatch(r"round-(\d+)\.ckpt", path.name) for path in (folder / "owner" / "checkpoints").glob("*")]
    return max((int(found[1]) for found in states if found), default=0)


def _sizes(
    name: StageName, config: Config, job: Job | None, files: list[Path], state: State
) -> tuple[str, float | None]:
    size = sum(path.stat().st_size for path in files)
    known = {} if job is None else {stage: done.outputs for stage, done in job.record.stages.items()}
    plan, audit = config.plan, config.audit
    match name:
        case "data":
            if not files and not config.rules.about_code:
                return "a data set by name, not looked at", None
            return f"{counted(len(files), 'file')}, {size / 1e6:,.1f} MB", size / READ
        case "scan":
            rules = len(config.rules.rules)
            return counted(rules, "rule"), size * rules / SCANNED / config.data.workers if files else None
        case "canaries":
            planted = None if audit is None else audit.canaries
            return ("", None) if planted is None else (f"{planted.count} × {counted(planted.repeats, 'example')}", 1)
        case "plan":
            scan = known.get("scan")
            if scan is None:
                return f"{counted(plan.rounds, 'round')} of {plan.batch_size:g}", None
            said = f"{counted(scan['examples'], 'example')}, {counted(scan['secrets'], 'secret')}"
            return said, 2 + 20 * scan["pairs"] / PLANNED
        case "train":
            return _training(config, 0 if job is None or state != "goes on" else _rounds_done(training_folder(job)))
        case "audit":
            if audit is None:
                return "", None
            work = audit.secrets * audit.trials * plan.rounds / SIMULATED if "mechanism" in audit.attacks else 0
            return ", ".join(audit.attacks), 5 + work
        case "report":
            return "one page for you, one to share", 5


def _training(config: Config, begun: int) -> tuple[str, float | None]:
    """begun: rounds that are done already."""
    plan, training = config.plan, config.training
    parameters, length = _model(config)
    left = plan.rounds - begun
    said = f"{counted(plan.rounds, 'round')} of {plan.batch_size:g}" + (f", {begun:,} done" if begun else "")
    if parameters is None:
        return said, None
    tokens = min(training.max_length or 512, length or 512)
    speed = FLOPS_GPU if (training.device or "").startswith("cuda") else FLOPS * (os.cpu_count() or 1)
    work = 6 * parameters * tokens * plan.batch_size * left
    return f"{said}, {parameters / 1e6:,.1f} M parameters", left * ROUND + work / speed


def _model(config: Config) -> tuple[float | None, int | None]:
    """Parameters and length, as far as they are known without loading anything."""
    small = config.model.small
    if small is not None:
        return small.layers * 12 * small.width**2 + (258 + small.length) * small.width, small.length
    folder = Path(config.located(config.model.name or ""))
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors")) if folder.is_dir() else 0
    return (weights / 4 or None), None
