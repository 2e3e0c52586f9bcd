"""Opacus in training.py: its two ways to clip, and how far its norms and sums are from those of hush."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from training_methods import CLIP_NORM, Method, autocast, moved
from training_models import Batch, Case, accepted_by_opacus, make_batches, make_model

from hush.train.clipping import MARGIN, Clipper
from hush.train.language_models import IGNORED, token_losses


def opacus(case: Case, device: str, *, ghost: bool, nearest: bool) -> Method:
    """Opacus' own hooks (per-example gradients) or ghost clipping (two backward passes), with its own accumulation."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

    model = make_model(case, device)
    about: dict[str, Any] = {}
    if nearest:
        about["changed"] = accepted_by_opacus(case, model, ghost=ghost)
    kind = GradSampleModuleFastGradientClipping if ghost else GradSampleModule
    method = _opacus_on(
        kind(model, loss_reduction="sum"), case, device, clip_norm=CLIP_NORM, ghost=ghost, nearest=nearest
    )
    method.step(make_batches(case, device, size=case.micro_batch, count=1)[0])  # where it refuses, this says so
    method.finish()
    try:
        about["agreement"] = agreement(case, device, ghost=ghost, nearest=nearest)
    except Exception as error:  # a number missing, not a method
        about["not_compared"] = f"{type(error).__name__}: {error}"[:300]
    return Method(method.step, method.finish, about)


def _opacus_on(wrapped: Any, case: Case, device: str, *, clip_norm: float, ghost: bool, nearest: bool) -> Method:
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    if ghost:
        wrapped.max_grad_norm = clip_norm
    kind = DPOptimizerFastGradientClipping if ghost else DPOptimizer
    plain = torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.0)
    optimizer: Any = kind(
        plain, noise_multiplier=0.0, max_grad_norm=clip_norm, expected_batch_size=1, loss_reduction="sum"
    )

    class PerExample:
        """Losses as hush has them; Opacus asks for this attribute."""

        reduction = "sum"

        def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
            labels = labels if case.masked else torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
            return token_losses(logits, labels)

    criterion: Any = PerExample()
    if ghost:
        criterion = DPLossFastGradientClipping(wrapped, optimizer, criterion, loss_reduction="sum")

    def step(batch: Batch) -> None:
        inputs = moved(batch, device)
        labels = inputs.pop("labels")
        if nearest and case.masked:
            ids = inputs["input_ids"]
            inputs["position_ids"] = torch.arange(ids.shape[1], device=device).expand(ids.shape).contiguous()
            inputs["token_type_ids"] = torch.zeros_like(ids)
        optimizer.zero_grad(set_to_none=True)
        with autocast(case, device):
            losses = criterion(wrapped(**inputs).logits, labels)
        (losses if ghost else losses.sum()).backward()
        optimizer.signal_skip_step(do_skip=True)  # one more micro-batch of the same round, as its memory manager says
        optimizer.pre_step()

    def finish() -> None:
        optimizer._is_last_step_skipped = False
        optimizer.zero_grad(set_to_none=True)

    return Method(step, finish, {}, opacus=wrapped)


def agreement(case: Case, device: str, *, ghost: bool, nearest: bool) -> dict[str, float]:
    """Relative differences from hush in float32 without dropout: of norms, and of sums with half clipped and with none.

    Clipped sums differ by some thousandths where hush scales down further, by what rounding may have done to norms.
    """
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

    size = min(case.micro_batch, 4)
    case = replace(case, autocast=None, micro_batch=size)
    batch, real = make_batches(case, device, size=size, count=1)[0], torch.ones(size, dtype=torch.bool)
    kind: Any = GradSampleModuleFastGradientClipping if ghost else GradSampleModule
    found: dict[str, float] = {}
    clip_norm = 1e6
    for sums in ("unclipped_sums", "sums"):
        model = make_model(case, device, dropout=False)
        if nearest:
            accepted_by_opacus(case, model, ghost=ghost)
        clipper = Clipper(model, case.loss, clip_norm=clip_norm)
        norms, ours = clipper.accumulate(batch, real).norms, clipper.take()
        wrapped = kind(model, loss_reduction="sum")
        slightly_less = clip_norm * (1 - MARGIN)  # what hush clips to
        _opacus_on(wrapped, case, device, clip_norm=slightly_less, ghost=ghost, nearest=nearest).step(batch)
        trained: dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if ghost:
            theirs = wrapped.per_sample_gradient_norms
        else:
            theirs = torch.stack([p.grad_sample.flatten(1).square().sum(1) for p in trained.values()]).sum(0).sqrt()
        difference = sum(float((p.summed_grad - ours[name]).square().sum()) for name, p in trained.items())
        found[sums] = math.sqrt(difference / sum(float(value.square().sum()) for value in ours.values()))
        found["norms"] = float(((theirs - norms) / norms).abs().max())
        clip_norm = float(norms.median())
    return found
