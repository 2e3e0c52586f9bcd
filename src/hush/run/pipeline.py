"""The whole way, stage by stage: a stage whose inputs are those of its last time is not done again.

The inputs of a stage are its settings, the outcomes of the stages that it needs, hush's version, and how often it was
asked for again; of all these a fingerprint under the owner's key is kept. Outcomes count, not causes: a scan that finds
the same in other files leads to no other plan.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from hush import __version__
from hush.data.text_readers import kind_of
from hush.errors import InvalidInput
from hush.keys import check_key_apart
from hush.run.config import Config, settings_shown_as_keys
from hush.run.folder import (
    SHARED_REPORT,
    STAGES,
    Record,
    RunPaths,
    StageName,
    discard,
    is_published,
    key_at,
    opened,
    publish,
)
from hush.run.job import DataStage, Job, Watch
from hush.run.preflight import check_beforehand
from hush.run.stage_train import TrainStage, check_further, earlier_trainings, training_folder
from hush.run.stages import AuditStage, CanariesStage, PlanStage, ReportStage, ScanStage
from hush.scan.rules.schema import LiteralsRule
from hush.storage import whole_file, whole_folder

__all__ = [
    "Outcome",
    "Stage",
    "check_since",
    "inputs_of",
    "key_path",
    "may_train",
    "run_folder",
    "run_pipeline",
    "stages_of",
]


# A newer hush does not train again by itself: another model of the same data would be another release.
WITHOUT_VERSION: tuple[StageName, ...] = ("train",)


class Stage(Protocol):
    """A step of the way. settings: what its outcome depends on besides the stages that it needs."""

    name: StageName
    needs: tuple[StageName, ...]

    def settings(self, job: Job) -> Any: ...

    def run(self, job: Job) -> dict[str, Any]: ...

    def is_there(self, job: Job) -> bool: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run. ran: the stages that were done now; the others were as they are."""

    folder: Path
    ran: tuple[StageName, ...]
    outputs: dict[str, dict[str, Any]]

    @property
    def verdict(self) -> str | None:
        """Of the audit; None without one."""
        return self.outputs["audit"]["verdict"] if "audit" in self.outputs else None


def run_pipeline(
    config: Config,
    *,
    output: str | Path | None = None,
    since: StageName | None = None,
    new_release: bool = False,
    watch: Watch | None = None,
) -> Outcome:
    """Run every stage that has not been run with these inputs, in the folder of a run; unfinished work goes on.

    since: do this stage and all later ones again. new_release: also where that trains on the same data once more.

    Guarantee: killed at any moment and started again, it comes to the same plan, and to one training of it. Only what
    lies in share/ is meant to leave; it appears at the end and as a whole, unless the audit failed.
    """
    with settings_shown_as_keys(), opened(run_folder(config, output)) as paths:
        key = key_at(key_path(config, paths))
        record = Record.load(paths.stages, key.id)
        job = Job(config=config, paths=paths, key=key, record=record, watch=watch or Watch(), new_release=new_release)
        stated = _stated(config)
        check_since(paths, record, since, new_release)
        if may_train(job):
            check_beforehand(config)
        if since is not None:
            record.again(since)
        ran: list[StageName] = []
        for stage in stages_of(config):
            inputs = inputs_of(stage, job)
            done = record.stages.get(stage.name)
            if done is not None and done.inputs == inputs and stage.is_there(job):
                job.watch.stage(stage.name, "kept")
                continue
            job.watch.stage(stage.name, "begins")
            record.finish(stage.name, inputs, stage.run(job))
            ran.append(stage.name)
        _keep_inputs(paths.inputs, stated)  # now all is done under them; those of a run that is refused replace nothing
        outputs = {stage.name: dict(record.stages[stage.name].outputs) for stage in stages_of(config)}
        made = Outcome(folder=paths.root, ran=tuple(ran), outputs=outputs)
        release, report = training_folder(job) / "release", paths.owner / SHARED_REPORT
        if made.verdict == "failed":
            discard(paths.share)
        elif not is_published(paths, release, report):
            publish(paths, release, report)
        return made


def may_train(job: Job) -> bool:
    """Whether the run may come to a training: to its first, or to a further one, which has to be asked for."""
    return job.new_release or "train" not in job.record.stages


def check_since(paths: RunPaths, record: Record | None, since: StageName | None, new_release: bool) -> None:
    """Refuse to begin again before a training that is finished, unless a further one was asked for."""
    if since is not None and STAGES.index(since) <= STAGES.index("train"):
        check_further(earlier_trainings(paths, record), new_release)


def stages_of(config: Config) -> tuple[Stage, ...]:
    """Those that the config asks for, in order."""
    audit = config.audit
    stages: list[Stage] = [DataStage(), ScanStage(), PlanStage(), TrainStage(), ReportStage()]
    if audit is not None:
        stages.insert(4, AuditStage())
        if audit.canaries is not None:
            stages.insert(2, CanariesStage())
    return tuple(stages)


def inputs_of(stage: Stage, job: Job) -> str:
    """The fingerprint of everything that a stage depends on."""
    asked = {one.name for one in stages_of(job.config)}
    needed = [job.outputs(name)["fingerprint"] if name in asked else None for name in stage.needs]
    version = None if stage.name in WITHOUT_VERSION else __version__
    attempt = job.record.attempts.get(stage.name, 0)
    return job.fingerprint(stage.name, version, stage.settings(job), needed, attempt)


def run_folder(config: Config, output: str | Path | None) -> Path:
    """Where a run goes: what was asked for, or what the config says."""
    folder = config.output if output is None else Path(output)
    if folder is None:
        raise InvalidInput("nothing says where the run goes; add output: FOLDER to the config, or pass --output FOLDER")
    source = Path(config.source)
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise InvalidInput(f"{folder} lies inside the data, {source}; name a folder for the run elsewhere")
    key = key_path(config, RunPaths(folder))
    read_as_data = config.rules.about_code or kind_of(key) is not None  # a scan of code reads files of any name
    check_key_apart(key, config.source, read_as_data=read_as_data)
    return folder


def key_path(config: Config, paths: RunPaths) -> Path:
    """Where the key lies: as the config says, or with the owner's files."""
    named = config.data.key
    return paths.owner / "data.key" if named is None else config.folder / Path(named).expanduser()


def _stated(config: Config) -> dict[str, bytes]:
    """The config and the files that it names, as they are now."""
    files = {"config.yaml": config.text}
    if config.rules_path is not None:
        files["rules.yaml"] = config.rules_path.read_bytes()
    for number, rule in enumerate(config.rules.rules):
        if isinstance(rule, LiteralsRule) and rule.file is not None:
            path = config.rules.path(rule.file)
            files[f"literals-{number}{path.suffix}"] = path.read_bytes()
    return files


def _keep_inputs(folder: Path, files: dict[str, bytes]) -> None:
    """A copy of what was asked for, so that the run can be repeated."""
    if folder.is_dir() and {path.name: path.read_bytes() for path in folder.iterdir()} == files:
        return
    with whole_folder(folder) as work:
        work.chmod(0o700)
        for name, content in files.items():
            with whole_file(work / name, owner_only=True) as file:
                file.write(content)
