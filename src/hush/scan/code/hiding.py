"""What of a repository's files a code rule hides if it does not hide whole files: definitions or lines.

For one secret, ``hidden_text`` starts from the secret's own files and follows names from file to file: a file that
imports the secret hides what mentions the imported names (definitions.py), and hands those names on to files that
import them from there. Re-exports are followed however long the chain is; a definition that uses the secret is a step
of its own, and as many steps count as the rule's depth of imports says.

The other languages (definitions_tree_sitter.py) follow files instead of names: whatever is imported from a file that
re-exports something of the secret counts.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, final

from hush.errors import InvalidInput
from hush.scan.code.definitions import NOTHING, Meaning, Used, Words, own_spans
from hush.scan.code.definitions_tree_sitter import Binding, SyntaxFile, grammar_of
from hush.scan.code.imports import LANGUAGES, ImportGraph
from hush.scan.code.imports.c_go_java import JavaReferences
from hush.scan.code.imports.python import Python, PythonReferences
from hush.scan.code.imports.python_modules import ENDINGS, Imported, PythonModules
from hush.scan.code.imports.rust import Modules, RustReferences
from hush.scan.code.python_names import PythonFile
from hush.scan.code.repository import Repository

__all__ = ["Hidden", "Sources", "hidden_text"]


EVERYTHING = "*"  # among the exports of a file: every name that it may have
MAX_FILES_IN_ERROR = 3
# Files of these languages cannot be read here. Other files that are not code, such as tables, are hidden as a whole.
OTHER_LANGUAGES: Mapping[str, str] = {
    ".pyx": "Cython", ".pxd": "Cython", ".pxi": "Cython", ".ipynb": "Jupyter", ".rb": "Ruby", ".php": "PHP",
    ".cs": "C#", ".fs": "F#", ".vb": "Visual Basic", ".kt": "Kotlin", ".kts": "Kotlin", ".scala": "Scala",
    ".groovy": "Groovy", ".clj": "Clojure", ".swift": "Swift", ".m": "Objective-C or MATLAB", ".mm": "Objective-C++",
    ".dart": "Dart", ".lua": "Lua", ".pl": "Perl", ".pm": "Perl", ".r": "R", ".R": "R", ".jl": "Julia",
    ".hs": "Haskell", ".ml": "OCaml", ".ex": "Elixir", ".exs": "Elixir", ".erl": "Erlang", ".f90": "Fortran",
    ".f": "Fortran", ".vue": "Vue", ".svelte": "Svelte", ".zig": "Zig", ".sol": "Solidity", ".cob": "COBOL",
}  # fmt: skip

Span = tuple[int, int]


class Hidden(NamedTuple):
    """What of a file is hidden. spans: None for the whole file. through: the file that hands the names on, if any."""

    spans: tuple[Span, ...] | None
    through: str | None = None


@final
@dataclass(frozen=True, eq=False)
class Sources:
    """The files of a repository as they are read here, each once."""

    repository: Repository
    graph: ImportGraph | None

    @cached_property
    def _python(self) -> dict[str, PythonFile | None]:
        return {}

    def python(self, path: str) -> PythonFile | None:
        """A Python file; None if it cannot be read or parsed."""
        if path not in self._python:
            can_read = path in self.repository.sizes
            self._python[path] = PythonFile.read(self.repository.read(path)) if can_read else None
        return self._python[path]

    @cached_property
    def _syntax(self) -> dict[str, SyntaxFile | None]:
        return {}

    def syntax(self, path: str) -> SyntaxFile | None:
        """A file of another language; None if it cannot be read or has syntax errors."""
        if path not in self._syntax:
            can_read = path in self.repository.sizes
            self._syntax[path] = SyntaxFile.read(path, self.repository.read(path)) if can_read else None
        return self._syntax[path]

    def text(self, path: str) -> str:
        """The text of a file as it was when its spans were found."""
        file = self.python(path) if path.endswith(ENDINGS) else None
        syntax = self.syntax(path) if grammar_of(path) is not None else None
        if file is not None:
            return file.text
        return self.repository.read(path) if syntax is None else syntax.text

    # Where the imports of Python files lead

    @cached_property
    def references(self) -> dict[str, PythonReferences]:
        """The imports of every Python file."""
        read = self.repository.read
        return {
            path: Python().references(path, read(path))[0] for path in self.repository.files if path.endswith(ENDINGS)
        }

    @cached_property
    def modules(self) -> PythonModules:
        return Python().modules(self.repository, self.references)

    @cached_property
    def _dependents(self) -> dict[str, set[str]]:
        dependents: dict[str, set[str]] = {}
        for path, file in self.references.items():
            for target in self.modules.imports_of(path, _with_packages(file.imports)):
                dependents.setdefault(target, set()).add(path)
        return dependents

    def dependents(self, path: str) -> set[str]:
        """The Python files that import a file, or a package that it is in."""
        found = set(self._dependents.get(path, ()))
        for folder in PurePosixPath(path).parents:
            for ending in ENDINGS:
                found |= self._dependents.get((folder / f"__init__{ending}").as_posix(), set())
        return found

    # Where the imports of other files lead

    def targets(self, path: str) -> list[tuple[Binding, frozenset[str]]]:
        """The imports of a file in another language, each with the files that it may lead to."""
        file = self.syntax(path)
        if file is None:
            return []
        if path not in self._targets:
            self._targets[path] = [(binding, self._targets_of(path, binding)) for binding in file.bindings]
        return self._targets[path]

    @cached_property
    def _targets(self) -> dict[str, list[tuple[Binding, frozenset[str]]]]:
        return {}

    def _targets_of(self, path: str, binding: Binding) -> frozenset[str]:
        language = next(each for each in LANGUAGES if path.endswith(each.endings))
        every = self._references_of(language.name)
        if language.name == "Rust":
            names = tuple(binding.reference)
            modules = self._rust_modules
            found = modules.files_of_path(path, (), names, strict=False) if path in modules.places else set[str]()
            return frozenset({*found, *modules.files_of_mod(path, names, None)} - {path})
        mine: Any = [binding.reference]
        if language.name == "Java":
            mine = JavaReferences(every[path].package, (tuple(binding.reference),))
        references = {**every, path: mine} if language.name in ("Java", "Go") else {path: mine}
        return frozenset(next(targets for file, targets in language.edges(self.repository, references) if file == path))

    @cached_property
    def _by_language(self) -> dict[str, dict[str, Any]]:
        return {}

    def _references_of(self, name: str) -> dict[str, Any]:
        """For Java, Go and Rust, what each file says of itself, without its imports."""
        if name not in self._by_language:
            language = next(each for each in LANGUAGES if each.name == name)
            found: dict[str, Any] = {}
            for path in self.repository.files:
                if path.endswith(language.endings) and name in ("Java", "Go", "Rust"):
                    said = [] if name == "Go" else language.references(path, self.repository.read(path))[0]
                    found[path] = replace(said, imports=()) if isinstance(said, JavaReferences) else said
            self._by_language[name] = found
        return self._by_language[name]

    @cached_property
    def _rust_modules(self) -> Modules:
        every: dict[str, RustReferences] = self._references_of("Rust")
        unread = dict.fromkeys((path for path in self.repository.paths if path.endswith(".rs")), ())
        return Modules.of(self.repository, unread | {path: file.declared for path, file in every.items()})


def hidden_text(
    sources: Sources,
    *,
    own: frozenset[str],
    whole: frozenset[str],
    hides: Literal["definitions", "lines"],
    public: tuple[str, ...],
    depth: int | None,
) -> dict[str, Hidden]:
    """What each file hides for one secret; files that hide nothing are not listed.

    own: the secret's files. whole: those of them that are hidden as a whole, because of who wrote them. depth: as of
    imports; None for no limit.
    """
    hidden: dict[str, Hidden] = {}
    for path in sorted(own):
        spans = None if path in whole else _own_spans(sources, path, public)
        hidden[path] = Hidden(None if spans is None else tuple(spans))
    _check_languages(path for path in own - whole if path in sources.repository.sizes)
    if depth == 0:
        return hidden
    limit = inf if depth is None else depth
    words = _words(sources, own)
    hidden |= _PythonSpread(sources, own, limit, words, hides).hidden()
    hidden |= _hidden_elsewhere(sources, own, limit, words, hides)
    return {path: each for path, each in sorted(hidden.items()) if each.spans is None or each.spans}


def _check_languages(paths: Iterable[str]) -> None:
    by_language: dict[str, list[str]] = {}
    for path in sorted(paths):
        language = OTHER_LANGUAGES.get(PurePosixPath(path).suffix)
        if language is not None:
            by_language.setdefault(language, []).append(path)
    if by_language:
        named = "; ".join(
            f"{language} ({', '.join(files[:MAX_FILES_IN_ERROR])}{', …' if len(files) > MAX_FILES_IN_ERROR else ''})"
            for language, files in by_language.items()
        )
        raise InvalidInput(
            f"definitions and lines cannot be told apart in files of {named}; use hides: file, or put these files "
            "under another rule that does"
        )


def _own_spans(sources: Sources, path: str, public: tuple[str, ...]) -> list[Span] | None:
    if not public:
        return None
    if path.endswith(ENDINGS):
        file = sources.python(path)
        try:
            return None if file is None else own_spans(file, public)
        except SyntaxError:
            return None
    if grammar_of(path) is not None:
        syntax = sources.syntax(path)
        return None if syntax is None else syntax.own_spans(public)
    return None


def _words(sources: Sources, own: frozenset[str]) -> Words:
    """How strings may name the secret: dotted names of its modules from two parts on, their last parts, its names."""
    modules: set[tuple[str, ...]] = set()
    last_parts: set[str] = set()
    names: set[str] = set()
    folders: dict[PurePosixPath, bool] = {}
    for path in sources.repository.files:
        if path.endswith(ENDINGS) or grammar_of(path) is not None:
            folder = PurePosixPath(path).parent
            folders[folder] = folders.get(folder, True) and path in own
    for path in own:
        if not path.endswith(ENDINGS) and grammar_of(path) is None:
            continue
        parts = PurePosixPath(path.rpartition(".")[0]).parts
        parts = parts[:-1] if parts[-1] in ("__init__", "index", "mod", "lib", "main") else parts
        modules |= {parts[begin:] for begin in range(len(parts) - 1)}
        last_parts.update(parts[-1:])
        if path.endswith(ENDINGS) and (file := sources.python(path)) is not None:
            names |= file.names - {each.name for each in file.imports}
    last_parts |= {folder.name for folder, is_own in folders.items() if is_own and folder.name}
    return Words(modules=frozenset(modules), last_parts=frozenset(last_parts), names=frozenset(names))


def _with_packages(imports: Iterable[Imported]) -> Iterator[Imported]:
    """The imports, and for ``import a.b`` also the package a, which it binds."""
    for imported in imports:
        yield imported
        if imported.name is None:
            parts = imported.module.split(".")
            yield from (Imported(0, ".".join(parts[:length]), None) for length in range(1, len(parts)))


class _PythonSpread:
    """Follows the names of one secret through the Python files of a repository."""

    def __init__(
        self,
        sources: Sources,
        own: frozenset[str],
        depth: float,
        words: Words,
        hides: Literal["definitions", "lines"],
    ) -> None:
        self.sources, self.own, self.depth, self.words = sources, own, depth, words
        self.hides: Literal["definitions", "lines"] = hides
        self.exports: dict[str, Mapping[str, Meaning]] = {}
        self.used: dict[str, Used | None] = {}

    def hidden(self) -> dict[str, Hidden]:
        """Evaluates files until no file hands on anything new."""
        own = [path for path in self.own if path.endswith(ENDINGS)]
        if not own:
            return {}
        waiting = sorted(set().union(*map(self.sources.dependents, own)) - self.own)
        while waiting:
            again: set[str] = set()
            for path in waiting:
                before = self.exports.get(path, {})
                self.exports[path] = self._evaluated(path)
                if self.exports[path] != before:
                    again |= self._affected(path)
            waiting = sorted(again - self.own)
        hidden: dict[str, Hidden] = {}
        for path, used in sorted(self.used.items()):
            if used is not None:
                try:
                    spans = tuple(used.spans(self.hides))
                except SyntaxError:
                    spans = None
                if spans is None or spans:
                    hidden[path] = Hidden(spans, self._through(path))
            elif self._distance_of_imports(path) <= self.depth:
                hidden[path] = Hidden(None, self._through(path))
        return hidden

    def _affected(self, path: str) -> set[str]:
        """The files that may see what a file hands on, also as an attribute of another module."""
        affected: set[str] = set()
        waiting = [path]
        while waiting:
            current = waiting.pop()
            for other in self.sources.dependents(current) - affected:
                affected.add(other)
                if any(current in meaning.modules for meaning in self.exports.get(other, {}).values()):
                    waiting.append(other)
        return affected

    def _evaluated(self, path: str) -> Mapping[str, Meaning]:
        file = self.sources.python(path)
        if file is None:  # hidden as a whole if it imports anything of the secret
            self.used[path] = None
            distance = self._distance_of_imports(path)
            return {EVERYTHING: Meaning(distance)} if distance <= self.depth else {}
        stars: dict[str, Meaning] = {}
        is_all = False
        for imported in file.stars:
            for target in self.sources.modules.imports_of(path, [imported]):
                is_own = target in self.own
                found = self._star_names(target) if is_own else self._star_exports(target)
                is_all |= is_own or found.get(EVERYTHING, NOTHING).distance <= self.depth
                for name, meaning in found.items():
                    stars[name] = stars.get(name, NOTHING).joined(meaning)
        meanings = [self._meaning(path, each.imported) for each in file.imports]
        used = Used.of(file, meanings, stars, self._lookup, depth=self.depth, words=self.words, is_all=is_all)
        self.used[path] = used
        return used.exports

    def _star_names(self, path: str, seen: frozenset[str] = frozenset()) -> dict[str, Meaning]:
        """What a star import of one of the secret's own files binds."""
        file = self.sources.python(path)
        if file is None:
            return {EVERYTHING: Meaning(1)}
        if file.star_names is not None:
            return dict.fromkeys(file.star_names, Meaning(1))
        found: dict[str, Meaning] = {}
        names = file.names - {each.name for each in file.imports if not self._is_own(path, each.imported)}
        found |= dict.fromkeys((name for name in names if not name.startswith("_")), Meaning(1))
        for imported in file.stars:
            for target in self.sources.modules.imports_of(path, [imported]) & self.own - seen:
                found |= self._star_names(target, seen | {path, target})
        return found

    def _is_own(self, path: str, imported: Imported) -> bool:
        return not self.own.isdisjoint(self.sources.modules.imports_of(path, [imported]))

    def _star_exports(self, path: str) -> dict[str, Meaning]:
        exports = self.exports.get(path, {})
        file = self.sources.python(path)
        listed = None if file is None else file.star_names
        return {
            name: meaning
            for name, meaning in exports.items()
            if name == EVERYTHING or (not name.startswith("_") if listed is None else name in listed)
        }

    def _meaning(self, path: str, imported: Imported) -> Meaning:
        meaning = NOTHING
        for target in self.sources.modules.imports_of(path, [imported]):
            if target in self.own:
                return Meaning(1)
            exports = self.exports.get(target, {})
            meaning = meaning.joined(exports.get(EVERYTHING, NOTHING))
            place = target.rpartition(".")[0].removesuffix("/__init__").rpartition("/")[2]
            if imported.name is None or place == imported.name:
                meaning = meaning.joined(Meaning(inf, frozenset({target})))
            if imported.name is not None:
                meaning = meaning.joined(exports.get(imported.name, NOTHING))
        return meaning

    def _lookup(self, meaning: Meaning, chain: tuple[str, ...]) -> float:
        """The distance of an attribute of an attribute of something imported."""
        return min([meaning.distance, *(self._in_module(module, chain) for module in meaning.modules)])

    def _in_module(self, path: str, chain: tuple[str, ...]) -> float:
        if path in self.own:
            return 1
        exports = self.exports.get(path, {})
        if not chain:  # the module itself is handed around: any of its names may be used
            return min((each.distance for each in exports.values()), default=inf)
        distance = exports.get(EVERYTHING, NOTHING).distance
        if chain[0] in exports:
            distance = min(distance, self._lookup(exports[chain[0]], chain[1:]))
        if path.rpartition("/")[2].startswith("__init__."):
            inside = f"{path.rpartition('/')[0]}/{chain[0]}".lstrip("/")
            for file in (each for ending in ENDINGS for each in (f"{inside}{ending}", f"{inside}/__init__{ending}")):
                if file in self.sources.references or file in self.own:
                    distance = min(distance, self._in_module(file, chain[1:]) if chain[1:] or file in self.own else inf)
        return distance

    def _distance_of_imports(self, path: str) -> float:
        references = self.sources.references.get(path)
        targets = set() if references is None else self.sources.modules.imports_of(path, references.imports)
        distances = [1 if target in self.own else self._in_module(target, ()) for target in targets]
        return min(distances, default=inf)

    def _through(self, path: str) -> str | None:
        """The first file by name that hands names of the secret on to a file that does not import it itself."""
        references = self.sources.references[path]
        targets = sorted(self.sources.modules.imports_of(path, _with_packages(references.imports)))
        if not self.own.isdisjoint(targets):
            return None
        return next((target for target in targets if self._in_module(target, ()) <= self.depth), None)


def _hidden_elsewhere(
    sources: Sources, own: frozenset[str], depth: float, words: Words, hides: Literal["definitions", "lines"]
) -> dict[str, Hidden]:
    """What files of other languages than Python hide."""
    importers = {} if sources.graph is None else sources.graph.importers()
    distance_of: dict[str, float] = {path: 1 for path in own if grammar_of(path) is not None}
    declared = frozenset[str]().union(
        *(file.declared for path in distance_of if (file := sources.syntax(path)) is not None)
    )
    hidden: dict[str, Hidden] = {}
    waiting = sorted(distance_of)
    while waiting:
        again: set[str] = set()
        for path in sorted({each for target in waiting for each in importers.get(target, ())} - own):
            if grammar_of(path) is None:
                continue
            distance, found, passed_on = _of_importer(sources, path, distance_of, declared, words, hides)
            if distance > depth:
                continue
            hidden[path] = found
            following = distance if passed_on else distance + 1 if depth < inf else distance
            has_text = found.spans is None or len(found.spans) > 0
            if (passed_on or (has_text and following <= depth)) and following < distance_of.get(path, inf):
                distance_of[path] = following
                again.add(path)
        waiting = sorted(again)
    return hidden


def _of_importer(
    sources: Sources,
    path: str,
    distance_of: Mapping[str, float],
    declared: frozenset[str],
    words: Words,
    hides: Literal["definitions", "lines"],
) -> tuple[float, Hidden, bool]:
    """How far a file is from the secret, what it hides, and whether it hands on what it imports."""
    imports = () if sources.graph is None else sources.graph.imports.get(path, ())
    distance = min((distance_of[each] for each in imports if each in distance_of), default=inf)
    through = next((each for each in imports if each in distance_of), None) if distance > 1 else None
    file = sources.syntax(path)
    if file is None:
        return distance, Hidden(None, through), True
    names: set[str] = set()
    is_all = passes_on = False
    is_located = file.grammar == "rust"  # a path may stand in any expression: its last parts are names there
    for binding, targets in sources.targets(path):
        secret = [each for each in targets if each in distance_of]
        if not secret:
            continue
        is_located = True
        names |= binding.names | (declared if binding.declared else frozenset())
        if binding.declared and not declared.isdisjoint(binding.names):
            names |= declared
        is_all |= binding.is_all
        passes_on |= binding.passes_on
    if file.grammar in ("rust", "java"):
        names |= words.last_parts
    if not is_located:  # an import that this module does not see
        return distance, Hidden(None, through), True
    known = frozenset(names)
    spans = file.spans(known, words, hides, is_all=is_all)
    if file.grammar in ("javascript", "typescript", "tsx"):
        passes_on |= file.exports_any(file.used(known, words)[0])
    return distance, Hidden(tuple(spans), through), passes_on
