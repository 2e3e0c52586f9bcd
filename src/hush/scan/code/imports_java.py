"""Which Java files import which: classes by name, whole packages by star, members by static imports.

Classes of one package see each other without an import; that makes no edge.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import final

from hush.scan.code.parsing import nodes_of, text_of
from hush.scan.code.repository import Repository

__all__ = ["Java"]

_PACKAGE, _IMPORT = "package_declaration", "import_declaration"
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_PARTS = re.compile(r"[\w$]+|\*")

Dotted = tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class JavaReferences:
    """A file's package and the names that it imports; a last part "*" means everything in there."""

    package: Dotted
    imports: tuple[Dotted, ...]


@final
@dataclass(frozen=True)
class Java:
    """Java for the table of languages."""

    name: str = "Java"
    endings: tuple[str, ...] = (".java",)

    def references(self, path: str, text: str) -> tuple[JavaReferences, bool]:
        """What a file imports, and whether it has errors."""
        nodes, has_errors = nodes_of("java", (_PACKAGE, _IMPORT), text)
        packages = [_dotted(text_of(node)) for node in nodes[_PACKAGE]]
        imports = tuple(_dotted(text_of(node)) for node in nodes[_IMPORT])
        return JavaReferences(packages[0] if packages else (), imports), has_errors

    def edges(self, repository: Repository, references: Mapping[str, JavaReferences]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports."""
        classes: defaultdict[Dotted, set[str]] = defaultdict(set)
        packages: defaultdict[Dotted, set[str]] = defaultdict(set)
        for path, own in references.items():
            classes[(*own.package, PurePosixPath(path).stem)].add(path)
            packages[own.package].add(path)
        for path in repository.paths:
            if path.endswith(".java") and path not in references:  # cannot be read: any package that its folders allow
                *folders, name = PurePosixPath(path).with_suffix("").parts
                for begin in range(len(folders) + 1):
                    classes[(*folders[begin:], name)].add(path)
                    packages[tuple(folders[begin:])].add(path)
        for path, own in references.items():
            targets: set[str] = set()
            for dotted in own.imports:
                whole = dotted[-1:] == ("*",) and packages.get(dotted[:-1])
                targets |= whole or _class_of(dotted, classes)
            yield path, targets


def _class_of(dotted: Dotted, classes: Mapping[Dotted, set[str]]) -> set[str]:
    """The file of the class that a name begins with: what follows is a class or a member inside."""
    prefixes = (dotted[:length] for length in range(len(dotted), 0, -1))
    return next((classes[prefix] for prefix in prefixes if prefix in classes), set())


def _dotted(declaration: str) -> Dotted:
    words = _PARTS.findall(_COMMENT.sub(" ", declaration).removesuffix(";"))
    return tuple(word for word in words if word not in ("package", "import", "static"))
