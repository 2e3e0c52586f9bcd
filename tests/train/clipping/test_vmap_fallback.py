"""Modules without a tap of their own are run for each example, and networks made at random: exact."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import check
from torch import Tensor, nn
from torch.nn import functional


class Zoo(nn.Module):
    """Convolutions, norms of several kinds, a parameter of its own, a layer used twice, weights tied crosswise."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6, 1))
        self.convolution = nn.Conv1d(4, 6, 3, padding=1, groups=2)
        self.norm = nn.GroupNorm(2, 6)
        self.twice = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.twice.weight
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.last = nn.RMSNorm(6)
        self.bilinear = nn.Bilinear(6, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x)) * self.scale
        x = self.twice(torch.tanh(self.twice(x.transpose(1, 2))))
        x = self.tied(x) + self.attention(x, x, x, need_weights=False)[0]
        x = self.last(x).mean(1)
        return self.bilinear(x, x).square().sum(1)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of attention under vmap on a CPU
def test_whatever_has_no_tap_of_its_own_is_exact_by_expansion() -> None:
    torch.manual_seed(0)
    check(Zoo(), lambda model, batch: model(batch["x"]), {"x": torch.randn(5, 4, 7)})


class Inner(Zoo):
    """The same without a parameter of the outermost module, so that its children are tapped one by one."""

    def __init__(self) -> None:
        super().__init__()
        del self.scale
        self.scale = 1.0


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_children_are_tapped_one_by_one() -> None:
    torch.manual_seed(0)
    clipper = check(Inner(), lambda model, batch: model(batch["x"]), {"x": torch.randn(5, 4, 7)})
    assert len(clipper._taps.sites) == 7


class Gained(nn.Module):
    """Holds a parameter of its own, so that all of it is run for each example by vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, ids: Tensor) -> Tensor:
        return self.out((self.words(ids) * self.gain).tanh().mean(1))


def test_padding_has_no_gradient_inside_a_module_that_is_run_for_each_example() -> None:
    torch.manual_seed(0)
    batch = {"ids": torch.tensor([[1, 2, 3], [4, 5, 0], [2, 4, 1], [1, 0, 0]]), "y": torch.tensor([0, 1, 2, 0])}
    check(Gained(), lambda model, own: functional.cross_entropy(model(own["ids"]), own["y"], reduction="none"), batch)


class Recurrent(nn.Module):
    """Keeps the last state of a pass as a plain attribute; whoever calls it resets that."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.state = nn.Parameter(torch.rand(4)), None

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0]) if self.state is None else self.state
        states = []
        for step in x.unbind(1):
            state = torch.tanh(state * self.gain + step)
            states.append(state)
        self.state = state
        return torch.stack(states, 1)


class Resetting(nn.Module):
    """Every pass begins anew, as those of recurrent language models do without a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = Recurrent(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.state = None
        return self.out(self.inner(x)).square().mean((1, 2))


def test_a_state_that_a_module_keeps_of_a_pass_is_not_carried_into_the_next() -> None:
    torch.manual_seed(0)
    model = Resetting()

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"])

    model(torch.randn(2, 3, 4)).sum().backward()  # leaves a state with a graph behind
    check(model, loss, {"x": torch.randn(3, 5, 4)})
    clipper = check(model, loss, {"x": torch.randn(5, 5, 4)})
    assert {route.route for route in clipper.routes()} >= {"vmap fallback"}


@given(seed=st.integers(0, 2**31), size=st.integers(1, 6), length=st.integers(1, 9))
def test_random_networks_are_exact(seed: int, size: int, length: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    width = [int(torch.randint(1, 9, (), generator=generator)) for _ in range(3)]
    embedding = nn.Embedding(7, width[0], padding_idx=2)
    model = nn.Sequential(
        embedding, nn.Linear(width[0], width[1]), nn.Tanh(), nn.LayerNorm(width[1]), nn.Linear(width[1], 7)
    )
    if width[0] == width[1]:
        model[4].weight = embedding.weight  # tied, without a head that hush knows
    ids = torch.randint(7, (size, length), generator=generator)
    check(model, lambda model, batch: model(batch["ids"]).square().mean((1, 2)) * 3, {"ids": ids}, tolerance=2e-5)
