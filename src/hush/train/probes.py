"""Probes: preconditions that only running the model can show, checked on two or three examples before they are summed.

Five questions, each with its own error: is there one loss per example; does an example's loss stay the same when its
neighbours change; does it stay the same without its padding, whose length the neighbours decide; does a forward pass
leave parameters and buffers alone; are the clipper's norms and clipped sums those of autograd? They run on the first
micro-batches until they are conclusive, and on the first one with padding. Everything runs in this process, prints and
stores nothing, and leaves the model, its modes and all random states as they were, so no later random number depends
on the examples used.

A coupling below the tolerance, or one that these examples do not trigger (an expert's capacity that they do not fill),
goes unnoticed: probes complement the refusals of :mod:`hush.train.preconditions`, they do not replace them.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hush.errors import InvalidInput
from hush.train.distributed import Ranks, full_tensors, gradients_of, is_sharded, plain_tensors
from hush.train.language_models import IGNORED
from hush.train.preconditions import refuse_batch, refuse_coupled
from hush.train.side_effect_free import Batch, Loss, SideEffectFreeLoss, equal, reseed, without_side_effects

__all__ = [
    "SHAPE_TOLERANCE",
    "FirstBatchProbes",
    "ProbeResult",
    "ProbedClipper",
    "is_padded",
    "padding_id",
    "probe",
    "refuse_wrong_sums",
]


MAX_EXAMPLES = 3  # that a probe compares
# Relative tolerances, by whether the model computes in reduced precision.
SHAPE_TOLERANCE = {False: 1e-3, True: 5e-2}  # other shapes may take other kernels; true couplings are far larger
NEGLIGIBLE_SHARE = {False: 1e-5, True: 1e-2}  # of the gradient's norm: what cancels to rounding errors need not agree
# A parameter that differs by more may do so by this many times its rounding error (the distance of autograd's own
# gradient from float32's), but never by so large a share of it that one which the clipper misses could pass.
MAX_ROUNDINGS, MAX_SHARE = 4.0, 0.5
SAME_GRADIENT_TOLERANCE = 2.0**-8  # norm and sum are taken of one gradient, so only their own rounding may differ
# Same shapes, same kernels, same order of additions: only the neighbours' values differ, and rows do not mix.
SAME_SHAPE_ULPS = 64
TOKEN_PAIRS = {"perm_mask", "target_mapping"}  # an entry for each pair of tokens


class _Clipped(Protocol):
    @property
    def norms(self) -> Tensor: ...


class ProbedClipper(Protocol):
    """What a probe needs of a clipper."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def clip_norm(self) -> float: ...
    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> _Clipped: ...
    def take(self) -> dict[str, Tensor]: ...


# ---- the probes ----


@final
class FirstBatchProbes:
    """Probes the first micro-batches of a training until that is conclusive, and the first one with padding.

    make_clipper gives a new clipper that is not compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        ranks: Ranks,
        *,
        make_clipper: Callable[[], ProbedClipper],
        autocast: torch.dtype | None,
    ) -> None:
        self._model, self._loss, self._ranks = model, loss, ranks
        self._make_clipper, self._autocast = make_clipper, autocast
        self._conclusive = self._saw_padding = False

    def run_if_due(self, batch: Mapping[str, Tensor], real: Tensor) -> None:
        """Probe this micro-batch if the ones before it left something open; raises where a precondition fails."""
        if self._conclusive and self._saw_padding:
            return
        padded = not self._saw_padding and is_padded(batch, real, padding_id=padding_id(self._model))
        sharded = is_sharded(self._model)
        if self._conclusive and not (self._ranks.max(padded) if sharded else padded):
            return
        device = next(p.device for p in self._model.parameters() if p.requires_grad)
        if sharded:  # a forward pass communicates, so all ranks must probe the same examples
            mine = {key: value.cpu() for key, value in batch.items()}, real
            _, (chosen, real) = max(self._ranks.gather((padded, mine)), key=lambda offer: offer[0])
            batch = {key: value.to(device) for key, value in chosen.items()}
        with torch.autocast(device.type, enabled=False):  # the caller's autocast is not what the model computes in
            result = probe(
                self._model,
                self._loss,
                batch,
                real.to(device),
                clipper=self._make_clipper(),
                autocast=self._autocast,
            )
        self._conclusive |= result.conclusive
        self._saw_padding |= result.padded


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """How many different examples with a gradient were compared, in a batch of ``slots`` slots.

    An example without a gradient (a text without labels) would agree with anything. padded: whether one of them was
    compared with and without its padding.
    """

    examples: int
    slots: int
    padded: bool = False

    @property
    def conclusive(self) -> bool:
        """Whether no further probe is needed: one example tells nothing about neighbours, if there ever are any."""
        return self.examples > 1 or self.examples == self.slots == 1


def probe(
    model: nn.Module,
    loss: Loss,
    batch: Mapping[str, Tensor],
    real: Tensor,
    *,
    clipper: ProbedClipper,
    autocast: torch.dtype | None = None,
) -> ProbeResult:
    """Check loss, model and clipper on up to three different examples of a batch; raise if a precondition fails.

    ``clipper`` holds no sums yet (they would be dropped) and need not be the compiled one. Under ``fully_shard`` all
    ranks call this together, with the same batch.

    Guarantee: owner-only. Errors name modules and parameters, never an example's content.
    """
    refuse_batch(batch, len(real))
    refuse_coupled(model)
    padding = padding_id(model)
    rows = _different_rows(batch, real, padding)
    if not rows:
        return ProbeResult(examples=0, slots=len(real))
    examples = {key: value[rows] for key, value in batch.items()}
    evaluation = SideEffectFreeLoss(model=model, loss=loss, autocast=autocast)
    with without_side_effects(model):
        with _refuse_changed_state(model):
            as_is = evaluation.losses(examples)
        _refuse_neighbours(evaluation, examples, as_is, eval_mode=False)
    with without_side_effects(model):
        in_eval_mode = evaluation.losses(examples, eval_mode=True)
        _refuse_neighbours(evaluation, examples, in_eval_mode, eval_mode=True)
        _refuse_batch_size(evaluation, examples, in_eval_mode)
        padded = _refuse_padding(evaluation, examples, padding)
    with without_side_effects(model):
        # Dropout draws other numbers for other shapes, so gradients are compared without it; a model without
        # randomness is compared in the mode in which it trains.
        random_forward = not torch.equal(as_is, in_eval_mode)
        compared = refuse_wrong_sums(evaluation, examples, clipper, eval_mode=random_forward)
    return ProbeResult(examples=compared, slots=len(real), padded=padded)


def is_padded(batch: Mapping[str, Tensor], real: Tensor, *, padding_id: int | None = None) -> bool:
    """Whether a real example of this batch has padding that a probe can remove.

    padding_id: the token that stands for padding if the batch has no attention mask.
    """
    padded_B = _padded(batch, padding_id)
    return padded_B is not None and bool((padded_B & real.to(padded_B.device)).any())


def _refuse_neighbours(evaluation: SideEffectFreeLoss, examples: Batch, losses: Tensor, *, eval_mode: bool) -> None:
    """Each example among copies of itself, all else equal: its loss may change by a few last bits only."""
    mode = "in eval mode" if eval_mode else "in the mode the model is in"
    again = evaluation.losses(examples, eval_mode=eval_mode)
    variation = _distance(again, losses)
    if variation > SHAPE_TOLERANCE[evaluation.reduced]:
        raise InvalidInput(
            f"two evaluations of the loss on the same examples with the same random seed differ by {variation:.2g} "
            f"({mode}), so nothing about it can be checked; draw randomness from torch's own generators and keep no "
            "state in the model"
        )
    tolerance = SAME_SHAPE_ULPS * torch.finfo(losses.dtype).eps + 4 * variation
    for i in range(len(losses)):
        copies = {key: value[[i] * len(value)] for key, value in examples.items()}
        change = _distance(evaluation.losses(copies, eval_mode=eval_mode)[i], losses[i])
        if not change <= tolerance:
            raise InvalidInput(
                f"an example's loss changes by {change:.2g} when only its neighbours in the batch change ({mode}): "
                "something ties examples together (in-batch negatives, a batch statistic, a normalisation by the "
                "batch's tokens, packing, experts with a capacity); the loss of an example must be computed from "
                "that example alone"
            )


def _refuse_batch_size(evaluation: SideEffectFreeLoss, examples: Batch, losses: Tensor) -> None:
    """Each example alone: what is counted over the batch changes with its size, even among equal neighbours."""
    for i in range(len(losses)):
        alone = {key: value[i : i + 1] for key, value in examples.items()}
        change = _distance(evaluation.losses(alone, eval_mode=True)[0], losses[i])
        if not change <= SHAPE_TOLERANCE[evaluation.reduced]:
            raise InvalidInput(
                f"an example's loss alone and in a batch of {len(losses)} differ by {change:.2g}: the loss depends on "
                "the size of the batch or on the example's place in it (a mean over the batch, num_items_in_batch); "
                "divide by a count of the example's own or by a constant"
            )


def _refuse_padding(evaluation: SideEffectFreeLoss, examples: Batch, padding: int | None) -> bool:
    """Each example without its padding: collators pad to the longest text, so its neighbours decide how much it has.

    Moving a text by some positions may change its loss by less than reduced precision resolves, so this is compared in
    float32. Returns whether any example had padding.
    """
    any_padded = False
    for i in range(len(next(iter(examples.values())))):
        row = {key: value[i : i + 1] for key, value in examples.items()}
        unpadded = _without_padding(row, padding)
        if unpadded is None:
            continue
        any_padded = True
        exact = replace(evaluation, autocast=None)
        try:
            full = exact.losses(row, eval_mode=True)
        except RuntimeError:  # the model runs in reduced precision only
            exact, full = evaluation, evaluation.losses(row, eval_mode=True)
        try:
            change = _distance(exact.losses(unpadded, eval_mode=True), full)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError):
            raise InvalidInput(
                "the loss of an example fails when its padding is removed, so it cannot be checked that it does not "
                "depend on how long its neighbours are; train a model that takes texts of any length"
            ) from None
        if not change <= SHAPE_TOLERANCE[exact.reduced]:
            raise InvalidInput(
                f"an example's loss changes by {change:.2g} when its padding is removed, so it depends on how long its "
                "neighbours are; pad at the end (tokenizer.padding_side = 'right'), label no padding, and train a "
                "model that ignores padding"
            )
    return any_padded


@contextlib.contextmanager
def _refuse_changed_state(model: nn.Module) -> Iterator[None]:
    """Refuse a forward pass that changes parameters or buffers: such state is never clipped or noised."""
    before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    stamps = {name: _value_stamp(parameter) for name, parameter in model.named_parameters()}
    yield
    after = dict(model.named_buffers())
    changed = [name for name, value in before.items() if name not in after or not equal(value, after[name])]
    changed += [name for name, parameter in model.named_parameters() if stamps.get(name) != _value_stamp(parameter)]
    if changed:
        raise InvalidInput(
            f"a forward pass changed {', '.join(changed[:5])}: state that the model keeps of its examples is neither "
            "clipped nor noised; use a layer without running state, or put this one in eval mode"
        )


def _different_rows(batch: Mapping[str, Tensor], real: Tensor, padding: int | None) -> list[int]:
    """The first real rows that differ from one another, at most three; rows with padding come first."""
    padded_B = _padded(batch, padding)
    unpadded = [False] * len(real) if padded_B is None else (~padded_B).tolist()
    rows: list[int] = []
    for row in sorted(real.nonzero().flatten().tolist(), key=unpadded.__getitem__):
        if not any(all(torch.equal(value[row], value[other]) for value in batch.values()) for other in rows):
            rows.append(row)
        if len(rows) == MAX_EXAMPLES:
            break
    return rows


def _value_stamp(parameter: Tensor) -> tuple[float, int]:
    """A number that changes whenever the values do, at the cost of one pass over them."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    stamp = 0.0
    for part in plain_tensors(local.detach()):
        if part.is_floating_point() and part.itemsize > 1:
            stamp += float(torch.linalg.vector_norm(part, dtype=torch.promote_types(part.dtype, torch.float32)))
        else:  # of a quantised one
            stamp += float(part.sum(dtype=torch.float64) if part.itemsize > 1 else part.view(torch.uint8).sum())
    return stamp, local._version


def _distance(left: Tensor, right: Tensor) -> float:
    """The largest difference, relative above 1 and absolute below; two losses that are not finite count as equal."""
    left, right = left.detach().double(), right.detach().double()
    difference = (left - right).abs() / right.abs().clamp(min=1)
    return float(difference.masked_fill(~torch.isfinite(left) & ~torch.isfinite(right), 0).max())


# ---- padding ----


def padding_id(model: nn.Module) -> int | None:
    """The token that the model's configuration reserves for padding; None if there is none."""
    found = getattr(getattr(model, "config", None), "pad_token_id", None)
    return found if isinstance(found, int) else None


def _without_padding(row: Batch, padding: int | None) -> Batch | None:
    """A batch of one text without the unattended tokens before and after it; None if it has none."""
    attended_BT = _attended(row, padding)
    inside = [] if attended_BT is None else attended_BT[0].nonzero().flatten().tolist()
    if attended_BT is None or not inside or inside[-1] + 1 - inside[0] == attended_BT.shape[1]:
        return None
    text = slice(inside[0], inside[-1] + 1)
    return {key: _cut(key, value, row["input_ids"], text) for key, value in row.items()}


def _cut(key: str, value: Tensor, tokens: Tensor, text: slice) -> Tensor:
    """Its part in the text. What is as long as the tokens counts as theirs; a mistake ends in a refusal at worst."""
    if value.shape[: tokens.ndim] != tokens.shape:
        return value
    cut = value[:, text] if tokens.ndim == 2 else value[:, :, text]
    return cut[..., text] if key in TOKEN_PAIRS else cut


def _attended(batch: Mapping[str, Tensor], padding: int | None) -> Tensor | None:
    """Which places hold tokens that are attended to, in any choice if there are several; None if that cannot be told.

    Without a mask, which some models do not take, these are all tokens but the padding, and those with a label.
    """
    tokens, attended = batch.get("input_ids"), batch.get("attention_mask")
    if tokens is None or tokens.ndim not in (2, 3):
        return None
    if attended is None and padding is not None:
        attended, labels = tokens != padding, batch.get("labels")
        if labels is not None and labels.shape == tokens.shape:
            attended |= labels != IGNORED
    if attended is None or attended.shape != tokens.shape:
        return None
    return attended.bool().flatten(1, -2).any(1) if tokens.ndim == 3 else attended.bool()


def _padded(batch: Mapping[str, Tensor], padding: int | None) -> Tensor | None:
    """Which texts have unattended tokens before or after them; None if that cannot be told."""
    attended = _attended(batch, padding)
    if attended is None:
        return None
    return attended.any(1) & ~torch.cat([attended[:, :1], attended[:, -1:]], 1).all(1)


# ---- the clipper against autograd ----


def refuse_wrong_sums(
    evaluation: SideEffectFreeLoss, examples: Batch, clipper: ProbedClipper, *, eval_mode: bool
) -> int:
    """Compare the clipper with autograd, one real example at a time; the others fill slots that must add nothing.

    Returns how many examples had a gradient to compare.
    """
    compared = 0
    model = evaluation.model
    if eval_mode:
        model.eval()
    parameters = {name: parameter for name, parameter in model.named_parameters() if name in set(clipper.names)}
    relative, negligible = SHAPE_TOLERANCE[evaluation.reduced], NEGLIGIBLE_SHARE[evaluation.reduced]
    first = next(iter(examples.values()))
    for i in range(len(first)):
        reseed()
        norm = clipper.accumulate(examples, torch.arange(len(first), device=first.device) == i).norms[i]
        sums = clipper.take()
        alone = {key: value[i : i + 1] for key, value in examples.items()}
        loss = evaluation.losses(alone, eval_mode=eval_mode, gradients=True)[0]
        gradients = full_tensors(gradients_of(loss, parameters))
        sizes = {name: float(torch.linalg.vector_norm(g, dtype=torch.float64)) for name, g in gradients.items()}
        exact = math.hypot(*sizes.values())
        finite = math.isfinite(exact) and math.isfinite(float(loss.detach()))
        if not finite:  # by rule, such an example adds nothing
            gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
            sizes, exact = dict.fromkeys(sizes, 0.0), 0.0
        compared += exact > 0
        scale = _common_scale(sums, sizes, floor=negligible * exact)
        allowed = {name: scale * (relative * size + negligible * exact) for name, size in sizes.items()}
        differences = {name: float((sums[name] - scale * gradient).norm()) for name, gradient in gradients.items()}
        wrong = [name for name, difference in differences.items() if not difference <= allowed[name]]
        in_doubt = bool(wrong) and finite and evaluation.autocast is not None
        if Ranks.current().max(in_doubt) if is_sharded(model) else in_doubt:  # evaluating shards communicates
            rounding = _rounding_errors(evaluation, alone, parameters, gradients, eval_mode=eval_mode)
            more = {name: min(MAX_ROUNDINGS * rounding[name], MAX_SHARE * sizes[name]) for name in wrong}
            wrong = [name for name in wrong if not differences[name] <= allowed[name] + scale * more[name]]
        if wrong:
            raise InvalidInput(
                f"the clipped gradient sum differs from autograd's for {len(wrong)} of {len(sums)} parameters: "
                f"{', '.join(wrong[:5])}. They are used in a way that per-example clipping does not see; freeze them, "
                "or use them only through their own module's forward"
            )
        added = math.hypot(*(float(torch.linalg.vector_norm(total, dtype=torch.float64)) for total in sums.values()))
        bound = min(float(norm), clipper.clip_norm) * (1 + SAME_GRADIENT_TOLERANCE) if norm.isfinite() else 0.0
        if not added <= bound:
            raise InvalidInput(
                f"an example adds a gradient of norm {added:.6g}, where its own norm is {float(norm):.6g} and the clip "
                f"norm {clipper.clip_norm:.6g}: this clipper cannot be relied on for this model"
            )
        if finite and not abs(float(norm) - exact) <= relative * exact + 1e-9:
            raise InvalidInput(
                f"a per-example gradient norm is {float(norm) / (exact or 1):.4g} times autograd's, although the sums "
                "agree: this clipper cannot be relied on for this model"
            )
    return compared


def _rounding_errors(
    evaluation: SideEffectFreeLoss,
    alone: Batch,
    parameters: Mapping[str, nn.Parameter],
    gradients: Mapping[str, Tensor],
    *,
    eval_mode: bool,
) -> dict[str, float]:
    """The distance of autograd's gradient in reduced precision from the one in float32, for each parameter."""
    try:
        loss = replace(evaluation, autocast=None).losses(alone, eval_mode=eval_mode, gradients=True)[0]
    except RuntimeError:  # the model runs in reduced precision only: no difference is excused by rounding
        return dict.fromkeys(parameters, 0.0)
    exact = full_tensors(gradients_of(loss, parameters))
    return {name: float((gradients[name] - gradient).norm()) for name, gradient in exact.items()}


def _common_scale(sums: Mapping[str, Tensor], sizes: Mapping[str, float], *, floor: float) -> float:
    """By how much an example was scaled: the upper quartile over parameters, which missed ones do not move."""
    ratios = [float(sums[name].double().norm()) / size for name, size in sizes.items() if size > floor]
    return min(1.0, float(np.quantile(ratios, 0.75, method="higher"))) if ratios else 1.0
