"""Rows of texts, conversations, or prompts with completions as the tokens that ``HushTrainer`` trains on.

Every row becomes a text, and the text tokens, by itself and before training: nothing that another row says has a part
in it, and no two examples share a sequence. The text is what the model reads, and so what is to be scanned for secrets
and what the plan's fingerprint is of; :func:`training_texts` gives it. A token that ends a plain text is added after
that, as it is the same in every row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final, overload

import torch
from torch import nn

from hush.data.chat import Learn, Range, Rendering, RowProblem, is_chat, tokenise_rendered
from hush.data.chat_template import ChatTemplate
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.train.hf.config import RowSettings
from hush.train.hf.data import Tokenised
from hush.train.language_models import (
    CausalCollator,
    Collator,
    Loss,
    TokenizedTexts,
    causal_lm_loss,
    default_loss,
    rows_of,
    tokenise,
)
from hush.train.pretrained import longest_text
from hush.train.slots.batches import doubling_lengths

__all__ = ["PreparedData", "RowTexts", "adapted", "prepare", "slot_texts", "training_texts"]


Formatting = Callable[[dict[str, Any]], str]


@final
class RowTexts(Sequence[str]):
    """The text of every row as the model reads it; made when it is asked for, each from its row alone."""

    def __init__(
        self, data: Any, tokenizer: Any, settings: RowSettings, formatting_func: Formatting | None = None
    ) -> None:
        self._data, self._field, self._formatting = data, settings.text_field, formatting_func
        self.rendering = None if formatting_func else _rendering(data, tokenizer)

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...
    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        if isinstance(number, slice):
            return self.__getitems__(list(range(*number.indices(len(self)))))
        return self._text(self._data[number], number)

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def __getitems__(self, numbers: Sequence[int]) -> list[str]:
        rows = self.rows(numbers)
        return [self._text(row, number) for row, number in zip(rows, numbers, strict=True)]

    def rows(self, numbers: Sequence[int]) -> list[Any]:
        """The rows themselves. A transform of a dataset sees all rows of one read, so it gets one at a time."""
        transforms = (getattr(self._data, "format", None) or {}).get("type") == "custom"
        return [self._data[number] for number in numbers] if transforms else rows_of(self._data, numbers)

    def _text(self, row: Any, number: int) -> str:
        if self.rendering is not None:
            with _naming_row(number):
                return self.rendering.render(row, answers=False).text
        if self._formatting is not None:
            made: Any = self._formatting(dict(row) if isinstance(row, Mapping) else row)
            if not isinstance(made, str):
                raise InvalidInput(
                    f"formatting_func makes a {type(made).__name__} of row {number}; it gets one row and must return "
                    "its text"
                )
            return made
        text = row.get(self._field) if isinstance(row, Mapping) else row
        if not isinstance(text, str):
            raise InvalidInput(
                f"row {number} has a {type(text).__name__} where its text should be; name the column with "
                "dataset_text_field"
            )
        return text

    def answers(self) -> Iterator[Sequence[Range]]:
        """The ranges of the characters of each text that are answers."""
        rendering = self.rendering
        if rendering is None:
            raise InvalidInput("the rows are plain texts, which have no answers; pass conversations")
        for number in range(len(self)):
            (row,) = self.rows([number])
            with _naming_row(number):
                rendered = rendering.render(row)
                if rendered.answers is None:
                    raise RowProblem(rendered.why_no_answers)
            yield rendered.answers

    def __repr__(self) -> str:
        return f"RowTexts({len(self)} rows)"


def training_texts(
    data: Any, tokenizer: Any, args: Any = None, *, formatting_func: Formatting | None = None
) -> RowTexts:
    """What a model reads of each row when ``HushTrainer`` trains it with these arguments.

    These are the texts to scan, and ``key.fingerprint_rows(texts)`` is the fingerprint for the plan. A chat template or
    an end token that ``args`` names is given to the tokenizer, as ``HushTrainer`` does.
    """
    settings = RowSettings.of(args)
    _use(settings, tokenizer, None)
    return RowTexts(data, tokenizer, settings, formatting_func)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """What ``HushTrainer`` trains on and evaluates; the same as it was given where there was nothing to do."""

    train: Any
    evaluation: Any
    collator: Any
    buckets: Sequence[int]


def prepare(
    given: PreparedData,
    model: Any,
    tokenizer: Any,
    settings: RowSettings,
    *,
    formatting_func: Formatting | None,
    key: DataKey | None,
    loss: Loss | None,
) -> PreparedData:
    """Tokens of rows that hold texts, conversations or prompts, with a collator and buckets unless these are given.

    Tokenised rows stay as they are; so do raw ones if a collator of the user is to tokenise them, or without a
    tokenizer.
    """
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor for several kinds of input
    if formatting_func is not None and not (callable(tokenizer) and _is_raw(given.train, settings, any_row=True)):
        raise InvalidInput(
            "formatting_func makes texts of rows that are not tokenised; pass such rows, with the tokenizer as "
            "processing_class="
        )
    tokenises = given.collator is not None and not isinstance(given.collator, Collator) and not settings.are_stated
    if settings.skip or not callable(tokenizer) or (tokenises and formatting_func is None):
        return given
    any_row = formatting_func is not None
    if not _is_raw(given.train, settings, any_row=any_row):
        return given
    if given.collator is None and loss is None and default_loss(model) is not causal_lm_loss:
        return given
    _use(settings, tokenizer, model)
    length = min(settings.max_length, longest_text(model.config, tokenizer))
    if isinstance(given.collator, Collator):
        length = min(length, given.collator.length)
    settings = replace(settings, max_length=length)

    def tokens(data: Any, key: DataKey | None) -> Any:
        if isinstance(data, Mapping):  # several sets to evaluate
            return {name: tokens(each, key) for name, each in data.items()}
        if data is None or not _is_raw(data, settings, any_row=any_row):
            return data
        return _tokens(RowTexts(data, tokenizer, settings, formatting_func), tokenizer, settings, key=key)

    made = PreparedData(
        train=tokens(given.train, key),
        evaluation=tokens(given.evaluation, None),
        collator=given.collator or CausalCollator(length=length, padding=_padding(tokenizer)),
        buckets=given.buckets,
    )
    if isinstance(made.collator, Collator) and not made.buckets:
        return replace(made, buckets=doubling_lengths(made.collator.length))
    return made


def slot_texts(
    data: Any, model: Any, tokenizer: Any, settings: RowSettings, formatting_func: Formatting | None
) -> tuple[Any, Any, Iterator[Sequence[Range]] | None]:
    """Rows with slots as texts, the tokenizer for them, and what is learnt of each; the same where rows are texts."""
    is_rendered = _is_raw(data, settings, any_row=False) and isinstance(data[0], Mapping) and is_chat(data[0])
    if formatting_func is None and not is_rendered:
        return data, tokenizer, None
    _use(settings, tokenizer, model)
    texts = RowTexts(data, tokenizer, settings, formatting_func)
    learn = _learn(settings, texts.rendering)
    if texts.rendering is None:
        return texts, tokenizer, None
    return texts, texts.rendering.tokenizer(tokenizer), None if learn == "all" else texts.answers()


def adapted(model: Any, peft_config: Any, *, seed: int) -> Any:
    """The model with adapters, which are drawn from the seed, so that a training that is resumed has the same ones."""
    if peft_config is None:
        return model
    from peft import PeftModel, get_peft_model

    if isinstance(model, PeftModel):
        raise InvalidInput("the model has adapters already; pass the model without them, or leave peft_config out")
    if getattr(peft_config, "fan_in_fan_out", None) is False and any(
        type(module).__name__ == "Conv1D" for module in model.modules()
    ):
        peft_config.fan_in_fan_out = True  # how GPT-2 keeps its linear layers; PEFT does the same, with a warning
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, peft_config)


# ---- texts ----


def _is_raw(data: Any, settings: RowSettings, *, any_row: bool) -> bool:
    """Whether these rows hold a text that can be found, or a conversation. any_row: or anything but tokens."""
    if isinstance(data, Tokenised) or not hasattr(data, "__getitem__") or not len(data):
        return False
    row = data[0]
    if not isinstance(row, Mapping):
        return isinstance(row, str)
    if "input_ids" in row:
        return False
    return any_row or is_chat(row) or isinstance(row.get(settings.text_field), str)


def _rendering(data: Any, tokenizer: Any) -> Rendering | None:
    """How conversations and prompts with completions become texts; None if rows are texts."""
    row = data[0] if len(data) else ""
    if not isinstance(row, Mapping) or not is_chat(row):
        return None
    template = ChatTemplate.of_tokenizer(tokenizer)
    if isinstance(row.get("prompt"), str):  # plain texts, to which the tokenizer adds what it adds to any text
        template = ChatTemplate.of_tokenizer(tokenizer, source="")
    return Rendering.of_columns(row, template=template)


def _use(settings: RowSettings, tokenizer: Any, model: nn.Module | None) -> None:
    """Give tokenizer and model the end token and the chat template that the settings name, as TRL does."""
    if settings.chat_template_path is not None:
        try:
            tokenizer.chat_template = Path(settings.chat_template_path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the file cannot be read as text ({type(error).__name__}); pass one that holds a chat template",
                setting="chat_template_path",
                value=settings.chat_template_path,
            ) from None
    if settings.eos_token is None:
        return
    if settings.eos_token not in tokenizer.get_vocab():
        raise InvalidInput(
            "the tokenizer has no such token; pass one of its vocabulary", setting="eos_token", value=settings.eos_token
        )
    tokenizer.eos_token = settings.eos_token
    configs: list[Any] = [getattr(model, "config", None), getattr(model, "generation_config", None)]
    if configs[0] is not None:
        configs[0].get_text_config().eos_token_id = tokenizer.eos_token_id
    if configs[1] is not None:
        ends = configs[1].eos_token_id
        ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        if tokenizer.eos_token_id not in ends:
            configs[1].eos_token_id = [tokenizer.eos_token_id, *ends]


# ---- tokens ----


@final
@dataclass(frozen=True, slots=True)
class _Ended(Sequence[str]):
    """Texts with the token that ends each, unless it has one."""

    texts: RowTexts
    end: str

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...
    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        if isinstance(number, slice):
            return self.__getitems__(list(range(*number.indices(len(self)))))
        return self._ended(self.texts[number])

    def __getitems__(self, numbers: Sequence[int]) -> list[str]:
        return [self._ended(text) for text in self.texts.__getitems__(numbers)]

    def _ended(self, text: str) -> str:
        return text if text.endswith(self.end) else text + self.end


def _tokens(texts: RowTexts, tokenizer: Any, settings: RowSettings, *, key: DataKey | None) -> TokenizedTexts:
    """The tokens of every row, with labels where not all are learnt, and the fingerprint of the texts."""
    if texts.rendering is None:
        _learn(settings, None)
        made = tokenise(_Ended(texts, tokenizer.eos_token or ""), tokenizer, max_length=settings.max_length)
    else:
        rows = list(_rendered(texts, texts.rendering, tokenizer, settings))
        made = TokenizedTexts([row["input_ids"] for row in rows], [row["labels"] for row in rows])
    if key is not None:
        made.fingerprint = key.fingerprint_leaves(key.fingerprint_row(text) for text in texts)
    return made


def _rendered(
    texts: RowTexts, rendering: Rendering, tokenizer: Any, settings: RowSettings
) -> Iterator[dict[str, list[int]]]:
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidInput(
            "this tokenizer does not say which characters a token stands for, so answers cannot be told from "
            "prompts; take a fast tokenizer"
        )
    learn = _learn(settings, rendering)
    for number in range(len(texts)):
        (row,) = texts.rows([number])
        with _naming_row(number):
            rendered = rendering.render(row, answers=learn != "all")
            made = tokenise_rendered(rendered, rendering, tokenizer, max_length=settings.max_length, learn=learn)
        yield made


def _learn(settings: RowSettings, rendering: Rendering | None) -> Learn:
    """What is learnt of these rows; refuses answers and completions of rows in which nothing tells them."""
    kind = "columns" if rendering is None else rendering.kind
    names = {"columns": "plain texts", "messages": "conversations", "prompt-completion": "prompts with completions"}
    needed = {"assistant": "messages", "completion": "prompt-completion"}.get(settings.learn or "", kind)
    if kind != needed:
        raise InvalidInput(
            f"it needs {names[needed]}, and the rows are {names[kind]}; leave it out",
            setting=f"{settings.learn}_only_loss",
            value=True,
        )
    return "all" if rendering is None else rendering.learns(settings.learn)


@contextmanager
def _naming_row(number: int) -> Iterator[None]:
    """Say which row it was if the row is the problem, and nothing of what it says."""
    try:
        yield
    except RowProblem as problem:
        raise InvalidInput(f"row {number} cannot be prepared: {problem}") from None


def _padding(tokenizer: Any) -> int:
    """What batches are padded with; a mask marks it, so any token serves."""
    found = tokenizer.pad_token_id
    return int(found if found is not None else tokenizer.eos_token_id or 0)
