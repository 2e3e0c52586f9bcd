"""Syntax trees of source files from tree-sitter's grammars, also for files with syntax errors."""

import importlib
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hush.errors import InvalidInput

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["nodes_of", "text_of", "tree_of"]


# The package and function of the grammar of each language.
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


def tree_of(language: str, text: str) -> "Node":
    """The root of a text's tree."""
    grammar = _language(language)
    from tree_sitter import Parser

    return Parser(grammar).parse(text.encode()).root_node


def nodes_of(language: str, kinds: Collection[str], text: str) -> tuple[dict[str, list["Node"]], bool]:
    """The nodes of these kinds in a text's tree, in order, outer before inner; and whether the text has errors.

    The walk is not recursive and takes linear time: tree-sitter's own queries take quadratic time on a long run of
    unclosed brackets.
    """
    root = tree_of(language, text)
    nodes: dict[str, list[Node]] = {kind: [] for kind in kinds}
    cursor = root.walk()
    while True:
        node = cursor.node
        if node is not None and node.type in nodes:
            nodes[node.type].append(node)
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return nodes, root.has_error


def text_of(node: "Node") -> str:
    """The source text of a node."""
    return (node.text or b"").decode()
