"""Language models: losses with one number per example, tokenised texts, and collators whose rows are independent.

Losses. Those of transformers divide by the number of labelled tokens in the batch, so that one example's gradient
depends on all others. Here each example is divided by its own number of labelled tokens only; for a batch of one the
two agree. An example without a labelled token has loss 0. Log-probabilities are float32 or better, whatever the model
computes in.

Batches. Row i of a batch is a function of example i, the round and the collator's seed: the same whether it is alone or
among thousands, first or last. Randomness comes from a counter, not from a stream that rows would share. Every batch
has the length that was asked for, so that shapes repeat and nothing is compiled again.

Shapes: B examples, T tokens, V words of the vocabulary or classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hush.data.parts import shown_name
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.scan.long_texts.unread import Unread, read_by_encodings
from hush.train.preconditions import refuse_batch

__all__ = [
    "IGNORED",
    "CausalCollator",
    "Collator",
    "DifferenceLoss",
    "Loss",
    "MaskedCollator",
    "TokenizedTexts",
    "causal_lm_loss",
    "classification_loss",
    "default_loss",
    "logits_and_labels",
    "masked_lm_loss",
    "rows_of",
    "token_losses",
    "tokenise",
]


Loss = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]

IGNORED = -100  # the label of a token that is not learnt


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each example over its own labelled tokens: logits [B, T, V], labels [B, T] -> [B].

    >>> token_losses(torch.zeros(2, 3, 8), torch.tensor([[1, 2, IGNORED], [IGNORED, IGNORED, IGNORED]])).tolist()
    [2.079441547393799, 0.0]
    """
    flat = functional.cross_entropy(
        _precise(logits).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    token_BT = flat.view_as(labels)
    count_B = (labels != IGNORED).sum(dim=1)
    return token_BT.sum(dim=1) / count_B.clamp(min=1)


def causal_lm_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Each text's mean loss of predicting its labelled tokens from those before them: [B].

    Guarantee: row i depends on the model and on row i of the batch alone, if the model's own forward pass does.
    """
    logits, labels = logits_and_labels(model, batch)
    following = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)  # shifting labels is cheaper than slicing logits
    return token_losses(logits, following)


def masked_lm_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Each text's mean loss of its labelled tokens, each predicted in place: masked language models, taggers: [B].

    Guarantee: row i depends on the model and on row i of the batch alone, if the model's own forward pass does.
    """
    return token_losses(*logits_and_labels(model, batch))


def classification_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Each image's or text's loss of its class: cross-entropy, or by the model's ``config.problem_type``: [B].

    Labels are class numbers [B], a 0 or 1 per class [B, V], or real numbers (regression: mean squared error).

    Guarantee: row i depends on the model and on row i of the batch alone, if the model's own forward pass does.
    """
    logits, labels = logits_and_labels(model, batch)
    logits = _precise(logits)
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem == "regression" or (problem is None and logits.shape[-1] == 1):
        return (logits - labels.reshape(logits.shape).to(logits.dtype)).square().mean(dim=1)
    if problem == "multi_label_classification" or labels.is_floating_point():
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(
            dim=1
        )
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")


@final
@dataclass(frozen=True, slots=True)
class DifferenceLoss:
    """What a text teaches beyond its skeleton: loss(x) - loss(x°) of each pair of a batch, [B, 2, T]; [B].

    Each has a forward pass, so every layer is called twice. Both sums over tokens are divided by the number of labels
    of x, so that the terms of public tokens cancel as far as the model predicts them alike. A batch that holds no pairs
    has the plain loss. Dropout, if a model has any, differs between x and x°. Unlike that of the losses of this module,
    the output layer is not computed in chunks: logits of a whole micro-batch are in memory.

    Guarantee: that of the loss: entry i depends on the model and on pair i alone.
    """

    loss: Loss

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        if batch["labels"].ndim == 2:
            return self.loss(model, batch)
        text_B, skeleton_B = (
            self.loss(model, {name: value[:, side] for name, value in batch.items()}) for side in (0, 1)
        )
        labels = batch["labels"][..., 1:] if self.loss is causal_lm_loss else batch["labels"]
        count_B2 = (labels != IGNORED).sum(dim=2)
        return text_B - skeleton_B * (count_B2[:, 1] / count_B2[:, 0].clamp(min=1))


_BY_CLASS_NAME: dict[str, Loss] = {
    "ForCausalLM": causal_lm_loss,
    "LMHeadModel": causal_lm_loss,
    "ForMaskedLM": masked_lm_loss,
    "ForTokenClassification": masked_lm_loss,
    "ForSequenceClassification": classification_loss,
    "ForImageClassification": classification_loss,
}


def default_loss(model: nn.Module) -> Loss:
    """The loss for a Hugging Face model's class; adapters and subclasses get that of the model they wrap."""
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # a PEFT model
        inner = inner.get_base_model()
    names = [kind.__name__ for kind in type(inner).__mro__]
    encoder_decoder = getattr(getattr(inner, "config", None), "is_encoder_decoder", False)
    for name in names:
        # Of the few classes named WithLMHeadModel some are masked and some causal: the name does not tell.
        if encoder_decoder or name.endswith("WithLMHeadModel"):
            break
        for ending, loss in _BY_CLASS_NAME.items():
            if name.endswith(ending):
                return loss
    raise InvalidInput(
        f"no loss is known for {names[0]}{' (an encoder-decoder)' if encoder_decoder else ''}; known are classes whose "
        f"names end in {', '.join(_BY_CLASS_NAME)}; pass loss=, a function of (model, batch) that returns one loss per "
        "example, each from that example alone"
    )


def logits_and_labels(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The model's logits without its own loss, which normalises over the batch, and the labels."""
    if "labels" not in batch:
        raise InvalidInput(f"the batch has no 'labels', only {sorted(batch)}; use a collator that adds them")
    if not torch.compiler.is_compiling():  # values cannot be read while compiling; training checks every batch before
        refuse_batch(batch, len(batch["labels"]))
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    # The cache of keys and values, which causal models keep by default, is not needed.
    options = {"use_cache": False} if getattr(getattr(model, "config", None), "use_cache", False) else {}
    return model(**inputs, **options).logits, batch["labels"]


def _precise(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


Integers = NDArray[np.int64]
Tokens = Sequence[int] | NDArray[np.integer]
Rows = Sequence[Mapping[str, Any]]

_TEXTS_PER_CALL = 1024  # that a tokenizer gets at once


@final
class TokenizedTexts:
    """The tokens of every example, in one flat array: row i is example i of the plan, truncated already.

    fingerprint is the keyed one of the texts, if :func:`tokenise` made the tokens and had the owner's key. unread says
    what was truncated, if that is known.

    In 0.1.0 this class was called ``hush.train.Corpus``; that name still works.
    """

    def __init__(self, tokens: Sequence[Tokens], labels: Sequence[Tokens] | None = None) -> None:
        self.lengths: Integers = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        self._ends = np.cumsum(self.lengths)
        self._tokens = _joined(tokens)
        self._labels = None if labels is None else _joined(labels)
        self.fingerprint: str | None = None
        self.unread: Unread | None = None
        if labels is not None and [len(row) for row in labels] != self.lengths.tolist():
            raise InvalidInput("labels and tokens differ in length; give each token a label, -100 if it is not learnt")

    @property
    def has_labels(self) -> bool:
        """Whether any token is to be learnt: without labels of their own, all but the first of a text."""
        if self._labels is None:
            return bool((self.lengths > 1).any())
        return bool((self._labels != IGNORED).any())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, example: int) -> dict[str, NDArray[np.int32]]:
        if not -len(self) <= example < len(self):
            raise IndexError(f"example {example} of {len(self)}")
        end = int(self._ends[example])
        part = slice(end - int(self.lengths[example]), end)
        row = {"input_ids": self._tokens[part]}
        return row if self._labels is None else row | {"labels": self._labels[part]}

    def __repr__(self) -> str:
        return f"TokenizedTexts({len(self)} examples, {len(self._tokens)} tokens)"


def tokenise(
    source: Sequence[Any],
    tokenizer: Any = None,
    *,
    max_length: int,
    column: str = "text",
    key: DataKey | None = None,
) -> TokenizedTexts:
    """Every example as at most ``max_length`` tokens, each truncated by itself, before any training.

    ``source`` is a list or a ``datasets.Dataset`` of texts, of rows with a ``column`` of text, or of rows that are
    tokenised already (``input_ids``, and ``labels`` if only some tokens are to be learnt). What is beyond max_length is
    not trained on, secrets included; ``unread`` of the result says how much that is. With the owner's data key the
    texts are fingerprinted in the same pass, so that ``HushTrainer`` can tell whether they are the plan's; rows that
    are tokenised already must then hold the column.
    """
    if max_length < 1:
        raise InvalidInput("no token would be left; pass at least 1", setting="max_length", value=max_length)
    if not len(source):
        return _fingerprinted(TokenizedTexts([]), key, [])
    first = source[0]
    tokenised = isinstance(first, Mapping) and "input_ids" in first
    labelled = tokenised and "labels" in first
    if isinstance(first, Mapping) and not tokenised and column not in first:
        raise InvalidInput(
            f"rows have no column {column!r} and no 'input_ids', only {sorted(first)}; pass column= with the name"
        )
    if not tokenised and not callable(tokenizer):
        raise InvalidInput("texts need a tokenizer; pass the model's, or rows that hold input_ids")
    encode: Any = tokenizer
    tokens: list[Tokens] = []
    labels: list[Tokens] = []
    leaves: list[bytes] = []
    lengths, reads = list[int](), list[int]()
    for start in range(0, len(source), _TEXTS_PER_CALL):
        rows = rows_of(source, range(start, min(start + _TEXTS_PER_CALL, len(source))))
        if key is not None:
            leaves += [key.fingerprint_row(_text_of(row, column)) for row in rows]
        if tokenised:
            tokens += [_integers(row["input_ids"][:max_length]) for row in rows]
            labels += [_integers(row["labels"][:max_length]) for row in rows if labelled]
        else:
            texts = [_text_of(row, column) for row in rows]
            encoded = encode(texts, truncation=True, max_length=max_length)
            tokens += [_integers(row) for row in encoded["input_ids"]]  # as lists they would take ten times the memory
            lengths += map(len, texts)
            reads += read_by_encodings(texts, encoded).tolist()
    made = TokenizedTexts(tokens, labels if labelled else None)
    made.unread = None if tokenised else Unread.of(lengths, reads)
    return _fingerprinted(made, key, leaves)


def _text_of(row: Any, column: str) -> Any:
    if not isinstance(row, Mapping):
        return row
    if column not in row:
        raise InvalidInput(
            f"rows have no column {shown_name(column)!r} to compare with the plan; keep the texts when tokenising, or "
            "pass column= with the name of their column"
        )
    return row[column]


def _fingerprinted(texts: TokenizedTexts, key: DataKey | None, leaves: Sequence[bytes]) -> TokenizedTexts:
    if key is not None:
        texts.fingerprint = key.fingerprint_leaves(leaves)
    return texts


def rows_of(source: Any, numbers: Sequence[int]) -> list[Any]:
    """These rows of a list or a dataset; all at once if it can, which for ``datasets`` is far faster."""
    if hasattr(source, "__getitems__"):
        return source.__getitems__(list(numbers))
    return [source[number] for number in numbers]


@dataclass(frozen=True, kw_only=True)
class Collator(ABC):
    """Rows of tokens into a batch of ``length`` tokens each, padded at the end.

    Without ``examples``, as in evaluations, the position of a row in the batch counts as its example number. Rows that
    come with the row of their ``skeleton`` (:mod:`hush.train.slots.texts`) become pairs: every tensor is [B, 2, T].

    Guarantee: row i of the result depends on row i, ``examples[i]``, ``round`` and ``length`` alone.
    """

    length: int
    padding: int

    def __call__(
        self, rows: Rows, *, examples: Sequence[int] | Integers | None = None, round: int = 0, length: int | None = None
    ) -> dict[str, Tensor]:
        if rows and "skeleton" in rows[0]:
            skeletons = [row["skeleton"] for row in rows]
            pair = [self._padded(side, examples=examples, round=round, length=length) for side in (rows, skeletons)]
            return {name: torch.stack([side[name] for side in pair], dim=1) for name in pair[0]}
        return self._padded(rows, examples=examples, round=round, length=length)

    def _padded(
        self, rows: Rows, *, examples: Sequence[int] | Integers | None, round: int, length: int | None
    ) -> dict[str, Tensor]:
        width = self.length if length is None else length
        tokens = [np.asarray(row["input_ids"]) for row in rows]
        labels = [np.asarray(row.get("labels", row["input_ids"])) for row in rows]
        size_B = np.fromiter(map(len, tokens), dtype=np.int64, count=len(rows))
        if size_B.max(initial=0) > width:
            raise InvalidInput(
                f"a row of {size_B.max()} tokens does not fit into {width}; truncate every example once, before "
                f"training, with tokenise(max_length={width}), or pass length={size_B.max()}"
            )
        inside_BT = np.arange(width) < size_B[:, None]
        token_BT = np.full((len(rows), width), self.padding, dtype=np.int64)
        label_BT = np.full((len(rows), width), IGNORED, dtype=np.int64)
        if len(rows):
            token_BT[inside_BT] = np.concatenate(tokens)
            label_BT[inside_BT] = np.concatenate(labels)
        extra = {name: _filled(rows, name, inside_BT) for name in ("in_slot", "places")}
        numbers = np.arange(len(rows)) if examples is None else np.asarray(examples, dtype=np.int64)
        seen_BT, learnt_BT = self._learnt(token_BT, label_BT, examples=numbers, round=round, **extra)
        arrays = {"input_ids": seen_BT, "attention_mask": inside_BT.astype(np.int64), "labels": learnt_BT}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    @abstractmethod
    def _learnt(
        self,
        token_BT: Integers,
        label_BT: Integers,
        *,
        examples: Integers,
        round: int,
        in_slot: Integers | None,
        places: Integers | None,
    ) -> tuple[Integers, Integers]:
        """(the tokens that the model sees, the labels that it must predict).

        in_slot tells the tokens of a slot, places numbers the tokens for the random choice; None: none, 0, 1, 2, …
        """


@final
@dataclass(frozen=True, kw_only=True)
class CausalCollator(Collator):
    """Every token is a label, or those with a label if rows have labels."""

    def _learnt(
        self,
        token_BT: Integers,
        label_BT: Integers,
        *,
        examples: Integers,
        round: int,
        in_slot: Integers | None,
        places: Integers | None,
    ) -> tuple[Integers, Integers]:
        return token_BT, label_BT


@final
@dataclass(frozen=True, kw_only=True)
class MaskedCollator(Collator):
    """A random ``share`` of each text is to be predicted: 80 % masked, 10 % replaced by a random word, 10 % unchanged.

    New in every round. ``special`` tokens are never chosen; of tokens in a slot the share is ``slot_share``. The choice
    needs no secrecy: it is the example's own randomness.
    """

    mask: int
    vocabulary: int
    special: frozenset[int] = frozenset()
    share: float = 0.15
    slot_share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("share", "slot_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidInput(
                    f"{name}={getattr(self, name)} of the tokens cannot be masked; pass more than 0 and at most 1"
                )

    def _learnt(
        self,
        token_BT: Integers,
        label_BT: Integers,
        *,
        examples: Integers,
        round: int,
        in_slot: Integers | None,
        places: Integers | None,
    ) -> tuple[Integers, Integers]:
        numbers = np.arange(token_BT.shape[1]) if places is None else places
        chance_BT, way_BT, word_BT = own_uniforms(self.seed, round, examples, numbers, draws=3)
        share_BT = self.share if in_slot is None else np.where(in_slot > 0, self.slot_share, self.share)
        eligible_BT = (label_BT != IGNORED) & ~np.isin(token_BT, list(self.special))
        chosen_BT = eligible_BT & (chance_BT < share_BT)
        words_BT = (word_BT * self.vocabulary).astype(np.int64)
        seen_BT = np.where(chosen_BT & (way_BT < 0.8), self.mask, token_BT)
        seen_BT = np.where(chosen_BT & (way_BT >= 0.9), words_BT, seen_BT)
        return seen_BT, np.where(chosen_BT, label_BT, IGNORED)


def own_uniforms(seed: int, round: int, examples: Integers, places: Integers, *, draws: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), [draws, B, T]: each a hash of (seed, round, example, place of the token, draw) alone.

    SplitMix64 over a chain of counters: good statistics, no secrecy.
    """
    origin = _mixed(np.uint64(seed % 2**64), np.uint64(round % 2**64))
    row_B = _mixed(origin, examples.astype(np.uint64))
    token_BT = _mixed(row_B[:, None], places.astype(np.uint64).reshape(-1, places.shape[-1]))
    bits = np.stack([_mixed(token_BT, np.uint64(draw)) for draw in range(draws)])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: Any, counter: Any) -> Any:
    """SplitMix64's output at a position that depends on both [Steele14]; products wrap around on purpose."""
    with np.errstate(over="ignore"):
        bits = np.asarray(state ^ ((counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _filled(rows: "Rows", name: str, inside_BT: NDArray[np.bool_]) -> Integers | None:
    """A column of the rows, padded with 0; None if no row has it."""
    if not rows or name not in rows[0]:
        return None
    filled_BT = np.zeros(inside_BT.shape, dtype=np.int64)
    filled_BT[inside_BT] = np.concatenate([np.asarray(row[name]) for row in rows])
    return filled_BT


def _integers(row: Tokens) -> NDArray[np.int32]:
    return np.asarray(row, dtype=np.int32)


def _joined(rows: Sequence[Tokens]) -> NDArray[np.int32]:
    return np.concatenate([_integers(row) for row in rows]) if rows else np.zeros(0, dtype=np.int32)
