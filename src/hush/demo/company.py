"""A company's code base that is on every machine: files of Python's standard library, some of them secret projects.

Which files are taken depends on their names and sizes alone, so the same Python gives the same company.

How much the demo trains, and the config of its protected arm, which is an ordinary one for ``hush run``.
"""

import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hush.errors import InvalidInput
from hush.storage import whole_folder

__all__ = [
    "CHUNK",
    "FULL",
    "KEEP",
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
CHUNK = 32  # tokens of code in an example: about as many bytes as the model sees
LENGTH = 128  # bytes that the model sees
CANARIES: Mapping[str, Any] = {"alphabet": "hex", "length": 6, "ceiling": 1e-3}
TEMPLATES = (
    'STRIPE_KEY = "{secret}"\n',
    'db_password = "{secret}"\n',
    'SMTP_TOKEN = "{secret}"\n',
    'session_salt = "{secret}"\n',
)
KEEP = 0.5  # share of their weight that examples with secrets keep


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is trained. largest: bytes of the files that are taken. repeats: examples that hold each canary.

    hold_out: share of the examples without secrets to evaluate on. evaluations: how often on the way. candidates: of a
    canary that are ranked. trials: of the simulated attack. workers: processes beside this one, if there are as many
    cores; 0 trains here.
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
        return {"layers": self.layers, "width": self.width, "heads": 2, "length": LENGTH, "seed": 0}

    @property
    def save_every(self) -> int:
        """Rounds between states, each of which is evaluated."""
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
    """The config of the run under hush; paths begin at the demo's folder."""
    return {
        "version": 1,
        "data": {"source": "code-base"},
        "promises": {"prior": 1e-10, "ceiling": 1e-3},
        "chunks": {"tokens": CHUNK},
        "rules": [
            {
                "name": "projects",
                "find": "code",
                "secrets": [{"name": name, "paths": list(paths)} for name, paths in PROJECTS.items()],
                "imports": {"depth": "all"},
            }
        ],
        "plan": {"batch_size": size.batch_size, "rounds": size.rounds, "keep": KEEP, "hold_out": size.hold_out},
        "model": {"small": size.model},
        "training": {
            "learning_rate": size.learning_rate,
            "warmup": size.warmup,
            "max_length": LENGTH,
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


FEWEST = 20  # files: with fewer there is nothing to show

# Tests, tables of characters, other people's packages, and parts that some systems ship apart.
LEFT_OUT = frozenset(
    {
        "__phello__", "__pycache__", "ctypes", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib",
        "lib-dynload", "lib2to3", "msilib", "pydoc_data", "site-packages", "test", "tests", "tkinter", "turtledemo",
    }
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Company:
    """The code base as a folder. own: files of the secret projects; reached: files with a secret."""

    folder: Path
    files: int
    size: int
    own: int
    reached: int

    def __repr__(self) -> str:
        return f"Company({self.files} files)"


def standard_library() -> Path:
    """The folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def chosen_files(library: Path, *, largest: int) -> list[str]:
    """Paths of the sources that make up the company, from the library's folder, sorted."""
    found: list[str] = []
    for path in library.rglob("*.py"):
        place = path.relative_to(library)
        built = place.parts[0].startswith(("config-", "_sysconfigdata"))  # made anew on every machine
        if not built and LEFT_OUT.isdisjoint(place.parts) and path.is_file() and 0 < path.stat().st_size <= largest:
            found.append(place.as_posix())
    if len(found) < FEWEST:
        raise InvalidInput(
            f"{library} holds {len(found)} sources of the standard library that the demo could use, which is too few; "
            "run it with a complete Python (on Debian: apt install python3 libpython3-stdlib)"
        )
    return sorted(found)


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
        found = containment(repository, rule)
        _own_repository(work)
    return Company(
        folder=folder,
        files=len(repository.files),
        size=sum(repository.sizes[name] for name in repository.files),
        own=sum(found.num_own_files),
        reached=len(found.reasons),
    )


def _own_repository(folder: Path) -> None:
    """Make it a git repository of its own: the demo's folder often lies in another one, which knows nothing of it."""
    from hush.scan.code.repository import ask_git

    try:
        for command in (("init", "--quiet"), ("add", "--all", "--force")):
            status, _ = ask_git(folder, *command)
            if status:
                raise InvalidInput(f"git {command[0]} failed in {folder}; pass an --output outside of any repository")
    except FileNotFoundError:
        pass  # without git the folder is read as it is
