"""Rows of several parts as the one text that a model reads: conversations, prompts with completions, text columns.

Everything after reading works on that text: it is scanned, cut, redacted, fingerprinted and trained on. So a secret is
looked for exactly where the model would see it, in every role, name and argument of a tool call. ``Rendering`` says how
rows become texts, and which characters of a text are an answer, so that the loss can be taken there alone.

What is public. Of a row whose rule hides spans, everything outside the slots is public: also the roles, the number of
messages and which fields are empty. That is sound only if the template does not look at what a string says before it
decides how to write the others. ``Rendering.is_transparent`` checks it for the row at hand: the template must give the
same structure when every string is replaced by another. A row for which it does not is secret as a whole, if it holds
a secret. Strings that the template escapes are given to the finders unescaped as well (``unescaped``).

Shapes: T tokens of a text.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, final

from hush.data.chat_template import ChatTemplate, RowProblem, strings_of
from hush.errors import InvalidInput

__all__ = [
    "OPTIONAL_COLUMNS",
    "Learn",
    "Range",
    "RenderedRow",
    "Rendering",
    "RowProblem",
    "chat_columns",
    "covered_tokens",
    "is_chat",
    "ranges_in_skeleton",
    "render",
    "tokenise_rendered",
]


Kind = Literal["messages", "prompt-completion", "columns"]
Learn = Literal["all", "completion", "assistant"]
Range = tuple[int, int]  # of characters: begin, end

MESSAGES, PROMPT, COMPLETION = ("messages", "conversations"), "prompt", "completion"
INSTRUCTION, OUTPUT, INPUT = "instruction", "output", "input"  # another form of prompts and completions
OPTIONAL_COLUMNS = ("tools", "chat_template_kwargs", INPUT)  # that a conversation may have
BETWEEN_COLUMNS = "\n\n"
IGNORED = -100  # the label of a token that is not learnt

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "assistant": "assistant",
    "system": "system",
    "function_response": "tool",
    "observation": "tool",
    "tool": "tool",
}


def is_chat(columns: Iterable[str]) -> bool:
    """Whether rows with these columns are conversations, or prompts with completions.

    >>> is_chat(["id", "messages"]), is_chat(["prompt", "completion"]), is_chat(["prompt", "text"])
    (True, True, False)
    """
    return bool(chat_columns(columns))


def chat_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that hold the conversation, or prompt and completion; none if there are none."""
    names = set(columns)
    for name in MESSAGES:
        if name in names:
            return (name,)
    pairs = ((PROMPT, COMPLETION), (INSTRUCTION, OUTPUT))
    return next((pair for pair in pairs if names.issuperset(pair)), ())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRow:
    """A row as one text.

    answers: the ranges of its characters that are answers; None where ``why_no_answers`` says why they cannot be told.
    """

    text: str
    answers: tuple[Range, ...] | None
    why_no_answers: str = ""

    def __repr__(self) -> str:
        return f"RenderedRow({len(self.text)} characters)"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How rows become texts. columns: those that every row needs; a conversation may have the optional ones, too.

    end: what is put behind a completion that is a string: the token that ends a text.
    """

    kind: Kind
    columns: tuple[str, ...]
    template: ChatTemplate | None = None
    end: str = ""

    @classmethod
    def of_columns(
        cls, available: Iterable[str], *, template: ChatTemplate | None = None, columns: Sequence[str] = ()
    ) -> Self:
        """The rendering of data with these columns: of those that are named, otherwise of what they look like."""
        names = list(available)
        missing = [name for name in columns if name not in names]
        if missing:
            raise InvalidInput(f"the data lack {len(missing)} of the columns that are named", setting="columns")
        if columns:
            return cls(kind="columns", columns=tuple(columns))
        end = "" if template is None else template.eos
        if found := chat_columns(names):
            kind: Kind = "messages" if len(found) == 1 else "prompt-completion"
            return cls(kind=kind, columns=found, template=template, end=end if len(found) > 1 else "")
        raise InvalidInput(
            "the data have neither messages nor prompt and completion; name the columns that hold the text",
            setting="columns",
        )

    # What is stored

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        template = None if self.template is None else self.template.to_record()
        return {"kind": self.kind, "columns": list(self.columns), "template": template, "end": self.end}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """From ``to_record``."""
        template = None if record["template"] is None else ChatTemplate.from_record(record["template"])
        return cls(kind=record["kind"], columns=tuple(record["columns"]), template=template, end=record["end"])

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of everything that decides what text a row becomes, but the date of its template."""
        template = None if self.template is None else self.template.digest
        content = json.dumps([self.kind, self.columns, template, self.end])
        return hashlib.sha256(b"hush rendering 1\n" + content.encode()).hexdigest()

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer adds its special tokens to a text; a template writes them itself."""
        return self.kind == "columns" or self.template is None or not self.template.source

    def learns(self, learn: Learn | None) -> Learn:
        """What is learnt of these rows: the setting, or by default completions where there are any, otherwise all."""
        default: Learn = "completion" if self.kind == "prompt-completion" else "all"
        needed = {"completion": "prompt-completion", "assistant": "messages"}
        if learn in needed and self.kind != needed[learn]:
            rows = {"messages": "conversations", "columns": "texts"}.get(self.kind, "prompts with completions")
            raise InvalidInput(f"the rows are {rows}; pass {default}, or leave it out", setting="learn", value=learn)
        return default if learn is None else learn

    def tokenizer(self, tokenizer: Any) -> Any:
        """This tokenizer, made to add no special tokens where the template writes them."""
        return tokenizer if self.adds_special_tokens else RenderedTextTokenizer(tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a tokenizer for which the rows would have become other texts."""
        if self.kind == "columns" or self.template is None:
            return
        if self.template.source:
            self.template.check_tokenizer(tokenizer)
        if self.kind == "prompt-completion" and self.end != (tokenizer.eos_token or ""):
            raise InvalidInput(
                "the model ends texts with another token than the one behind the completions that were scanned; scan "
                "again with this model, or train the one that was named"
            )

    # Rendering

    def render(self, row: Mapping[str, Any], *, answers: bool = True) -> RenderedRow:
        """The text of a row, and where its answers are unless they are not asked for. Raises RowProblem."""
        if self.kind == "columns":
            return RenderedRow(text=self._joined(row), answers=None, why_no_answers="columns of text have no answers")
        row = self._as_prompt(row)
        if self.kind == "prompt-completion" and isinstance(row.get(PROMPT), str):
            prompt, completion = row[PROMPT], row.get(COMPLETION)
            if not isinstance(completion, str):
                raise RowProblem("its prompt is text and its completion is not")
            ended = completion + ("" if completion.endswith(self.end) else self.end)
            return RenderedRow(text=prompt + ended, answers=((len(prompt), len(prompt) + len(ended)),))
        conversation = self._conversation(row)
        text = conversation.render(conversation.messages)
        if not text:
            raise RowProblem("the chat template makes an empty text of it")
        if not answers:
            return RenderedRow(text=text, answers=None)
        try:
            return RenderedRow(text=text, answers=tuple(conversation.answers(text)))
        except RowProblem as problem:
            return RenderedRow(text=text, answers=None, why_no_answers=str(problem))

    def _as_prompt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row; one with instruction, input and output as prompt and completion, messages if there is a template."""
        if self.columns[0] != INSTRUCTION:
            return row
        parts = [row.get(INSTRUCTION), row.get(INPUT) or "", row.get(OUTPUT)]
        if not all(isinstance(part, str) for part in parts):
            raise RowProblem("its instruction or output is no text")
        prompt, completion = BETWEEN_COLUMNS.join(part for part in parts[:2] if part), parts[2]
        if self.template is None or not self.template.source:
            return {PROMPT: prompt + BETWEEN_COLUMNS, COMPLETION: completion}
        asked, answer = {"role": "user", "content": prompt}, {"role": "assistant", "content": completion}
        return {PROMPT: [asked], COMPLETION: [answer]}

    def _joined(self, row: Mapping[str, Any]) -> str:
        values = [row.get(name) for name in self.columns]
        if any(not isinstance(value, str | None) for value in values):
            raise RowProblem("one of its columns holds no text")
        texts = [value for value in values if value]
        if not texts:
            raise RowProblem("empty")
        return BETWEEN_COLUMNS.join(texts)

    def is_transparent(self, row: Mapping[str, Any], text: str) -> tuple[bool, tuple[str, ...]]:
        """Whether its text is a structure with the row's strings in their places; and the strings that the text holds
        only in another form."""
        if self.kind == "columns":
            return True, ()
        row = self._as_prompt(row)
        if isinstance(row.get(PROMPT), str) and self.kind == "prompt-completion":
            return True, ()
        conversation = self._conversation(row)
        held, strings = conversation.held(text)
        if held is not None:
            strings = [strings[number] for number in held]
        inner = [string.strip() for outer in strings for string in strings_of(outer)]
        return held is not None, tuple(dict.fromkeys(each for each in inner if each and each not in text))

    def _conversation(self, row: Mapping[str, Any]) -> "_Conversation":
        if self.template is None:
            raise RowProblem("it is a conversation, and no chat template is named that renders it")
        options = _decoded(row.get("chat_template_kwargs")) or {}
        tools = _decoded(row.get("tools")) or None
        if not isinstance(options, Mapping) or not isinstance(tools, list | None):
            raise RowProblem("its tools are no list, or its chat_template_kwargs no mapping")
        if self.kind == "messages":
            messages, prompt = _messages(row.get(self.columns[0])), 0
        else:
            asked = _messages(row.get(PROMPT))
            messages, prompt = [*asked, *_messages(row.get(COMPLETION))], len(asked)
        return _Conversation(
            template=self.template, messages=messages, prompt=prompt, tools=tools, options=_without_none(options)
        )

    def with_template(self, template: ChatTemplate) -> Self:
        """The same rows, rendered by another template."""
        return replace(self, template=template, end=template.eos if self.kind == "prompt-completion" else "")

    def __repr__(self) -> str:
        return f"Rendering({self.kind})"


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Conversation:
    """Messages, of which the first ``prompt`` are a prompt, and all that a template gets besides them."""

    template: ChatTemplate
    messages: list[dict[str, Any]]
    prompt: int
    tools: list[Any] | None
    options: dict[str, Any]

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        return self.template.render(messages, tools=self.tools, prompt=prompt, options=self.options)

    def held(self, text: str) -> tuple[list[int] | None, list[str]]:
        structure, strings = self.template.structure(self.messages, tools=self.tools, options=self.options)
        return None if structure is None else structure.held(text, strings), strings

    def answers(self, text: str) -> list[Range]:
        """Where the answers are: what follows the prompt, what the template marks, or what each answer adds."""
        if all(message["role"] != "assistant" for message in self.messages[self.prompt :]):
            raise RowProblem("none of its messages has the role assistant")
        if self.prompt:
            return self._completion(text)
        if self.template.marks_answers:
            return self._marked(text)
        ranges = list[Range]()
        for number, message in enumerate(self.messages):
            if message["role"] == "assistant":
                ranges.append(self._added(number, text))
        return ranges

    def _marked(self, text: str) -> list[Range]:
        """What the template marks, which must hold every answer that the text holds."""
        found = self.template.marked_answers(self.messages, tools=self.tools, options=self.options)
        ranges = [(begin, end) for begin, end in found if begin < end]
        marked = "".join(text[begin:end] for begin, end in ranges)
        answers = (each.get("content") for each in self.messages if each["role"] == "assistant")
        missed = (each for each in answers if isinstance(each, str) and each.strip() in text)
        if not ranges or any(each.strip() not in marked for each in missed):
            raise RowProblem("the chat template marks other text than the answers ({% generation %})")
        return ranges

    def _completion(self, text: str) -> list[Range]:
        """What follows the prompt and the header of an answer; or what the template marks behind the prompt."""
        asked = self.messages[: self.prompt]
        announced = self.render(asked, prompt=asked[-1]["role"] != "assistant")
        if text.startswith(announced):
            return [(len(announced), len(text))]
        prompt = self.render(asked)
        if self.template.marks_answers and text.startswith(prompt):
            return [(begin, end) for begin, end in self._marked(text) if begin >= len(prompt)]
        raise RowProblem("the chat template renders the prompt in another way when the completion follows")

    def _added(self, number: int, text: str) -> Range:
        """What the answer of this number adds to the text, without the header that announces it."""
        if not number:
            raise RowProblem("it begins with an answer, and the chat template does not mark answers")
        begin, end = self.render(self.messages[:number], prompt=True), self.render(self.messages[: number + 1])
        if not end.startswith(begin) or not text.startswith(end):
            raise RowProblem(
                "the chat template does not mark answers ({% generation %}), and renders the beginning of a "
                "conversation in another way when more follows"
            )
        return len(begin), len(end) - self._space_behind(number)

    def _space_behind(self, number: int) -> int:
        """How much white space the template writes behind the token that ends this answer, whatever the answer says."""
        structure, _ = self.template.structure(self.messages[: number + 1], tools=self.tools, options=self.options)
        tail = "" if structure is None else structure.pieces[-1]
        is_ended = any(tail.rstrip().endswith(token) for _, token in self.template.special_tokens if token)
        return len(tail) - len(tail.rstrip()) if is_ended else 0


def _messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a row, in the form that templates take: from/value becomes role/content, nulls are left out."""
    value = _decoded(value)
    if not isinstance(value, list | tuple) or not value:
        raise RowProblem("empty" if value is None or value == [] else "its messages are no list")
    messages: list[dict[str, Any]] = []
    for number, each in enumerate(value, 1):
        if not isinstance(each, Mapping):
            raise RowProblem(f"its message {number} is no mapping")
        message = _without_none(each)
        if "role" not in message and isinstance(message.get("from"), str):
            message = _from_sharegpt(message)
        if not isinstance(message.get("role"), str):
            raise RowProblem(f"its message {number} has no role")
        messages.append(message)
    return messages


def _from_sharegpt(message: dict[str, Any]) -> dict[str, Any]:
    """A message that says from and value, with role and content; a function call is one of the assistant."""
    role, value = str(message.pop("from")), message.pop("value", "")
    if role == "function_call":
        try:
            calls = json.loads(value)
        except (ValueError, TypeError, RecursionError):
            return {"role": "assistant", "content": value, **message}
        calls = calls if isinstance(calls, list) else [calls]
        if all(isinstance(call, dict) and "name" in call for call in calls):
            return {"role": "assistant", "tool_calls": [{"type": "function", "function": call} for call in calls]}
        return {"role": "assistant", "content": value, **message}
    return {"role": _SHAREGPT_ROLES.get(role, role), "content": value, **message}


def _decoded(value: Any) -> Any:
    """The value, or what it says in JSON if it is text, as in a CSV file."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise RowProblem("one of its columns should hold JSON, and does not") from None


def _without_none(value: Any) -> Any:
    """The same without entries that are null: tables fill in every key that any row has."""
    if isinstance(value, Mapping):
        return {str(name): _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


@final
class RenderedTextTokenizer:
    """A tokenizer that adds no special tokens to a text, since a chat template wrote them into it already."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, *texts: Any, **how: Any) -> Any:
        return self._tokenizer(*texts, **{**how, "add_special_tokens": False})

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """None."""
        return 0

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_tokenizer":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __repr__(self) -> str:
        return f"RenderedTextTokenizer({type(self._tokenizer).__name__})"


# For callers with one row, and for tokens


def render(row: Mapping[str, Any], *, template: ChatTemplate | None = None, columns: Sequence[str] = ()) -> RenderedRow:
    """One row as a text, by what its columns look like.

    >>> render({"prompt": "2 + 2 = ", "completion": "4"}).answers
    ((8, 9),)
    """
    return Rendering.of_columns(row, template=template, columns=columns).render(row)


def covered_tokens(offsets_T: Iterable[tuple[int, int]], ranges: Iterable[Range]) -> list[bool]:
    """Which tokens stand for a character of these ranges, by the characters that each token stands for.

    >>> covered_tokens([(0, 0), (0, 3), (3, 5), (5, 8)], [(4, 8)])
    [False, False, True, True]
    """
    spans = list(ranges)
    return [any(begin < last and end > first for first, last in spans) for begin, end in offsets_T]


def ranges_in_skeleton(ranges: Iterable[Range], slots: Sequence[Range], lengths: Sequence[int]) -> list[Range]:
    """Ranges of a text as ranges of its skeleton. slots: their ranges in the text; lengths: of their placeholders.

    A border inside a slot moves to the end of the placeholder, whatever the slot holds. So the result is a function of
    the public text, of where it has slots, and of between which of its characters the borders are.

    >>> ranges_in_skeleton([(0, 4), (6, 12)], [(2, 5), (8, 9)], [10, 10])
    [(0, 12), (13, 28)]
    """
    ranges = list(ranges)
    borders = sorted({border for each in ranges for border in each})
    moved, shift, passed = dict[int, int](), 0, 0
    for border in borders:
        while passed < len(slots) and slots[passed][0] < border:
            shift += lengths[passed] - (slots[passed][1] - slots[passed][0])
            passed += 1
        inside = passed > 0 and border < slots[passed - 1][1]
        moved[border] = (slots[passed - 1][1] if inside else border) + shift
    return [(moved[begin], moved[end]) for begin, end in ranges]


def tokenise_rendered(
    row: RenderedRow, rendering: Rendering, tokenizer: Any, *, max_length: int, learn: Learn | None = None
) -> dict[str, list[int]]:
    """A rendered row as at most ``max_length`` tokens: input_ids, and labels, -100 where a token is not learnt.

    Raises RowProblem for a row whose answers cannot be told, if only answers are learnt.
    """
    made = tokenizer(
        row.text,
        truncation=True,
        max_length=max_length,
        add_special_tokens=rendering.adds_special_tokens,
        return_offsets_mapping=True,
    )
    tokens = list(made["input_ids"])
    if rendering.learns(learn) == "all":
        return {"input_ids": tokens, "labels": list(tokens)}
    if row.answers is None:
        raise RowProblem(row.why_no_answers)
    learnt = covered_tokens(made["offset_mapping"], row.answers)
    return {
        "input_ids": tokens,
        "labels": [token if one else IGNORED for token, one in zip(tokens, learnt, strict=True)],
    }
