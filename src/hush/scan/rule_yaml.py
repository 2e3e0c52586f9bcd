"""Reading YAML so that a message can say on which line something stands, without saying what stands there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import yaml

from hush.errors import InvalidInput

__all__ = ["Document", "read_yaml"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """What a file holds, and where in it."""

    content: object = field(repr=False)
    node: yaml.Node | None = field(repr=False)

    def line_of(self, place: Sequence[str | int]) -> int | None:
        """The line of what stands under these keys and positions, or of what holds it; None without a file."""
        node = self.node
        if node is None:
            return None
        line = node.start_mark.line + 1
        for step in place:
            found = _below(node, step)
            if found is None:
                break
            line, node = found
        return line


class _Loader(yaml.SafeLoader):
    """Plain data only, and no key twice: of two values, one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                before = first.setdefault((key.tag, key.value), key)
                if before is not key:
                    lines = before.start_mark.line + 1, key.start_mark.line + 1
                    raise _TwiceError(f"line {lines[1]}: a key stands twice in one mapping, first on line {lines[0]}")
        return super().construct_mapping(node, deep)


class _TwiceError(Exception):
    pass


def read_yaml(path: Path) -> Document:
    """The one document of a YAML file. An error says where it is, and never what the file holds there."""
    try:
        loader = _Loader(path.read_bytes().decode("utf-8-sig"))
        try:
            node = loader.get_single_node()
            return Document(content=None if node is None else loader.construct_document(node), node=node)
        finally:
            loader.dispose()
    except UnicodeDecodeError:
        said = f"{path} is not UTF-8; write it as UTF-8"
    except _TwiceError as error:
        said = f"{path}, {error}; remove or rename one of them"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        said = f"{path}{where}: this is not YAML; check indentation and quotes (patterns go in single quotes)"
    except (yaml.YAMLError, ValueError, RecursionError):  # characters or dates that cannot be, or endless nesting
        said = f"{path} is not YAML that can be read; check its characters and its nesting"
    raise InvalidInput(said)  # out here, where what was caught, which quotes the file, is no part of it


def _below(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node] | None:
    """The line and the node of an entry."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key.start_mark.line + 1, value
    return None
