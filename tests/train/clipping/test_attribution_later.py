"""Attribution at later batches: what moves rows without an index, branches first taken later, layers that wake up."""

from collections.abc import Callable, Mapping

import pytest
import torch
from attacks import all_real, squares
from reference import clipped_sum, difference
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper

pytestmark = pytest.mark.filterwarnings("ignore:gradients are taken example by example")

SIZE, LENGTH, WIDTH = 4, 3, 5
CLIP_NORM = 0.1


class Moving(nn.Module):
    """Hard examples go through the second layer first, and back into their places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        place = torch.arange(len(x)) - len(x) * (x[:, 0, 0] > 1).int()
        return self.moved(h, (place[:, None] > place[None]).sum(1))  # sorted by comparisons alone

    def moved(self, h: Tensor, rank: Tensor) -> Tensor:
        raise NotImplementedError


class ByProduct(Moving):
    """A matrix of zeros and ones moves them."""

    def moved(self, h: Tensor, rank: Tensor) -> Tensor:
        order = (rank[None] == torch.arange(len(h))[:, None]).float()
        y = self.second((order @ h.flatten(1)).view_as(h))
        return 5 * (order.t() @ y.flatten(1)).view_as(h)


class ByLookup(Moving):
    """They are looked up as rows of a table."""

    def moved(self, h: Tensor, rank: Tensor) -> Tensor:
        place = (rank[None] == torch.arange(len(h))[:, None]).int().argmax(1)
        y = self.second(functional.embedding(place, h.flatten(1)).view_as(h))
        return 5 * functional.embedding(rank, y.flatten(1)).view_as(h)


class ByTurns(Moving):
    """Flattened rows are turned around if the data say so."""

    def moved(self, h: Tensor, rank: Tensor) -> Tensor:
        turn, rows = rank[0] > 0, h.flatten(0, 1)
        y = self.second(torch.where(turn, rows.roll(LENGTH, 0), rows))
        return 5 * torch.where(turn, y.roll(-LENGTH, 0), y).view_as(h)


class ByParts(Moving):
    """Examples are taken apart and put together in another order if the data say so."""

    def moved(self, h: Tensor, rank: Tensor) -> Tensor:
        turn = rank[0] > 0
        y = self.second(torch.where(turn, torch.stack(h.unbind()[::-1]), h))
        return 5 * torch.where(turn, torch.stack(y.unbind()[::-1]), y)


class InBranch(nn.Module):
    """Hard examples go first, if there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h, hard = torch.tanh(self.first(x)), x[:, 0, 0] > 1
        if hard.any():
            order = hard.int().argsort(descending=True, stable=True)
            return 5 * self.second(h[order])[order.argsort()]
        return 5 * self.second(h)


def batch_with(scores: list[float], seed: int) -> dict[str, Tensor]:
    x = torch.randn(SIZE, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))
    x[:, 0, 0] = torch.tensor(scores)
    return {"x": x}


def check_exact(clipper: Clipper, model: nn.Module, batch: dict[str, Tensor], loss: Callable[..., Tensor]) -> None:
    real = all_real(len(batch["x"]))
    clipper.accumulate(batch, real)
    sums, _ = clipped_sum(model, loss, batch, real, clip_norm=CLIP_NORM * (1 - MARGIN))
    assert difference(clipper.take(), sums) < 1e-4


@pytest.mark.parametrize("kind", [ByProduct, ByLookup, ByTurns, ByParts, InBranch])
def test_an_order_that_is_the_identity_at_first_is_proven_again(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    clipper = Clipper(model, squares, clip_norm=CLIP_NORM)
    in_order, other = [0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 2.0, 0.2]
    first_hard = [2.0, 0.1, 0.2, 0.3]  # the branch is taken, and its order is the identity
    for seed, scores in enumerate([in_order, in_order, first_hard, in_order, other, in_order, other]):
        check_exact(clipper, model, batch_with(scores, seed), squares)


def test_an_example_that_is_not_finite_takes_no_neighbour_with_it() -> None:
    """Zero times infinity is not a number: a product over all examples spreads it to those that it does not touch."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False)

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        own = torch.block_diag(*[torch.full((LENGTH, LENGTH), 1 / LENGTH)] * len(batch["x"]))
        mixed = own @ model(batch["x"]).flatten(0, 1)
        return torch.tanh(mixed).unflatten(0, (-1, LENGTH)).flatten(1).sum(1).abs().sqrt()

    clipper = Clipper(model, loss, clip_norm=CLIP_NORM)
    batch = batch_with([0.0] * SIZE, 0)
    check_exact(clipper, model, batch, loss)
    broken = {"x": batch["x"].clone()}
    broken["x"][0] = 0.0  # the slope of the square root is infinite there
    clipped = clipper.accumulate(broken, all_real(SIZE))
    assert clipped.norms.isfinite().tolist() == [False, True, True, True]
    rest = {"x": batch["x"][1:]}
    sums, _ = clipped_sum(model, loss, rest, all_real(SIZE - 1), clip_norm=CLIP_NORM * (1 - MARGIN))
    assert difference(clipper.take(), sums) < 1e-4


class Gated(nn.Module):
    """An inner layer on rows with the positions first, behind a layer that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (-1, len(x))).transpose(0, 1)
        return self.last(torch.tanh(x + self.up(torch.tanh(inner))))


def test_a_layer_without_a_gradient_is_not_proven_until_it_has_one() -> None:
    torch.manual_seed(0)
    model = Gated()
    clipper = Clipper(model, squares, clip_norm=CLIP_NORM)
    for seed in range(2):
        clipper.accumulate(batch_with([0.0] * SIZE, seed), all_real(SIZE))
        clipper.take()
    with torch.no_grad():
        model.up.weight.normal_()
    with pytest.raises(InvalidInput, match="rows of down do not belong to the examples of their places"):
        clipper.accumulate(batch_with([0.0] * SIZE, 2), all_real(SIZE))
