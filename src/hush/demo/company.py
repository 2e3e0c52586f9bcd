"""The demo's company: files of Python's standard library, some of which play secret projects; and how much is trained.

Which files are taken depends only on their names and sizes, so the same Python gives the same company. The config of
the protected arm is an ordinary one for ``hush run``.
"""

import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hush.errors import InvalidInput, Setting
from hush.storage import whole_folder

__all__ = [
    "CHUNK_TOKENS",
    "FULL",
    "KEPT_WEIGHT",
    "PROJECTS",
    "QUICK",
    "Company",
    "Size",
    "chosen_files",
    "config_of",
    "standard_library",
    "write_company",
]


# Packages and modules of the standard library that play secret projects: small, there on every machine, and some of
# them imported from elsewhere (cmd by the profilers, shlex by the browser's starter, hmac by secrets, …).
PROJECTS: Mapping[str, tuple[str, ...]] = {
    "sqlite3": ("sqlite3/**",),
    "json": ("json/**",),
    "dbm": ("dbm/**",),
    "tomllib": ("tomllib/**",),
    "zoneinfo": ("zoneinfo/**",),
    "signing": ("hmac.py",),
    "console": ("cmd.py",),
    "shell": ("shlex.py",),
}
CHUNK_TOKENS = 32  # of code in an example: about as many bytes as the model reads
CONTEXT_BYTES = 128  # that the model reads at once
CANARIES: Mapping[str, Any] = {"alphabet": "hex", "length": 6, "ceiling": 1e-3}
TEMPLATES = (
    'STRIPE_KEY = "{secret}"\n',
    'db_password = "{secret}"\n',
    'SMTP_TOKEN = "{secret}"\n',
    'session_salt = "{secret}"\n',
)
KEPT_WEIGHT = 0.5  # share of their weight that examples with secrets keep under hush's plan


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is trained. largest: the largest file that is taken, in bytes. repeats: examples that hold each canary.

    hold_out: share of the examples without secrets to evaluate on. evaluations: their number during training.
    candidates: how many a canary is ranked among. trials: of the simulated attack. workers: the number of worker
    processes, at most one per core; 0 trains in this process.
    """

    largest: int
    layers: int
    width: int
    batch_size: int
    rounds: int
    learning_rate: float
    warmup: int
    repeats: int
    hold_out: float
    evaluations: int
    candidates: int
    trials: int
    workers: int = 3
    frontier: bool = True

    @property
    def model(self) -> dict[str, int]:
        """A GPT-2 over bytes, as a config names it."""
        return {"layers": self.layers, "width": self.width, "heads": 2, "length": CONTEXT_BYTES, "seed": 0}

    @property
    def save_every(self) -> int:
        """Rounds between checkpoints, each of which is evaluated."""
        return max(1, self.rounds // self.evaluations)


FULL = Size(
    largest=30_000,
    layers=2,
    width=64,
    batch_size=12,
    rounds=800,
    learning_rate=5e-3,
    warmup=20,
    repeats=300,
    hold_out=0.02,
    evaluations=8,
    candidates=1000,
    trials=2000,
)
QUICK = Size(
    largest=4_000,
    layers=1,
    width=32,
    batch_size=8,
    rounds=12,
    learning_rate=1e-2,
    warmup=2,
    repeats=5,
    hold_out=0.05,
    evaluations=2,
    candidates=50,
    trials=200,
    workers=0,
    frontier=False,
)


def config_of(size: Size) -> dict[str, Any]:
    """The config of hush's own run; paths are relative to the demo's folder."""
    return {
        "version": 1,
        "data": {"source": "code-base"},
        "promises": {"prior": 1e-10, "ceiling": 1e-3},
        "chunks": {"tokens": CHUNK_TOKENS},
        "rules": [
            {
                "name": "projects",
                "find": "code",
                "secrets": [{"name": name, "paths": list(paths)} for name, paths in PROJECTS.items()],
                "optional": True,  # the smallest size copies no file of some projects
                "imports": {"depth": "all"},
            }
        ],
        "plan": {"batch_size": size.batch_size, "rounds": size.rounds, "keep": KEPT_WEIGHT, "hold_out": size.hold_out},
        "model": {"small": size.model},
        "training": {
            "public_first": False,  # the four trainings begin alike
            "learning_rate": size.learning_rate,
            "warmup": size.warmup,
            "max_length": CONTEXT_BYTES,
            "micro_batch": size.batch_size,
            "save_every": size.save_every,
            "evaluate_every": size.save_every,
            "device": "cpu",
        },
        "audit": {
            "attacks": ["mechanism", "extraction", "exposure"],
            "prompts": [10],
            "secrets": 3,
            "trials": size.trials,
            "candidates": size.candidates,
            "canaries": {
                **CANARIES,
                "count": len(TEMPLATES),
                "repeats": size.repeats,
                "templates": list(TEMPLATES),
            },
        },
        "report": {"title": "The demo's protected model", "frontier": size.frontier},
        "output": "run",
    }


MIN_FILES = 20  # with fewer there is nothing to show

# Tests, character tables, installed packages, and parts that some systems ship separately.
EXCLUDED = frozenset(
    {
        "__phello__", "__pycache__", "ctypes", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib",
        "lib-dynload", "lib2to3", "msilib", "pydoc_data", "site-packages", "test", "tests", "tkinter", "turtledemo",
    }
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Company:
    """The code base as a folder. project_files: files of secret projects; secret_files: all files with a secret."""

    folder: Path
    files: int
    size: int
    project_files: int
    secret_files: int

    def __repr__(self) -> str:
        return f"Company({self.files} files)"


def standard_library() -> Path:
    """The folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def chosen_files(library: Path, *, largest: int) -> list[str]:
    """Paths of the sources that make up the company, from the library's folder, sorted."""
    names: list[str] = []
    for path in library.rglob("*.py"):
        place = path.relative_to(library)
        built = place.parts[0].startswith(("config-", "_sysconfigdata"))  # generated on every machine
        if not built and EXCLUDED.isdisjoint(place.parts) and path.is_file() and 0 < path.stat().st_size <= largest:
            names.append(place.as_posix())
    if len(names) < MIN_FILES:
        raise InvalidInput(
            f"{library} holds {len(names)} sources of the standard library that the demo could use, which is too few; "
            "run it with a complete Python (on Debian: apt install python3 libpython3-stdlib)"
        )
    return sorted(names)


def write_company(folder: Path, size: Size, *, library: Path | None = None) -> Company:
    """Copy the company into a folder."""
    from hush.scan.code.repository import Repository
    from hush.scan.code.settings import CodeSecret, CodeSettings, Imports
    from hush.scan.code.spread import containment

    source = standard_library() if library is None else library
    names = chosen_files(source, largest=size.largest)
    rule = CodeSettings(
        secrets=tuple(CodeSecret(name=name, paths=paths) for name, paths in PROJECTS.items()),
        imports=Imports(depth=None),
    )
    with whole_folder(folder) as work:
        for name in names:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, work / name)
        repository = Repository.open(work, use_git=False)
        contained = containment(repository, rule)
        _init_repository(work)
    return Company(
        folder=folder,
        files=len(repository.files),
        size=sum(repository.sizes[name] for name in repository.files),
        project_files=sum(contained.num_own_files),
        secret_files=len(contained.reasons),
    )


def _init_repository(folder: Path) -> None:
    """Make it a git repository: the demo's folder often lies in another one, which does not track it."""
    from hush.scan.code.repository import ask_git

    try:
        for command in (("init", "--quiet"), ("add", "--all", "--force")):
            status, _ = ask_git(folder, *command)
            if status:
                raise InvalidInput(
                    f"git {command[0]} failed in {folder}; pass a folder outside of any repository as ",
                    Setting("output"),
                )
    except FileNotFoundError:
        pass  # without git the folder is read as it is
