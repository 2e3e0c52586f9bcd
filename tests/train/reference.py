"""Slow and obviously right: clipped sums one example at a time, and a small problem to train on."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hush
from hush.train.clipping import MARGIN, Clipper
from hush.train.clipping.metric import Metric, Scale
from hush.train.private_training import PrivateTraining
from hush.train.round import MicroBatch

Loss = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]

EXAMPLES, INPUTS, CLASSES = 40, 6, 3


def random_metric(model: nn.Module, seed: int = 0, spread: float = 0.7) -> Metric:
    """A factored metric whose logarithms are normal: scales differ by a factor of ten and more."""
    generator = torch.Generator().manual_seed(seed)

    def factor(size: int) -> Tensor:
        return torch.exp(spread * torch.randn(size, generator=generator))

    return Metric(
        {
            name: Scale.rounded(factor(math.prod(p.shape[:1])), factor(math.prod(p.shape[1:])) if p.dim() > 1 else None)
            for name, p in model.named_parameters()
            if p.requires_grad
        }
    )


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    batch: Mapping[str, Tensor],
    real: Tensor,
    *,
    clip_norm: float,
    metric: Metric | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum of gradients, each scaled to norm at most ``clip_norm``, and the norms before; one backward each.

    With a metric, each gradient is multiplied by its scales before that.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    norms = torch.zeros(len(real), dtype=torch.float64)
    for row in real.nonzero().flatten().tolist():
        own = loss(model, {key: value[row : row + 1] for key, value in batch.items()}).sum()
        found = torch.autograd.grad(own, list(parameters.values()), allow_unused=True)
        gradients = {name: g.double() for name, g in zip(parameters, found, strict=True) if g is not None}
        if metric is not None:
            gradients = {name: g * metric.scales[name].full(g.shape).double() for name, g in gradients.items()}
        norms[row] = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
        if not norms[row].isfinite():
            continue
        for name, gradient in gradients.items():
            sums[name] += gradient * min(1.0, clip_norm / max(float(norms[row]), 1e-300))
    return sums, norms


def difference(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Relative distance of two sets of sums."""
    assert got.keys() == wanted.keys()
    gap = math.sqrt(sum(float((got[name].double() - wanted[name]).square().sum()) for name in wanted))
    return gap / math.sqrt(sum(float(value.square().sum()) for value in wanted.values()))


def check(
    model: nn.Module, loss: Callable[..., Tensor], batch: dict[str, Tensor], tolerance: float = 1e-5, **options: Any
) -> Clipper:
    """One micro-batch through a clipper with these options; its norms and sums are those of one example at a time, in
    the ordinary norm and in a metric."""
    real = torch.ones(len(next(iter(batch.values()))), dtype=torch.bool)
    metrics = [None, random_metric(model)]
    norms = [clipped_sum(model, loss, batch, real, clip_norm=1.0, metric=metric)[1] for metric in metrics]
    clip_norm = float(torch.cat(norms).median())  # some are clipped, some are not
    clipper = Clipper(model, loss, clip_norm=clip_norm, **options)
    for metric, wanted in zip(metrics, norms, strict=True):
        sums, _ = clipped_sum(model, loss, batch, real, clip_norm=clip_norm * (1 - MARGIN), metric=metric)
        clipper.use_metric(metric)
        clipped = clipper.accumulate(batch, real)
        assert torch.allclose(clipped.norms.double(), wanted, rtol=tolerance)
        assert difference(clipper.take(), sums) < tolerance
    clipper.use_metric(None)
    return clipper


def small_plan(*, rounds: int = 12, batch_size: float = 8.0, clip_norm: float = 0.7, **more: Any) -> hush.Plan:
    """40 examples, two secrets in five of them."""
    incidence = hush.Incidence.from_pairs([0, 1, 2, 5, 9], [0, 0, 1, 1, 1], num_examples=EXAMPLES, num_secrets=2)
    settings: dict[str, Any] = {"prior": 1e-6, "ceiling": 1e-2, "capacity": "none"} | more
    return hush.make_plan(incidence, batch_size=batch_size, rounds=rounds, clip_norm=clip_norm, **settings)


def small_data() -> dict[str, Tensor]:
    """One row for each example."""
    generator = torch.Generator().manual_seed(1)
    return {
        "inputs": torch.randn(EXAMPLES, INPUTS, generator=generator),
        "labels": torch.randint(CLASSES, (EXAMPLES,), generator=generator),
    }


def small_model(*, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """An MLP whose weights depend on ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(INPUTS, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)
        )


def cross_entropy(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """One loss per example."""
    return nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"], reduction="none")


def rows(data: Mapping[str, Tensor], examples: MicroBatch | np.ndarray) -> dict[str, Tensor]:
    """The batch of these examples."""
    ids = examples.examples if isinstance(examples, MicroBatch) else examples
    return {key: value[torch.as_tensor(ids)] for key, value in data.items()}


def train(private: PrivateTraining, data: Mapping[str, Tensor], *, until: int | None = None) -> list[np.ndarray]:
    """Go on to the end, or until so many rounds are done; the draw of each round."""
    draws: list[np.ndarray] = []
    if private.round == until:
        return draws
    for round in private.rounds():
        drawn = [np.zeros(0, dtype=np.int64)]
        for examples in round.micro_batches():
            private.accumulate(rows(data, examples), examples.real)
            drawn.append(examples.examples[examples.real])
        private.step()
        draws.append(np.sort(np.concatenate(drawn)))
        if private.round == until:
            break
    return draws
