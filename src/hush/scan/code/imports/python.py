"""Imports between Python files.

An import counts anywhere: inside functions, under TYPE_CHECKING, in a try. ``import a.b`` leads to a.b alone, not to
its parent packages; ``from a import b`` to the module a.b if it exists, otherwise to a. Files that Python cannot parse
are read by a tolerant parser instead.
"""

import ast
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import PurePosixPath
from typing import final

from hush.scan.code.imports.parsing import nodes_of, text_of
from hush.scan.code.repository import Repository

__all__ = ["Imported", "Python", "PythonModules", "imported_names", "tolerantly_imported_names"]


SOURCE_FOLDERS = ("src", "lib", "python")
ENDINGS = (".py", ".pyi")  # if both exist, the first is the module
_BLOCKS = ("cases", "finalbody", "orelse", "handlers", "body")  # last in the file first


@final
@dataclass(frozen=True, slots=True, order=True)
class Imported:
    """One imported name: ``import module`` if name is None, else ``from ..module import name`` with ``level`` dots."""

    level: int
    module: str
    name: str | None


def imported_names(text: str) -> list[Imported]:
    """All imports of a file; SyntaxError if it is not valid Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated escapes
        try:
            tree = ast.parse(text)
        except (RecursionError, MemoryError, ValueError):  # too deep, or with null characters
            raise SyntaxError("Python cannot parse this file") from None
    imports: list[Imported] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            imports += [Imported(0, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [Imported(node.level, node.module or "", alias.name) for alias in node.names]
        else:  # imports are statements, and only these fields hold statements: expressions need not be visited
            for name in _BLOCKS:
                block = getattr(node, name, None)
                if isinstance(block, list):  # of a lambda, the body is an expression
                    waiting += reversed(block)
    return imports


_PLAIN, _FROM = "import_statement", "import_from_statement"


def tolerantly_imported_names(text: str) -> list[Imported]:
    """As ``imported_names``, for files with syntax errors; some imports may be missing."""
    imports: list[Imported] = []
    nodes, _ = nodes_of("python", (_PLAIN, _FROM), text)
    for statement in sorted(nodes[_PLAIN] + nodes[_FROM], key=lambda node: node.start_byte):
        aliased = [node.child_by_field_name("name") or node for node in statement.children_by_field_name("name")]
        names = ["".join(text_of(node).split()) for node in aliased]
        source = statement.child_by_field_name("module_name")
        if source is None:
            imports += [Imported(0, name, None) for name in names]
            continue
        if any(child.type == "wildcard_import" for child in statement.named_children):
            names = ["*"]
        dotted = "".join(text_of(source).split())
        module = dotted.lstrip(".")
        imports += [Imported(len(dotted) - len(module), module, name) for name in names]
    return imports


@final
@dataclass(frozen=True)
class PythonModules:
    """The Python files of a repository, found by the names under which they can be imported.

    A root is a folder at which dotted names begin: the top, folders called src, lib or python, and folders that contain
    a package (a folder with an __init__ whose parent has none). For files next to or below a file outside of packages,
    the folder of that file is a root, too, as for scripts. If several roots know a name, the root that shares the
    longest path with the importing file is chosen, or all that share equally much. A nearer root that knows only the
    module in which the last part could be a name is used in addition, not instead. Names of the standard library lead
    only to roots above the importing file.
    """

    files: tuple[str, ...]

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.files)

    @cached_property
    def _packages(self) -> frozenset[PurePosixPath]:
        return frozenset(PurePosixPath(file).parent for file in self.files if PurePosixPath(file).stem == "__init__")

    @cached_property
    def _roots(self) -> dict[str, list[tuple[str, ...]]]:
        """For each first name the roots that know it, as parts of their paths; roots of scripts are in ``_scripts``."""
        roots = {PurePosixPath(), *self._scripts}
        for file in self.files:
            folder = PurePosixPath(file).parent
            roots |= {above for above in (folder, *folder.parents) if above.name in SOURCE_FOLDERS}
            while folder in self._packages and folder.parts:
                folder = folder.parent
            roots.add(folder)
        known: dict[str, set[tuple[str, ...]]] = {}
        for file in self.files:
            path = PurePosixPath(file)
            for root in {path.parent, *path.parent.parents} & roots:
                first = path.relative_to(root).parts[0]
                known.setdefault(PurePosixPath(first).stem, set()).add(root.parts)
        return {first: sorted(places) for first, places in known.items()}

    @cached_property
    def _scripts(self) -> frozenset[PurePosixPath]:
        """Folders that are roots only because they contain a file outside of packages."""
        folders = {PurePosixPath(file).parent for file in self.files} - self._packages
        holders = {package.parent for package in self._packages}
        return frozenset(folder for folder in folders - holders if folder.name not in SOURCE_FOLDERS and folder.parts)

    def imports_of(self, file: str, names: Iterable[Imported]) -> set[str]:
        """The files of the repository that these imports of a file lead to."""
        targets = {target for imported in names for target in self._targets(file, imported)}
        return targets - {file}

    def _targets(self, file: str, imported: Imported) -> Iterator[str]:
        parts = tuple(imported.module.split(".")) if imported.module else ()
        name = () if imported.name is None else (imported.name,)
        full: tuple[str, ...] = (*parts, *name)
        # The last part may be a name inside a module; only a relative import can mean the folder itself.
        readings: list[tuple[str, ...]] = [full, full[:-1]] if len(full) > 1 or imported.level else [full]
        starts = self._starts(file, imported.level, full)
        nearest_full = -1  # path parts that the nearest root with the whole name shares with the file
        for reading in readings:
            nearest = None
            for shared, root in starts:
                if shared <= nearest_full or nearest not in (None, shared):
                    break
                target = self._file(root, reading)
                if target is not None:
                    nearest = shared
                    yield target
            if nearest is not None:
                if imported.name is None:
                    return  # ``import a.b`` names a module, which was found
                nearest_full = nearest

    def _starts(self, file: str, level: int, full: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
        """The folders at which a name may begin, best first, each with the path parts it shares with the file."""
        here = PurePosixPath(file).parent.parts
        if level:
            return [(0, here[: len(here) - level + 1])] if level <= len(here) + 1 else []
        first = full[0] if full else ""
        roots = [
            root
            for root in self._roots.get(first, ())
            if here[: len(root)] == root
            or (PurePosixPath(*root) not in self._scripts and first not in sys.stdlib_module_names)
        ]
        return sorted(((_shared(root, here), root) for root in roots), key=lambda start: (-start[0], start[1]))

    def _file(self, root: Sequence[str], dotted: Sequence[str]) -> str | None:
        place = "/".join([*root, *dotted])
        inside = f"{place}/__init__" if place else "__init__"
        candidates = [stem + ending for stem in (inside, place) for ending in ENDINGS]
        return next((candidate for candidate in candidates if candidate in self._known), None)


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of leading parts that two paths have in common."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@final
@dataclass(frozen=True)
class Python:
    """Python, for the table ``LANGUAGES``."""

    name: str = "Python"
    endings: tuple[str, ...] = ENDINGS

    def references(self, path: str, text: str) -> tuple[list[Imported], bool]:
        """The imports of a file, and whether it has syntax errors."""
        try:
            return imported_names(text.removeprefix("\ufeff")), False
        except SyntaxError:
            return tolerantly_imported_names(text), True

    def edges(self, repository: Repository, references: Mapping[str, list[Imported]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports."""
        modules = PythonModules(tuple(path for path in repository.paths if path.endswith(ENDINGS)))
        for path, names in references.items():
            yield path, modules.imports_of(path, names)
