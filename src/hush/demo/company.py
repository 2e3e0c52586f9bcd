"""A company's code base that is on every machine: files of Python's standard library, some of them secret projects.

Which files are taken depends on their names and sizes alone, so the same Python gives the same company.
"""

import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import final

from hush.demo.sizes import PROJECTS, Size
from hush.errors import InvalidInput
from hush.storage import whole_folder

__all__ = ["Company", "chosen_files", "standard_library", "write_company"]

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
        own=sum(found.own),
        reached=len(found.reasons),
    )


def _own_repository(folder: Path) -> None:
    """Make it a git repository of its own: the demo's folder often lies in another one, which knows nothing of it."""
    from hush.scan.code.git import ask_git

    try:
        for command in (("init", "--quiet"), ("add", "--all", "--force")):
            status, _ = ask_git(folder, *command)
            if status:
                raise InvalidInput(f"git {command[0]} failed in {folder}; pass an --output outside of any repository")
    except FileNotFoundError:
        pass  # without git the folder is read as it is
