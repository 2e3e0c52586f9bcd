"""Collation example by example: a user's collator never gets two examples at once.

The proof needs every row of a batch to be a function of its own example and randomness. Guaranteed by construction: a
collator that is not hush's own gets one example at a time, and hush pads the rows to a common shape itself, where a
mask or a label marks the padding. So a collator that joins, permutes or normalises the examples of a batch has nothing
to join. Not guaranteed, only tested: that it computes its row from its argument alone. Like the loss function, it must
keep no state between calls, and read no other rows of the dataset through a closure or a global name.

A collator that joins examples would train something else than its author meant, so it is refused before training by
:func:`refuse_tied`, which collates a few examples alone, together and after others. One that keeps state is refused if
the state shows in these examples, or in what the collator holds (:func:`held_state`). Collators may be random (masks,
crops), and the random numbers that an example gets alone and in a batch are not the same. So each way is repeated, and
a difference counts only if two samples of one distribution show it with a probability of at most exp(-MIN_EVIDENCE):
with n and m of S samples equal to some value, that probability is at most exp(-2 S JSD(n/S, m/S)), the Chernoff bounds
of two binomial counts multiplied at their worst common rate, where JSD is the Jensen-Shannon divergence of two coins. A
collator whose rows are independent is thus never refused in practice.
"""

import copy
import inspect
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.errors import InvalidInput
from hush.train.preconditions import refuse_batch

__all__ = [
    "Collate",
    "collated_alone",
    "copied",
    "held_state",
    "padded_together",
    "padding_values",
    "refuse_tied",
    "takes_mask",
]


Collate = Callable[[list[Any]], Mapping[str, Any]]
Batch = dict[str, Tensor]

MAX_CHECKED = 6  # examples that are compared
QUICK, SAMPLES = 2, 64  # collations of each kind: enough if nothing is random; otherwise
MIN_EVIDENCE = 40.0  # nats; e^-40, times the 65² pairs of counts, times 1e5 values that are compared, is below 2e-9
MAX_HELD = 1000  # values of a container that are looked at for state
MAX_VALUES = 4096  # of each tensor that are compared in SAMPLES collations
FLOAT_TOLERANCE = 1e-4  # relative: sums over one row and over a batch may round differently

_TARGETS = ("labels", "label")  # losses pass over their padding
_DECODER_INPUTS = ("decoder_input_ids", "decoder_attention_mask")  # as long as the targets, and causal
_TOKEN_PAIRS = ("perm_mask", "target_mapping")  # an entry for each pair of tokens

_PADDING: Mapping[str, int] = {"labels": -100, "label": -100, "special_tokens_mask": 1, "perm_mask": 1}  # all others: 0


# ---- one example at a time ----


def collated_alone(collate: Collate, row: Any) -> Batch:
    """What the collator makes of this example alone: tensors with one row."""
    batch = _collated(collate, [row])
    refuse_batch(batch, 1)
    return batch


def padding_values(collator: Any, processing_class: Any) -> dict[str, int]:
    """What each tensor of a batch is padded with, from the settings of collator and tokenizer alone; others with 0."""
    tokenizer = getattr(collator, "tokenizer", None) or processing_class
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor for several kinds of input
    token, kind = (getattr(tokenizer, name, None) or 0 for name in ("pad_token_id", "pad_token_type_id"))
    values = {**_PADDING, "input_ids": token, "decoder_input_ids": token, "token_type_ids": kind}
    label = getattr(collator, "label_pad_token_id", None)
    return values if label is None else {**values, "labels": label, "label": label}


def takes_mask(model: Any) -> bool:
    """Whether the model takes an attention mask."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(one.name == "attention_mask" or one.kind is one.VAR_KEYWORD for one in parameters)


def padded_together(rows: Sequence[Batch], padding: Mapping[str, int], *, takes_mask: bool = True) -> Batch:
    """One batch of rows that were collated alone, each padded at the end to the largest shape among them.

    Padding must be recognisable, or the largest neighbour would decide what an example is. So shapes may differ only in
    the length of texts, and in labels: texts of different lengths without an attention mask get one, or are refused if
    the model takes none (takes_mask is False). Images, sounds and embeddings of different sizes are refused.

    Guarantee: row i of the result is row i, and behind it constants that depend on ``padding`` alone.
    """
    for row in rows:
        if row.keys() != rows[0].keys():
            odd = sorted(row.keys() ^ rows[0].keys())
            raise InvalidInput(
                f"the collator gives some examples {', '.join(odd)} and others not; give every example the same columns"
            )
    for key in rows[0]:
        parts = [row[key] for row in rows]
        kinds = sorted({f"{part.dtype} with {part.ndim} dimensions" for part in parts})
        if len(kinds) > 1:
            raise InvalidInput(
                f"the collator makes {key!r} of some examples {kinds[0]} and of others {kinds[1]}, so the form of a "
                "batch would depend on who else is in it; give the column one type in all examples"
            )
        if len({part.shape for part in parts}) > 1 and not _has_recognisable_padding(key, rows):
            raise InvalidInput(
                f"the collator makes {key!r} of different shapes, and nothing would tell the model what of it is "
                "padding, so an example's loss would depend on the largest in its batch; give every example the same "
                f"shape of {key!r} before training"
            )
    batch = {key: _stacked([row[key] for row in rows], padding.get(key, 0)) for key in rows[0]}
    tokens = [row["input_ids"] for row in rows] if "input_ids" in batch else []
    if len({part.shape for part in tokens}) > 1:
        masks = [key for key in ("attention_mask", "perm_mask") if key in batch]
        if masks and all(len({row[key].shape for row in rows}) == 1 for key in masks):
            raise InvalidInput(
                f"the collator makes {masks[0]!r} of one shape for texts of different lengths, so it cannot tell "
                "padding from text; give it one entry per token"
            )
        if not masks and not takes_mask:
            raise InvalidInput(
                "texts of different lengths are padded to one, and this model takes no attention_mask that would tell "
                "padding from text; pad every example to the same length before training"
            )
        if not masks:
            batch["attention_mask"] = _stacked([torch.ones_like(part) for part in tokens], 0)
    return batch


def _has_recognisable_padding(key: str, rows: Sequence[Batch]) -> bool:
    """Whether this tensor, whose shapes differ, is as long as the text in every row, or holds integer labels."""
    if key in _TARGETS:
        return not rows[0][key].is_floating_point()
    if key in _DECODER_INPUTS:
        return all("labels" in row and row[key].shape == row["labels"].shape for row in rows)
    if "input_ids" not in rows[0]:
        return False
    tokens = [row["input_ids"].shape for row in rows]
    if key in _TOKEN_PAIRS:
        return all(row[key].shape == (*shape, shape[-1]) for row, shape in zip(rows, tokens, strict=True))
    if key in ("input_ids", "attention_mask"):
        follows = all(row[key].shape == shape for row, shape in zip(rows, tokens, strict=True))
    else:  # one number or one vector per token
        follows = all(row[key].shape[: len(shape)] == shape for row, shape in zip(rows, tokens, strict=True))
    length = len(tokens[0]) - 1  # the place of the length in a shape; all others are the same
    return follows and len({(*row[key].shape[:length], *row[key].shape[length + 1 :]) for row in rows}) == 1


def _stacked(parts: Sequence[Tensor], padding: int) -> Tensor:
    shapes = [part.shape[1:] for part in parts]
    if len(set(shapes)) == 1:
        return torch.cat(list(parts))
    whole = parts[0].new_full((len(parts), *map(max, zip(*shapes, strict=True))), padding)
    for place, part in enumerate(parts):
        whole[(place, *map(slice, part.shape[1:]))] = part[0]
    return whole


def _collated(collate: Collate, rows: Sequence[Any]) -> Batch:
    """A batch of these rows without empty entries; collators may change what they get, so it is a copy."""
    made = collate([dict(row) if isinstance(row, Mapping) else row for row in rows])
    if not isinstance(made, Mapping):
        raise InvalidInput(f"the collator returns a {type(made).__name__}; it must return a dict of tensors")
    return {key: value for key, value in made.items() if value is not None}


# ---- collators that tie examples ----


def copied(collate: Collate) -> Collate | None:
    """A copy with state of its own, apart from the tokenizer, which may be large; None if it cannot be copied."""
    tokenizer = getattr(getattr(collate, "data_collator", collate), "tokenizer", None)
    try:
        made = copy.deepcopy(collate, {} if tokenizer is None else {id(tokenizer): tokenizer})
    except Exception:
        return None
    return None if made is collate else made


def refuse_tied(collate: Collate, rows: Sequence[Any], *, name: str) -> None:
    """Refuse a collator whose result for an example depends on the others; ``name`` is how messages call it.

    rows: a few different examples, each of which can be collated alone. If they cannot be collated together because
    the collator does not pad their texts, there is nothing to compare. All random states are as before afterwards,
    and so is a collator that can be copied. Guarantee: owner-only. Errors name tensors, never an example's content.
    """
    if len(rows) < 2:
        return
    with _own_random_states():
        problem = _memory(collate, rows, QUICK, exact=True) and _memory(collate, rows, SAMPLES, exact=False)
        collate = copied(collate) or collate
        alone = [_collated(collate, [row]) for row in rows]
        padded_together(alone, {})
        differ = any(len({row[key].shape for row in alone}) > 1 for key in alone[0])
        try:
            together = _collated(collate, rows)
            refuse_batch(together, len(rows))
        except InvalidInput:
            raise
        except Exception as error:
            if not differ:
                raise InvalidInput(
                    f"{name} fails on {len(rows)} examples together ({type(error).__name__}), although it makes "
                    "tensors of one shape of each alone, so it cannot be checked whether it ties examples; let it "
                    "make a batch of several examples"
                ) from error
            together = None  # it does not pad, which is done here
        if not problem and together is not None and _problem(*_samples(collate, rows, QUICK), exact=True):
            problem = _problem(*_samples(collate, rows, SAMPLES), exact=False)
    if problem:
        raise InvalidInput(
            f"{name} ties examples together: {problem}. The promise needs every example's row to be computed from that "
            "example alone; use a collator that only pads and masks, or do what it does to each example by itself, in "
            "the dataset"
        )


Samples = list[list[Batch]]  # of each checked example, several times


def _samples(collate: Collate, rows: Sequence[Any], count: int) -> tuple[Samples, Samples, Samples]:
    """Each example alone after itself and in a batch with the others; the first and the last alone after others too.

    The calls draw one after the other from the same generators, so their samples are independent.
    """
    alone: Samples = []
    for row in rows:
        _collated(collate, [row])  # the example before is another one
        alone.append([_collated(collate, [row]) for _ in range(count)])
    among: Samples = [[] for _ in rows]
    after: Samples = [[], []]
    for _ in range(count):
        batch = _collated(collate, rows)
        for place, samples in enumerate(among):
            samples.append({key: value[place : place + 1] for key, value in batch.items()})
        for samples, row in zip(after, (rows[0], rows[-1]), strict=True):
            samples.append(_collated(collate, [row]))
    return alone, among, after


def _memory(collate: Collate, rows: Sequence[Any], count: int, *, exact: bool) -> str:
    """What a copy that has seen no other example and one that has make differently; empty if nothing.

    Rows are tried after different ones, since what is remembered may be the same for two of them. A collator that
    cannot be copied, as a function, is not compared in this way.
    """
    for place, row in enumerate(rows):
        fresh, used = copied(collate), copied(collate)
        if fresh is None or used is None:
            return ""
        for other in (*rows[place + 1 :], *rows[:place]):
            _collated(used, [other])
        mine, theirs = ([_collated(each, [row]) for _ in range(count)] for each in (fresh, used))
        difference = _first_difference([mine], [theirs], exact=exact, left=False)
        if difference:
            return f"{difference} depends on the examples that were collated before"
    return ""


def held_state(collate: Any) -> dict[str, str]:
    """The plain values that a collator holds in attributes, a closure or defaults, by name, as text to compare.

    Of a container with more than MAX_HELD values only their number is told, and objects of other kinds, such as
    tokenizers and generators, are left out. The text may hold examples: compare it, and show the names alone.
    """
    inner = getattr(collate, "data_collator", collate)  # the Trainer's, which removes columns
    inner = getattr(inner, "__self__", inner)  # of a bound method
    held = dict(getattr(inner, "__dict__", {}))
    if isinstance(inner, FunctionType):
        cells = zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
        held |= {name: cell.cell_contents for name, cell in cells if cell != CellType()}
        held |= {"its defaults": [inner.__defaults__, inner.__kwdefaults__]}
    return {name: repr(_plain(value)) for name, value in held.items()}


def _plain(value: Any, depth: int = 4) -> Any:
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return tuple(value.shape), value.reshape(-1)[:MAX_HELD].tolist()
    if not isinstance(value, Mapping | Sequence | Set | deque):
        return None
    if len(value) > MAX_HELD or not depth:
        return len(value)
    parts = [part for pair in value.items() for part in pair] if isinstance(value, Mapping) else value
    return [_plain(part, depth - 1) for part in parts]


def _problem(alone: Samples, among: Samples, after: Samples, *, exact: bool) -> str:
    """What is wrong; empty if nothing is. exact: any difference counts."""
    memory = _first_difference([alone[0], alone[-1]], after, exact=exact, left=False)
    if memory:
        return f"{memory} depends on the examples that were collated before"
    sides = [_first_difference(alone, among, exact=exact, left=left) for left in (False, True)]
    if all(sides):
        return f"{sides[0]} of an example alone and in a batch differ"
    padding = _wrong_padding(alone, among, left=bool(sides[0]))
    return f"behind an example's own tokens, {padding} of a batch holds what is not padding" if padding else ""


def _first_difference(alone: Samples, other: Samples, *, exact: bool, left: bool) -> str:
    """The first tensor in which an example differs, apart from padding at its end or, if left, before its begin."""
    for mine, theirs in zip(alone, other, strict=True):
        for sample, twin in zip(mine, theirs, strict=True):
            if sample.keys() != twin.keys():
                return repr(min(sample.keys() ^ twin.keys()))
        for key in mine[0]:
            if _differ([sample[key] for sample in mine], [sample[key] for sample in theirs], exact=exact, left=left):
                return repr(key)
    return ""


def _differ(mine: Sequence[Tensor], theirs: Sequence[Tensor], *, exact: bool, left: bool) -> bool:
    shapes, theirs_shapes = {part.shape for part in mine}, {part.shape for part in theirs}
    if len(shapes) > 1 or len(theirs_shapes) > 1:
        return exact  # random shapes have no places to compare; rows are collated alone
    shape, larger = shapes.pop(), theirs_shapes.pop()
    if len(shape) != len(larger) or any(size > room for size, room in zip(shape, larger, strict=True)):
        return True
    own = tuple(slice(room - size, room) if left else slice(size) for size, room in zip(shape, larger, strict=True))
    mine_SK, theirs_SK = (
        torch.stack([part.flatten() for part in parts]) for parts in (mine, [part[own] for part in theirs])
    )
    if exact:
        return not (_equal(mine_SK, mine_SK[:1]).all() and _equal(theirs_SK, mine_SK[:1]).all())
    chosen = torch.linspace(0, max(0, mine_SK.shape[1] - 1), min(MAX_VALUES, mine_SK.shape[1])).long()
    return _are_two_laws(mine_SK[:, chosen], theirs_SK[:, chosen])


def _are_two_laws(mine_SK: Tensor, theirs_SK: Tensor) -> bool:
    """Whether some place has different laws in two samples; see the top of this file for the bound."""
    if not mine_SK.shape[1]:
        return False
    for commonest_K in (mine_SK.mode(dim=0).values, theirs_SK.mode(dim=0).values):
        n_K, m_K = (_equal(sample, commonest_K).double().mean(dim=0) for sample in (mine_SK, theirs_SK))
        divergence_K = _entropy((n_K + m_K) / 2) - (_entropy(n_K) + _entropy(m_K)) / 2
        if bool((2 * len(mine_SK) * divergence_K >= MIN_EVIDENCE).any()):
            return True
    return False


def _entropy(share: Tensor) -> Tensor:
    """Of a coin, in nats."""
    return -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share))


def _equal(left: Tensor, right: Tensor) -> Tensor:
    if not left.is_floating_point():
        return left == right
    return torch.isclose(left, right.to(left.dtype), rtol=FLOAT_TOLERANCE, atol=FLOAT_TOLERANCE, equal_nan=True)


def _wrong_padding(alone: Samples, among: Samples, *, left: bool) -> str:
    """The first tensor that a batch prolongs by something else than one constant; what nobody attends to is free."""
    name = "attention_mask" if "attention_mask" in among[0][0] else "input_ids"
    for key, allowed in ((name, {0} if name == "attention_mask" else None), ("labels", None)):
        values: set[float] = set()
        for mine, theirs in zip(alone, among, strict=True):
            lengths = {sample[key].shape[1] for sample in mine if key in sample and sample[key].ndim == 2}
            for twin in theirs if len(lengths) == 1 else ():  # a random length has no end to look behind
                more = twin[key].shape[1] - min(lengths)
                values.update((twin[key][0, :more] if left else twin[key][0, min(lengths) :]).tolist())
        if len(values) > 1 or (allowed is not None and not values <= allowed):
            return repr(key)
    return ""


# ---- random states ----


@contextmanager
def _own_random_states() -> Iterator[None]:
    """Seed every generator that a collator may draw from, and restore its state afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002 - collators draw from it
            torch.default_generator.manual_seed(0)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
