"""Texts with slots as tokens: the public tokens of each skeleton, and the private tokens of each example.

Public side. The tokens of a skeleton are made from the skeleton's text alone: every slot is its rule's placeholder, and
truncation, length and labels follow from that text. The placeholder is one token if the tokenizer was given one
(``add_placeholder_tokens``), otherwise a few tokens of fixed text; it is never a label. An example without a secret is
its own skeleton; one that is secret as a whole has none, and asking for it is refused.

Private side. The tokens of the full text, with a mask of those that overlap a slot. Any function of the example may
stand here, since its gradient is clipped and noised: a text longer than max_length is cut to a window that holds as
many tokens of slots as possible. ``part`` says what is learnt from an example with slots: "slot", the labels in its
slots; "difference", its loss without that of its skeleton, whose row comes with it
(:class:`~hush.train.language_models.DifferenceLoss`). From an example that is secret as a whole everything is learnt.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hush.arrays import Progress
from hush.data.chat import ranges_in_skeleton
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.scan.long_texts.unread import Unread
from hush.slots import Slots, Spans, placeholder
from hush.train.language_models import IGNORED
from hush.train.settings import Part

__all__ = ["SkeletonTexts", "SlotTexts", "add_placeholder_tokens", "tokenise_slots"]


TEXTS_PER_CALL = 1000  # that a tokenizer gets at once

PUBLIC_COLUMNS = ("input_ids", "labels")
COLUMNS: dict[Part, tuple[str, ...]] = {
    "slot": (*PUBLIC_COLUMNS, "in_slot"),
    "difference": (*PUBLIC_COLUMNS, "in_slot", "places"),  # places: random choices that a text and its skeleton share
}

Row = dict[str, Any]
Ranges = Sequence[tuple[int, int]]  # of characters: begin, end


# ---- placeholders ----


def add_placeholder_tokens(model: nn.Module, tokenizer: Any, rules: Sequence[str]) -> None:
    """Give the tokenizer one special token for the placeholder of each rule, and the model an embedding for it.

    New rows of the embeddings are the mean of all others, so that they depend on the model alone. Not for models whose
    embeddings are frozen, as under LoRA: their placeholders stay text, and their adapters fit the model as it was.

    Guarantee: the tokens depend on the names of the rules, which are public, and on nothing else.
    """
    from transformers import AddedToken

    before = len(tokenizer)
    tokens = [AddedToken(placeholder(rule), special=True, normalized=False) for rule in rules]
    tokenizer.add_tokens(tokens, special_tokens=True)
    resizable: Any = model
    if len(tokenizer) == before:
        return
    if resizable.get_input_embeddings().num_embeddings < len(tokenizer):
        resizable.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    weights = {id(layer.weight): layer.weight for layer in _embeddings(resizable)}  # tied ones once
    biases = [layer.bias for layer in _embeddings(resizable) if getattr(layer, "bias", None) is not None]
    for rows in (*weights.values(), *biases):
        rows.data[before : len(tokenizer)] = rows.data[:before].mean(dim=0)


def _embeddings(model: Any) -> list[Any]:
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    return [layer for layer in layers if layer is not None]


# ---- tokens by example ----


@final
class _RaggedRows:
    """Rows of different lengths, by number; every column is one array."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        self.lengths = np.fromiter((len(row["input_ids"]) for row in rows), dtype=np.int64, count=len(rows))
        self._ends = np.cumsum(self.lengths)
        empty = np.zeros(0, dtype=np.int32)
        self._columns = {
            name: np.concatenate([empty, *(np.asarray(row[name], dtype=np.int32) for row in rows)]) for name in columns
        }

    def __getitem__(self, number: int) -> Row:
        end = int(self._ends[number])
        part = slice(end - int(self.lengths[number]), end)
        return {name: column[part] for name, column in self._columns.items()}


@final
class SkeletonTexts:
    """The public tokens by example number: of skeletons, and of examples without a secret.

    Guarantee: every row is a function of the example's skeleton; an example that is secret as a whole is refused.
    """

    def __init__(self, rows: _RaggedRows, *, slots: Slots, whole_N: NDArray[np.bool_], fingerprint: str | None) -> None:
        self._rows, self._whole_N = rows, whole_N
        self.slots, self.fingerprint, self.lengths = slots, fingerprint, rows.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, example: int) -> Row:
        if self._whole_N[example]:
            raise InvalidInput(f"example {example} is secret as a whole, so it has no public part; leave it out")
        return self._rows[example]

    def __repr__(self) -> str:
        return f"SkeletonTexts({len(self)} examples)"


@final
class SlotTexts:
    """The private tokens by example number, as ``tokenise_slots`` made them; ``skeletons`` are the public ones.

    A row holds tokens, labels and which tokens are in a slot; for part="difference" also the row of its skeleton.
    fingerprint and ``skeletons.fingerprint`` are keyed fingerprints of texts and skeletons, if there was a key. unread:
    what is beyond max_length, of skeletons and of whole examples.
    """

    def __init__(
        self,
        rows: _RaggedRows,
        paired: _RaggedRows | None,
        *,
        skeletons: SkeletonTexts,
        fingerprint: str | None,
        unread: Unread,
    ) -> None:
        self._rows, self._paired = rows, paired
        self.skeletons, self.fingerprint, self.unread = skeletons, fingerprint, unread
        self.lengths = rows.lengths if paired is None else np.maximum(rows.lengths, paired.lengths)

    @property
    def part(self) -> Part:
        """What is learnt privately from an example with slots."""
        return "slot" if self._paired is None else "difference"

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, example: int) -> Row:
        if not -len(self) <= example < len(self):
            raise IndexError(f"example {example} of {len(self)}")
        row = self._rows[example]
        return row if self._paired is None else row | {"skeleton": self._paired[example]}

    def __repr__(self) -> str:
        return f"SlotTexts({len(self)} examples, part={self.part!r})"


def tokenise_slots(
    texts: Iterable[str],
    tokenizer: Any,
    plan: Plan,
    spans: Spans,
    *,
    max_length: int,
    part: Part = "slot",
    key: DataKey | None = None,
    reading: Progress | None = None,
    learnt: Iterable[Ranges | None] | None = None,
) -> SlotTexts:
    """Public and private tokens of every example of a plan with slots, read once.

    texts are the plan's, row by row; spans say where their slots are, and stay with the owner. With the owner's data
    key texts and skeletons are fingerprinted in the same pass and must be those that the plan names. learnt: of each
    text the ranges of characters to learn; None: all of it. Which public characters these are is public.

    Guarantee: the public tokens are the same whatever stands in the slots, whatever its length; so are their labels.
    """
    if plan.slots is None or spans.slots != plan.slots:
        raise InvalidInput(
            "the spans are not those of the plan's slots; pass the spans of the scan that was planned for"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidInput(
            f"{type(tokenizer).__name__} does not tell which characters a token stands for; use a fast tokenizer "
            "(AutoTokenizer.from_pretrained(..., use_fast=True))"
        )
    maker = _RowMaker(tokenizer, spans, max_length=max_length, part=part)
    whole_N = plan.slots.whole_examples(plan.incidence)
    leaves, skeleton_leaves = list[bytes](), list[bytes]()
    public, private, paired = list[Row](), list[Row](), list[Row]()
    ranges = repeat(None) if learnt is None else iter(learnt)
    for first, chunk in _chunks(texts):
        learnt_of_chunk = list(islice(ranges, len(chunk)))
        if first + len(chunk) > len(whole_N):
            raise InvalidInput(f"there are more texts than the plan's {len(whole_N)} examples; pass the plan's data")
        skeletons = ["" if whole_N[first + i] else spans.skeleton(first + i, text) for i, text in enumerate(chunk)]
        if key is not None:
            leaves += [key.fingerprint_row(text) for text in chunk]
            skeleton_leaves += [key.fingerprint_row(text) for text in skeletons]
        public += maker.public(first, skeletons, learnt_of_chunk)
        whole_B = whole_N[first : first + len(chunk)]
        made = maker.private(first, chunk, skeletons, public[first:], whole_B, learnt_of_chunk)
        private += [row for row, _ in made]
        paired += [row for _, row in made]
        if reading is not None:
            reading(len(private), len(whole_N))
    if len(private) != len(whole_N):
        raise InvalidInput(
            f"there are {len(private)} texts but the plan has {len(whole_N)} examples; pass the plan's data"
        )
    fingerprint = None if key is None else key.fingerprint_leaves(leaves)
    of_skeletons = None if key is None else key.fingerprint_leaves(skeleton_leaves)
    _refuse_other(plan, fingerprint, of_skeletons)
    columns = COLUMNS[part]
    return SlotTexts(
        _RaggedRows(private, columns),
        _RaggedRows(paired, columns) if part == "difference" else None,
        skeletons=SkeletonTexts(
            _RaggedRows(public, PUBLIC_COLUMNS), slots=plan.slots, whole_N=whole_N, fingerprint=of_skeletons
        ),
        fingerprint=fingerprint,
        unread=maker.unread(),
    )


def _refuse_other(plan: Plan, fingerprint: str | None, of_skeletons: str | None) -> None:
    """Refuse texts or skeletons that are not those of the plan, as far as both are known."""
    for what, found, stated in (
        ("texts", fingerprint, plan.data_fingerprint),
        ("skeletons", of_skeletons, plan.skeleton_fingerprint),
    ):
        if found is not None and stated is not None and found != stated:
            raise InvalidInput(
                f"the {what} are not those that the plan was made for: their fingerprint under your key differs. Pass "
                "the same data (rows, order and column), with the spans of the same scan, or scan and plan again"
            )


def _chunks(texts: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """(number of the first text, texts), in parts that a tokenizer takes at once."""
    remaining, first = iter(texts), 0
    while chunk := list(islice(remaining, TEXTS_PER_CALL)):
        yield first, chunk
        first += len(chunk)


# ---- rows ----


@dataclass(frozen=True, slots=True, repr=False)
class _Encoded:
    """The tokens of a text, and the characters that each stands for."""

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]  # [T, 2]
    is_cut: bool = False

    def read(self, text: str) -> int:
        """How many characters of the text are not cut off."""
        if not self.is_cut:
            return len(text)
        begin_T, end_T = self.offsets[self.offsets[:, 1] > self.offsets[:, 0]].T
        return int(end_T.max(initial=0) - begin_T.min(initial=len(text))) if len(end_T) else 0

    def overlap(self, ranges: Ranges) -> NDArray[np.bool_]:
        """Which tokens stand for a character of these ranges."""
        begin_T, end_T = self.offsets.T
        found = np.zeros(len(self.tokens), dtype=bool)
        for begin, end in ranges:
            found |= (begin_T < end) & (end_T > begin)
        return found

    def labels(self, learnt: Ranges | None) -> NDArray[np.int32]:
        """The tokens of these ranges, and of everything without ranges; the others are not learnt."""
        return self.tokens if learnt is None else np.where(self.overlap(learnt), self.tokens, np.int32(IGNORED))

    def public_places(self, ranges: Ranges) -> dict[tuple[int, int, int], int]:
        """Numbers of the tokens outside of the ranges, by the characters that each stands for, counted without those
        of the ranges, and by how many tokens before it stand for the same."""
        numbers, seen = dict[tuple[int, int, int], int](), dict[tuple[int, int], int]()
        for number in np.flatnonzero(~self.overlap(ranges)).tolist():
            begin, end = self.offsets[number].tolist()
            hidden = sum(last - first for first, last in ranges if last <= begin)
            place = begin - hidden, end - hidden
            numbers[*place, seen.get(place, 0)] = number
            seen[place] = seen.get(place, 0) + 1
        return numbers


@final
class _RowMaker:
    """Makes rows of tokens from texts and skeletons, and notes how much of each is read."""

    def __init__(self, tokenizer: Any, spans: Spans, *, max_length: int, part: Part) -> None:
        self._tokenizer, self._spans, self._max_length, self._part = tokenizer, spans, max_length, part
        self._lengths, self._reads = list[int](), list[int]()

    def unread(self) -> Unread:
        """What is beyond max_length of the texts so far; a slot there is learnt all the same, in a private part."""
        return Unread.of(self._lengths, self._reads)

    def public(self, first: int, skeletons: list[str], learnt: Sequence[Ranges | None]) -> list[Row]:
        """The public rows of these skeletons, of examples from this number on; functions of the skeletons alone.

        learnt is about the texts; which public characters are learnt is the same whatever the slots hold.
        """
        encoded = self._encode(skeletons, truncated=True)
        self._lengths += map(len, skeletons)
        self._reads += [made.read(text) for made, text in zip(encoded, skeletons, strict=True)]
        return [
            _public_row(text, places, _in_skeleton(ranges, self._spans.of_example(first + i), places))
            for i, (text, ranges) in enumerate(zip(encoded, learnt, strict=True))
            for places in [self._placeholders(first + i)]
        ]

    def private(
        self,
        first: int,
        texts: list[str],
        skeletons: list[str],
        public: Sequence[Row],
        whole_B: NDArray[np.bool_],
        learnt: Sequence[Ranges | None],
    ) -> list[tuple[Row, Row]]:
        """For each text its private row, and the row of the skeleton to subtract."""
        has_slots_B = self._spans.slots.has_slots_N[first : first + len(texts)]
        numbers = np.flatnonzero(has_slots_B | whole_B).tolist()
        encoded = dict(zip(numbers, self._encode([texts[i] for i in numbers], truncated=False), strict=True))
        rows: list[tuple[Row, Row]] = []
        for i, text in enumerate(texts):
            if i not in encoded:  # no secret: never drawn, but it fills empty places of a micro-batch
                rows.append(_whole_pair(public[i]["input_ids"], public[i]["labels"]))
                continue
            if whole_B[i]:
                [alone] = self._encode([text], truncated=True)
                self._lengths[first + i], self._reads[first + i] = len(text), alone.read(text)
                rows.append(_whole_pair(alone.tokens, alone.labels(learnt[i])))
            else:
                rows.append(self._with_slots(first + i, text, skeletons[i], encoded[i], learnt[i]))
        return rows

    def _with_slots(
        self, example: int, text: str, skeleton: str, encoded: _Encoded, learnt: Ranges | None
    ) -> tuple[Row, Row]:
        ranges, places = self._spans.of_example(example), self._placeholders(example)
        if len(encoded.tokens) > self._max_length:
            in_slot = encoded.overlap(ranges)
            in_learnt_slot = in_slot if learnt is None else in_slot & encoded.overlap(learnt)
            begin, end = window = self._window(encoded, in_learnt_slot if in_learnt_slot.any() else in_slot)
            text, ranges, skeleton, places = _cut(text, ranges, skeleton, places, window)
            [encoded] = self._encode([text], truncated=True)
            if learnt is not None:
                inside = ((max(first, begin) - begin, min(last, end) - begin) for first, last in learnt)
                learnt = [(first, last) for first, last in inside if first < last]
        in_slot, labels = encoded.overlap(ranges), encoded.labels(learnt)
        row: Row = {"input_ids": encoded.tokens, "in_slot": in_slot}
        if self._part == "slot":
            return row | {"labels": np.where(in_slot, labels, IGNORED)}, {}
        [without] = self._encode([skeleton], truncated=True)
        hidden, number_of = without.overlap(places), without.public_places(places)
        numbers = self._max_length + np.arange(len(in_slot))  # of tokens that only the full text has
        for place, number in encoded.public_places(ranges).items():
            numbers[number] = number_of.get(place, int(numbers[number]))
        subtracted = {
            "input_ids": without.tokens,
            "labels": np.where(hidden, IGNORED, without.labels(_in_skeleton(learnt, ranges, places))),
            "in_slot": np.zeros(len(hidden), dtype=bool),
            "places": np.arange(len(hidden)),
        }
        return row | {"labels": labels, "places": numbers}, subtracted

    def _window(self, encoded: _Encoded, in_slot: NDArray[np.bool_]) -> tuple[int, int]:
        """The characters of the max_length tokens that hold the most tokens of slots: the first ones if those do."""
        width = self._max_length - self._tokenizer.num_special_tokens_to_add()
        content = np.flatnonzero(encoded.offsets[:, 1] > encoded.offsets[:, 0])  # without what the tokenizer adds
        held = np.append(0, np.cumsum(in_slot[content]))
        starts = np.arange(max(1, len(content) - width + 1))
        count = held[np.minimum(starts + width, len(content))] - held[starts]
        best = np.flatnonzero(count == count.max())
        start = 0 if best[0] == 0 else int(best[len(best) // 2])  # in the middle: some context on both sides
        return int(encoded.offsets[content[start], 0]), int(encoded.offsets[content[start + width - 1], 1])

    def _placeholders(self, example: int) -> list[tuple[int, int]]:
        """Where the placeholders stand in the skeleton: a function of the public slots."""
        slots, shift, ranges = self._spans.slots, 0, list[tuple[int, int]]()
        for slot in slots.of_example(example):
            length = len(placeholder(slots.rules[slots.rule_L[slot]]))
            begin = int(slots.place_L[slot]) + shift
            ranges.append((begin, begin + length))
            shift += length
        return ranges

    def _encode(self, texts: list[str], *, truncated: bool) -> list[_Encoded]:
        if not texts:
            return []
        length = {"truncation": True, "max_length": self._max_length} if truncated else {"truncation": False}
        found = self._tokenizer(texts, return_offsets_mapping=True, verbose=False, **length)
        cut = [bool(encoding.overflowing) for encoding in found.encodings]
        return [
            _Encoded(np.asarray(tokens, dtype=np.int32), np.asarray(offsets, dtype=np.int64).reshape(-1, 2), is_cut)
            for tokens, offsets, is_cut in zip(found["input_ids"], found["offset_mapping"], cut, strict=True)
        ]


def _in_skeleton(learnt: Ranges | None, slots: Ranges, placeholders: Ranges) -> Ranges | None:
    """Ranges of a text as those of its skeleton."""
    if learnt is None:
        return None
    return ranges_in_skeleton(learnt, slots, [end - begin for begin, end in placeholders])


def _public_row(skeleton: _Encoded, placeholders: Ranges, learnt: Ranges | None) -> Row:
    """Every token to learn is a label but those of placeholders."""
    labels = np.where(skeleton.overlap(placeholders), IGNORED, skeleton.labels(learnt))
    return {"input_ids": skeleton.tokens, "labels": labels}


def _whole_pair(tokens: NDArray[np.int32], labels: NDArray[np.int32]) -> tuple[Row, Row]:
    """Everything with a label is learnt, and nothing subtracted."""
    row = {"input_ids": tokens, "in_slot": np.zeros(len(tokens), dtype=bool)}
    nothing = np.full(len(tokens), IGNORED)
    return row | {"labels": labels, "places": np.arange(len(tokens))}, row | {"labels": nothing, "places": nothing * 0}


def _cut(
    text: str, ranges: Ranges, skeleton: str, placeholders: Ranges, window: tuple[int, int]
) -> tuple[str, list[tuple[int, int]], str, list[tuple[int, int]]]:
    """Text and skeleton within a window of the text's characters, and where slots and placeholders are in them."""
    begin, end = window
    kept = [
        (span, place) for span, place in zip(ranges, placeholders, strict=True) if span[0] < end and span[1] > begin
    ]
    inside = [(max(span[0], begin) - begin, min(span[1], end) - begin) for span, _ in kept]
    parts, done, places = list[str](), 0, list[tuple[int, int]]()
    piece = text[begin:end]
    for (first, last), (_, place) in zip(inside, kept, strict=True):
        parts += (piece[done:first], skeleton[place[0] : place[1]])
        at = sum(map(len, parts))
        places.append((at - (place[1] - place[0]), at))
        done = last
    return piece, inside, "".join((*parts, piece[done:])), places
