"""A company's code base that is on every machine: files of Python's standard library, some of them secret projects.

Which files are taken depends on their names and sizes alone, so the same Python gives the same company. Files without
secrets, chosen by a hash of their names, are held out to evaluate on.
"""

import hashlib
import shutil
import sysconfig
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from hush.demo.sizes import CHUNK, PROJECTS, Size
from hush.errors import InvalidInput
from hush.storage import whole_folder

__all__ = ["Company", "chosen_files", "held_out_files", "standard_library", "write_company"]

FEWEST = 20  # files: with fewer there is nothing to show
HELD_OUT = 10  # one of so many files without secrets is held out

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
    """The code base as a folder, and texts that are not in it to evaluate on. reached: files with a secret."""

    folder: Path
    files: int
    size: int
    own: int
    reached: int
    held_out_files: int
    held_out: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Company({self.files} files, {len(self.held_out)} texts held out)"


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


def held_out_files(files: Sequence[str], with_secrets: Collection[str]) -> list[str]:
    """One in ten of the files without secrets, the same ones for the same names.

    Taking them away changes nobody's secrets: what imports a file with secrets has them too, so no way to a secret
    leads through a file without.
    """
    free = [name for name in files if name not in with_secrets]
    by_hash = sorted(free, key=lambda name: hashlib.sha256(name.encode()).digest())
    return sorted(by_hash[: max(1, len(free) // HELD_OUT)])


def write_company(folder: Path, size: Size, *, library: Path | None = None) -> Company:
    """Copy the company into a folder, without what is held out. Texts that stand in both are not evaluated on."""
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
        held_out = held_out_files(repository.files, found.reasons)
        kept = "\0".join(repository.read(name) for name in repository.files if name not in held_out)
        texts = tuple(text for text in _texts(work, held_out, size.held_out) if text not in kept)
        for name in held_out:
            (work / name).unlink()
        _own_repository(work)
    return Company(
        folder=folder,
        files=len(repository.files) - len(held_out),
        size=sum(repository.sizes[name] for name in repository.files if name not in held_out),
        own=sum(found.own),
        reached=len(found.reasons),
        held_out_files=len(held_out),
        held_out=texts,
    )


def _texts(folder: Path, names: Sequence[str], most: int) -> tuple[str, ...]:
    """Chunks of these files, as evenly spread over them as their number allows."""
    from hush.scan.code.chunks import chunks_of
    from hush.scan.code.settings import Chunks

    texts: list[str] = []
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        texts += [text[chunk.begin : chunk.end] for chunk in chunks_of(text, Chunks(tokens=CHUNK))]
    return tuple(texts[:: max(1, len(texts) // most)][:most])


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
