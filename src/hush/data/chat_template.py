"""A chat template: the program of a model that turns a conversation into the text that the model reads.

The template is that of a tokenizer, of a file, or ``chatml``, which hush holds itself. It runs in the sandbox of
transformers, so no code of a model's repository is executed. A template may print today's date; here the date is fixed
when the template is read, so that a row gives the same text whenever it is rendered again.

``structure`` renders a conversation with every string replaced by a mark. What a real conversation becomes is then
compared with it: either the text is that structure with the strings in their places, each as it is, trimmed or escaped
as JSON, or the template looks at what the strings say.
"""

import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, final

from hush.errors import InvalidInput, Setting

__all__ = ["CHATML", "TEMPLATE_ENDINGS", "ChatTemplate", "RowProblem", "Structure", "strings_of"]


class RowProblem(Exception):
    """Why a row cannot be rendered, without any of its text; the reader of the row adds where it is."""


CHATML = "chatml"  # the name of the template below

_CHATML_SOURCE = """\
{%- macro content_of(message) %}
    {%- if message['content'] is none or message['content'] is undefined %}
    {%- elif message['content'] is string %}{{- message['content'] }}
    {%- else %}
        {%- for part in message['content'] %}
            {%- if part is not mapping or part['text'] is not string %}
                {{- raise_exception('a part of a message is not text') }}
            {%- endif %}
            {{- part['text'] }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>tools\\n' }}
    {%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
        {{- content_of(message) }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '\\n<tool_call>\\n' + ((call['function'] or call) | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- content_of(message) + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_DATE_CALL = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_SPECIAL_TOKEN_NAME = re.compile(r"\b(?:bos|eos|unk|sep|pad|cls|mask)_token\b")
TEMPLATE_ENDINGS = (".jinja", ".jinja2", ".j2")

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Any] | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template and the special tokens that it may print.

    source: the program. tool_source: another one for rows with tools, if the model has two. special_tokens: by their
    names, such as eos_token. date: which day it is for the template. of_model: whether it is a model's own; otherwise
    the user named a file, which is meant for any model.
    """

    source: str = field(repr=False)
    tool_source: str | None = field(default=None, repr=False)
    special_tokens: tuple[tuple[str, str], ...] = ()
    date: str = ""
    of_model: bool = False

    def __post_init__(self) -> None:
        if not self.date:
            object.__setattr__(self, "date", dt.date.today().isoformat())

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, *, source: str | None = None) -> Self:
        """The template of a tokenizer, or this one with the tokenizer's special tokens.

        That of a tokenizer without one is empty: it renders no conversation, but tells the token that ends a text.
        """
        special = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
        tokens = tuple(sorted(special.items()))
        if source is not None:
            return cls(source=source, special_tokens=tokens)
        templates: Any = tokenizer.chat_template
        if not templates:
            return cls(source="", special_tokens=tokens, of_model=True)
        named = dict(templates) if isinstance(templates, Mapping) else {"default": str(templates)}
        if "default" not in named:
            raise InvalidInput(
                f"the tokenizer has the chat templates {', '.join(sorted(named))} and no default one; pass the one to "
                "take as a file that ends in .jinja",
                setting="chat_template",
            )
        return cls(source=named["default"], tool_source=named.get("tool_use"), special_tokens=tokens, of_model=True)

    @classmethod
    def load(
        cls, name: str | None, *, model: str | None = None, special_tokens: Mapping[str, str] | None = None
    ) -> Self:
        """The template in a file that ends in .jinja, of a model by name or folder, or ``chatml``; by default the
        model's. model: the one to be trained, whose special tokens a file may print; or these tokens themselves."""
        stated = tuple(sorted((special_tokens or {}).items()))
        if name is None and model is None:
            if special_tokens is not None:
                return cls(source="", special_tokens=stated, of_model=True)
            raise InvalidInput(
                "the rows are conversations, and no chat template is named that renders them; name a model that has "
                f"one, a file that ends in .jinja, or {CHATML} as ",
                Setting("chat_template"),
                "; if they were scanned already, pass owner/data.parquet of the scan instead",
                setting="chat_template",
            )
        is_file = name is not None and (name == CHATML or name.endswith(TEMPLATE_ENDINGS))
        if name is None or not is_file:
            return cls.of_tokenizer(_tokenizer(str(model if name is None else name)))
        if name == CHATML:
            source = _CHATML_SOURCE
        else:
            try:
                source = Path(name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(
                    f"{name} cannot be read as text ({type(error).__name__}); name a file with a template",
                    setting="chat_template",
                ) from None
        return (
            cls(source=source, special_tokens=stated)
            if model is None
            else cls.of_tokenizer(_tokenizer(model), source=source)
        )

    # What is stored, and what it is compared with

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "source": self.source,
            "tool_source": self.tool_source,
            "special_tokens": dict(self.special_tokens),
            "date": self.date,
            "of_model": self.of_model,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """From ``to_record``."""
        return cls(**{**record, "special_tokens": tuple(sorted(record["special_tokens"].items()))})

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the programs and of the special tokens that they may print; the date does not count."""
        named = {name: text for name, text in self.special_tokens if name in self._printed_names()}
        content = json.dumps([self.source, self.tool_source, named], sort_keys=True)
        return hashlib.sha256(b"hush chat template 1\n" + content.encode()).hexdigest()

    def _printed_names(self) -> set[str]:
        return set(_SPECIAL_TOKEN_NAME.findall(self.source + (self.tool_source or "")))

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a tokenizer for which rows would be rendered in another way.

        A file is meant for any model, if it prints the same special tokens; a model's template for models that have it.
        """
        theirs = type(self).of_tokenizer(tokenizer, source=None if self.of_model else self.source)
        if theirs.digest != self.digest:
            what = "has another chat template" if self.of_model else "has other special tokens, which it prints,"
            raise InvalidInput(
                f"the model {what} than the one by which the data were rendered when they were scanned; scan again "
                "with the chat template of this model, or train the model whose template it is"
            )

    # Rendering

    @property
    def marks_answers(self) -> bool:
        """Whether the template itself says what the assistant generates."""
        return bool(_GENERATION.search(self.source))

    @property
    def eos(self) -> str:
        """The token that ends a text; "" if none is known."""
        return dict(self.special_tokens).get("eos_token", "")

    def render(
        self, messages: Messages, *, tools: Tools = None, prompt: bool = False, options: Mapping[str, Any] | None = None
    ) -> str:
        """The text of a conversation. prompt: with the beginning of an answer at the end."""
        return self._rendered(messages, tools, options, add_generation_prompt=prompt)[0]

    def marked_answers(
        self, messages: Messages, *, tools: Tools = None, options: Mapping[str, Any] | None = None
    ) -> list[tuple[int, int]]:
        """The ranges of characters that the template says the assistant generates."""
        return [
            (int(begin), int(end))
            for begin, end in self._rendered(messages, tools, options, return_assistant_tokens_mask=True)[1]
        ]

    def _rendered(
        self, messages: Messages, tools: Tools, options: Mapping[str, Any] | None, **how: bool
    ) -> tuple[str, Sequence[tuple[int, int]]]:
        source = self.tool_source if tools and self.tool_source is not None else self.source
        if not source:
            raise InvalidInput(
                "the rows are conversations, and the model has no chat template that renders them; name a file that "
                f"ends in .jinja, a model that has one, or {CHATML} as ",
                Setting("chat_template"),
                setting="chat_template",
            )
        arguments = {**dict(self.special_tokens), **(options or {}), **how}
        render = _renderer()
        try:
            texts, ranges = render(
                conversations=[list(messages)],
                tools=None if tools is None else list(tools),
                chat_template=_dated(source, self.date),
                **arguments,
            )
        except Exception as error:  # whatever a template does wrong; its message may quote the row
            raise RowProblem(_why(error, source)) from None
        return texts[0], ranges[0] if ranges else ()

    def structure(
        self, messages: Messages, *, tools: Tools = None, options: Mapping[str, Any] | None = None
    ) -> "tuple[Structure | None, list[str]]":
        """What this conversation becomes whatever its strings say, and these strings; None if it cannot be told."""
        strings: list[str] = []
        shape = json.dumps([_marked(messages, strings), _marked(tools, strings), options], sort_keys=False)
        return _structure(self, shape), strings


@lru_cache(maxsize=64)
def _dated(source: str, date: str) -> str:
    """The template with the date that it asks for."""
    return _DATE_CALL.sub(lambda call: json.dumps(dt.date.fromisoformat(date).strftime(call[2])), source)


def _renderer() -> Any:
    try:
        from transformers.utils.chat_template_utils import render_jinja_template
    except ImportError:
        raise InvalidInput(
            'chat templates need the library transformers; install it with pip install "hush[hf]"'
        ) from None
    return render_jinja_template


def _tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InvalidInput(
            'chat templates need the library transformers; install it with pip install "hush[hf]"'
        ) from None
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise InvalidInput(
            f"{name}: no tokenizer can be loaded from it ({type(error).__name__}); name a model on the hub or its "
            f"folder, a template in a file that ends in .jinja, or {CHATML}",
            setting="chat_template",
        ) from None


def _why(error: Exception, source: str) -> str:
    """Why a template failed. What it says is repeated only where it says the same of every row."""
    said = str(error)
    stated = f": {said}" if said and said in source else ""
    return f"the chat template fails ({type(error).__name__}{stated})"


# What of a text is structure


MARK = "\ue000{}\ue001"  # private characters: no template looks for them, and trimming and escaping leave them alone
_MARKS = re.compile("\ue000(\\d+)\ue001")
_STRUCTURAL = ("role", "type")  # keys whose strings decide how a template goes on


@final
@dataclass(frozen=True, slots=True, repr=False)
class Structure:
    """A conversation's text without its strings: ``pieces`` around the strings of these numbers."""

    pieces: tuple[str, ...]
    numbers: tuple[int, ...]

    def held(self, text: str, strings: Sequence[str]) -> list[int] | None:
        """The numbers of the strings that a text holds; None if it is not this structure with the strings in place."""
        if not text.startswith(self.pieces[0]):
            return None
        place = len(self.pieces[0])
        for number, piece in zip(self.numbers, self.pieces[1:], strict=True):
            for form in _forms(strings[number]):
                if text.startswith(form, place) and text.startswith(piece, place + len(form)):
                    place += len(form) + len(piece)
                    break
            else:
                return None
        return list(self.numbers) if place == len(text) else None


def _forms(string: str) -> Iterable[str]:
    """The forms in which templates write a string: as it is, trimmed, or escaped as JSON."""
    yield from dict.fromkeys((string, string.strip(), string.rstrip(), string.lstrip()))
    for plain in dict.fromkeys((string, string.strip())):
        yield json.dumps(plain, ensure_ascii=False)[1:-1]
        yield json.dumps(plain)[1:-1]


def _marked(value: Any, strings: list[str], key: str = "") -> Any:
    """The same value with a mark for each string but the structural and the blank ones, which are collected."""
    if isinstance(value, str):
        if key in _STRUCTURAL or not value.strip():
            return value
        strings.append(value)
        return MARK.format(len(strings) - 1)
    if isinstance(value, Mapping):
        return {name: _marked(each, strings, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(each, strings, key) for each in value]
    return value


@lru_cache(maxsize=1024)
def _structure(template: ChatTemplate, shape: str) -> Structure | None:
    messages, tools, options = json.loads(shape)
    try:
        text = template.render(messages, tools=tools, options=options)
    except RowProblem:
        return None
    parts = _MARKS.split(text)
    return Structure(pieces=tuple(parts[::2]), numbers=tuple(map(int, parts[1::2])))


def strings_of(value: Any) -> list[str]:
    """All strings in a JSON value but keys, also those in strings that are JSON themselves."""
    if isinstance(value, str):
        if value[:1] in ("{", "["):
            try:
                return [value, *strings_of(json.loads(value))]
            except (ValueError, RecursionError):
                return [value]
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [string for each in inner for string in strings_of(each)]
