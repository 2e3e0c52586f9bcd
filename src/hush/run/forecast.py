"""What a run would do now, how large it is, and about how long it takes; it writes nothing and reads little.

It refuses what the run would refuse, as far as that shows without running a stage. Times are forecasts from counts and
the speeds of :mod:`hush.run.estimates`.
"""

import re
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, final

from hush.keys import DataKey
from hush.run.config import Config, settings_shown_as_keys, shown_sizes
from hush.run.estimates import LIBRARIES_SECONDS
from hush.run.folder import RunPaths, RunRecord
from hush.run.job import Estimate, Known, RunJob, files_of, read_source
from hush.run.outlook import proposed_outlook
from hush.run.pipeline import Stage, check_since, inputs_of, key_path, may_train, run_folder, stages_from, stages_of
from hush.run.preflight import is_local, preflight
from hush.run.releases import check_begins, has_releases, is_further, left_in_ledger
from hush.run.stage_train import training_folder
from hush.run.stage_train import why_no_rounds as stated_no_rounds
from hush.run.trainings import earlier_trainings
from hush.settings import AUTO
from hush.train.settings import DEFAULT_MAX_TOKENS

__all__ = ["DryRun", "Forecast", "dry_run", "forecast"]


MAX_LOOKED_AT = 200  # texts, for a first look at how long they are

State = Literal["done", "runs", "goes on", "depends", "refused", "depends, refused"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run would do with one stage. seconds: an estimate, or None. caution: what the owner should know before.

    state "depends": it runs if the results of an earlier stage change. "refused": it would train on the same data once
    more, which the owner has to ask for; "depends, refused": so if the results of an earlier stage change.
    """

    stage: str
    state: State
    size: str
    seconds: float | None
    caution: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a run would do with each stage, and what it could teach.

    outlook: the record of :class:`hush.plan.signal.Outlook`: of the plan if there is one, else a forecast from the
    scan; None before the scan. releases: what the ledger says, if the config names one: how many releases of how many
    have begun, and what the secrets of the last one have left.
    """

    stages: tuple[Forecast, ...]
    outlook: dict[str, Any] | None
    releases: dict[str, Any] | None = None


def forecast(
    config: Config,
    *,
    output: str | Path | None = None,
    since: str | None = None,
    new_release: bool = False,
) -> tuple[Forecast, ...]:
    """What ``run_pipeline`` would do with the same arguments, which refuses what this refuses."""
    return dry_run(config, output=output, since=since, new_release=new_release).stages


def dry_run(
    config: Config,
    *,
    output: str | Path | None = None,
    since: str | None = None,
    new_release: bool = False,
) -> DryRun:
    """As ``forecast``, with what the run could teach its model."""
    paths = RunPaths(run_folder(config, output).resolve())
    paths.check()
    job = _job(config, paths, new_release)
    check_since(config, paths, None if job is None else job.record, since, new_release)
    check_begins(config, paths, new_release)
    unread = ""
    if job is None or may_train(job):
        with settings_shown_as_keys():
            preflight(config, quickly=True)
            unread = _unread(config)
    known, repeated = _known(config, job), [] if since is None else stages_from(since)
    forecasts: list[Forecast] = []
    loads = False  # whether a stage before imports the libraries of training
    outlook: dict[str, Any] | None = None
    why_no_rounds = ""
    for stage in stages_of(config):
        needed = [other for other in forecasts if other.stage in stage.needs]
        state = _state(stage, job, needed, repeated=stage.name in repeated)
        if job is not None and state == "goes on":
            known = replace(known, rounds_done=_rounds_done(training_folder(job)))
        if stage.name == "plan" and job is not None:
            outlook = _outlook(job, state)
            why_no_rounds = "" if outlook is None else stated_no_rounds(job, outlook) or ""
            known = replace(known, config=_with_numbers(config, outlook, has_rounds=not why_no_rounds))
        size, seconds = _estimate(stage, known)
        seconds = None if state == "done" else seconds
        if seconds is not None and stage.name != "data" and not loads:
            seconds, loads = seconds + LIBRARIES_SECONDS, True
        caution = ""
        if stage.name == "train":
            caution = " ".join(filter(None, (unread, "" if state == "done" else why_no_rounds)))
        forecasts.append(Forecast(stage=stage.name, state=state, size=size, seconds=seconds, caution=caution))
    return DryRun(stages=tuple(forecasts), outlook=outlook, releases=left_in_ledger(config))


def _outlook(job: RunJob, state: State) -> dict[str, Any] | None:
    """The record of what can be learnt: as the plan's stage kept it, or a forecast from the scan as it stands."""
    kept = job.outputs("plan").get("outlook") if state == "done" else None
    if kept is not None:
        return {name: value for name, value in kept.items() if name != "inputs"}
    proposed = proposed_outlook(job)
    return None if proposed is None else proposed.record()


def _with_numbers(config: Config, outlook: dict[str, Any] | None, *, has_rounds: bool) -> Config:
    """The config with numbers in place of ``auto``, where they are known, and without rounds that are not trained."""
    if outlook is None:
        return config
    numbers = {name: outlook[name] for name in ("batch_size", "rounds") if getattr(config.plan, name) == AUTO}
    training = config.training.model_copy(update={"private_part": has_rounds})
    return replace(config, plan=config.plan.model_copy(update=numbers), training=training)


def _estimate(stage: Stage, known: Known) -> Estimate:
    """How large a stage is, unless that is chosen after the scan."""
    plan = known.config.plan
    if stage.name in ("plan", "train") and AUTO in (plan.batch_size, plan.rounds):
        return Estimate(f"{shown_sizes(plan.batch_size, plan.rounds)}, chosen after the scan", None)
    return stage.work.estimate(known)


def _unread(config: Config) -> str:
    """What the model would not read of the first texts, if they are cut to its length; empty if that is nothing."""
    if config.rules.file.chunks is not None or config.about_code or not is_local(config.source):
        return ""
    from hush.scan.long_texts.unread import Unread, characters_read

    data, training, small = config.data, config.training, config.model.small
    corpus = read_source(config)
    blocks = (block for shard in corpus.shards() for block in shard.blocks(skip_bad=data.skip_bad))
    texts = list(islice((text for block in blocks for text in block.strings), MAX_LOOKED_AT))
    if small is not None:  # it reads bytes, and may not exist yet
        length = training.max_length or min(DEFAULT_MAX_TOKENS, small.length)
        reads = [len(text.encode()[:length].decode(errors="ignore")) for text in texts]
    else:
        from hush.train.pretrained import model_metadata

        metadata = model_metadata(
            config.located(config.model.name or ""), task=training.task, max_length=training.max_length
        )
        if not metadata.tokenizer.is_fast:
            return ""
        length, reads = metadata.max_length, characters_read(metadata.tokenizer, texts, metadata.max_length)
    said = Unread.of(list(map(len, texts)), reads).sentence(length)
    return said and f"of the first texts, {said}"


def _job(config: Config, paths: RunPaths, new_release: bool) -> RunJob | None:
    """The run as it stands; None where it has not begun."""
    path = key_path(config, paths)
    if not path.is_file() or not paths.stages.is_file():
        return None
    key = DataKey.load(path)
    record = RunRecord.load(paths.stages, key.id)
    return RunJob(config=config, paths=paths, key=key, record=record, new_release=new_release)


def _known(config: Config, job: RunJob | None) -> Known:
    files = [path for _, path in files_of(config.source, code=config.about_code)]
    outputs = {} if job is None else {name: finished.outputs for name, finished in job.record.stages.items()}
    size = sum(path.stat().st_size for path in files)
    return Known(config=config, files=len(files), bytes=size, outputs=outputs, rounds_done=0)


def _state(stage: Stage, job: RunJob | None, needed: list[Forecast], *, repeated: bool) -> State:
    if job is None or repeated:
        return "runs"
    is_train = stage.name == "train"
    is_next = stage.name == "plan" and not job.new_release and has_releases(job.config)  # a plan of another release
    finished = job.record.stages.get(stage.name)
    if any(other.state != "done" for other in needed):
        if finished is None:
            return "runs"
        refused = is_train and not job.new_release and earlier_trainings(job.paths, job.record)
        return "depends, refused" if refused or is_next else "depends"
    if finished is not None and finished.inputs == inputs_of(stage, job) and stage.work.has_results(job):
        return "done"
    if is_next or (is_train and not job.new_release and is_further(job, training_folder(job))):
        return "refused"
    return "goes on" if is_train and _rounds_done(training_folder(job)) else "runs"


def _rounds_done(folder: Path) -> int:
    """The round of the newest checkpoint of a training; 0 without one."""
    names = [re.fullmatch(r"round-(\d+)\.ckpt", path.name) for path in (folder / "owner" / "checkpoints").glob("*")]
    return max((int(name[1]) for name in names if name), default=0)
