"""The names of a Python file: what its statements mention, which names its assignments pass on, what its imports bind.

``PythonFile`` is what one file says, whatever is secret; definitions.py applies to it what is. Names are resolved by
Python's own scopes; where a comprehension or a lambda has a name of its own, the name outside of it counts too.
"""

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Self, final

from hush.scan.code.imports.python import syntax_tree
from hush.scan.code.imports.python_modules import Imported
from hush.scan.code.python_lines import PythonLines

__all__ = ["DEFINITIONS", "FUNCTIONS", "IMPORTS", "BoundImport", "Mention", "Passing", "PythonFile", "Statement"]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
_LOOKUPS = frozenset((
    *("getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "eval", "exec", "compile", "patch"),
    *("__import__", "import_module", "find_spec", "resolve_name", "locate", "import_string", "importorskip"),
    *("run_module", "run_path"),
))  # fmt: skip


class Mention(NamedTuple):
    """A name with the attributes after it, in a scope.

    kind: besides a name, an attribute of whatever, the text of a string, a string that stands for a name ("lookup"), or
    a name that an import binds.
    """

    line: int
    kind: Literal["name", "attribute", "text", "lookup", "import"]
    scope: int
    name: str
    chain: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Mention({self.kind} in line {self.line})"  # the text of a string may be secret


@final
@dataclass(slots=True)
class _Scope:
    kind: Literal["module", "class", "function"]
    parent: int
    names: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal
    module_level: set[str] = field(default_factory=set)  # declared global


class BoundImport(NamedTuple):
    """A name that an import binds. path: the attributes from the name to what is imported, as for ``import a.b``.

    mention: the number of the mention that stands for the import.
    """

    imported: Imported
    scope: int
    name: str
    path: tuple[str, ...]
    mention: int


@final
@dataclass(frozen=True, slots=True)
class Statement:
    """begin, end: its mentions, those of its blocks included. head: the mentions outside of its blocks."""

    node: ast.stmt
    scope: int
    first_line: int
    last_line: int
    begin: int
    end: int
    head: tuple[tuple[int, int], ...]
    blocks: tuple["Statement", ...]


class Passing(NamedTuple):
    """An assignment: the names and attributes on its left get what the mentions from begin to end have."""

    names: tuple[tuple[int, str], ...]
    attributes: tuple[str, ...]
    begin: int
    end: int
    further: int = 0  # 1 for the name of a definition, which is one step farther from the secret


@final
@dataclass(frozen=True, eq=False, repr=False)
class PythonFile:
    """The statements of a file, with the names that they mention and pass on."""

    text: str
    tree: ast.Module
    statements: tuple[Statement, ...]
    mentions: tuple[Mention, ...]
    passings: tuple[Passing, ...]
    imports: tuple[BoundImport, ...]
    stars: tuple[Imported, ...]
    scopes: tuple[_Scope, ...]

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The file with this text; None if it is not valid Python."""
        try:
            tree = syntax_tree(text.removeprefix("\ufeff"))
            reader = _Reader()
            statements = reader.block(tree.body, 0)
        except (SyntaxError, RecursionError):
            return None
        return cls(
            text,
            tree,
            statements,
            tuple(reader.mentions),
            tuple(reader.passings),
            tuple(reader.imports),
            tuple(reader.stars),
            tuple(reader.scopes),
        )

    @cached_property
    def lines(self) -> PythonLines:
        """Its lines; SyntaxError if it cannot be read token by token."""
        return PythonLines.of(self.text)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the file binds at its top level."""
        return frozenset(self.scopes[0].names)

    @cached_property
    def star_names(self) -> frozenset[str] | None:
        """The names in a plain ``__all__``; None without one."""
        listed: set[str] = set()
        has_list = False
        for statement in self.tree.body:
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                continue
            try:
                listed.update(ast.literal_eval(getattr(statement, "value", None) or ""))
            except (ValueError, TypeError, SyntaxError, RecursionError):
                return None
            has_list = True
        return frozenset(listed) if has_list else None

    def owner(self, scope: int, name: str) -> int:
        """The scope that a name belongs to when it is mentioned in a scope."""
        key = (scope, name)
        if key not in self._owners:
            self._owners[key] = self._find_owner(scope, name)
        return self._owners[key]

    @cached_property
    def _owners(self) -> dict[tuple[int, str], int]:
        return {}

    def _find_owner(self, scope: int, name: str) -> int:
        current, first = scope, True
        while current:
            known = self.scopes[current]
            if name in known.module_level:
                return 0
            if name in known.names and name not in known.outer and (first or known.kind == "function"):
                return current
            current, first = known.parent, False
        return 0


class _Reader:
    """Collects statements, mentions and assignments of a tree in the order of the file."""

    def __init__(self) -> None:
        self.mentions: list[Mention] = []
        self.passings: list[Passing] = []
        self.imports: list[BoundImport] = []
        self.stars: list[Imported] = []
        self.scopes = [_Scope("module", 0)]

    def block(self, body: Iterable[ast.stmt], scope: int) -> tuple[Statement, ...]:
        return tuple(self.statement(node, scope) for node in body)

    def statement(self, node: ast.stmt, scope: int) -> Statement:
        begin = len(self.mentions)
        heads: list[tuple[int, int]] = []
        blocks: list[Statement] = []

        def head(*parts: ast.AST | None, lookup: bool = False) -> tuple[int, int]:
            first = len(self.mentions)
            for part in parts:
                if part is not None:
                    self.expression(part, scope, lookup=lookup)
            heads.append((first, len(self.mentions)))
            return heads[-1]

        if isinstance(node, IMPORTS):
            self._import(node, scope)
        elif isinstance(node, DEFINITIONS):
            self._bind(scope, node.name, node.lineno)
            decorated = head(*node.decorator_list)
            self._pass([(scope, node.name)], decorated)
            inner = len(self.scopes)
            self.scopes.append(_Scope("class" if isinstance(node, ast.ClassDef) else "function", scope))
            head(*getattr(node, "type_params", ()), lookup=True)
            if isinstance(node, ast.ClassDef):
                head(*node.bases, *node.keywords)
            else:
                self._parameters(node.args, inner, head)
                head(node.returns, lookup=True)
            blocks += self.block(node.body, inner)
            names, attributes = [(scope, node.name)], list[str]()
            if self.scopes[scope].kind == "class":
                attributes.append(node.name)
            self.passings.append(Passing(tuple(names), tuple(attributes), begin, len(self.mentions), 1))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self.scopes[scope].outer.update(node.names)
            if isinstance(node, ast.Global):
                self.scopes[scope].module_level.update(node.names)
                self.scopes[0].names.update(node.names)
            first = len(self.mentions)
            self.mentions += [Mention(node.lineno, "name", scope, name) for name in node.names]
            heads.append((first, len(self.mentions)))
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            given = len(self.mentions)
            if isinstance(node, ast.AnnAssign):
                head(node.annotation, lookup=True)
            _, end = head(node.value)
            self._assign(targets, scope, (given, end))
            head(*targets)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._assign([node.target], scope, head(node.iter))
            head(node.target)
            blocks += self.block([*node.body, *node.orelse], scope)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                given_by = head(item.context_expr)
                if item.optional_vars is not None:
                    self._assign([item.optional_vars], scope, given_by)
                    head(item.optional_vars)
            blocks += self.block(node.body, scope)
        elif isinstance(node, ast.Try | ast.TryStar):
            blocks += self.block(node.body, scope)
            for handler in node.handlers:
                caught = head(handler.type)
                if handler.name is not None:
                    self._bind(scope, handler.name, handler.lineno)
                    self._pass([(scope, handler.name)], caught)
                    heads.append((caught[1], len(self.mentions)))
                blocks += self.block(handler.body, scope)
            blocks += self.block([*node.orelse, *node.finalbody], scope)
        elif isinstance(node, ast.Match):
            subject = head(node.subject)
            for case in node.cases:
                head(case.pattern)
                for inner_node in ast.walk(case.pattern):
                    name = getattr(inner_node, "name", None) or getattr(inner_node, "rest", None)
                    if isinstance(name, str):
                        first = len(self.mentions)
                        self._bind(scope, name, getattr(inner_node, "lineno", node.lineno))
                        heads.append((first, len(self.mentions)))
                        self._pass([(scope, name)], subject)
                head(case.guard)
                blocks += self.block(case.body, scope)
        elif isinstance(node, ast.If | ast.While):
            head(node.test)
            blocks += self.block([*node.body, *node.orelse], scope)
        else:
            whole = head(node)
            name = getattr(node, "name", None)
            if isinstance(name, ast.Name):  # type X = …
                self._assign([name], scope, whole)
        first_line = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        last_line = node.end_lineno or node.lineno
        return Statement(node, scope, first_line, last_line, begin, len(self.mentions), tuple(heads), tuple(blocks))

    def _parameters(self, given: ast.arguments, scope: int, head: Callable[..., tuple[int, int]]) -> None:
        positional = [*given.posonlyargs, *given.args]
        defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(given.defaults)), *given.defaults]
        pairs: list[tuple[ast.arg, ast.expr | None]] = list(zip(positional, defaults, strict=True))
        pairs += list(zip(given.kwonlyargs, given.kw_defaults, strict=True))
        pairs += [(each, None) for each in (given.vararg, given.kwarg) if each is not None]
        for parameter, default in pairs:
            begin, _ = head(parameter.annotation, lookup=True)
            _, end = head(default)
            self.scopes[scope].names.add(parameter.arg)
            self._pass([(scope, parameter.arg)], (begin, end))

    def _import(self, node: ast.Import | ast.ImportFrom, scope: int) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                imported = Imported(node.level, node.module or "", alias.name)
                if alias.name == "*":
                    self.stars.append(imported)
                    continue
                bound = [(imported, alias.asname or alias.name, ())]
            elif alias.asname is not None:
                bound = [(Imported(0, alias.name, None), alias.asname, ())]
            else:
                first, *rest = alias.name.split(".")
                bound = [
                    (Imported(0, ".".join((first, *rest[:length])), None), first, tuple(rest[:length]))
                    for length in range(len(rest) + 1)
                ]
            for imported, name, path in bound:
                self.scopes[scope].names.add(name)
                self.imports.append(BoundImport(imported, scope, name, path, len(self.mentions)))
                self.mentions.append(Mention(node.lineno, "import", scope, name))

    def _bind(self, scope: int, name: str, line: int) -> None:
        self.scopes[scope].names.add(name)
        self.mentions.append(Mention(line, "name", scope, name))

    def _pass(self, names: Sequence[tuple[int, str]], given: tuple[int, int]) -> None:
        if given[0] < given[1]:
            self.passings.append(Passing(tuple(names), (), *given))

    def _assign(self, targets: Iterable[ast.expr], scope: int, given: tuple[int, int]) -> None:
        names: list[tuple[int, str]] = []
        attributes: list[str] = []
        waiting = list(targets)
        while waiting:
            target = waiting.pop()
            if isinstance(target, ast.Name):
                self.scopes[scope].names.add(target.id)
                names.append((scope, target.id))
                if self.scopes[scope].kind == "class":
                    attributes.append(target.id)
            elif isinstance(target, ast.Attribute):
                attributes.append(target.attr)
            elif isinstance(target, ast.Subscript):
                inner: ast.expr = target
                while isinstance(inner, ast.Subscript):
                    inner = inner.value
                if isinstance(inner, ast.Name):  # an element of it: the name is not bound here
                    names.append((scope, inner.id))
                elif isinstance(inner, ast.Attribute):
                    attributes.append(inner.attr)
            else:
                waiting += [each for each in ast.iter_child_nodes(target) if isinstance(each, ast.expr)]
        if given[0] < given[1]:
            self.passings.append(Passing(tuple(names), tuple(attributes), *given))

    def expression(self, root: ast.AST, scope: int, *, lookup: bool = False) -> None:
        """Records every name, attribute and string of an expression; lookup: its strings stand for names."""
        waiting: list[tuple[ast.AST, bool]] = [(root, lookup)]
        while waiting:
            node, in_lookup = waiting.pop()
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Attribute):
                chain: list[str] = []
                inner: ast.expr = node
                while isinstance(inner, ast.Attribute):
                    chain.append(inner.attr)
                    self.mentions.append(Mention(inner.end_lineno or line, "attribute", scope, inner.attr))
                    inner = inner.value
                if isinstance(inner, ast.Name):
                    self.mentions.append(Mention(inner.lineno, "name", scope, inner.id, tuple(reversed(chain))))
                else:
                    waiting.append((inner, in_lookup))
                continue
            if isinstance(node, ast.Name):
                self.mentions.append(Mention(line, "name", scope, node.id))
            elif isinstance(node, ast.Constant):
                if isinstance(node.value, str | bytes):
                    text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                    self.mentions.append(Mention(line, "lookup" if in_lookup else "text", scope, text))
            elif isinstance(node, ast.NamedExpr):
                first = len(self.mentions)
                self.expression(node.value, scope, lookup=in_lookup)
                self._assign([node.target], scope, (first, len(self.mentions)))
                waiting.append((node.target, in_lookup))
            else:
                function = node.func if isinstance(node, ast.Call) else None
                called = getattr(function, "attr", None) or getattr(function, "id", None)
                waiting += [(child, in_lookup or called in _LOOKUPS) for child in ast.iter_child_nodes(node)]
