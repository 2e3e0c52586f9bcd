"""What training.py compares, Opacus aside: ordinary training and hush, each turning micro-batches into a sum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from training_models import Batch, Case, flops, labelled_loss, labelled_positions, make_batches, make_model

from hush.train.clipping import Clipper
from hush.train.clipping.metric import Metric
from hush.train.public.metric import metric_of

CLIP_NORM = 1.0
MEASURED = 16  # examples of which the metric is measured


@dataclass(frozen=True, slots=True)
class Method:
    """Adds a micro-batch's gradients to a sum; `finish` drops the sum, as a round's end does."""

    step: Callable[[Batch], Any]
    finish: Callable[[], Any]
    about: dict[str, Any]
    opacus: Any = None


def moved(batch: Batch, device: str) -> dict[str, Tensor]:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def autocast(case: Case, device: str) -> torch.autocast:
    return torch.autocast(device, dtype=case.autocast, enabled=case.autocast is not None)


def ordinary(case: Case, device: str, *, compile: bool) -> Method:
    model = make_model(case, device)
    run = torch.compile(model, dynamic=False) if compile else model

    def step(batch: Batch) -> None:
        with autocast(case, device):
            loss = run(**moved(batch, device)).loss
        loss.backward()

    about: dict[str, Any] = {"attention": getattr(model.config, "_attn_implementation", None)}
    if not compile:
        batch = make_batches(case, device, size=case.micro_batch, count=1)[0]
        about["counted_flops"] = counted_flops(lambda: step(batch))
        model.zero_grad(set_to_none=True)
    return Method(step, lambda: model.zero_grad(set_to_none=True), about)


def ordinary_labelled(case: Case, device: str) -> Method:
    """Ordinary training that looks at labelled positions only, as hush does; transformers itself does not."""
    model = make_model(case, device)
    run = torch.compile(labelled_loss, dynamic=False)

    def step(batch: Batch) -> None:
        index = labelled_positions(batch["labels"]).to(device, non_blocking=True)
        with autocast(case, device):
            loss = run(model, moved(batch, device), index)
        loss.backward()

    return Method(step, lambda: model.zero_grad(set_to_none=True), {})


def hush(case: Case, device: str, *, compile: bool, metric: bool = False) -> Method:
    model = make_model(case, device)
    clipper = Clipper(model, case.loss, clip_norm=CLIP_NORM, compile=compile, autocast=case.autocast)
    real = torch.ones(case.micro_batch, dtype=torch.bool)
    about: dict[str, Any] = {}
    if metric:
        clipper.use_metric(measured_metric(case, model, device))
    elif not compile:
        batch = make_batches(case, device, size=case.micro_batch, count=1)[0]
        norms = clipper.accumulate(batch, real).norms  # the first of its shape has a look ahead, which does not count
        about["counted_flops"] = counted_flops(lambda: clipper.accumulate(batch, real))
        about |= {"clipped_share": float((norms > CLIP_NORM).float().mean()), "median_norm": float(norms.median())}
        try:  # looks inside the clipper, so that a change there costs this number only
            about["flops"] = flops(case, model, clipper, moved(batch, device))
        except (AttributeError, TypeError, KeyError) as error:
            about["flops"] = {"not counted": repr(error)}
        clipper.take()
    return Method(lambda batch: clipper.accumulate(batch, real), clipper.take, about)


def measured_metric(case: Case, model: nn.Module, device: str) -> Metric:
    """The metric v^(-1/4) of some batches, in which each example is about as long as in the ordinary norm."""
    clipper = Clipper(model, case.loss, clip_norm=CLIP_NORM, autocast=case.autocast, squares=True)
    size = min(case.micro_batch, MEASURED)
    for batch in make_batches(case, device, size=size, count=MEASURED // size):
        clipper.accumulate(batch, torch.ones(size, dtype=torch.bool))
    return metric_of({name: total / MEASURED for name, total in clipper.take(exact=True).items()})


def counted_flops(run: Callable[[], Any]) -> float | str:
    """Products as torch itself counts them while they run: the second route to the formula of `flops`."""
    try:
        with FlopCounterMode(display=False) as counter:
            run()
    except AssertionError as error:  # some versions of torch cannot count attention with grouped queries
        return f"not counted: {error}"
    return float(counter.get_total_flops())
