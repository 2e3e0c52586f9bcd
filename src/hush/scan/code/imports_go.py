"""Which Go files import which: an import names a package, which is a folder, so it leads to every file of the folder.

Paths count from the modules of the repository (its go.mod files) and from vendor folders. Files of one package see each
other without an import; that makes no edge.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import final

from hush.scan.code.parsing import nodes_of, text_of
from hush.scan.code.repository import Repository

__all__ = ["Go"]

_MODULE = re.compile(r"^\s*module\s+(?:\(\s*)?[\"`]?([^\s\"`()]+)", re.MULTILINE)


@final
@dataclass(frozen=True)
class Go:
    """Go for the table of languages."""

    name: str = "Go"
    endings: tuple[str, ...] = (".go",)

    def references(self, path: str, text: str) -> tuple[list[str], bool]:
        """What a file imports, and whether it has errors."""
        nodes, has_errors = nodes_of("go", ["import_spec"], text)
        paths = (node.child_by_field_name("path") for node in nodes["import_spec"])
        return [text_of(path).strip('"`') for path in paths if path is not None], has_errors

    def edges(self, repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports."""
        packages: defaultdict[str, set[str]] = defaultdict(set)
        for path in repository.paths:
            # Tests of a package are no part of it for others.
            if path.endswith(".go") and not path.endswith("_test.go"):
                packages[PurePosixPath(path).parent.as_posix()].add(path)
        folders = [*_modules(repository), *_vendors(references)]
        for path, imports in references.items():
            targets: set[str] = set()
            for imported in imports:
                for prefix, folder in folders:
                    if imported == prefix or imported.startswith(prefix and f"{prefix}/"):
                        rest = imported.removeprefix(prefix).strip("/")
                        targets |= packages.get((folder / rest).as_posix(), set())
            yield path, targets - {path}


def _modules(repository: Repository) -> Iterator[tuple[str, PurePosixPath]]:
    """The path that each module gives itself, and its folder."""
    for file in repository.files:
        if PurePosixPath(file).name == "go.mod" and (named := _MODULE.search(repository.read(file))):
            yield named[1], PurePosixPath(file).parent


def _vendors(files: Mapping[str, object]) -> Iterator[tuple[str, PurePosixPath]]:
    """Folders in which packages of others lie under their full path."""
    above = {folder for file in files for folder in PurePosixPath(file).parents}
    yield from (("", folder) for folder in sorted(above) if folder.name == "vendor")
