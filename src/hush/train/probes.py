"""Preconditions that cannot be read off: tried out on two or three examples before the first round, and on the first
that have padding.

Five questions, each with its own error: is there one loss per example; does an example's loss stay the same when its
neighbours change; does it without its padding, whose length the neighbours decide; does a forward pass leave parameters
and buffers alone; are norms and clipped sums those of autograd (:mod:`hush.train.probes`)? Everything runs in this
process, prints and stores nothing, and leaves the model, its modes and all random states as they were, so that no later
random number depends on the examples used.

A coupling below the tolerance, or one that these examples do not excite (an expert's capacity that they do not fill),
goes unseen: this complements the refusals, it does not replace them.

Repeatable evaluations of a loss that leave no trace in the model or in any random state; the probes' footing.

The clipper on trial, the last of the probes: are its norms and clipped sums those of autograd on one example?

What cancels in reduced precision is judged by what that precision does to autograd itself.
"""

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hush.errors import InvalidInput
from hush.train.distributed import Ranks, cut_again, gradients_of, is_sharded, whole
from hush.train.preconditions import refuse_batch, refuse_coupled

__all__ = [
    "OTHER_SHAPE",
    "Batch",
    "Loss",
    "Probed",
    "ProbedClipper",
    "Trial",
    "equal",
    "is_padded",
    "probe",
    "refuse_wrong_sums",
    "reseed",
    "undisturbed",
]


Loss = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
Batch = dict[str, Tensor]

# Other shapes may take other kernels; a true coupling by counts or statistics is far larger.
OTHER_SHAPE = {False: 1e-3, True: 5e-2}  # by whether the model computes in reduced precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Repeatable evaluations of the loss."""

    model: nn.Module
    loss: Loss
    autocast: torch.dtype | None

    @property
    def reduced(self) -> bool:
        halves = any(p.dtype in (torch.float16, torch.bfloat16) for p in self.model.parameters())
        return self.autocast is not None or halves

    def losses(self, batch: Batch, *, still: bool = False, gradients: bool = False) -> Tensor:
        """One loss per example; the same random numbers in every call."""
        if still:
            self.model.eval()
        reseed()
        device = next(iter(batch.values())).device.type
        with (
            torch.set_grad_enabled(gradients),
            # Weights that were cast without gradients must not be kept for the next evaluation, which may want them.
            torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False),
        ):
            losses = self.loss(self.model, batch)
        if not gradients:
            cut_again(self.model)
        slots = len(next(iter(batch.values())))
        if not isinstance(losses, Tensor) or losses.shape != (slots,) or not losses.is_floating_point():
            got = f"{losses.dtype} {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidInput(
                f"the loss of {slots} examples came back as {got}; it must be a float tensor of shape ({slots},), one "
                "loss per example. A model's own outputs.loss is an average over the batch: compute the loss from the "
                "logits without reducing over examples"
            )
        return losses


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put modes, buffers and every random state back afterwards."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    numbers, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - models may draw from it
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(legacy)  # noqa: NPY002
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape and not equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values, NaN in the same places included."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def reseed() -> None:
    """Set every generator that a model may draw from to the same state; only inside undisturbed."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


_NEGLIGIBLE = {False: 1e-5, True: 1e-2}  # of the whole gradient: what cancels to rounding errors need not agree
# Where more cancels, the difference from float32 shows how much: so many times that is allowed, but never so large a
# share of a gradient that a parameter which the clipper does not see could pass.
_ROUNDINGS, _SHARE = 4.0, 0.5
_SAME = 2.0**-8  # norm and sum are taken of one and the same gradient, so that only their own rounding may differ


class _Clipped(Protocol):
    @property
    def norms(self) -> Tensor: ...


class ProbedClipper(Protocol):
    """What a trial needs of a clipper."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def clip_norm(self) -> float: ...
    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> _Clipped: ...
    def take(self) -> dict[str, Tensor]: ...


def refuse_wrong_sums(trial: Trial, examples: Batch, clipper: ProbedClipper, *, still: bool) -> int:
    """The clipper against autograd, one example at a time; the others stand by as slots that must not count.

    Returns how many examples had a gradient to compare.
    """
    telling = 0
    if still:
        trial.model.eval()
    parameters = {name: parameter for name, parameter in trial.model.named_parameters() if name in set(clipper.names)}
    relative, negligible = OTHER_SHAPE[trial.reduced], _NEGLIGIBLE[trial.reduced]
    first = next(iter(examples.values()))
    for i in range(len(first)):
        reseed()
        norm = clipper.accumulate(examples, torch.arange(len(first), device=first.device) == i).norms[i]
        sums = clipper.take()
        alone = {key: value[i : i + 1] for key, value in examples.items()}
        loss = trial.losses(alone, still=still, gradients=True)[0]
        gradients = whole(gradients_of(loss, parameters))
        sizes = {name: float(torch.linalg.vector_norm(g, dtype=torch.float64)) for name, g in gradients.items()}
        exact = math.hypot(*sizes.values())
        finite = math.isfinite(exact) and math.isfinite(float(loss.detach()))
        if not finite:  # by rule, such an example adds nothing
            gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
            sizes, exact = dict.fromkeys(sizes, 0.0), 0.0
        telling += exact > 0
        scale = _common_scale(sums, sizes, floor=negligible * exact)
        allowed = {name: scale * (relative * size + negligible * exact) for name, size in sizes.items()}
        off = {name: float((sums[name] - scale * gradient).norm()) for name, gradient in gradients.items()}
        wrong = [name for name, difference in off.items() if not difference <= allowed[name]]
        in_doubt = bool(wrong) and finite and trial.autocast is not None
        if Ranks.current().most(in_doubt) if is_sharded(trial.model) else in_doubt:  # a trial of shards communicates
            rounding = _rounding(trial, alone, parameters, gradients, still=still)
            more = {name: min(_ROUNDINGS * rounding[name], _SHARE * sizes[name]) for name in wrong}
            wrong = [name for name in wrong if not off[name] <= allowed[name] + scale * more[name]]
        if wrong:
            raise InvalidInput(
                f"the clipped gradient sum differs from autograd's for {len(wrong)} of {len(sums)} parameters: "
                f"{', '.join(wrong[:5])}. They are used in a way that per-example clipping does not see; freeze them, "
                "or use them only through their own module's forward"
            )
        added = math.hypot(*(float(torch.linalg.vector_norm(own, dtype=torch.float64)) for own in sums.values()))
        most = min(float(norm), clipper.clip_norm) * (1 + _SAME) if norm.isfinite() else 0.0
        if not added <= most:
            raise InvalidInput(
                f"an example adds a gradient of norm {added:.6g}, where its own norm is {float(norm):.6g} and the clip "
                f"norm {clipper.clip_norm:.6g}: this clipper cannot be relied on for this model"
            )
        if finite and not abs(float(norm) - exact) <= relative * exact + 1e-9:
            raise InvalidInput(
                f"a per-example gradient norm is {float(norm) / (exact or 1):.4g} times autograd's, although the sums "
                "agree: this clipper cannot be relied on for this model"
            )
    return telling


def _rounding(
    trial: Trial, alone: Batch, parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor], *, still: bool
) -> dict[str, float]:
    """What the reduced precision does to autograd's own gradient of each parameter: its distance from float32's."""
    try:
        loss = replace(trial, autocast=None).losses(alone, still=still, gradients=True)[0]
    except RuntimeError:  # it runs in reduced precision only: nothing can be excused by rounding
        return dict.fromkeys(parameters, 0.0)
    exact = whole(gradients_of(loss, parameters))
    return {name: float((gradients[name] - gradient).norm()) for name, gradient in exact.items()}


def _common_scale(sums: Mapping[str, Tensor], sizes: Mapping[str, float], *, floor: float) -> float:
    """By how much an example was scaled, from the upper quartile over parameters: missed ones do not move it."""
    ratios = [float(sums[name].double().norm()) / size for name, size in sizes.items() if size > floor]
    return min(1.0, float(np.quantile(ratios, 0.75, method="higher"))) if ratios else 1.0


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
