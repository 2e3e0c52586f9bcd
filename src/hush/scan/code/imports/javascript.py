"""Imports between JavaScript and TypeScript files: import, export from, require, and import() of a literal.

Relative paths get the endings and index files that bundlers try. Other names are looked up in the nearest tsconfig.json
or jsconfig.json (baseUrl, paths), then among the packages of the repository by their package.json.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from hush.scan.code.imports.parsing import nodes_of, text_of
from hush.scan.code.repository import Repository

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["JavaScript", "Paths", "nearest_settings", "package_folders"]


_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """How names that are not relative map to paths: patterns with at most one star, and base folders."""

    patterns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bases: tuple[str, ...] = ()

    def candidates(self, name: str) -> Iterator[str]:
        """The paths that a name may refer to, best first."""
        for pattern, places in sorted(self.patterns, key=lambda entry: -len(entry[0].partition("*")[0])):
            head, star, tail = pattern.partition("*")
            if star and len(name) >= len(head + tail) and name.startswith(head) and name.endswith(tail):
                inside = name[len(head) : len(name) - len(tail)]
                yield from (place.replace("*", inside, 1) for place in places)
            elif pattern == name:
                yield from places
        yield from (posixpath.join(base, name) for base in self.bases)


def nearest_settings(repository: Repository, folder: str) -> Paths:
    """The settings of a folder: of the first tsconfig.json or jsconfig.json from there upwards."""
    while True:
        for name in ("tsconfig.json", "jsconfig.json"):
            file = posixpath.join(folder, name)
            if file in repository.sizes:
                return _paths(repository, file)
        if not folder:
            return Paths()
        folder = posixpath.dirname(folder)


def _paths(repository: Repository, file: str) -> Paths:
    """The paths of a settings file and of all files that it extends, its own first.

    For a compiler the nearest paths replace all others; here all are used, which finds too much rather than too little.
    """
    waiting, seen = [file], set[str]()
    bases: list[str] = []
    mapped: list[tuple[str, str, tuple[str, ...]]] = []  # the folder of the file, a pattern, and its targets
    while waiting:
        file = waiting.pop()
        if file in seen or file not in repository.sizes:
            continue
        seen.add(file)
        content = _loose_json(repository.read(file))
        folder = posixpath.dirname(file)
        options = content.get("compilerOptions")
        options = options if isinstance(options, dict) else {}
        if isinstance(base := options.get("baseUrl"), str):
            bases.append(posixpath.normpath(posixpath.join(folder, base)))
        entries = options.get("paths")
        for name, places in entries.items() if isinstance(entries, dict) else ():
            if isinstance(places, list):
                mapped.append((folder, name, tuple(place for place in places if isinstance(place, str))))
        parents = content.get("extends")
        for parent in parents if isinstance(parents, list) else [parents]:  # the last takes precedence
            if isinstance(parent, str):
                named = posixpath.normpath(posixpath.join(folder, parent))
                waiting.append(named if named.endswith(".json") else f"{named}.json")
    # Targets are relative to a base, which another file of the chain may state; without one, to their own file.
    patterns = tuple(
        (name, tuple(posixpath.join(start, place) for start in (*bases, folder) for place in places))
        for folder, name, places in mapped
    )
    return Paths(patterns=patterns, bases=tuple(bases))


def package_folders(repository: Repository) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The packages of a repository by their own names: the folder and the content of package.json."""
    packages: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for file in repository.files:
        if posixpath.basename(file) == "package.json":
            content = _loose_json(repository.read(file))
            if isinstance(name := content.get("name"), str):
                packages.setdefault(name, (posixpath.dirname(file), content))
    return packages


def _loose_json(text: str) -> dict[str, Any]:
    """JSON with comments and trailing commas; empty if it is not valid even so."""
    plain = _TRAILING_COMMA.sub(lambda match: match[1] or "", _COMMENT.sub(lambda match: match[1] or " ", text))
    try:
        content = json.loads(plain.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


ENDINGS = (".ts", ".tsx", ".mts", ".cts", ".d.ts", ".js", ".jsx", ".mjs", ".cjs", ".json")
_WRITTEN_FOR = {".js": (".ts", ".tsx"), ".jsx": (".tsx",), ".mjs": (".mts",), ".cjs": (".cts",)}
_ENTRY_KEYS = ("source", "module", "main", "types")
_WITH_SOURCE = ("import_statement", "export_statement", "import_require_clause")
_CALL = "call_expression"
_LOADERS = ("import", "require", "require.resolve")


@final
@dataclass(frozen=True)
class JavaScript:
    """JavaScript and TypeScript, which import each other, for the table ``LANGUAGES``."""

    name: str = "JavaScript and TypeScript"
    endings: tuple[str, ...] = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts")

    def references(self, path: str, text: str) -> tuple[list[str], bool]:
        """The imports of a file, and whether it has syntax errors."""
        language = "typescript" if path.endswith((".ts", ".mts", ".cts")) else "javascript"
        nodes, has_errors = nodes_of("tsx" if path.endswith(".tsx") else language, (*_WITH_SOURCE, _CALL), text)
        sources = [node.child_by_field_name("source") for kind in _WITH_SOURCE for node in nodes[kind]]
        sources += [argument for call in nodes[_CALL] for argument in _loaded(call)]
        literals = (text_of(source)[1:-1] for source in sources if source is not None)
        return [literal for literal in literals if literal and "${" not in literal], has_errors

    def edges(self, repository: Repository, references: Mapping[str, list[str]]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports."""
        lookup = _Lookup(repository)
        for path, imports in references.items():
            targets = {lookup.target(path, imported) for imported in imports}
            yield path, {target for target in targets if target is not None} - {path}


def _loaded(call: "Node") -> list["Node"]:
    """The literals by which a call of import or require loads files; empty for other calls."""
    called, given = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    if called is None or given is None or called.end_byte - called.start_byte > max(map(len, _LOADERS)):
        return []
    if text_of(called) not in _LOADERS:
        return []
    return [node for node in given.named_children if node.type in ("string", "template_string")]


@final
@dataclass(frozen=True)
class _Lookup:
    repository: Repository

    def target(self, path: str, imported: str) -> str | None:
        """The file that an import of a file leads to; None if it is not in this repository."""
        imported = re.sub(r"[?#].*", "", imported) or imported  # bundlers accept options after the name
        folder = posixpath.dirname(path)
        if imported.startswith(("./", "../")) or imported in (".", ".."):
            return self._file(posixpath.join(folder, imported))
        mapped = (self._file(candidate) for candidate in self._settings_of(folder).candidates(imported))
        return next((file for file in mapped if file is not None), None) or self._in_package(imported)

    def _settings_of(self, folder: str) -> Paths:
        if folder not in self._settings:
            self._settings[folder] = nearest_settings(self.repository, folder)
        return self._settings[folder]

    @cached_property
    def _settings(self) -> dict[str, Paths]:
        return {}

    @cached_property
    def _packages(self) -> Mapping[str, tuple[str, Mapping[str, object]]]:
        return package_folders(self.repository)

    def _file(self, path: str) -> str | None:
        """The file of a path as bundlers resolve it: as is, with an ending, as TypeScript, or the index of a folder."""
        path = posixpath.normpath(path)
        known = self.repository.known
        stem, ending = posixpath.splitext(path)
        index = "index" if path == "." else f"{path}/index"
        candidates = [
            path,
            *(stem + other for other in _WRITTEN_FOR.get(ending, ())),
            *(path + other for other in ENDINGS),
            *(index + other for other in ENDINGS),
        ]
        return next((candidate for candidate in candidates if candidate in known), None)

    def _in_package(self, imported: str) -> str | None:
        """A file of a package of this repository; its package.json if the file is not stated."""
        parts = imported.split("/")
        name = "/".join(parts[: 2 if imported.startswith("@") else 1])
        if name not in self._packages:
            return None
        folder, description = self._packages[name]
        rest = imported.removeprefix(name).lstrip("/")
        entries = [entry for key in _ENTRY_KEYS if isinstance(entry := description.get(key), str)]
        inside = [rest, f"src/{rest}"] if rest else [*entries, "src/index", "index"]
        files = (self._file(posixpath.join(folder, path)) for path in inside)
        return next((file for file in files if file is not None), posixpath.join(folder, "package.json"))
