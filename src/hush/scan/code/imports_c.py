"""Which C and C++ files include which.

Include folders are the build's affair and not known here, so a path that is not found beside the including file leads
to every file of the repository whose path ends in it. A macro that stands for the name of a header counts as including
it. Where names are ambiguous this finds too much rather than too little.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

from hush.scan.code.parsing import nodes_of, text_of
from hush.scan.code.repository import Repository

__all__ = ["C", "CPlusPlus"]

_INCLUDE, _DEFINE = "preproc_include", "preproc_def"
_HEADER = re.compile(r'"[^"\n]+\.(?:h|hh|hpp|hxx|inc|inl|ipp)"|<[^>\n]+>')
_LINE = re.compile(r'^[ \t]*#[ \t]*(?:include(?:_next)?|import)[ \t]*("[^"\n]+"|<[^>\n]+>)', re.MULTILINE)


def _references(language: str, text: str) -> tuple[list[str], bool]:
    """Included paths, with their quotes or brackets."""
    nodes, has_errors = nodes_of(language, (_INCLUDE, _DEFINE), f"{text}\n")  # a directive ends with its line
    paths = [node.child_by_field_name("path") for node in nodes[_INCLUDE]]
    values = [node.child_by_field_name("value") for node in nodes[_DEFINE]]
    found = [
        text_of(path) for path in paths if path is not None and path.type in ("string_literal", "system_lib_string")
    ]
    found += [name for value in values if value is not None and _HEADER.fullmatch(name := text_of(value).strip())]
    # The grammar knows no include amid an expression or a list, where tables are often included, nor its variants.
    found += _LINE.findall(text)
    return list(dict.fromkeys(found)), has_errors


def _edges(repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for file in repository.paths:
        by_name[posixpath.basename(file)].append(file)
    for path, includes in references.items():
        targets: set[str] = set()
        for include in includes:
            wanted = posixpath.normpath(include[1:-1].replace("\\", "/"))  # as some compilers on Windows read it
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), wanted))
            named = by_name.get(posixpath.basename(wanted), ())
            if include.startswith('"') and beside in repository.known:
                targets.add(beside)
            else:
                inner = re.sub(r"^(?:\.\./)+", "", wanted)
                targets |= {file for file in named if f"/{file}".endswith(f"/{inner}")}
        yield path, targets - {path}


@final
@dataclass(frozen=True)
class C:
    """C for the table of languages."""

    name: str = "C"
    endings: tuple[str, ...] = (".c",)

    def references(self, path: str, text: str) -> tuple[list[str], bool]:
        """What a file includes, and whether it has errors."""
        return _references("c", text)

    def edges(self, repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it includes."""
        return _edges(repository, references)


@final
@dataclass(frozen=True)
class CPlusPlus:
    """C++ and headers, which may be of either language, for the table of languages."""

    name: str = "C++"
    endings: tuple[str, ...] = (
        *(".h", ".H", ".hh", ".hpp", ".hxx", ".h++", ".inc", ".inl", ".ipp", ".tcc", ".tpp", ".txx", ".cuh"),
        *(".C", ".cc", ".cpp", ".cxx", ".c++", ".cu"),
    )

    def references(self, path: str, text: str) -> tuple[list[str], bool]:
        """What a file includes, and whether it has errors."""
        return _references("cpp", text)

    def edges(self, repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it includes."""
        return _edges(repository, references)
