"""Which definitions and lines of a Python file use a secret: names bound by imports, followed through assignments.

``Used`` applies to the names of a file (python_names.py) what its imports mean, which hiding.py follows from file to
file. It says how far each mention is from the secret, which names other files can import from here, and which spans to
hide. A mention at distance 1 is of a name that is bound by importing the secret, or assigned from one; whatever
mentions a definition at distance d is at distance d + 1. ``own_spans`` is for the files of the secret itself.

An attribute is followed by its name alone in the whole file: after ``self.x = secret.f`` every ``.x`` is a mention.
What is passed as an argument is not followed into the called function.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple, Self, final

from hush.scan.code.python_names import DEFINITIONS, FUNCTIONS, IMPORTS, Mention, PythonFile, Statement

__all__ = ["NOTHING", "Meaning", "Used", "Words", "complement", "own_spans"]


_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s")
_DOTTED = re.compile(r"\w+(?:[./]\w+)+")


class Meaning(NamedTuple):
    """What an imported name is: at a distance from the secret as a whole, or one of these files as a module."""

    distance: float = inf
    modules: frozenset[str] = frozenset()

    def joined(self, other: "Meaning") -> "Meaning":
        """Either of the two."""
        return Meaning(min(self.distance, other.distance), self.modules | other.modules)


NOTHING = Meaning()
Lookup = Callable[[Meaning, tuple[str, ...]], float]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How strings and comments name a secret: its modules (a.b), the last parts of those, and its own names."""

    modules: frozenset[tuple[str, ...]] = frozenset()
    last_parts: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def has_module(self, text: str) -> bool:
        """Whether the text has the dotted name, or the path, of a module of the secret."""
        longest = max(map(len, self.modules), default=0)
        for match in _DOTTED.finditer(text):
            parts = re.split(r"[./]", match[0])
            for begin in range(len(parts)):
                for length in range(2, min(longest, len(parts) - begin) + 1):
                    if tuple(parts[begin : begin + length]) in self.modules:
                        return True
        return False


@final
@dataclass(frozen=True, eq=False, repr=False)
class Used:
    """How far each mention and statement of a file is from the secret, inf if it does not use it."""

    file: PythonFile
    depth: float
    distances: Sequence[float]
    known: Mapping[tuple[int, str], float]
    exports: Mapping[str, Meaning]
    secret_words: frozenset[str]
    is_all: bool

    @classmethod
    def of(
        cls,
        file: PythonFile,
        meanings: Sequence[Meaning],
        stars: Mapping[str, Meaning],
        lookup: Lookup,
        *,
        depth: float,
        words: Words,
        is_all: bool = False,
    ) -> Self:
        """What of a file uses the secret.

        meanings: of each of its ``imports``. stars: what its star imports bind. lookup: the distance of an attribute of
        something imported. depth: the largest distance that counts. is_all: a star import of the secret itself, so that
        everything but the imports counts.
        """
        bound: dict[tuple[int, str], list[tuple[tuple[str, ...], Meaning]]] = {}
        for imported, meaning in zip(file.imports, meanings, strict=True):
            if meaning != NOTHING:
                owner = file.owner(imported.scope, imported.name)
                bound.setdefault((owner, imported.name), []).append((imported.path, meaning))
        for name, meaning in stars.items():
            bound.setdefault((0, name), []).append(((), meaning))
        is_direct = is_all or any(each.distance <= 1 for entries in bound.values() for _, each in entries)
        state = _State(file, bound, lookup, words, is_direct, is_all, depth)
        state.run()
        exports: dict[str, Meaning] = {}
        for (scope, name), entries in bound.items():
            if scope == 0:
                for path, meaning in entries:
                    if not path:
                        exports[name] = exports.get(name, NOTHING).joined(meaning)
        for (scope, name), distance in state.known.items():
            if scope == 0:
                exports[name] = exports.get(name, NOTHING).joined(Meaning(distance))
        # Of the names in comments those of functions are left out: their words are everybody's.
        whole = {name for (scope, name), distance in state.known.items() if scope == 0 and distance <= depth}
        for (_, name), entries in bound.items():
            if any(meaning.distance <= depth for path, meaning in entries if not path):
                whole.add(name)
        secret_words = frozenset(whole) | (words.last_parts if is_direct else frozenset())
        return cls(file, depth, state.distances, state.known, exports, secret_words, is_all)

    def spans(self, hides: Literal["definitions", "lines"]) -> list[tuple[int, int]]:
        """The spans to hide, in any order; SyntaxError if the file cannot be read token by token."""
        if not (self.is_all or self.secret_words or self._counts(0, len(self.distances))):
            return []
        lines = self.file.lines
        chosen: set[int] = set()  # logical lines
        if hides == "lines" and not self.is_all:
            for mention, distance in zip(self.file.mentions, self.distances, strict=True):
                if distance <= self.depth and mention.kind != "import":
                    chosen.add(lines.logical_at(mention.line))
        else:
            waiting = list(self.file.statements)
            while waiting:
                statement = waiting.pop()
                if isinstance(statement.node, IMPORTS):
                    continue
                if self._is_hidden(statement):
                    chosen |= set(lines.logical_between(statement.first_line, statement.last_line))
                else:
                    waiting += statement.blocks
        spans = lines.spans(chosen)
        spans += lines.comments(lambda text: self.is_all or not self.secret_words.isdisjoint(_WORD.findall(text)))
        return spans

    def _is_hidden(self, statement: Statement) -> bool:
        if self.is_all:  # blocks are opened so that the imports in them stay
            return not statement.blocks or isinstance(statement.node, DEFINITIONS)
        if isinstance(statement.node, FUNCTIONS) or not statement.blocks:
            return self._counts(statement.begin, statement.end)
        return any(self._counts(first, last) for first, last in statement.head)

    def _counts(self, begin: int, end: int) -> bool:
        return any(distance <= self.depth for distance in self.distances[begin:end])


@final
@dataclass(eq=False, repr=False)
class _State:
    """The distances of a file's mentions, lowered until nothing changes."""

    file: PythonFile
    bound: Mapping[tuple[int, str], Sequence[tuple[tuple[str, ...], Meaning]]]
    lookup: Lookup
    words: Words
    is_direct: bool
    is_all: bool
    depth: float
    known: dict[tuple[int, str], float] = field(default_factory=dict)
    attributes: dict[str, float] = field(default_factory=dict)
    distances: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Passes distances along assignments, to the end."""
        names = {name: inf for _, name in self.bound}
        for (_, name), entries in self.bound.items():
            for path, meaning in entries:
                if not path:
                    names[name] = min(names[name], meaning.distance)
        fixed = [self._fixed(mention, names) for mention in self.file.mentions]
        for imported in self.file.imports:
            owner = self.file.owner(imported.scope, imported.name)
            entries = self.bound.get((owner, imported.name), ())
            fixed[imported.mention] = min(
                (each.distance for path, each in entries if path == imported.path), default=inf
            )
        changed = True
        while changed:
            self.distances = [
                min(distance, self._followed(mention))
                for mention, distance in zip(self.file.mentions, fixed, strict=True)
            ]
            changed = False
            for passing in self.file.passings:
                distance = min(self.distances[passing.begin : passing.end], default=inf)
                if self.is_all and passing.further:
                    distance = 1
                distance += passing.further if self.depth < inf else 0
                if distance > self.depth:
                    continue
                for scope, name in passing.names:
                    key = (self.file.owner(scope, name), name)
                    if distance < self.known.get(key, inf):
                        self.known[key], changed = distance, True
                for name in passing.attributes:
                    if distance < self.attributes.get(name, inf):
                        self.attributes[name], changed = distance, True

    def _fixed(self, mention: Mention, names: Mapping[str, float]) -> float:
        """The distance that the imports alone give to a mention."""
        if mention.kind == "name":
            distance = inf
            for path, meaning in self.bound.get((self.file.owner(mention.scope, mention.name), mention.name), ()):
                common = min(len(path), len(mention.chain))
                if path[:common] == mention.chain[:common]:
                    distance = min(distance, self.lookup(meaning, mention.chain[len(path) :]))
            return distance
        if mention.kind not in ("text", "lookup"):
            return inf
        if self.words.has_module(mention.name):
            return 1
        is_lookup = mention.kind == "lookup"
        if not is_lookup and (not self.is_direct or _SPACE.search(mention.name)):
            return inf
        found = _WORD.findall(mention.name)
        if not self.words.last_parts.isdisjoint(found) or (is_lookup and not self.words.names.isdisjoint(found)):
            return 1
        return min((names.get(word, inf) for word in found), default=inf)

    def _followed(self, mention: Mention) -> float:
        """The distance that assignments give to a mention."""
        if mention.kind == "name":
            return self.known.get((self.file.owner(mention.scope, mention.name), mention.name), inf)
        if mention.kind == "attribute":
            return self.attributes.get(mention.name, inf)
        if mention.kind == "import" or not self.known or (mention.kind == "text" and _SPACE.search(mention.name)):
            return inf
        return min((self.known.get((0, word), inf) for word in _WORD.findall(mention.name)), default=inf)


# A secret's own files


def own_spans(file: PythonFile, public: Collection[str]) -> list[tuple[int, int]] | None:
    """The spans to hide of a secret's own file: everything but what is public; None if nothing is.

    public: imports (at the top level), signatures (of functions, methods and classes, without default values and other
    constants), docstrings (of the file, and of those).
    """
    lines, pieces = file.lines, list[tuple[int, int]]()
    statements_of_line: dict[int, list[ast.stmt]] = {}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.stmt):
            statements_of_line.setdefault(lines.logical_at(node.lineno), []).append(node)
    if "imports" in public:
        for number, nodes in statements_of_line.items():
            if all(isinstance(node, IMPORTS) and node in file.tree.body for node in nodes):
                pieces += _without(lines.spans([number], above=False), lines.comment_spans)
    waiting: list[ast.Module | ast.stmt] = [file.tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not isinstance(node, ast.Module):
            number = lines.logical_at(node.lineno)
            if "signatures" in public and len(statements_of_line[number]) == 1:
                pieces += _without(lines.spans([number], above=False), [*lines.comment_spans, *_holes(file, node)])
        documentation = node.body[0] if node.body else None
        if "docstrings" in public and isinstance(documentation, ast.Expr) and ast.get_docstring(node, clean=False):
            number = lines.logical_at(documentation.lineno)
            if len(statements_of_line[number]) == 1:
                pieces += _without(lines.spans([number], above=False), lines.comment_spans)
        if not isinstance(node, FUNCTIONS):
            waiting += node.body
    return complement(lines.text, pieces) if pieces else None


def _holes(file: PythonFile, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[tuple[int, int]]:
    """What of a signature is hidden nevertheless: defaults, constants, and what is computed."""
    if isinstance(node, ast.ClassDef):
        parts: list[ast.AST] = [*node.bases, *node.keywords]
        hidden: list[ast.AST] = []
    else:
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        parts = [each.annotation for each in every if each is not None and each.annotation is not None]
        parts += [node.returns] if node.returns is not None else []
        hidden = [each for each in (*given.defaults, *given.kw_defaults) if each is not None]
    parts += getattr(node, "type_params", ())
    for part in parts:
        for inner in ast.walk(part):
            is_constant = isinstance(inner, ast.Constant) and inner.value is not None and inner.value is not ...
            if is_constant or isinstance(inner, ast.Call | ast.Lambda | ast.JoinedStr):
                hidden.append(inner)
    return [file.lines.span_of(each) for each in hidden]


def _without(pieces: Iterable[tuple[int, int]], holes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pieces without what the holes cover."""
    remaining: list[tuple[int, int]] = []
    cuts = sorted(holes)
    for begin, end in pieces:
        for first, last in cuts:
            if last > begin and first < end:
                remaining.append((begin, first))
                begin = max(begin, last)
        remaining.append((begin, end))
    return [(begin, end) for begin, end in remaining if begin < end]


def complement(text: str, pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans between the pieces, without the white space at their borders; none of white space alone."""
    spans: list[tuple[int, int]] = []
    done = 0
    for begin, end in [*sorted(pieces), (len(text), len(text))]:
        gap = text[done:begin]
        if gap.strip():
            spans.append((done + len(gap) - len(gap.lstrip()), done + len(gap.rstrip())))
        done = max(done, end)
    return spans
