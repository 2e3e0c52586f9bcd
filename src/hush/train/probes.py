"""Preconditions that cannot be read off: tried out on two or three examples before the first round, and on the first
that have padding.

Five questions, each with its own error: is there one loss per example; does an example's loss stay the same when its
neighbours change; does it without its padding, whose length the neighbours decide; does a forward pass leave parameters
and buffers alone; are norms and clipped sums those of autograd (:mod:`hush.train.probe_sums`)? Everything runs in this
process, prints and stores nothing, and leaves the model, its modes and all random states as they were, so that no later
random number depends on the examples used.

A coupling below the tolerance, or one that these examples do not excite (an expert's capacity that they do not fill),
goes unseen: this complements the refusals, it does not replace them.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hush.errors import InvalidInput
from hush.train.probe_sums import ProbedClipper, refuse_wrong_sums
from hush.train.refusals import refuse_batch, refuse_coupled
from hush.train.trial import OTHER_SHAPE, Batch, Loss, Trial, equal, undisturbed

__all__ = ["Probed", "is_padded", "probe"]

_EXAMPLES = 3
# Same shapes, same kernels, same order of additions: only the neighbours' values differ, and rows do not mix.
_SAME_SHAPE_ULPS = 64
_BY_TOKEN = {"input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "labels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """How many different examples with a gradient were compared, of a batch of so many slots.

    One without a gradient (a text in which nothing is learnt) agrees with everything. padded: whether one of them had
    padding, which was cut off.
    """

    examples: int
    slots: int
    padded: bool = False

    @property
    def conclusive(self) -> bool:
        """Whether it need not be done again: one example shows nothing about neighbours, unless there never are any."""
        return self.examples > 1 or self.examples == self.slots == 1


def probe(
    model: nn.Module,
    loss: Loss,
    batch: Mapping[str, Tensor],
    real: Tensor,
    *,
    clipper: ProbedClipper,
    autocast: torch.dtype | None = None,
) -> Probed:
    """Try the loss, the model and the clipper on up to three different examples of a batch; raise if they will not do.

    ``clipper`` holds no sums yet (what it holds is dropped) and need not be the compiled one. Under ``fully_shard`` all
    ranks call this together, with the same batch.

    Guarantee: owner-only. Errors name modules and parameters, never an example's content.
    """
    refuse_batch(batch, len(real))
    refuse_coupled(model)
    rows = _different_rows(batch, real)
    if not rows:
        return Probed(examples=0, slots=len(real))
    examples = {key: value[rows] for key, value in batch.items()}
    trial = Trial(model=model, loss=loss, autocast=autocast)
    with undisturbed(model):
        with _refuse_moved(model):
            standing = trial.losses(examples)
        _refuse_neighbours(trial, examples, standing, still=False)
    with undisturbed(model):
        quiet = trial.losses(examples, still=True)
        _refuse_neighbours(trial, examples, quiet, still=True)
        _refuse_company(trial, examples, quiet)
        padded = _refuse_padding(trial, examples)
    with undisturbed(model):
        # Dropout draws other numbers in other layouts, so gradients are compared without it; a model without
        # randomness is compared as it will train.
        telling = refuse_wrong_sums(trial, examples, clipper, still=not torch.equal(standing, quiet))
    return Probed(examples=telling, slots=len(real), padded=padded)


def is_padded(batch: Mapping[str, Tensor], real: Tensor) -> bool:
    """Whether a real example of this batch has padding that a trial can cut off."""
    padded_B = _padded(batch)
    return padded_B is not None and bool((padded_B & real.to(padded_B.device)).any())


def _refuse_neighbours(trial: Trial, examples: Batch, losses: Tensor, *, still: bool) -> None:
    """Each example among copies of itself, all else equal: its loss must not change by more than a few last bits."""
    mode = "in eval mode" if still else "in the mode the model is in"
    again = trial.losses(examples, still=still)
    unrest = _distance(again, losses)
    if unrest > OTHER_SHAPE[trial.reduced]:
        raise InvalidInput(
            f"two evaluations of the loss on the same examples with the same random seed differ by {unrest:.2g} "
            f"({mode}), so nothing about it can be checked; draw randomness from torch's own generators and keep no "
            "state in the model"
        )
    tolerance = _SAME_SHAPE_ULPS * torch.finfo(losses.dtype).eps + 4 * unrest
    for i in range(len(losses)):
        copies = {key: value[[i] * len(value)] for key, value in examples.items()}
        change = _distance(trial.losses(copies, still=still)[i], losses[i])
        if not change <= tolerance:
            raise InvalidInput(
                f"an example's loss changes by {change:.2g} when only its neighbours in the batch change ({mode}): "
                "something ties examples together (in-batch negatives, a batch statistic, a normalisation by the "
                "batch's tokens, packing, experts with a capacity); the loss of an example must be computed from "
                "that example alone"
            )


def _refuse_company(trial: Trial, examples: Batch, losses: Tensor) -> None:
    """Each example on its own: what is counted over the batch changes with its size, even among equal neighbours."""
    for i in range(len(losses)):
        alone = {key: value[i : i + 1] for key, value in examples.items()}
        change = _distance(trial.losses(alone, still=True)[0], losses[i])
        if not change <= OTHER_SHAPE[trial.reduced]:
            raise InvalidInput(
                f"an example's loss alone and in a batch of {len(losses)} differ by {change:.2g}: the loss depends on "
                "the size of the batch or on the example's place in it (a mean over the batch, num_items_in_batch); "
                "divide by a count of the example's own or by a constant"
            )


def _refuse_padding(trial: Trial, examples: Batch) -> bool:
    """Each example without its padding: collators pad to the longest text, so that its length is the neighbours'.

    A text that is moved by some places may lose little, less than reduced precision tells: it is tried without.
    Returns whether any had padding.
    """
    tried = False
    for i in range(len(next(iter(examples.values())))):
        row = {key: value[i : i + 1] for key, value in examples.items()}
        bare = _without_padding(row)
        if bare is None:
            continue
        tried = True
        exact = replace(trial, autocast=None)
        try:
            full = exact.losses(row, still=True)
        except RuntimeError:  # it runs in reduced precision only
            exact, full = trial, trial.losses(row, still=True)
        change = _distance(exact.losses(bare, still=True), full)
        if not change <= OTHER_SHAPE[exact.reduced]:
            raise InvalidInput(
                f"an example's loss changes by {change:.2g} when its padding is cut off, so it depends on how long its "
                "neighbours are; pad at the end (tokenizer.padding_side = 'right'), label no padding, and train a "
                "model that looks at none"
            )
    return tried


def _without_padding(row: Batch) -> Batch | None:
    """A batch of one text without the tokens before and after it that are not attended to; None if it has none."""
    attended = _attended(row)
    inside = [] if attended is None else attended[0].nonzero().flatten().tolist()
    if attended is None or not inside or inside[-1] + 1 - inside[0] == attended.shape[1]:
        return None
    text = slice(inside[0], inside[-1] + 1)
    return {key: value[:, text] if _goes_by_token(key, value, attended) else value for key, value in row.items()}


def _attended(batch: Mapping[str, Tensor]) -> Tensor | None:
    """Which tokens are attended to; None where the batch holds something of which nobody knows if it goes by tokens."""
    tokens, attended = batch.get("input_ids"), batch.get("attention_mask")
    if tokens is None or attended is None or tokens.ndim != 2 or attended.shape != tokens.shape:
        return None
    known = all(value.ndim == 1 or _goes_by_token(key, value, tokens) for key, value in batch.items())
    return attended.bool() if known else None


def _padded(batch: Mapping[str, Tensor]) -> Tensor | None:
    """Which texts have tokens before or after them that are not attended to; None where nobody knows."""
    attended = _attended(batch)
    if attended is None:
        return None
    return attended.any(1) & ~torch.cat([attended[:, :1], attended[:, -1:]], 1).all(1)


def _goes_by_token(key: str, value: Tensor, tokens: Tensor) -> bool:
    return key in _BY_TOKEN and value.shape == tokens.shape


@contextlib.contextmanager
def _refuse_moved(model: nn.Module) -> Iterator[None]:
    """A forward pass must leave no trace: running statistics are never clipped or noised, and would be released."""
    before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    marks = {name: _mark(parameter) for name, parameter in model.named_parameters()}
    yield
    after = dict(model.named_buffers())
    moved = [name for name, value in before.items() if name not in after or not equal(value, after[name])]
    moved += [name for name, parameter in model.named_parameters() if marks.get(name) != _mark(parameter)]
    if moved:
        raise InvalidInput(
            f"a forward pass changed {', '.join(moved[:5])}: what the model keeps of the examples it sees is neither "
            "clipped nor noised; use a layer without running state, or put this one in eval mode"
        )


def _different_rows(batch: Mapping[str, Tensor], real: Tensor) -> list[int]:
    """The first real rows that differ from one another, at most three; those with padding before others."""
    padded_B = _padded(batch)
    whole = [False] * len(real) if padded_B is None else (~padded_B).tolist()
    rows: list[int] = []
    for row in sorted(real.nonzero().flatten().tolist(), key=whole.__getitem__):
        if not any(all(torch.equal(value[row], value[other]) for value in batch.values()) for other in rows):
            rows.append(row)
        if len(rows) == _EXAMPLES:
            break
    return rows


def _mark(parameter: Tensor) -> tuple[float, int]:
    """Changes whenever the values do, at the cost of one pass over them."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return float(torch.linalg.vector_norm(local.detach(), dtype=torch.float32)), local._version


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative above 1 and absolute below; two losses that are not finite count as equal."""
    one, other = one.detach().double(), other.detach().double()
    difference = (one - other).abs() / other.abs().clamp(min=1)
    return float(difference.masked_fill(~torch.isfinite(one) & ~torch.isfinite(other), 0).max())
