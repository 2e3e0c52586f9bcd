"""The folder of a run: what lies where, who may see it, and the record of finished stages.

release/            may leave the owner's hands; appears at the end, replaced as a whole
  plan/             the plan that the model was trained under
  model/            the trained model, with certificate.json and certificate.md beside it
  certificate.sig, model.sig, attestations.intoto.jsonl
                    signatures that the owner added; kept while the certificate stays the same (so is plan/plan.sig)
  evaluations.jsonl loss on held-out examples without secrets, if there are any
  report.html       without the audit, whose numbers come from data with secrets
  README.md         a model card: the promise, its limits, and what is what
owner/              must not leave: mode 0700
  inputs/           the config and the files it names, as they were for these results
  data.key          the key of fingerprints, unless the config names another
  scan/ canaries/ plan/ audit/ report.html
  rehearsal/        what hush rehearse found on public content: rehearsal.json, patch.yaml, forecast.svg
  training/ID/      one folder per training: checkpoints, losses, batch sizes, and what it released
stages.json         which stage is finished, under which inputs, with which results; for the owner

Guarantees: one process at a time writes to the folder. Everything appears whole or not at all, and what a killed
process left is cleared by the next one. stages.json holds private content only as fingerprints under the owner's key,
since a plain hash would let a reader test guesses. The times of files in release/ are the plan's: their own would tell
how long training took, and so how large its secret draws were.

hush 0.1.0 named release/ share/. Such a folder is read under both names, and renamed by the next ``hush run``.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self, final

from hush.console import plain
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan.attestations import ATTESTATIONS, MODEL_SIGNATURE
from hush.plan.files import FILES, RELEASE_SIGNATURE, RELEASES, SIGNATURE, is_release, read_record
from hush.storage import (
    FolderLock,
    clear_leftovers,
    flush,
    is_leftover,
    read_json,
    readable_like_folder,
    whole_file,
    whole_folder,
)

__all__ = [
    "OLD_RELEASE",
    "RELEASED_REPORT",
    "FinishedStage",
    "RunPaths",
    "RunRecord",
    "is_published",
    "load_or_create_key",
    "locate_plan",
    "locate_training",
    "locate_verifiable",
    "open_run",
    "publish",
    "rename_old_release",
]


OLD_RELEASE = "share"  # the name of release/ in hush 0.1.0
ENTRIES = {"release", OLD_RELEASE, "owner", "stages.json"}
TRAINING_ENTRIES = ("run.json", "checkpoints")  # in owner/ of hush train, whose folder has a release/ too


@final
@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where everything of a run lies."""

    root: Path

    @property
    def release(self) -> Path:
        """What may leave the owner's hands."""
        return self.root / "release"

    @property
    def owner(self) -> Path:
        """What must not leave them."""
        return self.root / "owner"

    @property
    def stages(self) -> Path:
        return self.root / "stages.json"

    @property
    def inputs(self) -> Path:
        return self.owner / "inputs"

    @property
    def scan(self) -> Path:
        return self.owner / "scan"

    @property
    def canaries(self) -> Path:
        return self.owner / "canaries"

    @property
    def plan(self) -> Path:
        return self.owner / "plan"

    @property
    def trainings(self) -> Path:
        return self.owner / "training"

    @property
    def audit(self) -> Path:
        return self.owner / "audit"

    @property
    def rehearsal(self) -> Path:
        """The last rehearsal, and the folders that rehearsals resume from."""
        return self.owner / "rehearsal"

    @property
    def report(self) -> Path:
        """The owner's report, with everything; the one in release/ is without the audit."""
        return self.owner / "report.html"

    def check(self) -> None:
        """Refuse a folder that holds anything but a run."""
        if not self.root.exists():
            return
        if not self.root.is_dir():
            raise InvalidInput(f"{self.root} is a file; name a folder for the run")
        names = {entry.name for entry in self.root.iterdir()}
        foreign = sorted(name for name in names if name not in ENTRIES and not is_leftover(name))
        if not foreign and not (self.stages.is_file() or (self.owner / "lock").is_file()):
            # Names alone do not tell whose folder it is. A run begins with owner/, empty until the lock is in it.
            empty = self.owner.is_dir() and not any(self.owner.iterdir())
            foreign = sorted(names - ({"owner"} if empty else set()))
        if foreign:
            raise InvalidInput(f"{self.root} holds something other than a run ({foreign[0]}); name a new folder")
        if any((self.owner / name).exists() for name in TRAINING_ENTRIES):
            raise InvalidInput(f"{self.root} holds a training of hush train; name a new folder for the run")
        if {"release", OLD_RELEASE} <= names:
            raise InvalidInput(
                f"{self.root} holds both release/ and {OLD_RELEASE}/, which was its name in hush 0.1.0; move one of "
                "them elsewhere"
            )


@contextmanager
def open_run(root: Path) -> Iterator[RunPaths]:
    """Lock the folder of a run for this process, creating it if it is missing; clears what killed processes left."""
    paths = RunPaths(root.resolve())
    paths.check()
    paths.owner.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.owner.chmod(0o700)
    lock = FolderLock(paths.owner / "lock")
    try:
        clear_leftovers(paths.root, recursive=True, apart_from=[paths.trainings])
        clear_leftovers(paths.trainings)  # a training clears its own folder, under its own lock
        with _temporary_files_in(paths.owner / ".work.tmp"):
            yield paths
    finally:
        lock.release()


def rename_old_release(paths: RunPaths) -> bool:
    """Rename share/, which hush 0.1.0 wrote, to release/; returns whether there was one. Needs the run's lock.

    The rename is atomic: a kill leaves one of the two names, and both are read.
    """
    old = paths.root / OLD_RELEASE
    if not old.exists():
        return False
    old.rename(paths.release)
    flush(paths.root)
    return True


def load_or_create_key(path: Path) -> DataKey:
    """The key at this path, made on first use."""
    clear_leftovers(path.parent, of=path.name)
    return DataKey.load_or_create(path)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Put temporary files of this process and its children into a folder of the owner: a kill leaves none outside.

    Its name is short: paths of sockets in it may have only about 100 characters.
    """
    tempdir, environment = tempfile.tempdir, os.environ.get("TMPDIR")
    folder.mkdir(mode=0o700)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = tempdir
        if environment is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = environment
        shutil.rmtree(folder, ignore_errors=True)


# --- stages.json

FORMAT = "hush run 1"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStage:
    """The record of a finished stage. outputs["fingerprint"] stands for its results where later stages need them."""

    inputs: str
    outputs: dict[str, Any]


@final
@dataclass(slots=True, kw_only=True)
class RunRecord:
    """The content of stages.json, replaced as a whole after every stage.

    attempts: how often the owner asked for a stage again. allowed: further trainings that the owner asked for.
    """

    path: Path
    key: str
    stages: dict[str, FinishedStage] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, key: str) -> Self:
        """The record at this path, which must be under the key of this id; an empty one if there is no file."""
        if not path.exists():
            return cls(path=path, key=key)
        record = cls.read(path)
        if record.key != key:
            raise InvalidInput(
                f"{path} was written under the key {record.key}, but this one is {key}; pass that key as data.key, or "
                "name a new folder"
            )
        return record

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record at this path, whatever its key: enough to find results, not to resume."""
        try:
            content = read_json(path)
            if content["format"] != FORMAT:
                raise ValueError("another format")
            return cls(
                path=path,
                key=str(content["key"]),
                stages={name: FinishedStage(**stage) for name, stage in content["stages"].items()},
                attempts={name: int(number) for name, number in content["attempts"].items()},
                allowed=[str(name) for name in content["allowed"]],
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidInput(f"{path} is not the record of a run; restore it, or name a new folder") from None

    def finish(self, stage: str, inputs: str, outputs: dict[str, Any]) -> None:
        """Record a stage as finished, once its results lie where they belong."""
        self.stages[stage] = FinishedStage(inputs=inputs, outputs=outputs)
        self.store()

    def repeat(self, stages: Iterable[str]) -> None:
        """Have these stages run once more."""
        for name in stages:
            self.attempts[name] = self.attempts.get(name, 0) + 1
        self.store()

    def store(self) -> None:
        """Replace the file; it survives a crash once this returns."""
        content = {
            "format": FORMAT,
            "key": self.key,
            "attempts": self.attempts,
            "allowed": self.allowed,
            "stages": {name: asdict(stage) for name, stage in self.stages.items()},
        }
        with whole_file(self.path, owner_only=True) as file:
            file.write(json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")
        flush(self.path.parent)


# --- what other commands look for in the folder of a run

# A plan beside a model, in what was released, and, before there is a release, on the owner's side.
PLANS = ("plan", *(f"{name}/plan" for name in RELEASES), "owner/plan")


def locate_training(folder: Path) -> Path:
    """The last training that ``hush run`` finished in this folder; any other folder is returned as it is."""
    paths = RunPaths(folder)
    if not paths.stages.is_file():
        return folder
    finished = RunRecord.read(paths.stages).stages.get("train")
    if finished is None:
        raise InvalidInput(f"{folder} holds no finished training yet; let hush run go on to its end")
    return paths.trainings / str(finished.outputs.get("training"))


def locate_plan(folder: Path) -> Path:
    """The plan in a folder, or the folder itself if it is a plan, even one whose plan.json is lost."""
    for place in (folder, *(folder / name for name in PLANS)):
        if (place / "plan.json").is_file():
            return place
    if any((folder / name).is_file() for name in FILES):
        return folder
    _refuse_marked(folder)
    raise InvalidInput(
        f"{folder} is no plan (it has no plan.json) and no run with a plan in it; pass a folder that hush plan wrote, "
        "or that of a run which has got that far"
    )


def locate_verifiable(folder: Path) -> Path:
    """What can be verified or signed of a folder: the release that it is or holds; without one, its plan."""
    for place in (folder, *(folder / name for name in RELEASES)):
        if is_release(place):
            if not (place / "plan").exists():
                _refuse_marked(place)
            return place
    return locate_plan(folder)


def _refuse_marked(folder: Path) -> None:
    """Say that a release certifies nothing, where that is why it holds no plan.

    The sender of the release wrote the marks: they are quoted on one line, without control characters.
    """
    for place in (folder, *(folder / name for name in RELEASES)):
        try:
            marks = read_json(place / "certificate.json")["marks"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(marks, list) and marks:
            quoted = "; ".join(plain(str(mark)).plain for mark in marks)
            raise InvalidInput(
                f"{place} certifies nothing ({quoted}), so it holds no plan; verify the plan that it was trained "
                "under, and do not pass this model on"
            )


# --- release/

RELEASED_REPORT = "report-to-share.html"  # in owner/: the report of which release/ gets a copy


def publish(paths: RunPaths, training: Path, report: Path) -> None:
    """Replace release/ by what a finished training released (its folder release/), with the report."""
    with whole_folder(paths.release) as work:
        shutil.copytree(training, work, dirs_exist_ok=True)
        of_the_model = (RELEASE_SIGNATURE, MODEL_SIGNATURE, ATTESTATIONS)  # which the certificate names
        kept = [("certificate.json", name) for name in of_the_model] + [("plan/plan.json", f"plan/{SIGNATURE}")]
        for signed, signature in kept:
            if (paths.release / signature).is_file() and _same_content(paths.release / signed, work / signed):
                shutil.copyfile(paths.release / signature, work / signature)
        shutil.copyfile(report, work / "report.html")
        readable_like_folder(work)
        time = datetime.fromisoformat(read_record(work / "plan")["created"]).timestamp()
        for path in (*work.rglob("*"), work):
            os.utime(path, (time, time))


def is_published(paths: RunPaths, training: Path, report: Path) -> bool:
    """Whether release/ holds what ``publish`` would put there."""
    pairs = [(path, paths.release / path.relative_to(training)) for path in training.rglob("*") if path.is_file()]
    return all(_seem_equal(source, copy) for source, copy in (*pairs, (report, paths.release / "report.html")))


def _same_content(first: Path, second: Path) -> bool:
    return first.is_file() and second.is_file() and first.read_bytes() == second.read_bytes()


def _seem_equal(source: Path, copy: Path) -> bool:
    """Compare by size, and by content where files are small."""
    if not copy.is_file() or source.stat().st_size != copy.stat().st_size:
        return False
    return source.suffix not in (".json", ".jsonl", ".md", ".html") or _same_content(source, copy)
