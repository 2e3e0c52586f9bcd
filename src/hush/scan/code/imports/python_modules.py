"""Which files of a repository an import of a Python file may lead to, if the search path is not known.

A root is a folder at which dotted names begin. At run time the search path is a list of roots, and the first that has a
module decides. That list is not part of a repository, so a name may lead to several files. These narrow it:

1. A file that defines nothing (empty, comments, a docstring, an extension of ``__path__``) is no target: there is
   nothing in it that the importing file could use. It does not hide other files either, so the stubs of a namespace
   package never stand for the file that defines something. The exception: if an imported name is found nowhere, it is
   perhaps a module that is compiled or generated, and the packages that may hold it stand for it.
2. If the nearest root above the importing file, its own distribution, or one without which that is never installed has
   the module, then only these count: roots above the file, its own distribution and all that this may depend on, files
   outside of distributions, and distributions that depend on one of those that have the module. Two
   distributions are also connected if a third may depend on both. This assumes that no environment holds two
   distributions that define the same module and are not connected: they would overwrite each other. If its
   dependencies cannot be read, a distribution may depend on any other, but connects no two others.
3. Names of the standard library lead only to roots above the importing file, since its folder precedes those of
   installed distributions.

Whatever remains counts, all of it.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

from hush.scan.code.imports.distributions import Distributions

__all__ = ["Imported", "PythonModules"]


SOURCE_FOLDERS = ("src", "lib", "python")
ENDINGS = (".py", ".pyi")  # if both exist, the first is the module

Hit = tuple[str, str]  # a root and a file


@final
@dataclass(frozen=True, slots=True, order=True)
class Imported:
    """One imported name: ``import module`` if name is None, else ``from ..module import name`` with ``level`` dots."""

    level: int
    module: str
    name: str | None


@final
@dataclass(frozen=True)
class PythonModules:
    """The Python files of a repository, found by the names under which they can be imported.

    Roots are the top, the folders of distributions, folders called src, lib or python, and every other folder above a
    file that is not a package itself. Of these others, a folder that does not hold a package is a root for names of one
    part only for files below it, as for scripts. empty: files that define nothing.
    """

    files: tuple[str, ...]
    distributions: Distributions = field(default_factory=Distributions)
    empty: frozenset[str] = field(default=frozenset(), repr=False)

    def imports_of(self, file: str, names: Iterable[Imported]) -> set[str]:
        """The files of the repository that these imports of a file may lead to."""
        folder = file.rpartition("/")[0]
        targets: set[str] = set()
        for imported in names:
            key = (folder, imported)
            if key not in self._cache:
                self._cache[key] = frozenset(self._targets(folder, imported))
            targets |= self._cache[key]
        return targets - {file}

    @cached_property
    def _cache(self) -> dict[tuple[str, Imported], frozenset[str]]:
        return {}

    def _targets(self, folder: str, imported: Imported) -> Iterator[str]:
        full = ".".join(part for part in (imported.module, imported.name) if part)
        if not imported.level:
            yield from self._absolute(folder, full, names_module=imported.name is None)
            return
        parts = folder.split("/") if folder else []
        if imported.level > len(parts) + 1:
            return
        base = "/".join(parts[: len(parts) - imported.level + 1])
        module, package = self._file(base, full), self._file(base, imported.module)
        found = [file for file in (module, package) if file is not None and file not in self.empty][:1]
        # A package may continue in another root, where the name is found by its absolute form.
        for root in self._roots_above(base):
            above = base.removeprefix(root).strip("/").replace("/", ".")
            if above:
                found += self._absolute(folder, f"{above}.{full}", names_module=False)
        if not found and module is None and package is not None and imported.name != "*":
            found = [package]  # the name is perhaps a compiled or generated module
        yield from found

    def _absolute(self, folder: str, full: str, *, names_module: bool) -> Iterator[str]:
        """names_module: whether the last part must be a module; otherwise it may be a name inside one."""
        whole, outer = self._places(folder, full), full.rpartition(".")[0]
        is_nowhere = not whole  # then the last part is a name in a module, or perhaps compiled or generated
        whole = [hit for hit in whole if hit[1] not in self.empty]
        known = {root for root, _ in whole}  # here the last part is a module, and no name in another one
        inside = [hit for hit in self._places(folder, outer) if hit[0] not in known] if outer else []
        if names_module and not is_nowhere:
            inside = []
        hits = whole + [hit for hit in inside if hit[1] not in self.empty]
        if not hits and is_nowhere and not full.endswith("*"):
            yield from (file for _, file in inside)
            return
        certain = whole or hits
        if not any(self._is_certain(folder, hit) for hit in certain):
            yield from (file for _, file in hits)
            return
        near = self._near(folder, hits)
        yield from (file for _, file in near)
        yield from self._connected(folder, near, hits)

    def _is_certain(self, folder: str, hit: Hit) -> bool:
        """Whether a file is on the search path whenever a file of this folder is."""
        root, file = hit
        own, other = self.distributions.of_folder(folder), self.distributions.of(file)
        is_there = root == next(self._roots_above(folder)) or (
            own is not None and other is not None and other in self.distributions.needs(own)
        )
        return is_there and file.endswith(".py")  # Python itself passes over a stub

    def _places(self, folder: str, dotted: str) -> list[Hit]:
        """The files of a module in all roots from which this folder can import it, also those that define nothing."""
        is_standard = dotted.partition(".")[0] in sys.stdlib_module_names
        return [
            (root, file)
            for root, file in self._modules.get(dotted, ())
            if _is_below(folder, root) or not (is_standard or ("." not in dotted and root in self._script_roots))
        ]

    def _near(self, folder: str, hits: Iterable[Hit]) -> list[Hit]:
        """Those in roots above a folder, in its distribution, or in one that this depends on.

        A file outside of all distributions may be on the search path of any.
        """
        own = self.distributions.of_folder(folder)
        needed = frozenset[int]() if own is None else self.distributions.may_need(own)
        return [
            (root, file)
            for root, file in hits
            if _is_below(folder, root)
            or needed is None
            or (place := self.distributions.of(file)) in needed
            or place is None
        ]

    def _connected(self, folder: str, near: Iterable[Hit], hits: Iterable[Hit]) -> Iterator[str]:
        """Those of distributions that depend on one of the near ones, or may, or that a third needs with one.

        They can be in the same environment.
        """
        places = {self.distributions.of(file) for _, file in near} | {self.distributions.of_folder(folder)}
        places.discard(None)
        for _, file in hits:
            other = self.distributions.of(file)
            needed = frozenset[int]() if other is None else self.distributions.may_need(other)
            together = frozenset[int]() if other is None else self.distributions.together_with(other)
            if places and (needed is None or not places.isdisjoint(needed | together)):
                yield file

    def _roots_above(self, folder: str) -> Iterator[str]:
        return (above for above in _above(folder) if above in self._roots)

    def _file(self, folder: str, dotted: str) -> str | None:
        """The file of a module below a folder, of the folder itself for an empty name."""
        place = "/".join(part for part in (folder, dotted.replace(".", "/")) if part)
        inside = f"{place}/__init__" if place else "__init__"
        candidates = (stem + ending for stem in (inside, place) for ending in ENDINGS)
        return next((candidate for candidate in candidates if candidate in self._known), None)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.files)

    @cached_property
    def _packages(self) -> frozenset[str]:
        """Folders with an __init__."""
        folders = (file.rpartition("/") for file in self.files)
        return frozenset(folder for folder, _, name in folders if name.partition(".")[0] == "__init__")

    @cached_property
    def _roots(self) -> frozenset[str]:
        above = {folder for file in self.files for folder in _above(file.rpartition("/")[0])}
        declared = {distribution.folder for distribution in self.distributions.all}
        return frozenset(
            folder
            for folder in above | {""}
            if not folder
            or folder not in self._packages
            or folder in declared
            or folder.rpartition("/")[2] in SOURCE_FOLDERS
        )

    @cached_property
    def _script_roots(self) -> frozenset[str]:
        """Roots that hold no package and are not a usual place for sources."""
        holders = {package.rpartition("/")[0] for package in self._packages}
        declared = {distribution.folder for distribution in self.distributions.all}
        return frozenset(
            root for root in self._roots - holders - declared if root and root.rpartition("/")[2] not in SOURCE_FOLDERS
        )

    @cached_property
    def _modules(self) -> dict[str, list[Hit]]:
        """For each dotted name the files that it may mean, one for each root."""
        files: dict[str, dict[str, str]] = {}
        for file in sorted(self.files, key=_precedence):
            folder = file.rpartition("/")[0]
            place = file.rpartition(".")[0].removesuffix("/__init__")
            for root in self._roots_above(folder):
                path = place.removeprefix(root).strip("/")
                if path and "." not in path:  # a name with a dot cannot be imported
                    files.setdefault(path.replace("/", "."), {}).setdefault(root, file)
        return {dotted: sorted(places.items()) for dotted, places in files.items()}


def _precedence(file: str) -> tuple[bool, bool, str]:
    """Packages precede modules, and sources precede stubs."""
    return file.rpartition("/")[2].partition(".")[0] != "__init__", not file.endswith(".py"), file


def _above(folder: str) -> Iterator[str]:
    """A folder and all folders above it, the top included."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield ""


def _is_below(folder: str, root: str) -> bool:
    return not root or folder == root or folder.startswith(f"{root}/")
