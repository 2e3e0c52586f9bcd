"""Imports of Python files, and whether a file defines anything; python_modules.py says where the imports lead.

An import counts anywhere: inside functions, under TYPE_CHECKING, in a try. ``import a.b`` leads to a.b alone, not to
its parent packages; ``from a import b`` to the module a.b if it exists, otherwise to a. Files that Python cannot parse
are read by a tolerant parser instead.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from hush.scan.code.imports.distributions import read_distributions
from hush.scan.code.imports.parsing import nodes_of, text_of
from hush.scan.code.imports.python_modules import ENDINGS, Imported, PythonModules
from hush.scan.code.repository import Repository

__all__ = [
    "Python",
    "PythonReferences",
    "defines_nothing",
    "imported_names",
    "syntax_tree",
    "tolerantly_imported_names",
]


_NAMESPACE_MODULES = ("pkgutil", "pkg_resources")
_NAMESPACE_FUNCTIONS = {"extend_path": ["__path__", "__name__"], "declare_namespace": ["__name__"]}  # their arguments
_BLOCKS = ("cases", "finalbody", "orelse", "handlers", "body")  # last in the file first


@final
@dataclass(frozen=True, slots=True)
class PythonReferences:
    """The imports of a file, and whether it defines nothing that another file could use."""

    imports: tuple[Imported, ...]
    defines_nothing: bool = False


def syntax_tree(text: str) -> ast.Module:
    """The tree of a file; SyntaxError if it is not valid Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated escapes
        try:
            return ast.parse(text)
        except (RecursionError, MemoryError, ValueError):  # too deep, or with null characters
            raise SyntaxError("Python cannot parse this file") from None


def imported_names(tree: ast.Module) -> list[Imported]:
    """All imports of a file."""
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


def defines_nothing(body: Sequence[ast.stmt]) -> bool:
    """Whether statements define nothing: docstrings, ``pass``, and the ways to make a namespace package.

    >>> path = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)"
    >>> [defines_nothing(ast.parse(text).body) for text in ("'Docs.'", path, "__version__ = '1'", "import os")]
    [True, True, False, False]
    """
    return all(map(_defines_nothing, body))


def _defines_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Import(names=names):
            return all(alias.name in _NAMESPACE_MODULES and alias.asname is None for alias in names)
        case ast.ImportFrom(module="__future__", level=0):
            return True
        case ast.ImportFrom(module=("pkgutil" | "pkg_resources"), names=names, level=0):
            return all(alias.name in _NAMESPACE_FUNCTIONS and alias.asname is None for alias in names)
        case ast.Assign(targets=[ast.Name(id="__path__")], value=value):
            return _makes_namespace(value)
        case ast.Expr(value=value):
            return _makes_namespace(value)
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
            blocks = [body, orelse, final, *(handler.body for handler in handlers)]
            return all(map(defines_nothing, blocks)) and all(_is_import_error(handler) for handler in handlers)
    return False


def _makes_namespace(value: ast.expr) -> bool:
    """Whether an expression is extend_path(__path__, __name__) or declare_namespace(__name__), however it is named."""
    match value:
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            pass
        case ast.Call(func=ast.Attribute(attr=function, value=module), args=arguments, keywords=[]):
            match module:
                case (
                    ast.Name(id=name)
                    | ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=name)], keywords=[])
                ) if name in _NAMESPACE_MODULES:
                    pass
                case _:
                    return False
        case _:
            return False
    given = [argument.id if isinstance(argument, ast.Name) else "" for argument in arguments]
    return _NAMESPACE_FUNCTIONS.get(function) == given


def _is_import_error(handler: ast.ExceptHandler) -> bool:
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return all(name is None or isinstance(name, ast.Name) for name in names)


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
class Python:
    """Python, for the table ``LANGUAGES``."""

    name: str = "Python"
    endings: tuple[str, ...] = ENDINGS

    def references(self, path: str, text: str) -> tuple[PythonReferences, bool]:
        """The imports of a file, and whether it has syntax errors."""
        try:
            tree = syntax_tree(text.removeprefix("\ufeff"))
        except SyntaxError:
            return PythonReferences(tuple(tolerantly_imported_names(text))), True
        return PythonReferences(tuple(imported_names(tree)), defines_nothing(tree.body)), False

    def edges(
        self, repository: Repository, references: Mapping[str, PythonReferences]
    ) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports, without those that define nothing."""
        modules = self.modules(repository, references)
        for path, file in references.items():
            yield path, modules.imports_of(path, file.imports)

    def modules(self, repository: Repository, references: Mapping[str, PythonReferences]) -> PythonModules:
        """Where the imports of a repository lead, without files that define nothing."""
        files = tuple(path for path in repository.paths if path.endswith(ENDINGS))
        distributions = read_distributions(repository)
        empty = frozenset(path for path, file in references.items() if file.defines_nothing)
        every = PythonModules(files, distributions)
        # A file that defines nothing but imports one of the repository, perhaps called pkgutil, passes that on.
        empty = frozenset(path for path in empty if not every.imports_of(path, references[path].imports))
        return PythonModules(files, distributions, empty)
