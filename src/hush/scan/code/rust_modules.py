"""The module tree of Rust crates: which file is which module, from ``mod`` declarations and Cargo.toml files."""

import posixpath
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self, final

from hush.scan.code.repository import Repository

__all__ = ["Modules", "Names"]

Names = tuple[str, ...]
Declared = Mapping[str, tuple[tuple[Names, str | None], ...]]

_FOLDER_FILES = ("lib.rs", "main.rs", "mod.rs", "build.rs")


@final
@dataclass(frozen=True, kw_only=True)
class Modules:
    """Every file's place in the crates that hold it, and back.

    places: for each file, the roots of its crates and its module's path in each. files: for each root, files by module
    path. crates: the root of each library of the repository by its name in code.
    """

    places: Mapping[str, tuple[tuple[str, Names], ...]]
    files: Mapping[str, Mapping[Names, str]]
    crates: Mapping[str, str]

    @classmethod
    def of(cls, repository: Repository, declared: Declared) -> Self:
        """Follows the declarations from the files that no other file declares; each file once in each crate."""
        targets = {
            path: [(names, file) for names, given in mods if (file := _file_of_mod(declared, path, names, given))]
            for path, mods in declared.items()
        }
        crates = dict(_libraries(repository, declared))
        crates = dict(_other_names(repository, crates)) | crates
        children = {file for path, mods in targets.items() for _, file in mods if file != path}
        roots = sorted((set(declared) - children) | set(crates.values()))
        files: dict[str, dict[Names, str]] = {}
        places: dict[str, list[tuple[str, Names]]] = {path: [] for path in declared}
        for root in roots:
            files[root] = {}
            seen = {root}
            waiting: deque[tuple[str, Names]] = deque([(root, ())])
            while waiting:
                path, names = waiting.popleft()
                files[root].setdefault(names, path)
                places[path].append((root, names))
                for inner, file in targets[path]:
                    if file not in seen:
                        seen.add(file)
                        waiting.append((file, (*names, *inner)))
        # Files that declare each other in a ring belong to no root: each is its own.
        for path in (path for path, known in places.items() if not known):
            files[path] = {(): path}
            places[path] = [(path, ())]
        return cls(places={path: tuple(known) for path, known in places.items()}, files=files, crates=crates)

    def files_of_mod(self, path: str, names: Names, given: str | None) -> Iterator[str]:
        """The file of a module that a file declares."""
        file = _file_of_mod(self.places, path, names, given)
        if file is not None:
            yield file

    def files_of_path(self, path: str, around: Names, names: Names, *, strict: bool) -> set[str]:
        """The files that a path leads to, one for each crate of the file in which it stands.

        around: the modules with a body in which it stands. strict: whether its first name has to be crate, self, super
        or a crate; otherwise it may be a module below.
        """
        found: set[str] = set()
        for root, module in self.places[path]:
            start = (*module, *around)
            rest = list(names)
            if rest[0] == "crate":
                start, rest = (), rest[1:]
            elif rest[0] in ("self", "super"):
                while rest and rest[0] in ("self", "super"):
                    start = start[:-1] if rest.pop(0) == "super" else start
            elif rest[0] in self.crates and (*start, rest[0]) not in self.files[root]:
                root, start, rest = self.crates[rest[0]], (), rest[1:]
            elif strict or (*start, rest[0]) not in self.files[root]:
                continue
            found |= self._longest(root, (*start, *rest))
        return found

    def _longest(self, root: str, names: Names) -> set[str]:
        prefixes = (names[:length] for length in range(len(names), -1, -1))
        return next(({self.files[root][prefix]} for prefix in prefixes if prefix in self.files[root]), set())


def _file_of_mod(known: Mapping[str, object], path: str, names: Names, given: str | None) -> str | None:
    """Where ``mod c;`` inside ``mod b { }`` of a file lies: below the folder of the file's own module."""
    folder, name = posixpath.split(path)
    own = folder if name in _FOLDER_FILES else posixpath.join(folder, name.removesuffix(".rs"))
    if given is not None:
        start = folder if len(names) == 1 else posixpath.join(own, *names[:-1])
        candidates = [posixpath.join(start, given)]
    else:
        # A crate's root may have any name; its modules then lie beside it.
        candidates = [
            posixpath.join(start, *names[:-1], ending)
            for start in dict.fromkeys((own, folder))
            for ending in (f"{names[-1]}.rs", f"{names[-1]}/mod.rs")
        ]
    found = (posixpath.normpath(candidate) for candidate in candidates)
    return next((file for file in found if file in known and file != path), None)


def _libraries(repository: Repository, known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Name and root of every library."""
    for file, content in _manifests(repository):
        library, package = (table if isinstance(table := content.get(key), dict) else {} for key in ("lib", "package"))
        root = posixpath.normpath(posixpath.join(posixpath.dirname(file), str(library.get("path", "src/lib.rs"))))
        name = str(library.get("name", package.get("name", ""))).replace("-", "_")
        if name and root in known:
            yield name, root


def _other_names(repository: Repository, crates: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names by which a manifest calls a library that calls itself otherwise, and its root: pay = { package = "x" }."""
    for _, content in _manifests(repository):
        waiting: list[object] = [content]
        while waiting:
            table = waiting.pop()
            for name, entry in table.items() if isinstance(table, dict) else ():
                package = entry.get("package") if isinstance(entry, dict) else None
                if isinstance(package, str) and package.replace("-", "_") in crates:
                    yield name.replace("-", "_"), crates[package.replace("-", "_")]
                waiting.append(entry)


def _manifests(repository: Repository) -> Iterator[tuple[str, dict[str, object]]]:
    """Every Cargo.toml that can be read."""
    for file in repository.files:
        if posixpath.basename(file) == "Cargo.toml":
            try:
                yield file, tomllib.loads(repository.read(file))
            except (tomllib.TOMLDecodeError, RecursionError):
                continue
