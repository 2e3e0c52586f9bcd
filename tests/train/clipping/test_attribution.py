"""Rows are attributed to their own examples, or the model is refused: gathered, routed, sorted and shared rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attacks import all_real, squares
from reference import clipped_sum, difference
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:gradients are taken example by example"
)

SIZE, LENGTH, WIDTH = 4, 3, 5
CLIP_NORM = 0.1


class TwoLayers(nn.Module):
    """A layer that sees all rows, and one to which some rows are sent."""

    def __init__(self, second: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), second or nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.send(torch.tanh(self.first(x)), x)

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError


class MaskedRows(TwoLayers):
    """The second layer is applied to gathered rows, if there are any."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        mask = x[..., 0] > 1
        if not mask.any():
            return h
        out = h.clone()
        out[mask] = 5 * self.second(h[mask])
        return out


class SelectedRows(TwoLayers):
    """The same without a branch: at first, the second layer gets no rows."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        rows = (x[..., 0] > 1).flatten().nonzero().squeeze(1)
        return h.flatten(0, 1).index_add(0, rows, 5 * self.second(h.flatten(0, 1)[rows])).view_as(h)


class TokenRouter(TwoLayers):
    """Each example's best token goes through the second layer, those with the highest scores first."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        score, best = x[..., 0].max(1)
        rows = (torch.arange(len(x)) * LENGTH + best)[score.argsort(descending=True)]
        return h.flatten(0, 1).index_add(0, rows, 5 * self.second(h.flatten(0, 1)[rows])).view_as(h)


class MixtureOfExperts(nn.Module):
    """Tokens are routed to one of two experts; an expert without tokens is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        share, choice = (self.router(tokens) + tokens[:, :2] * 50).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = torch.where(choice == number)[0]
            if len(rows):
                out = out.index_add(0, rows, expert(tokens[rows]) * share[rows].unsqueeze(1))
        return out.view_as(x)


class SortedExamples(TwoLayers):
    """Examples are sorted by a score, go through the second layer, and back into their places."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        order = x[:, 0, 0].argsort()
        return 5 * self.second(h[order])[order.argsort()]


class ListedExamples(TwoLayers):
    """The same, but Python does the sorting."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        scores = x[:, 0, 0].tolist()
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return 5 * self.second(h[order])[torch.tensor(order).argsort()]


class Reversing(TwoLayers):
    """Truth values of the data decide that examples go through the second layer in reverse order."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        if x[0, 0, 0] > 1:
            return 5 * self.second(h.flip(0)).flip(0)
        return 5 * self.second(h)


class ReversingByNumber(TwoLayers):
    """The same by a number that is read."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        if x[..., 0].max().item() > 1:
            return 5 * self.second(h.flip(0)).flip(0)
        return 5 * self.second(h)


class Repeating(TwoLayers):
    """Data decide how often the second layer is called; those who do not need the second call ignore it."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        h, needs = torch.tanh(self.second(h)), (x[..., 0] > 1).any(1).view(-1, 1, 1)
        return torch.where(needs, torch.tanh(self.second(h)), h) if needs.any() else h


class Alone(TwoLayers):
    """The second layer is called for each example by itself."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.stack([self.second(row) for row in h])


class TimeFirst(TwoLayers):
    """Positions lie along the first dimension, as many as there are examples."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        h = torch.cat([h, h[:, :1]], 1)
        return 5 * self.second(h.transpose(0, 1)).transpose(0, 1)


def gathering_norm() -> nn.Module:
    """Gathered rows in a module that vmap runs for each example."""
    return MaskedRows(nn.LayerNorm(WIDTH))


def selecting_norm() -> nn.Module:
    """The same, which gets no rows at first."""
    return SelectedRows(nn.LayerNorm(WIDTH))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gathered rows": MaskedRows,
    "selected rows": SelectedRows,
    "gathered rows in a vmap fallback": gathering_norm,
    "selected rows in a vmap fallback": selecting_norm,
    "token router": TokenRouter,
    "mixture of experts": MixtureOfExperts,
    "sorted examples": SortedExamples,
    "listed examples": ListedExamples,
    "reversing by a truth value": Reversing,
    "reversing by a number": ReversingByNumber,
    "repeating": Repeating,
    "each alone": Alone,
    "time first": TimeFirst,
}


def batch_with(*loud: tuple[int, int], seed: int) -> dict[str, Tensor]:
    """A batch in which these tokens are marked; scores rise with the example's number otherwise."""
    x = torch.randn(SIZE, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))
    x[..., 0] = torch.arange(SIZE * LENGTH).view(SIZE, LENGTH) / 100
    for example, token in loud:
        x[example, token, 0] = 2.0
    return {"x": x}


def batches() -> list[dict[str, Tensor]]:
    """At first nothing is marked, as often as it takes; then exactly as many rows as there are examples."""
    crowded = ((0, 0), (0, 1), (0, 2), (1, 0))
    spread = ((0, 0), (1, 1), (2, 0), (3, 2))
    marks = [(), (), crowded, (), spread, crowded, ((3, 0),), (), ((1, 0), (2, 2))]
    return [batch_with(*loud, seed=seed) for seed, loud in enumerate(marks)]


def exact_or_refused(model: nn.Module, sequence: list[dict[str, Tensor]], **options: Any) -> str:
    """Clip these batches one after another, each exactly as one example at a time would, until one is refused."""
    clipper = Clipper(model, squares, clip_norm=CLIP_NORM, **options)
    for batch in sequence:
        real = all_real(len(batch["x"]))
        try:
            clipped = clipper.accumulate(batch, real)
        except InvalidInput as error:
            return str(error)
        sums, norms = clipped_sum(model, squares, batch, real, clip_norm=CLIP_NORM * (1 - MARGIN))
        assert torch.allclose(clipped.norms.double(), norms, rtol=1e-4, atol=1e-7)
        assert difference(clipper.take(), sums) < 1e-4
    return ""


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_the_data_send_around_are_clipped_as_their_own_examples(name: str) -> None:
    torch.manual_seed(0)
    assert exact_or_refused(MODELS[name](), batches()) == ""
