"""Imports between Rust files: ``mod`` leads to the file of the module, paths to the file of the longest module in them.

Paths are those of ``use``, and of expressions, types and arguments of macros and attributes, that begin with crate,
self, super or the name of a crate of the repository. ``include!`` and its variants lead to the file that they name.
Paths that macros generate are not seen. ``Modules`` is the module tree of the crates, from ``mod`` declarations and
Cargo.toml.
"""

import posixpath
import re
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from hush.scan.code.imports.parsing import nodes_of, text_of
from hush.scan.code.repository import Repository

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Modules", "Names", "Rust", "RustReferences", "used_paths"]


Names = tuple[str, ...]
ModDeclarations = Mapping[str, tuple[tuple[Names, str | None], ...]]

_FOLDER_FILES = ("lib.rs", "main.rs", "mod.rs", "build.rs")


@final
@dataclass(frozen=True, kw_only=True)
class Modules:
    """The position of every file in the module trees of its crates, and back.

    places: for each file, the roots of its crates and its module path in each. files: for each root, files by module
    path. crates: the root file of each library of the repository, by its name in code.
    """

    places: Mapping[str, tuple[tuple[str, Names], ...]]
    files: Mapping[str, Mapping[Names, str]]
    crates: Mapping[str, str]

    @classmethod
    def of(cls, repository: Repository, declared: ModDeclarations) -> Self:
        """Follows the declarations from the files that no other file declares; each file counts once per crate."""
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
        # Files that declare each other in a cycle have no root: each is its own root.
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
        """The files that a path leads to, one for each crate of the file that contains it.

        around: the inline modules around it. strict: whether its first name must be crate, self, super or a crate;
        otherwise it may be a submodule.
        """
        files: set[str] = set()
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
            files |= self._longest(root, (*start, *rest))
        return files

    def _longest(self, root: str, names: Names) -> set[str]:
        prefixes = (names[:length] for length in range(len(names), -1, -1))
        return next(({self.files[root][prefix]} for prefix in prefixes if prefix in self.files[root]), set())


def _file_of_mod(known: Mapping[str, object], path: str, names: Names, given: str | None) -> str | None:
    """The file of ``mod c;`` inside ``mod b { }`` of a file: below the folder of the file's own module."""
    folder, name = posixpath.split(path)
    module_folder = folder if name in _FOLDER_FILES else posixpath.join(folder, name.removesuffix(".rs"))
    if given is not None:
        start = folder if len(names) == 1 else posixpath.join(module_folder, *names[:-1])
        candidates = [posixpath.join(start, given)]
    else:
        # The root of a crate may have any name; its modules are then next to it.
        candidates = [
            posixpath.join(start, *names[:-1], ending)
            for start in dict.fromkeys((module_folder, folder))
            for ending in (f"{names[-1]}.rs", f"{names[-1]}/mod.rs")
        ]
    files = (posixpath.normpath(candidate) for candidate in candidates)
    return next((file for file in files if file in known and file != path), None)


def _libraries(repository: Repository, known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Name and root file of every library."""
    for file, content in _manifests(repository):
        library, package = (table if isinstance(table := content.get(key), dict) else {} for key in ("lib", "package"))
        root = posixpath.normpath(posixpath.join(posixpath.dirname(file), str(library.get("path", "src/lib.rs"))))
        name = str(library.get("name", package.get("name", ""))).replace("-", "_")
        if name and root in known:
            yield name, root


def _other_names(repository: Repository, crates: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Other names under which a manifest uses a library, as in pay = { package = "x" }, and its root file."""
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


MAX_MODULE_DEPTH = 128  # levels of modules and paths, as in the compiler; deeper ones are cut
MAX_PATH_BYTES = 1000  # a longer path is cut

_MOD, _USE, _CRATE, _ATTRIBUTE = "mod_item", "use_declaration", "extern_crate_declaration", "attribute_item"
_PATHS = ("scoped_identifier", "scoped_type_identifier")
_TOKEN_TREE = "token_tree"  # the arguments of a macro or an attribute, which the grammar does not parse
_PATH_IN_TOKENS = re.compile(r"\b\w++(?:\s*+::\s*+(?:r#)?\w++)++")
_INCLUDE = re.compile(r'\binclude(?:_str|_bytes)?\s*!\s*[({\[]\s*"([^"\n]+)"')
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_USE_TOKEN = re.compile(r"(?:r#)?\w+|[{},*]")
_PATH_ATTRIBUTE = re.compile(r'#\s*\[\s*path\s*=\s*"([^"]+)"\s*\]')


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RustReferences:
    """The modules that a file declares without a body (and their path attribute), and the paths that it uses.

    used: the inline modules around a path, the path, and whether it is strict: in an expression, where a path that
    begins with an unknown name is not a module. included: files, relative to the folder of this one.
    """

    declared: tuple[tuple[Names, str | None], ...]
    used: tuple[tuple[Names, Names, bool], ...]
    included: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Rust:
    """Rust, for the table ``LANGUAGES``."""

    name: str = "Rust"
    endings: tuple[str, ...] = (".rs",)

    def references(self, path: str, text: str) -> tuple[RustReferences, bool]:
        """The declarations and paths of a file, and whether it has syntax errors."""
        nodes, has_errors = nodes_of("rust", (_MOD, _USE, _CRATE, _ATTRIBUTE, _TOKEN_TREE, *_PATHS), text)
        source = text.encode()
        bodies = [mod for mod in nodes[_MOD] if mod.child_by_field_name("body")]
        bare = [mod for mod in nodes[_MOD] if not mod.child_by_field_name("body")]
        files = _path_attributes(bare, nodes[_ATTRIBUTE], source)
        declared = [((*around, _name(mod)), files.get(mod.start_byte)) for mod, around in _with_modules(bare, bodies)]
        used: list[tuple[Names, Names, bool]] = []
        for use, around in _with_modules(nodes[_USE], bodies):
            argument = use.child_by_field_name("argument")
            used += [(around, names, False) for names in used_paths("" if argument is None else text_of(argument))]
        used += [((), (_name(crate),), False) for crate in nodes[_CRATE]]
        for path_node, around in _with_modules(_outermost_paths(nodes), bodies):
            begin, end = path_node.start_byte, min(path_node.end_byte, path_node.start_byte + MAX_PATH_BYTES)
            used.append((around, _names_in(source[begin:end].decode(errors="ignore")), True))
        for tokens, around in _with_modules(_not_nested(nodes[_TOKEN_TREE]), bodies):
            paths = _PATH_IN_TOKENS.finditer(text_of(tokens))
            used += [(around, _names_in(path[0][:MAX_PATH_BYTES].replace("r#", "")), True) for path in paths]
        return RustReferences(
            declared=tuple(dict.fromkeys(declared)),
            used=tuple(dict.fromkeys(used)),
            included=tuple(dict.fromkeys(_INCLUDE.findall(text))),
        ), has_errors

    def edges(self, repository: Repository, references: Mapping[str, RustReferences]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it uses."""
        unread = dict.fromkeys((path for path in repository.paths if path.endswith(".rs")), ())
        modules = Modules.of(repository, unread | {path: file.declared for path, file in references.items()})
        for path, file in references.items():
            targets = {target for declared in file.declared for target in modules.files_of_mod(path, *declared)}
            for around, names, strict in file.used:
                targets |= modules.files_of_path(path, around, names, strict=strict)
            beside = (posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) for name in file.included)
            yield path, (targets | repository.known.intersection(beside)) - {path}


def used_paths(tree: str) -> list[Names]:
    """The paths in the tree of a ``use``.

    >>> used_paths("crate::a::{self, b::{C, D as E}, f::*}")
    [('crate', 'a', 'self'), ('crate', 'a', 'b', 'C'), ('crate', 'a', 'b', 'D'), ('crate', 'a', 'f')]
    """
    paths: list[Names] = []
    outer: list[Names] = []
    prefix: Names = ()
    path: Names = ()
    renaming = False

    def end_path() -> None:
        if path != prefix:
            paths.append(path)

    for token in _USE_TOKEN.findall(_COMMENT.sub(" ", tree)):
        if token == "{":
            outer.append(prefix)
            prefix = path
        elif token in ",}":
            end_path()
            if token == "}":
                path = prefix = outer.pop() if outer else ()
            path, renaming = prefix, False
        elif token == "as":
            renaming = True
        elif token == "*":
            paths.append(path)
            path = prefix
        elif not renaming:
            path = (*path, token.removeprefix("r#"))[:MAX_MODULE_DEPTH]
    end_path()
    return paths


def _outermost_paths(nodes: Mapping[str, Sequence["Node"]]) -> list["Node"]:
    """The paths that are neither the beginning of a longer path nor part of a ``use``, in order."""
    paths: list[Node] = []
    uses = iter(nodes[_USE])
    use = next(uses, None)
    for node in sorted(
        (node for kind in _PATHS for node in nodes[kind]), key=lambda node: (node.start_byte, -node.end_byte)
    ):
        while use is not None and use.end_byte <= node.start_byte:
            use = next(uses, None)
        in_use = use is not None and use.start_byte <= node.start_byte
        if not in_use and not (paths and paths[-1].start_byte == node.start_byte):
            paths.append(node)
    return paths


def _not_nested(nodes: Iterable["Node"]) -> Iterator["Node"]:
    """The nodes that are not inside an earlier node."""
    end = 0
    for node in nodes:
        if node.start_byte >= end:
            end = node.end_byte
            yield node


def _names_in(path: str) -> Names:
    """The names of a path up to its first type argument."""
    return tuple(re.findall(r"\w+", path.partition("<")[0]))


def _with_modules(nodes: Iterable["Node"], bodies: Iterable["Node"]) -> Iterator[tuple["Node", Names]]:
    """The nodes in order, each with the names of the inline modules around it, outermost first."""
    waiting = deque((body.start_byte, body.end_byte, _name(body)) for body in bodies)
    around: list[tuple[int, str]] = []
    for node in nodes:
        while waiting and waiting[0][0] < node.start_byte:
            begin, end, name = waiting.popleft()
            while around and around[-1][0] <= begin:
                around.pop()
            around.append((end, name))
        while around and around[-1][0] <= node.start_byte:
            around.pop()
        yield node, tuple(name for _, name in around[:MAX_MODULE_DEPTH])


def _path_attributes(mods: Iterable["Node"], attributes: Iterable["Node"], source: bytes) -> dict[int, str]:
    """The files that path attributes name, by the first byte of the module that follows."""
    files: dict[int, str] = {}
    named = deque((node.end_byte, match[1]) for node in attributes if (match := _PATH_ATTRIBUTE.search(text_of(node))))
    for mod in mods:
        nearest = None
        while named and named[0][0] <= mod.start_byte:
            nearest = named.popleft()
        # Nothing between an attribute and its module ends or opens an item.
        if nearest is not None and not re.search(rb"[;{}]", source[nearest[0] : mod.start_byte]):
            files[mod.start_byte] = nearest[1]
    return files


def _name(mod: "Node") -> str:
    name = mod.child_by_field_name("name")
    return "" if name is None else text_of(name).removeprefix("r#")
