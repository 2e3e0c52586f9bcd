"""Reading rules files: YAML with line numbers, the types of their fields, and all problems of a file as sentences.

A field's description says what it takes, in words that complete "pass ...". A message about a wrong value is made of
that description, the line and the nearest allowed name, never of the value: a value in the wrong place may be the text
of a secret. Only numbers in place of numbers, and keys that are close to a known key, are quoted.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, final, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from hush.errors import InvalidInput
from hush.settings import wrong

__all__ = [
    "PROMISE",
    "Day",
    "Document",
    "Name",
    "Problems",
    "document_error",
    "kind_of_value",
    "nearest",
    "read_yaml",
]


PROMISE = "a mapping with prior or format, and ceiling; or with points"

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def _name(value: str) -> str:
    if NAME.fullmatch(value) is None:
        raise wrong(
            "it is not a name of up to 64 small letters, digits, dots, dashes and underscores that begins with a "
            "letter or a digit; pass one, such as rare-words (it becomes part of public ids)"
        )
    return value


def _day(value: object) -> object:
    if isinstance(value, datetime) or not isinstance(value, date | str):
        raise PydanticCustomError("date_type", "not a day")
    return value


Name = Annotated[str, AfterValidator(_name)]
Day = Annotated[date, BeforeValidator(_day)]


Place = tuple[str | int, ...]
_OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def nearest(value: object, allowed: Iterable[str]) -> str:
    """The allowed name closest to a value, as a question; empty if none is close. The value itself is never shown.

    >>> nearest("pattern", ["words", "patterns"])
    ' (did you mean patterns?)'
    """
    close = get_close_matches(value.lower(), list(allowed), n=1, cutoff=0.7) if isinstance(value, str) else []
    return f" (did you mean {close[0]}?)" if close else ""


def kind_of_value(value: object) -> str:
    """The kind of a value, for messages that must not show the value itself."""
    if value is None:
        return "empty"
    for kind, name in ((Mapping, "a mapping"), (list | tuple, "a list"), (str, "text"), (bool, "true or false")):
        if isinstance(value, kind):
            return name
    return "a number" if isinstance(value, int | float) else "a day" if isinstance(value, date) else "of another kind"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Problems:
    """Turns the validation errors of a file into sentences. root: the model of the file; line_of: finds the line."""

    root: type[BaseModel]
    content: object
    line_of: Callable[[Place], int | None]

    def of(self, error: ValidationError) -> list[str]:
        """One sentence for each problem, in the order of the file."""
        sentences: list[tuple[int, str]] = []
        for problem in error.errors(include_url=False):
            if problem["type"] == "too_short" and problem["input"]:
                continue  # it is only short of valid entries, and the invalid ones have their own sentences
            place = self._without_tag(problem["loc"])
            sentences.append((self.line_of(place) or 0, self.at(place, self._sentence(problem, place))))
        return [sentence for _, sentence in sorted(sentences, key=lambda entry: entry[0])]

    def at(self, place: Place, sentence: str) -> str:
        """A sentence about a place, preceded by its line."""
        line = self.line_of(place)
        return sentence if line is None else f"line {line}: {sentence}"

    def where(self, place: Place) -> str:
        """A place as a path of keys and positions, with the name of its rule."""
        path = ""
        for size, step in enumerate(place):
            model, holder = self._model(place[:size]), self._value(place[:size])
            if isinstance(step, int):
                path += f"[{step}]"
            elif model is None and isinstance(holder, Mapping):  # its keys are chosen by the owner
                path += f", entry {_number_of(step, holder)}"
            else:
                path += f".{step}" if path else step
        name = self._value((*place[:2], "name")) if place[:1] == ("rules",) and len(place) > 1 else None
        return (path or "the file") + (f" (rule {name})" if isinstance(name, str) and NAME.fullmatch(name) else "")

    def _sentence(self, problem: Any, place: Place) -> str:
        kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
        at = self.where(place)
        match kind:
            case "extra_forbidden" | "invalid_key":
                return self._unknown_key(place)
            case "missing" if isinstance(place[-1], int):
                return f"{self.where(place[:-1])} is too short; pass {self._takes(place)}"
            case "missing":
                return f"{self.where(place[:-1])} lacks {place[-1]}, {self._takes(place)}"
            case "union_tag_not_found":
                return f"{at} lacks find, one of {', '.join(self._kinds)}"
            case "union_tag_invalid":
                near = nearest(context["tag"], self._kinds)
                return f"{at}: find is not a known kind{near}; pass one of {', '.join(self._kinds)}"
            case "hush":
                return f"{at}: {context['said']}"
            case "literal_error":
                allowed = re.findall(r"'?([\w-]+)'?(?:, | or |$)", context["expected"])
                kind_shown = "not an allowed word" if isinstance(value, str) else kind_of_value(value)
                return f"{at} is {kind_shown}{nearest(value, allowed)}; pass {' or '.join(allowed)}"
            case "too_short" | "string_too_short":
                return f"{at} is empty; pass {self._takes(place)}"
            case _ if kind in _OUT_OF_RANGE:
                return f"{at} is {value}, which is out of range; pass {self._takes(place)}"
        return f"{at} is {kind_of_value(value)}; pass {self._takes(place)}"

    def _unknown_key(self, place: Place) -> str:
        *parent, key = place
        model, holder = self._model(tuple(parent)), self._value(tuple(parent))
        known = list(model.model_fields) if model else []
        near = nearest(key, known)
        number = _number_of(key, holder) if isinstance(holder, Mapping) else 0
        named = f"the unknown key {key}{near}" if near else f"an unknown key, number {number} of its keys"
        return f"{self.where(tuple(parent))} has {named}; it may hold {', '.join(known)}"

    def _takes(self, place: Place) -> str:
        """The description of the field at this place, or of the closest field around it."""
        for size in range(len(place), 0, -1):
            model, name = self._model(place[: size - 1]), place[size - 1]
            field = model.model_fields.get(str(name)) if model else None
            if field is not None:
                return field.description or "a name"
        return "what the documentation shows"

    @property
    def _kinds(self) -> list[str]:
        return [_find(model) for model in self._rule_models]

    def _without_tag(self, place: Place) -> Place:
        """The place of a problem without the kind of the rule, which pydantic inserts after the rule's number."""
        has_tag = place[:1] == ("rules",) and len(place) > 2 and len(self._rule_models) > 1
        return tuple(step for step in (place[:2] + place[3:] if has_tag else place) if step != "[key]")

    @property
    def _rule_models(self) -> list[type[BaseModel]]:
        return _models_in(self.root.model_fields["rules"].annotation)

    def _value(self, place: Place) -> object:
        inside = self.content
        for step in place:
            if isinstance(inside, Mapping):
                inside = inside.get(step)
            else:
                inside = inside[step] if isinstance(inside, list | tuple) and isinstance(step, int) else None
        return inside

    def _model(self, place: Place) -> type[BaseModel] | None:
        """The model that describes a place; for a rule, the model of its kind."""
        models: list[type[BaseModel]] = [self.root]
        for size, step in enumerate(place):
            if isinstance(step, str):
                field = models[0].model_fields.get(step) if len(models) == 1 else None
                models = _models_in(field.annotation) if field else []
            if len(models) > 1 and isinstance(step, int):
                find = self._value((*place[: size + 1], "find"))
                models = [model for model in models if _find(model) == find]
        is_mapping = isinstance(self._value(place), Mapping) or not place
        return models[0] if len(models) == 1 and is_mapping else None


def _number_of(key: object, holder: Mapping[Any, Any]) -> int:
    """The number of a key in a mapping, from 1; pydantic gives keys that are not text as their repr."""
    return next((number for number, own_key in enumerate(holder, 1) if key in (own_key, repr(own_key))), 0)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _find(model: type[BaseModel]) -> str:
    return get_args(model.model_fields["find"].annotation)[0]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """The content of a YAML file, and the nodes from which line numbers follow."""

    content: object = field(repr=False)
    node: yaml.Node | None = field(repr=False)

    def line_of(self, place: Sequence[str | int]) -> int | None:
        """The line of the value at these keys and positions, or of the closest value around it; None without a file."""
        node = self.node
        if node is None:
            return None
        line = node.start_mark.line + 1
        for step in place:
            entry = _entry(node, step)
            if entry is None:
                break
            line, node = entry
        return line


class _Loader(yaml.SafeLoader):
    """Loads plain data only, and refuses a repeated key, of which YAML would silently drop one value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                before = first.setdefault((key.tag, key.value), key)
                if before is not key:
                    lines = before.start_mark.line + 1, key.start_mark.line + 1
                    raise _RepeatedKeyError(
                        f"line {lines[1]}: a key occurs twice in one mapping, first on line {lines[0]}"
                    )
        return super().construct_mapping(node, deep)


class _RepeatedKeyError(Exception):
    pass


def read_yaml(path: Path) -> Document:
    """The single document of a YAML file. An error states the place and never quotes the file."""
    try:
        loader = _Loader(path.read_bytes().decode("utf-8-sig"))
        try:
            node = loader.get_single_node()
            return Document(content=None if node is None else loader.construct_document(node), node=node)
        finally:
            loader.dispose()
    except UnicodeDecodeError:
        message = f"{path} is not UTF-8; write it as UTF-8"
    except _RepeatedKeyError as error:
        message = f"{path}, {error}; remove or rename one of them"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        message = f"{path}{where}: this is not valid YAML; check indentation and quotes (patterns go in single quotes)"
    except (yaml.YAMLError, ValueError, RecursionError):  # invalid characters or dates, or too deep nesting
        message = f"{path} is not valid YAML; check its characters and its nesting"
    raise InvalidInput(message)  # outside of the handlers, whose exceptions quote the file


def document_error(source: str, sentences: list[str]) -> InvalidInput:
    """One error for all problems of a document."""
    if len(sentences) == 1:
        return InvalidInput(f"{source}, {sentences[0]}")
    return InvalidInput("\n  ".join([f"{source} has {len(sentences)} problems:", *sentences]))


def _entry(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node] | None:
    """The line and the node of an entry."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key.start_mark.line + 1, value
    return None
