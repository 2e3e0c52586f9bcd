"""Alignment and effective dimension are what their formulas say of one-example-at-a-time gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.public.predictor import gradient_statistics


class Line(nn.Module):
    """Its gradient is the input itself: loss w.x + v.y, so that examples state their gradients."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))
        self.v = nn.Parameter(torch.zeros(2, 3))
        self.frozen = nn.Parameter(torch.zeros(7), requires_grad=False)


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    parts: Any = model
    return batch["x"] @ parts.w + (batch["y"] * parts.v).flatten(1).sum(1) + 0 * parts.frozen.sum()


def examples(count: int, *, mean: float = 0.3, seed: int = 0) -> list[dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(1, 5, generator=rng) * torch.tensor([3.0, 1, 0.3, 0.1, 0.03]) + mean,
            "y": torch.randn(1, 2, 3, generator=rng) * 0.2,
        }
        for _ in range(count)
    ]


def flat(batch: Mapping[str, Tensor]) -> np.ndarray:
    return torch.cat([batch["x"].flatten(), batch["y"].flatten()]).double().numpy()


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 2.5, 100.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_statistics_are_those_of_the_definition(clip_norm: float, scaled: bool) -> None:
    batches = examples(40)
    scales = {"w": torch.tensor([0.5, 0.8, 1.5, 3.0, 4.0]), "v": torch.tensor([[2.0], [1.0]])} if scaled else None
    s = np.ones(11)
    if scales is not None:
        s = torch.cat([scales["w"], scales["v"].expand(2, 3).flatten()]).double().numpy()
    gradients = np.array([flat(batch) for batch in batches])
    clipped = np.array([g * s * min(1, clip_norm / np.linalg.norm(g * s)) for g in gradients]) / clip_norm
    pairs = [clipped[i] @ clipped[j] for i in range(40) for j in range(40) if i != j]
    v = np.mean([(g * min(1, clip_norm / np.linalg.norm(g))) ** 2 for g in gradients], axis=0)
    measured = gradient_statistics(Line(), loss, batches, clip_norm=clip_norm, scales=scales)
    assert measured.alignment == pytest.approx(max(np.mean(pairs), 0) ** 0.5, rel=1e-4, abs=1e-6)
    assert measured.effective_dimension == pytest.approx((s**2 * v).sum() * (1 / s**2).sum() / v.sum(), rel=1e-5)
    assert (measured.parameters, measured.examples) == (11, 40)


def test_the_best_metric_has_the_least_dimension_and_none_has_less() -> None:
    batches = examples(60)
    gradients = np.array([flat(batch) for batch in batches])
    v = np.mean([(g * min(1, 1 / np.linalg.norm(g))) ** 2 for g in gradients], axis=0)

    def dimension(s: np.ndarray) -> float:
        scales = {"w": torch.tensor(s[:5]).float(), "v": torch.tensor(s[5:].reshape(2, 3)).float()}
        return gradient_statistics(Line(), loss, batches, clip_norm=1.0, scales=scales).effective_dimension

    least = np.sqrt(v).sum() ** 2 / v.sum()
    assert dimension(v**-0.25) == pytest.approx(least, rel=1e-4)
    rng = np.random.default_rng(0)
    assert all(dimension(rng.uniform(0.2, 5, 11)) >= least for _ in range(20))
    assert dimension(np.ones(11)) == pytest.approx(11)


def test_gradients_that_agree_are_aligned_and_those_that_do_not_are_not() -> None:
    same = [examples(1)[0]] * 8
    assert gradient_statistics(Line(), loss, same, clip_norm=0.1).alignment == pytest.approx(1.0)
    opposite = [{name: sign * value for name, value in same[0].items()} for sign in (1, -1) for _ in range(4)]
    assert gradient_statistics(Line(), loss, opposite, clip_norm=0.1).alignment == 0.0


def test_examples_that_are_not_finite_are_left_out_and_too_few_refused() -> None:
    broken = {"x": torch.full((1, 5), torch.nan), "y": torch.zeros(1, 2, 3)}
    batches = examples(10)
    with_broken = gradient_statistics(Line(), loss, [broken, *batches], clip_norm=1.0)
    assert with_broken == gradient_statistics(Line(), loss, batches, clip_norm=1.0)
    with pytest.raises(InvalidInput, match="pass at least 2"):
        gradient_statistics(Line(), loss, [broken, *batches[:1]], clip_norm=1.0)
    with pytest.raises(InvalidInput, match="no parameter that is trained"):
        gradient_statistics(Line().requires_grad_(False), loss, batches, clip_norm=1.0)
