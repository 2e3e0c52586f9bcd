"""The folder of a run: what may leave the owner's hands, what may not, and a lock for one process at a time.

share/            plan, certificate, model, report: may leave
owner/            may not: mode 0700
  inputs/         the config and the files it names, as they were for what lies here
  data.key        the key of fingerprints, unless the config names another
  scan/ canaries/ plan/ audit/ report.html
  training/ID/    one folder for each training: its states, losses and batch sizes, and what it released
stages.json       which stage is done, under which inputs: fingerprints under the owner's key. For the owner

stages.json: which stage is done, under which inputs, with what outcome. Replaced whole after every stage.

Everything in it that comes from private content is a fingerprint under the owner's key: a plain hash of data would let
whoever reads the file test guesses.

Where a training, a release and a plan lie in the folder of a run, for commands that are given the whole of it.

share/: what may leave the owner's hands, put together from finished stages, and replaced whole.

plan/             the plan that it was trained under
model/            the trained model; beside it certificate.json and certificate.md
certificate.sig   a signature that was added; it stays while the certificate is the same (and so plan/plan.sig)
evaluations.jsonl loss on examples without secrets that were held out, if there are any
report.html       without the audit, whose numbers come from data with secrets
README.md         what is what

Times of files are those of the plan: when they were written says how long training took, and so how large its secret
draws were. All of it is readable by whoever may read the folder, whatever modes libraries gave their files.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, Self, final, get_args

from hush.console import plain
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan.files import FILES, RELEASE_SIGNATURE, SIGNATURE, is_release, read_record
from hush.storage import FolderLock, flush, read_json, readable_like_folder, whole_file, whole_folder

__all__ = [
    "SHARED_REPORT",
    "STAGES",
    "Done",
    "Record",
    "RunPaths",
    "StageName",
    "discard",
    "is_published",
    "key_at",
    "opened",
    "plan_inside",
    "publish",
    "training_inside",
    "verifiable_inside",
]


NAMES = {"share", "owner", "stages.json"}
_REMAINS = re.compile(r"\..+\.(tmp|old)")


@final
@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where everything of a run lies."""

    root: Path

    @property
    def share(self) -> Path:
        """What may leave the owner's hands."""
        return self.root / "share"

    @property
    def owner(self) -> Path:
        """What may not."""
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
    def report(self) -> Path:
        """With everything that the owner may see; the one in share/ has less."""
        return self.owner / "report.html"

    def check(self) -> None:
        """Refuse a place that holds anything but a run."""
        if not self.root.exists():
            return
        if not self.root.is_dir():
            raise InvalidInput(f"{self.root} is a file; name a folder for the run")
        foreign = sorted(
            entry.name
            for entry in self.root.iterdir()
            if entry.name not in NAMES and not _REMAINS.fullmatch(entry.name)
        )
        if not foreign and not (self.stages.is_file() or (self.owner / "lock").is_file()):
            # Names alone do not tell whose it is. A run begins with owner/, empty until the lock is in it.
            empty = self.owner.is_dir() and not any(self.owner.iterdir())
            foreign = sorted({entry.name for entry in self.root.iterdir()} - ({"owner"} if empty else set()))
        if foreign:
            raise InvalidInput(f"{self.root} holds something other than a run ({foreign[0]}); name a new folder")


@contextmanager
def opened(root: Path) -> Iterator[RunPaths]:
    """The folder of a run, made if need be, for this process alone; what a kill left half written is gone."""
    paths = RunPaths(root.resolve())
    paths.check()
    paths.owner.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.owner.chmod(0o700)
    lock = FolderLock(paths.owner / "lock")
    try:
        _clear_remains(paths)
        with _temporary_files_in(paths.owner / ".work.tmp"):
            yield paths
    finally:
        lock.release()


def discard(path: Path) -> None:
    """Remove a folder so that, whenever this is interrupted, it is there whole or not at all."""
    if path.exists():
        aside = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
        path.replace(aside)
        shutil.rmtree(aside)


def key_at(path: Path) -> DataKey:
    """The key at this path, made on first use."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink(missing_ok=True)  # of a process that was killed here
    return DataKey.load_or_create(path)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Temporary files of this process and those it starts lie with the owner's: a kill leaves none elsewhere."""
    before, stated = tempfile.tempdir, os.environ.get("TMPDIR")
    folder.mkdir(mode=0o700)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if stated is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = stated
        shutil.rmtree(folder, ignore_errors=True)


def _clear_remains(paths: RunPaths) -> None:
    """Remove what was being written when a process was killed; a training looks after its own folder."""
    for place, folders, files in os.walk(paths.root):
        for name in filter(_REMAINS.fullmatch, [*folders, *files]):
            path = Path(place, name)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        within_training = Path(place) == paths.trainings
        folders[:] = [] if within_training else [name for name in folders if not _REMAINS.fullmatch(name)]


FORMAT = "hush run 1"
StageName = Literal["data", "scan", "canaries", "plan", "train", "audit", "report"]
STAGES: tuple[StageName, ...] = get_args(StageName)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished stage. outputs["fingerprint"] is what later stages depend on."""

    inputs: str
    outputs: dict[str, Any]


@final
@dataclass(slots=True, kw_only=True)
class Record:
    """What a run knows of its stages. attempts: how often a stage was asked for again. allowed: further trainings that
    the owner asked for by name."""

    path: Path
    key: str
    stages: dict[str, Done] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, key: str) -> Self:
        """What is recorded there under the key of this id; nothing if there is no file."""
        if not path.exists():
            return cls(path=path, key=key)
        found = cls.read(path)
        if found.key != key:
            raise InvalidInput(
                f"{path} was written under the key {found.key}, but this one is {key}; pass that key as data.key, or "
                "name a new folder"
            )
        return found

    @classmethod
    def read(cls, path: Path) -> Self:
        """What is recorded there, under whichever key: enough to find things, not to go on."""
        try:
            content = read_json(path)
            if content["format"] != FORMAT:
                raise ValueError("another format")
            return cls(
                path=path,
                key=str(content["key"]),
                stages={name: Done(**content["stages"][name]) for name in STAGES if name in content["stages"]},
                attempts={name: int(content["attempts"][name]) for name in content["attempts"]},
                allowed=[str(one) for one in content["allowed"]],
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidInput(f"{path} is not the record of a run; restore it, or name a new folder") from None

    def finish(self, stage: StageName, inputs: str, outputs: dict[str, Any]) -> None:
        """Enter a stage, once its results lie where they belong."""
        self.stages[stage] = Done(inputs=inputs, outputs=outputs)
        self.store()

    def again(self, since: StageName) -> None:
        """Have this stage and all later ones done once more."""
        for name in STAGES[STAGES.index(since) :]:
            self.attempts[name] = self.attempts.get(name, 0) + 1
        self.store()

    def store(self) -> None:
        """Replace the file; it survives a crash once this returns."""
        content = {
            "format": FORMAT,
            "key": self.key,
            "attempts": self.attempts,
            "allowed": self.allowed,
            "stages": {name: asdict(done) for name, done in self.stages.items()},
        }
        with whole_file(self.path, owner_only=True) as file:
            file.write(json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")
        flush(self.path.parent)


RELEASES = ("release", "share")  # of hush train, and of hush run
# Of a release, of hush train, and of hush run: what it shares, and before it shares anything what the owner has.
PLANS = ("plan", "release/plan", "share/plan", "owner/plan")


def training_inside(folder: Path) -> Path:
    """The last training that ``hush run`` finished in its folder; any other folder is given back as it is."""
    paths = RunPaths(folder)
    if not paths.stages.is_file():
        return folder
    done = Record.read(paths.stages).stages.get("train")
    if done is None:
        raise InvalidInput(f"{folder} holds no finished training yet; let hush run go on to its end")
    return paths.trainings / str(done.outputs.get("training"))


def plan_inside(folder: Path) -> Path:
    """The plan that a folder is, or the one that a run has in it; also a plan that has lost plan.json is one."""
    for place in (folder, *(folder / place for place in PLANS)):
        if (place / "plan.json").is_file():
            return place
    if any((folder / name).is_file() for name in FILES):
        return folder
    _refuse_marked(folder)
    raise InvalidInput(
        f"{folder} is no plan (it has no plan.json) and no run with a plan in it; pass a folder that hush plan wrote, "
        "or that of a run which has got that far"
    )


def verifiable_inside(folder: Path) -> Path:
    """What can be verified and signed of a folder: the release that it is or holds, before a plan alone."""
    for place in (folder, *(folder / place for place in RELEASES)):
        if is_release(place):
            if not (place / "plan").exists():
                _refuse_marked(place)
            return place
    return plan_inside(folder)


def _refuse_marked(folder: Path) -> None:
    """Say that a release certifies nothing, where that is why it holds no plan.

    Whoever sent the release wrote the marks: they are quoted on one line, with nothing that a terminal would obey.
    """
    for place in (folder, *(folder / place for place in RELEASES)):
        try:
            marks = read_json(place / "certificate.json")["marks"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(marks, list) and marks:
            said = "; ".join(plain(str(mark)).plain for mark in marks)
            raise InvalidInput(
                f"{place} certifies nothing ({said}), so it holds no plan; verify the plan that it was trained under, "
                "and do not pass this model on"
            )


SHARED_REPORT = "report-to-share.html"
README = """\
# What may leave its owner's hands

- `certificate.md`, `certificate.json`: what holds of this very model, and what does not
- `model/`: the model, which the certificate names by its fingerprint
- `plan/`: what each secret was promised and what is proven of it
- `certificate.sig`, if it is there: a signature over the certificate, and through it over model and plan
- `evaluations.jsonl`, if it is there: how good the model was on the way, on examples without secrets
- `report.html`: a page to open in a browser

Check all of it with `hush verify .` in this folder, or `hush verify . --public-key KEY.pem` with the key of somebody
you trust: it proves every promise again, and compares certificate, plan and model. Without a signature it shows that
they fit together, not who put them together. It does not look at `report.html`, `evaluations.jsonl` and this page.

A certificate is about one training. Further models from the same data, and numbers computed from the data itself, are
releases of their own.
"""


def publish(paths: RunPaths, release: Path, report: Path) -> None:
    """Replace share/ by what a finished training released, with the report."""
    with whole_folder(paths.share) as work:
        shutil.copytree(release, work, dirs_exist_ok=True)
        for signed, signature in (("certificate.json", RELEASE_SIGNATURE), ("plan/plan.json", f"plan/{SIGNATURE}")):
            if (paths.share / signature).is_file() and _same(paths.share / signed, work / signed):
                shutil.copyfile(paths.share / signature, work / signature)
        shutil.copyfile(report, work / "report.html")
        (work / "README.md").write_text(README, encoding="utf-8")
        readable_like_folder(work)
        time = datetime.fromisoformat(read_record(work / "plan")["created"]).timestamp()
        for path in (*work.rglob("*"), work):
            os.utime(path, (time, time))


def is_published(paths: RunPaths, release: Path, report: Path) -> bool:
    """Whether share/ holds just that."""
    pairs = [(path, paths.share / path.relative_to(release)) for path in release.rglob("*") if path.is_file()]
    return all(_alike(one, other) for one, other in (*pairs, (report, paths.share / "report.html")))


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def _alike(one: Path, other: Path) -> bool:
    """By size, and by content where that is quickly read."""
    if not other.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    return one.suffix not in (".json", ".jsonl", ".md", ".html") or _same(one, other)
