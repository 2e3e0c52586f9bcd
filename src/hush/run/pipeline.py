"""The stages of a run, declared in one table, and running those whose inputs changed.

The inputs of a stage are its settings, the results of the stages it needs, hush's version, and how often the owner
asked for it again; a fingerprint of them under the owner's key is recorded. Results count, not causes: a scan that
finds the same in changed files leads to the same plan.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from hush import __version__
from hush.data.text_readers import kind_of
from hush.errors import InvalidInput, Setting
from hush.keys import DataKey, check_key_apart
from hush.ledger import Ledger
from hush.plan.attest import attest
from hush.plan.attestations import ATTESTATIONS, MODEL_SIGNATURE
from hush.run.config import Config, settings_shown_as_keys
from hush.run.folder import (
    OLD_RELEASE,
    RELEASED_REPORT,
    RunPaths,
    RunRecord,
    is_published,
    load_or_create_key,
    open_run,
    publish,
    rename_old_release,
)
from hush.run.job import RunJob, StageWork, Together, Watch
from hush.run.preflight import preflight, signer_of
from hush.run.releases import check_apart, check_begins, enter_release, ledger_folder
from hush.run.stage_plan import PlanStage
from hush.run.stage_train import TrainStage, fit_job, training_folder
from hush.run.stages import AuditStage, CanariesStage, DataStage, ReportStage, ScanStage
from hush.run.trainings import check_further, earlier_trainings
from hush.storage import discard, whole_file, whole_folder

__all__ = [
    "STAGES",
    "Outcome",
    "Stage",
    "check_since",
    "inputs_of",
    "key_path",
    "may_train",
    "planned_run",
    "run_folder",
    "run_pipeline",
    "stages_from",
    "stages_of",
    "train_beside",
]


def _always(_: Config) -> bool:
    return True


def _has_audit(config: Config) -> bool:
    return config.audit is not None


def _has_canaries(config: Config) -> bool:
    return config.audit is not None and config.audit.canaries is not None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A row of the table of stages.

    name: in stages.json and for ``hush run --from``. needs: stages whose results are among its inputs, if the config
    asks for them. doing: what is shown while it runs. work: what it does. is_asked: whether a config asks for it.
    version: the version of hush that is among its inputs.
    """

    name: str
    needs: tuple[str, ...]
    doing: str
    work: StageWork
    is_asked: Callable[[Config], bool] = _always
    version: str | None = __version__


# In order. A newer hush does not by itself draw other canaries or train again, which would be another release of the
# same data; the version that 0.1.0 recorded stays among the inputs of the canaries, so that its runs are recognised.
STAGES = (
    Stage(name="data", needs=(), doing="Reading the data", work=DataStage()),
    Stage(name="scan", needs=("data",), doing="Looking for secrets", work=ScanStage()),
    Stage(
        name="canaries",
        needs=("scan",),
        doing="Planting canaries",
        work=CanariesStage(),
        is_asked=_has_canaries,
        version="0.1.0",
    ),
    Stage(name="plan", needs=("scan", "canaries"), doing="Planning", work=PlanStage()),
    Stage(name="train", needs=("plan",), doing="Training", work=TrainStage(), version=None),
    Stage(
        name="audit",
        needs=("scan", "canaries", "plan", "train"),
        doing="Attacking the model",
        work=AuditStage(),
        is_asked=_has_audit,
    ),
    Stage(
        name="report",
        needs=("scan", "canaries", "plan", "train", "audit"),
        doing="Writing the report",
        work=ReportStage(),
    ),
)


def stages_of(config: Config) -> tuple[Stage, ...]:
    """The stages that a config asks for, in order."""
    return tuple(stage for stage in STAGES if stage.is_asked(config))


def stages_from(since: str) -> list[str]:
    """The names of a stage and all later ones, whether or not a config asks for them."""
    names = [stage.name for stage in STAGES]
    if since not in names:
        raise InvalidInput(f"pass one of {', '.join(names)}", setting="since", value=since)
    return names[names.index(since) :]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run. ran: the stages that ran now; the results of the others were kept."""

    folder: Path
    ran: tuple[str, ...]
    outputs: dict[str, dict[str, Any]]

    @property
    def verdict(self) -> str | None:
        """The verdict of the audit; None without one."""
        return self.outputs["audit"]["verdict"] if "audit" in self.outputs else None


def run_pipeline(
    config: Config,
    *,
    output: str | Path | None = None,
    since: str | None = None,
    new_release: bool = False,
    watch: Watch | None = None,
    together: Together | None = None,
) -> Outcome:
    """Run every stage whose inputs changed, in the folder of a run; an unfinished stage resumes.

    output: the folder of the run, by default as the config says. since: run this stage and all later ones again.
    new_release: allow a further training on the same data. together: calls other processes for the training, each of
    which does ``train_beside``; all else is done by this one.

    Guarantee: safe to kill. Started again, it arrives at the same plan and at one training of it. Only release/ is
    meant to leave; it appears at the end and as a whole, unless the audit failed.
    """
    with settings_shown_as_keys(), open_run(run_folder(config, output)) as paths:
        key = _open_key(config, paths)
        record = RunRecord.load(paths.stages, key.id)
        job = RunJob(
            config=config, paths=paths, key=key, record=record, watch=watch or Watch(), new_release=new_release
        )
        if together is not None:
            job = replace(job, together=together)
        if rename_old_release(paths):
            job.watch.notice(f"{OLD_RELEASE}/, which hush 0.1.0 wrote, is now called release/; nothing in it changed")
        inputs = _input_files(config)
        check_since(config, paths, record, since, new_release)
        check_begins(config, paths, new_release)
        if may_train(job):
            preflight(config)
        if since is not None:
            record.repeat(stages_from(since))
        ran = tuple(stage.name for stage in stages_of(config) if _run_if_changed(stage, job))
        _save_inputs(paths.inputs, inputs)  # only now: the inputs of a run that is refused replace nothing
        outputs = {stage.name: dict(record.stages[stage.name].outputs) for stage in stages_of(config)}
        outcome = Outcome(folder=paths.root, ran=ran, outputs=outputs)
        released, report = training_folder(job) / "release", paths.owner / RELEASED_REPORT
        if outcome.verdict == "failed":
            discard(paths.release)
        else:
            if not is_published(paths, released, report):
                publish(paths, released, report)
            enter_release(job)
            _attest(config, paths)
        return outcome


def _attest(config: Config, paths: RunPaths) -> None:
    """Sign the release as the config says; signatures that are there stay, since they are of the same certificate."""
    if config.attest is None or all((paths.release / name).is_file() for name in (MODEL_SIGNATURE, ATTESTATIONS)):
        return
    signer = signer_of(config.attest, config.located)
    attest(
        paths.release,
        private_key=signer.private_key,
        certificate=signer.certificate,
        chain=signer.chain,
        force=True,  # a run that was killed here has left one of the two
    )


def train_beside(config: Config, *, output: str | Path | None = None, stop: Callable[[], bool]) -> None:
    """Take part, as another process, in the training that ``run_pipeline`` does in the first one.

    It reads the folder of the run, which it must see under the same path, and writes nothing into it.
    """
    with settings_shown_as_keys():
        paths = RunPaths(run_folder(config, output).resolve())
        if not paths.stages.is_file():
            raise InvalidInput(
                f"{paths.root} holds no run here, but the first process has planned one there; with several processes "
                "each must see the config, the data and the folder of the run under the same paths"
            )
        key = DataKey.load(key_path(config, paths))
        record = RunRecord.load(paths.stages, key.id)
        job = RunJob(config=config, paths=paths, key=key, record=record)
        fit_job(job, training_folder(job), stop=stop)


@contextmanager
def planned_run(config: Config, *, output: str | Path | None = None, watch: Watch | None = None) -> Iterator[RunJob]:
    """A run whose stages up to the plan are done, in its folder, which is locked meanwhile; nothing is trained."""
    with settings_shown_as_keys(), open_run(run_folder(config, output)) as paths:
        key = _open_key(config, paths)
        record = RunRecord.load(paths.stages, key.id)
        is_next = config.releases is not None  # a plan of a chain may be the next one: nothing is entered here
        job = RunJob(config=config, paths=paths, key=key, record=record, watch=watch or Watch(), new_release=is_next)
        preflight(config)
        for stage in stages_of(config):
            _run_if_changed(stage, job)
            if stage.name == "plan":
                break
        yield job


def _run_if_changed(stage: Stage, job: RunJob) -> bool:
    """Run a stage, unless it finished under the same inputs and its results are there; returns whether it ran."""
    inputs = inputs_of(stage, job)
    finished = job.record.stages.get(stage.name)
    if finished is not None and finished.inputs == inputs and stage.work.has_results(job):
        job.watch.stage(stage.name, "kept")
        return False
    job.watch.stage(stage.name, "begins")
    job.record.finish(stage.name, inputs, stage.work.run(job))
    return True


def inputs_of(stage: Stage, job: RunJob) -> str:
    """The fingerprint of everything that the results of a stage depend on."""
    asked = {other.name for other in stages_of(job.config)}
    needed = [job.outputs(name)["fingerprint"] if name in asked else None for name in stage.needs]
    attempt = job.record.attempts.get(stage.name, 0)
    return job.fingerprint(stage.name, stage.version, stage.work.settings(job), needed, attempt)


def may_train(job: RunJob) -> bool:
    """Whether the run may start a training: its first, or a further one that the owner asked for."""
    return job.new_release or "train" not in job.record.stages


def check_since(config: Config, paths: RunPaths, record: RunRecord | None, since: str | None, asked: bool) -> None:
    """Refuse to repeat a finished training, or a stage before it, unless the owner asked for a further training."""
    if since is not None and "train" in stages_from(since):
        check_further(earlier_trainings(paths, record), asked, chained=config.releases is not None)


def run_folder(config: Config, output: str | Path | None) -> Path:
    """The folder of a run: ``output``, or what the config says."""
    folder = config.output if output is None else Path(output)
    if folder is None:
        raise InvalidInput(
            "nothing says where the run goes; add output: FOLDER to the config, or pass ", Setting("output")
        )
    source = Path(config.source)
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise InvalidInput(f"{folder} lies inside the data, {source}; name a folder for the run elsewhere")
    check_apart(config, RunPaths(folder))
    key = key_path(config, RunPaths(folder))
    read_as_data = config.about_code or kind_of(key) is not None  # a scan of code reads files of any name
    check_key_apart(key, config.source, read_as_data=read_as_data)
    return folder


def key_path(config: Config, paths: RunPaths) -> Path:
    """The path of the key: as the config says, or in the ledger, or among the owner's files."""
    named, ledger = config.data.key, ledger_folder(config)
    if named is not None:
        return config.folder / Path(named).expanduser()
    return paths.owner / "data.key" if ledger is None else Ledger.key_path(ledger)


def _open_key(config: Config, paths: RunPaths) -> DataKey:
    """The key of the run, created on first use, with which its ledger must have been made."""
    path, ledger = key_path(config, paths), ledger_folder(config)
    return load_or_create_key(path) if ledger is None else Ledger.with_key(ledger, path)[1]


def _input_files(config: Config) -> dict[str, bytes]:
    """The config and the files that it names, as they are now."""
    files = {"config.yaml": config.text}
    if config.rules_path is not None:
        files["rules.yaml"] = config.rules_path.read_bytes()
    for number, rule in enumerate(config.rules.rules):
        for place, (_, path) in enumerate(config.rules.files(rule)):
            extended = f"-extended-{place}" if place else ""
            files[f"{rule.find}-{number}{extended}{path.suffix}"] = path.read_bytes()
    return files


def _save_inputs(folder: Path, files: dict[str, bytes]) -> None:
    """Keep a copy of the inputs, so that the run can be repeated."""
    if folder.is_dir() and {path.name: path.read_bytes() for path in folder.iterdir()} == files:
        return
    with whole_folder(folder) as work:
        work.chmod(0o700)
        for name, content in files.items():
            with whole_file(work / name, owner_only=True) as file:
                file.write(content)
