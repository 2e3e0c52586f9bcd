"""Clipped sums in one backward pass equal one-example-at-a-time autograd, for each family of models and way to run."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import NAMES, tiny, tiny_batch
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train import captures, head
from hush.train.clipping import MARGIN, Clipper
from hush.train.language import causal_lm_loss, default_loss

SIZE = 4


def one_by_one(model: nn.Module, loss: Any, batch: dict[str, Tensor], clip_norm: float) -> tuple[Tensor, dict]:
    """(norms, clipped sums) by a backward pass per example: slow and plain."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    norms = []
    for k in range(len(next(iter(batch.values())))):
        one = {name: value[k : k + 1] for name, value in batch.items()}
        gradients = torch.autograd.grad(loss(model, one).sum(), list(parameters.values()), allow_unused=True)
        whole = {
            name: torch.zeros(()) if g is None else g.double() for name, g in zip(parameters, gradients, strict=True)
        }
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in whole.values())))
        for name, gradient in whole.items():
            sums[name] += gradient * min(1.0, clip_norm * (1 - MARGIN) / norms[-1])
    return torch.tensor(norms, dtype=torch.float64), sums


def difference(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Relative distance of two sets of sums."""
    assert got.keys() == wanted.keys()
    gap = math.sqrt(sum(float((got[name].double() - wanted[name]).square().sum()) for name in wanted))
    return gap / math.sqrt(sum(float(value.square().sum()) for value in wanted.values()))


def check(model: nn.Module, loss: Any, batch: dict[str, Tensor], tolerance: float = 1e-5, **options: Any) -> Clipper:
    size = len(next(iter(batch.values())))
    norms, _ = one_by_one(model, loss, batch, 1.0)
    clip_norm = float(norms.median())  # some are clipped, some are not
    norms, sums = one_by_one(model, loss, batch, clip_norm)
    clipper = Clipper(model, loss, clip_norm=clip_norm, **options)
    clipped = clipper.accumulate(batch, torch.ones(size, dtype=torch.bool))
    assert torch.allclose(clipped.norms.double(), norms, rtol=tolerance)
    assert difference(clipper.take(), sums) < tolerance
    return clipper


def batch_of(name: str, size: int = SIZE, seed: int = 1) -> dict[str, Tensor]:
    return tiny_batch(name, size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def same_mask_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout that depends on the place inside an example alone, so that passes of any batch size agree."""

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        keep = torch.arange(x[0].numel()).mul(2654435761).remainder(997) >= 997 * p
        return x * keep.view(x.shape[1:]) / (1 - p)

    monkeypatch.setattr(functional, "dropout", dropout)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_sums_and_norms_equal_one_example_at_a_time(name: str, lora: bool) -> None:
    model = tiny(name, lora=lora)
    check(model, default_loss(model), batch_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_loss_without_the_chunked_head_gives_the_same(name: str) -> None:
    model = tiny(name)
    loss = default_loss(model)
    check(model, lambda *arguments: loss(*arguments), batch_of(name))  # another function: the head is not recognised


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself, while it traces
@pytest.mark.parametrize(
    ("name", "lora"),
    [
        ("gemma2", False),
        ("gpt2", True),
        *(pytest.param(name, lora, marks=pytest.mark.slow) for name in NAMES for lora in (False, True)),
    ],
)
def test_compiled_passes_are_exact(name: str, lora: bool) -> None:
    torch._dynamo.reset()
    model = tiny(name, lora=lora)
    check(model, default_loss(model), batch_of(name), compile="aot_eager")


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "llama", "vit"])
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    model: Any = tiny(name)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    check(model, default_loss(model), batch_of(name))


@pytest.mark.usefixtures("same_mask_for_all")
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_dropout_is_part_of_each_examples_own_loss(name: str, lora: bool) -> None:
    model: Any = tiny(name, lora=lora, dropout=0.2)
    model.set_attn_implementation("eager")  # the fused kernels draw their own masks
    check(model, default_loss(model), batch_of(name))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_bf16_agrees_with_bf16_and_never_exceeds_the_clip_norm(name: str, lora: bool) -> None:
    model = tiny(name, lora=lora)
    loss, batch = default_loss(model), batch_of(name, size=1)

    def rounded(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch)

    norms, sums = one_by_one(model, rounded, batch, clip_norm := 0.05)
    clipper = Clipper(model, loss, clip_norm=clip_norm, autocast=torch.bfloat16)
    clipped = clipper.accumulate(batch, torch.ones(1, dtype=torch.bool))
    assert torch.allclose(clipped.norms.double(), norms, rtol=0.03)
    totals = clipper.take()
    assert difference(totals, sums) < 0.05
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in totals.values()))
    assert 0.9 * clip_norm < norm <= clip_norm


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kept", [0, 2**28])
@pytest.mark.parametrize("chunk", [1, 700, 10**6])
@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_chunks_of_the_head_change_nothing(
    name: str, chunk: int, kept: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head.CHUNK, "cpu", chunk)
    monkeypatch.setitem(head.KEEP, "cpu", kept)
    monkeypatch.setattr(head, "WHOLE_FROM", 0.0 if whole else math.inf)
    model = tiny(name)
    check(model, default_loss(model), batch_of(name))


@pytest.mark.parametrize("tile", [8, 40, 1000])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_examples_that_are_multiplied_together_change_nothing(
    name: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hush.train import routes

    monkeypatch.setitem(captures.TILE, "cpu", tile)
    monkeypatch.setattr(routes, "BALANCE", {("cpu", 4): 1e9})  # all in factors
    model = tiny(name)
    check(model, default_loss(model), batch_of(name))


@given(size=st.integers(1, 12), left=st.integers(0, 20), right=st.integers(0, 20), tile=st.integers(1, 64))
def test_examples_are_multiplied_together_only_within_a_tile(size: int, left: int, right: int, tile: int) -> None:
    a, b = torch.randn(size, left, 3), torch.randn(size, right, 3)
    rows: list[int] = []

    def product(a: Tensor, b: Tensor) -> Tensor:
        rows.append(max(a.shape[1], b.shape[2]))
        return a @ b

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(captures.TILE, "cpu", tile)
        patch.setattr(captures, "_matmul32", product)
        found = captures._positions_product(a, b)
    torch.testing.assert_close(found, a @ b.transpose(1, 2))
    assert max(rows) <= max(tile, left, right)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kept", [0, 2**28])
@pytest.mark.parametrize("name", ["bert", "gpt2"])  # with a bias and without
def test_words_that_are_appended_to_the_head_change_nothing(
    name: str, kept: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head.ALIGN, "cpu", 1000)
    monkeypatch.setitem(head.CHUNK, "cpu", 2000)
    monkeypatch.setitem(head.KEEP, "cpu", kept)
    monkeypatch.setattr(head, "WHOLE_FROM", 0.0 if whole else math.inf)
    model = tiny(name)
    check(model, default_loss(model), batch_of(name))


def test_every_route_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.train import routes

    model, batch = tiny("gpt2"), batch_of("gpt2")
    for balance in (0.0, 1e9):  # all whole, all in factors
        monkeypatch.setattr(routes, "BALANCE", {("cpu", 4): balance})
        check(model, lambda *arguments: causal_lm_loss(*arguments), batch)


def test_padded_slots_and_broken_examples_add_exactly_nothing() -> None:
    model = tiny("gpt2")
    batch = batch_of("gpt2")
    clipper = Clipper(model, causal_lm_loss, clip_norm=0.1)
    first = {name: value[:2] for name, value in batch.items()}
    clipper.accumulate(first, torch.tensor([True, False]))
    one = clipper.take()
    clipper.accumulate({name: value[:1] for name, value in batch.items()}, torch.tensor([True]))
    assert difference(clipper.take(), {name: value.double() for name, value in one.items()}) < 1e-6

    def breaks(model: nn.Module, batch: Any) -> Tensor:
        losses = causal_lm_loss(model, batch)
        return losses * torch.ones(len(losses)).index_fill(0, torch.tensor([1]), math.nan)

    clipper = Clipper(model, breaks, clip_norm=0.1)
    clipper.accumulate(first, torch.tensor([True, True]))
    assert difference(clipper.take(), {name: value.double() for name, value in one.items()}) < 1e-5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
@pytest.mark.parametrize("kept", [0, 2**28])
@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2"])  # with a bias, without, with a soft cap
def test_an_example_that_overflows_in_the_head_adds_exactly_nothing(
    name: str, kept: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head.KEEP, "cpu", kept)
    monkeypatch.setattr(head, "WHOLE_FROM", math.inf)
    model, batch = tiny(name), batch_of(name)
    loss = default_loss(model)
    good = {key: own[1:] for key, own in batch.items()}
    clipper = Clipper(model, loss, clip_norm=0.1)
    clipper.accumulate(good, torch.ones(SIZE - 1, dtype=torch.bool))
    wanted = {key: own.double() for key, own in clipper.take().items()}

    found: Any = clipper._head
    original = found.losses

    def broken(hidden: Tensor, *rest: Any) -> Any:
        return original(hidden * torch.where(torch.arange(len(hidden)) == 0, value, 1.0).view(-1, 1, 1), *rest)

    monkeypatch.setattr(found, "losses", broken)
    clipped = clipper.accumulate(batch, torch.ones(SIZE, dtype=torch.bool))
    got = clipper.take()
    assert clipped.norms.isfinite().tolist() == [False] + (SIZE - 1) * [True]
    assert difference(got, wanted) < 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_example_whose_loss_is_not_finite_adds_nothing_although_its_gradient_is(value: float) -> None:
    model, x = nn.Linear(3, 1), torch.randn(4, 3)
    plain = lambda model, batch: model(batch["x"]).squeeze(1)  # noqa: E731
    added = lambda model, batch: plain(model, batch) + batch["more"]  # noqa: E731
    clipper = Clipper(model, added, clip_norm=0.5)
    more = torch.tensor([0.0, value, 0.0, 0.0])
    clipped = clipper.accumulate({"x": x, "more": more}, torch.ones(4, dtype=torch.bool))
    got = clipper.take()
    clipper.accumulate({"x": x, "more": torch.zeros(4)}, torch.tensor([True, False, True, True]))
    assert difference(got, {key: own.double() for key, own in clipper.take().items()}) < 1e-6
    assert clipped.norms.isfinite().tolist() == [True, False, True, True]


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


@pytest.mark.filterwarnings("ignore:Full backward hook")  # of torch, about the peer's hooks
def test_agrees_with_opacus_where_opacus_is_right() -> None:
    from opacus.grad_sample import GradSampleModule

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    ids = torch.randint(9, (6, 4))
    peer = GradSampleModule(model, loss_reduction="sum")
    peer(ids).square().sum().backward()
    samples = {name: vars(p)["grad_sample"] for name, p in model.named_parameters()}
    norms = torch.stack([value.flatten(1).norm(dim=1) for value in samples.values()]).norm(dim=0)
    peer.remove_hooks()
    clipper = Clipper(
        model, lambda model, batch: model(batch["ids"]).square().sum((1, 2)), clip_norm=float(norms.median())
    )
    clipped = clipper.accumulate({"ids": ids}, torch.ones(6, dtype=torch.bool))
    assert torch.allclose(clipped.norms, norms, rtol=1e-5)
    scale = (float(norms.median()) * (1 - MARGIN) / norms).clamp(max=1)
    wanted = {name: torch.einsum("b,b...->...", scale, value).double() for name, value in samples.items()}
    assert difference(clipper.take(), wanted) < 1e-5


def test_the_model_is_itself_again_afterwards() -> None:
    model = tiny("gemma2")
    classes = [type(module) for module in model.modules()]
    clipper = Clipper(model, causal_lm_loss, clip_norm=1.0)
    clipper.accumulate(batch_of("gemma2"), torch.ones(SIZE, dtype=torch.bool))
    with pytest.raises(InvalidInput):
        clipper.accumulate(batch_of("gemma2"), torch.ones(SIZE + 1, dtype=torch.bool))
    assert [type(module) for module in model.modules()] == classes
    assert all(p.grad is None for p in model.parameters())
    assert model.config.final_logit_softcapping is not None  # pyright: ignore[reportAttributeAccessIssue]


def test_frozen_parameters_get_no_tap_and_no_sum() -> None:
    model = tiny("gpt2", lora=True)
    clipper = Clipper(model, default_loss(model), clip_norm=1.0)
    assert all("lora" in name for name in clipper.names)
    assert all("lora" in name for site in clipper._taps.sites for name in site.own.values())
    assert set(clipper.take()) == set(clipper.names)


@given(terms=st.integers(1, 5000), positions=st.integers(1, 12), seed=st.integers(0, 2**31), loud=st.floats(0.1, 1e3))
def test_the_spread_covers_the_rounding_of_the_norm(terms: int, positions: int, seed: int, loud: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    y, x = (torch.randn(2, positions, n, generator=generator) * loud for n in (terms, 3))
    y[:, positions // 2 :] = -y[:, : positions - positions // 2] * (1 + 1e-6)  # cancels, as far as it can
    exact = torch.einsum("bto,bti->boi", y.double(), x.double()).square().sum((1, 2))
    for capture in (captures.Factors(y, x), torch.einsum("bto,bti->boi", y, x)):
        square, spread = captures.squared_norms([capture])
        if isinstance(capture, Tensor):
            exact = capture.double().square().sum((1, 2))
        assert ((square.double() - exact).abs() <= spread.double()).all()


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Flatten(), nn.Linear(6, 1)), "max_norm"),
        (
            nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(6, 1)),
            "scale_grad_by_freq",
        ),
    ],
)
def test_embeddings_that_couple_examples_are_refused(model: nn.Module, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        Clipper(model, lambda model, batch: model(batch["ids"]).sum(1), clip_norm=1.0)


def test_bad_arguments_are_refused_with_a_reason() -> None:
    model = nn.Linear(2, 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(batch["x"]).squeeze(1)

    for clip_norm in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput, match="clip_norm"):
            Clipper(model, loss, clip_norm=clip_norm)
    with pytest.raises(InvalidInput, match="loss scaler"):
        Clipper(model, loss, clip_norm=1.0, autocast=torch.float16)
    with pytest.raises(InvalidInput, match="no parameter"):
        Clipper(nn.ReLU(), loss, clip_norm=1.0)
    clipper = Clipper(model, lambda model, batch: model(batch["x"]).mean(), clip_norm=1.0)
    with pytest.raises(InvalidInput, match="one for each"):
        clipper.accumulate({"x": torch.randn(3, 2)}, torch.ones(3, dtype=torch.bool))
    flat = nn.Sequential(nn.Flatten(0, 1), nn.Linear(2, 1))
    clipper = Clipper(flat, lambda model, batch: model(batch["x"]).view(3, 2).sum(1), clip_norm=1.0)
    with pytest.raises(InvalidInput, match="first dimension"):
        clipper.accumulate({"x": torch.randn(3, 2, 2)}, torch.ones(3, dtype=torch.bool))


def test_a_model_that_does_more_to_its_logits_is_computed_by_its_own_loss() -> None:
    model: Any = tiny("llama")

    def tempered(*arguments: Any, **keywords: Any) -> Any:
        output = type(model).forward(model, *arguments, **keywords)
        output.logits = output.logits.clamp(-1, 1) * 0.3
        return output

    model.forward = tempered
    clipper = check(model, causal_lm_loss, batch_of("llama"))
    assert clipper._head is None


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2", "llama"])
def test_language_models_are_computed_by_the_chunked_head(name: str) -> None:
    model = tiny(name)
    assert check(model, default_loss(model), batch_of(name))._head is not None


def test_norms_and_sums_never_take_the_short_cuts_of_float32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    product = captures._matmul32

    def watched(a: Tensor, b: Tensor) -> Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return product(a, b)

    monkeypatch.setattr(captures, "_matmul32", watched)
    torch.set_float32_matmul_precision("medium")
    try:
        clipper = Clipper(tiny("gpt2"), causal_lm_loss, clip_norm=1.0)
        clipper.accumulate(batch_of("gpt2"), torch.ones(SIZE, dtype=torch.bool))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}


class Adds(nn.Module):
    """Autograd hands the same tensor to both parameters as their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.one + self.other


def test_parameters_that_share_one_gradient_tensor_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    left, right = nn.Linear(3, 4), nn.Linear(3, 4)
    right.bias = left.bias
    batch = {"x": torch.randn(5, 3)}
    both = nn.ModuleList([left, right])
    check(both, lambda model, batch: (model[0](batch["x"]) + model[1](batch["x"])).square().sum(1), batch)
    first, second = Adds(), Adds()
    second.one = first.one
    batch = {"x": torch.randn(5, 4)}
    check(nn.Sequential(first, second), lambda model, batch: model(batch["x"]).square().sum(1), batch)


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


@pytest.mark.parametrize("align", [1, 64])
@pytest.mark.parametrize("label", [-1, -101, 10**6])
def test_labels_that_are_no_words_are_refused(label: int, align: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(head.ALIGN, "cpu", align)
    batch = batch_of("gpt2")
    batch["labels"][1, 2] = label
    clipper = Clipper(tiny("gpt2"), causal_lm_loss, clip_norm=1.0)
    with pytest.raises(InvalidInput, match="1 labels are none of the model's"):
        clipper.accumulate(batch, torch.ones(SIZE, dtype=torch.bool))
