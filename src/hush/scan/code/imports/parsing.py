"""Syntax trees of source files, through tree-sitter's grammars; they come out whatever errors a file has."""

import importlib
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hush.errors import InvalidInput

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["nodes_of", "text_of"]


# Where the packages keep their grammars, by the names that hush gives to languages.
_GRAMMARS: Mapping[str, tuple[str, str]] = {
    "python": ("tree_sitter_python", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "java": ("tree_sitter_java", "language"),
    "go": ("tree_sitter_go", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
}


@cache
def _language(name: str) -> Any:
    package, maker = _GRAMMARS[name]
    try:
        from tree_sitter import Language

        grammar = importlib.import_module(package)
    except ImportError:
        raise InvalidInput(
            f'imports of {name} files need tree-sitter and its {name} grammar; pip install "hush[code]"'
        ) from None
    return Language(getattr(grammar, maker)())


def nodes_of(language: str, kinds: Collection[str], text: str) -> tuple[dict[str, list["Node"]], bool]:
    """The nodes of these kinds in a text's tree, in order and outer before inner; and whether the text has errors.

    A walk without recursion, linear in the text: tree-sitter's own queries take quadratic time on a long run of
    brackets that do not close.
    """
    grammar = _language(language)
    from tree_sitter import Parser

    root = Parser(grammar).parse(text.encode()).root_node
    found: dict[str, list[Node]] = {kind: [] for kind in kinds}
    cursor = root.walk()
    while True:
        node = cursor.node
        if node is not None and node.type in found:
            found[node.type].append(node)
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return found, root.has_error


def text_of(node: "Node") -> str:
    """The source text of a node."""
    return (node.text or b"").decode()
