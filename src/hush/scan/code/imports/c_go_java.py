"""Imports between files of C and C++, of Go, and of Java.

C and C++: include folders are part of the build and not known here, so a path that is not found next to the including
file leads to every file of the repository whose path ends in it. A macro that stands for the name of a header counts as
including it. If names are ambiguous, this finds too much rather than too little.

Go: an import names a package, which is a folder, so it leads to every file of the folder. Paths begin at the modules of
the repository (its go.mod files) and at vendor folders. Java: classes by name, whole packages by star, members by
static imports. Files of one package of Go or Java see each other without an import; that makes no edge.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import final

from hush.scan.code.imports.parsing import nodes_of, text_of
from hush.scan.code.repository import Repository

__all__ = ["C", "CPlusPlus", "Go", "Java"]


_INCLUDE, _DEFINE = "preproc_include", "preproc_def"
_HEADER = re.compile(r'"[^"\n]+\.(?:h|hh|hpp|hxx|inc|inl|ipp)"|<[^>\n]+>')
_LINE = re.compile(r'^[ \t]*#[ \t]*(?:include(?:_next)?|import)[ \t]*("[^"\n]+"|<[^>\n]+>)', re.MULTILINE)


def _references(language: str, text: str) -> tuple[list[str], bool]:
    """The included paths, with their quotes or brackets."""
    nodes, has_errors = nodes_of(language, (_INCLUDE, _DEFINE), f"{text}\n")  # a directive ends with its line
    paths = [node.child_by_field_name("path") for node in nodes[_INCLUDE]]
    values = [node.child_by_field_name("value") for node in nodes[_DEFINE]]
    includes = [
        text_of(path) for path in paths if path is not None and path.type in ("string_literal", "system_lib_string")
    ]
    includes += [name for value in values if value is not None and _HEADER.fullmatch(name := text_of(value).strip())]
    # The grammar does not parse an include inside an expression or a list, where tables are often included.
    includes += _LINE.findall(text)
    return list(dict.fromkeys(includes)), has_errors


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
    """C, for the table ``LANGUAGES``."""

    name: str = "C"
    endings: tuple[str, ...] = (".c",)

    def references(self, path: str, text: str) -> tuple[list[str], bool]:
        """The includes of a file, and whether it has syntax errors."""
        return _references("c", text)

    def edges(self, repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it includes."""
        return _edges(repository, references)


@final
@dataclass(frozen=True)
class CPlusPlus:
    """C++ and headers, which may be of either language, for the table ``LANGUAGES``."""

    name: str = "C++"
    endings: tuple[str, ...] = (
        *(".h", ".H", ".hh", ".hpp", ".hxx", ".h++", ".inc", ".inl", ".ipp", ".tcc", ".tpp", ".txx", ".cuh"),
        *(".C", ".cc", ".cpp", ".cxx", ".c++", ".cu"),
    )

    def references(self, path: str, text: str) -> tuple[list[str], bool]:
        """The includes of a file, and whether it has syntax errors."""
        return _references("cpp", text)

    def edges(self, repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it includes."""
        return _edges(repository, references)


_MODULE = re.compile(r"^\s*module\s+(?:\(\s*)?[\"`]?([^\s\"`()]+)", re.MULTILINE)


@final
@dataclass(frozen=True)
class Go:
    """Go, for the table ``LANGUAGES``."""

    name: str = "Go"
    endings: tuple[str, ...] = (".go",)

    def references(self, path: str, text: str) -> tuple[list[str], bool]:
        """The imports of a file, and whether it has syntax errors."""
        nodes, has_errors = nodes_of("go", ["import_spec"], text)
        paths = (node.child_by_field_name("path") for node in nodes["import_spec"])
        return [text_of(path).strip('"`') for path in paths if path is not None], has_errors

    def edges(self, repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports."""
        packages: defaultdict[str, set[str]] = defaultdict(set)
        for path in repository.paths:
            # Other packages cannot import the tests of a package.
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
    """The import path of each module, and its folder."""
    for file in repository.files:
        if PurePosixPath(file).name == "go.mod" and (named := _MODULE.search(repository.read(file))):
            yield named[1], PurePosixPath(file).parent


def _vendors(files: Mapping[str, object]) -> Iterator[tuple[str, PurePosixPath]]:
    """Vendor folders, which contain packages of others under their full path."""
    above = {folder for file in files for folder in PurePosixPath(file).parents}
    yield from (("", folder) for folder in sorted(above) if folder.name == "vendor")


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
    """Java, for the table ``LANGUAGES``."""

    name: str = "Java"
    endings: tuple[str, ...] = (".java",)

    def references(self, path: str, text: str) -> tuple[JavaReferences, bool]:
        """The imports of a file, and whether it has syntax errors."""
        nodes, has_errors = nodes_of("java", (_PACKAGE, _IMPORT), text)
        packages = [_dotted(text_of(node)) for node in nodes[_PACKAGE]]
        imports = tuple(_dotted(text_of(node)) for node in nodes[_IMPORT])
        return JavaReferences(packages[0] if packages else (), imports), has_errors

    def edges(self, repository: Repository, references: Mapping[str, JavaReferences]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports."""
        classes: defaultdict[Dotted, set[str]] = defaultdict(set)
        packages: defaultdict[Dotted, set[str]] = defaultdict(set)
        for path, file in references.items():
            classes[(*file.package, PurePosixPath(path).stem)].add(path)
            packages[file.package].add(path)
        for path in repository.paths:
            if path.endswith(".java") and path not in references:  # unreadable: any package that its folders allow
                *folders, name = PurePosixPath(path).with_suffix("").parts
                for begin in range(len(folders) + 1):
                    classes[(*folders[begin:], name)].add(path)
                    packages[tuple(folders[begin:])].add(path)
        for path, file in references.items():
            targets: set[str] = set()
            for dotted in file.imports:
                package = packages.get(dotted[:-1]) if dotted[-1:] == ("*",) else None
                targets |= package or _class_of(dotted, classes)
            yield path, targets


def _class_of(dotted: Dotted, classes: Mapping[Dotted, set[str]]) -> set[str]:
    """The file of the longest class name that a name begins with; the rest is a class or member inside it."""
    prefixes = (dotted[:length] for length in range(len(dotted), 0, -1))
    return next((classes[prefix] for prefix in prefixes if prefix in classes), set())


def _dotted(declaration: str) -> Dotted:
    words = _PARTS.findall(_COMMENT.sub(" ", declaration).removesuffix(";"))
    return tuple(word for word in words if word not in ("package", "import", "static"))
