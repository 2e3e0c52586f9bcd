"""A small model, a clipper by plain autograd that errs where told, and both on trial: shared by tests of the probes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hush.train.probes import ProbeResult, probe


@dataclass
class Result:
    norms: Tensor


@dataclass
class OneByOne:
    """What a clipper does, by plain autograd; blind, where told, to some parameters' gradients."""

    model: nn.Module
    loss: object
    clip_norm: float = 0.7
    blind: tuple[str, ...] = ()
    counts_padding: bool = False
    sums: dict[str, Tensor] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, p in self.model.named_parameters() if p.requires_grad)

    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Result:
        parameters = {name: dict(self.model.named_parameters())[name] for name in self.names}
        norms = []
        for i in range(len(real)):
            row = {key: value[i : i + 1] for key, value in batch.items()}
            loss = self.loss(self.model, row)[0]  # pyright: ignore[reportCallIssue]
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            found = {
                name: torch.zeros_like(p) if g is None or name in self.blind else g
                for (name, p), g in zip(parameters.items(), gradients, strict=True)
            }
            norms.append(torch.stack([g.norm() for g in found.values()]).norm())
            weight = min(1.0, self.clip_norm / float(norms[-1])) * bool(real[i] or self.counts_padding)
            for name, gradient in found.items():
                self.sums[name] = self.sums.get(name, torch.zeros_like(gradient)) + weight * gradient
        return Result(torch.stack(norms))

    def take(self) -> dict[str, Tensor]:
        sums, self.sums = self.sums, {}
        return sums


def batch_of(examples: int, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 5, generator=generator)
    return {"x": x, "y": torch.randint(0, 3, (examples,), generator=generator)}


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), *middle, nn.Linear(6, 3)).train()


def cross_entropy(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def try_out(model: nn.Module, loss: object = cross_entropy, *, examples: int = 4, **options: object) -> ProbeResult:
    batch = batch_of(examples)
    real = torch.ones(examples, dtype=torch.bool)
    clipper = OneByOne(model, loss, **options)  # pyright: ignore[reportArgumentType]
    return probe(model, loss, batch, real, clipper=clipper)  # pyright: ignore[reportArgumentType]
