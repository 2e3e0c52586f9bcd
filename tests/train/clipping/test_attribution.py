"""Rows are attributed to their own examples, or the model is refused: gathered, routed, sorted and shared rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attacks import Around, all_real, norm_of, squares
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import clipped_sum, difference
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper
from hush.train.clipping.attribution import Weighing, is_due

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop",
    "ignore:gradients are taken example by example",
    "ignore:.*should not be instantiated:DeprecationWarning",  # torch's own, while it compiles
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


class Choosing(TwoLayers):
    """The same without a branch."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        turn = x[0, 0, 0] > 1
        y = self.second(torch.where(turn, h.flip(0), h))
        return 5 * torch.where(turn, y.flip(0), y)


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
    "reversing without a branch": Choosing,
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


def test_no_example_moves_the_sum_by_more_than_the_clip_norm_through_gathered_rows() -> None:
    """The first batch gathers no row, the second as many as there are examples, three of them from one example."""
    torch.manual_seed(0)
    clipper = Clipper(MaskedRows(), squares, clip_norm=CLIP_NORM)
    quiet, crowded = batches()[0], batches()[2]
    clipper.accumulate(quiet, all_real(SIZE))
    clipper.take()
    clipper.accumulate(crowded, all_real(SIZE))
    full = clipper.take()
    for example in range(SIZE):
        clipper.accumulate(crowded, torch.arange(SIZE) != example)
        without = clipper.take()
        assert norm_of({name: full[name] - without[name] for name in full}) <= CLIP_NORM


@pytest.mark.parametrize("name", MODELS)
def test_examples_that_are_all_alike_do_not_hide_whose_rows_are_whose(name: str) -> None:
    torch.manual_seed(0)
    alike = [{"x": batch["x"][:1].expand(SIZE, -1, -1).clone()} for batch in batches()[:2]]
    assert exact_or_refused(MODELS[name](), [*alike, *batches()]) == ""


@pytest.mark.parametrize("name", ["sorted examples", "token router"])
def test_rows_that_the_data_send_around_are_exact_where_compilation_is_asked_for(name: str) -> None:
    torch.manual_seed(0)
    assert exact_or_refused(MODELS[name](), batches()[:4], compile="aot_eager") == ""


class OtherwiseCompiled(TwoLayers):
    """Turns the examples around in compiled passes alone."""

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        return 5 * self.second(h.flip(0)).flip(0) if torch.compiler.is_compiling() else 5 * self.second(h)


def test_compiled_passes_are_proven_as_they_are() -> None:
    torch.manual_seed(0)
    with pytest.raises(InvalidInput, match="rows of second do not belong"):
        Clipper(OtherwiseCompiled(), squares, clip_norm=CLIP_NORM, compile="aot_eager").accumulate(
            batches()[0], all_real(SIZE)
        )


def test_dropout_does_not_disturb_the_proof() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)).train()
    for backend in (False, "aot_eager"):
        clipper = Clipper(model, squares, clip_norm=CLIP_NORM, compile=backend)
        for batch in batches()[:4]:
            clipper.accumulate(batch, all_real(SIZE))
        assert clipper.plan_for(batches()[0]).one_by_one is None


class Stateful(TwoLayers):
    """From its n-th pass on it turns the examples around, for a reason that is in no tensor."""

    turned = False

    def send(self, h: Tensor, x: Tensor) -> Tensor:
        return 5 * self.second(h.flip(0)).flip(0) if self.turned else 5 * self.second(h)


def test_a_model_that_changes_between_two_looks_is_refused_at_the_next() -> None:
    torch.manual_seed(0)
    model = Stateful()
    clipper = Clipper(model, squares, clip_norm=CLIP_NORM)
    for batch in batches()[:2]:
        clipper.accumulate(batch, all_real(SIZE))
    model.turned = True
    clipper.accumulate(batches()[2], all_real(SIZE))  # the third is not looked at
    with pytest.raises(InvalidInput, match=r"rows of second do not belong .* their sums cannot be relied on"):
        clipper.accumulate(batches()[3], all_real(SIZE))


def test_a_model_that_is_compiled_again_is_looked_at_again() -> None:
    torch.manual_seed(0)
    model = Stateful()
    clipper = Clipper(model, squares, clip_norm=CLIP_NORM, compile="aot_eager")
    for batch in batches()[:2]:
        clipper.accumulate(batch, all_real(SIZE))
    clipper.take()
    model.turned = True
    clipped = clipper.accumulate(batches()[2], all_real(SIZE))
    _, norms = clipped_sum(model, squares, batches()[2], all_real(SIZE), clip_norm=CLIP_NORM)
    assert torch.allclose(clipped.norms.double(), norms, rtol=1e-4)


def test_options_that_let_the_data_decide_shapes_in_a_compiled_pass_are_refused() -> None:
    option: Any = {"capture_dynamic_output_shape_ops": True}
    with (
        torch._dynamo.config.patch(option),  # pyright: ignore[reportAttributeAccessIssue]
        pytest.raises(InvalidInput, match="capture_dynamic_output_shape_ops"),
    ):
        Clipper(MaskedRows(), squares, clip_norm=CLIP_NORM, compile="aot_eager")


class Shares(nn.Module):
    """A module that vmap runs for each example, with a table of as many rows as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return torch.tanh(x * self.gain) + (x * self.gain) @ table.t() @ table


def test_a_table_that_all_examples_share_is_not_dealt_out_to_them() -> None:
    torch.manual_seed(0)
    for rows in (SIZE, 2 * SIZE, SIZE + 1):
        table = torch.randn(rows, WIDTH)
        model = Around(Shares(), lambda part, x, table=table: part(x, table))
        assert exact_or_refused(model, batches()) == ""
        clipper = Clipper(model, squares, clip_norm=CLIP_NORM)
        assert clipper.plan_for(batches()[0]).routes[0].route == "vmap fallback"


def test_a_batch_without_gradients_leaves_the_proof_open() -> None:
    model = nn.Linear(WIDTH, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    clipper = Clipper(model, squares, clip_norm=CLIP_NORM)
    for batch in batches()[:3]:
        clipper.accumulate(batch, all_real(SIZE))
        assert clipper._open_proofs
    nn.init.ones_(model.weight)
    clipper.accumulate(batches()[3], all_real(SIZE))
    assert not clipper._open_proofs


def test_looks_are_frequent_at_first_and_never_end() -> None:
    assert [use for use in range(1, 40) if is_due(use)] == [1, 2, 4, 8, 16, 32]
    assert all(any(is_due(use) for use in range(start, start + 256)) for start in range(1, 5000, 97))


@given(
    size=st.integers(2, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    share=st.floats(0.2, 1.0),
    seed=st.integers(0, 2**31),
)
def test_a_weighing_finds_any_pair_of_examples_that_mix(size: int, dtype: torch.dtype, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(size, 3, 7, generator=generator).to(dtype)
    i, j = torch.randperm(size, generator=generator)[:2].tolist()
    foreign = share * torch.randn(3, 7, generator=generator)

    def wrong(is_mixed: bool) -> bool:
        weighing = Weighing(size, {dtype}, torch.device("cpu"))
        mixed = gradients.clone()
        mixed[j] += is_mixed * foreign.to(dtype)
        weighing.see_plain({"tap": mixed})
        for weight in weighing.weights:
            weighed = gradients * weight.view(-1, 1, 1).to(dtype)
            weighed[j] += is_mixed * (foreign.to(dtype) * weight[i].to(dtype))
            if weighing.wrong(weight, {"tap": weighed}):
                return True
        return False

    assert wrong(True)
    assert not wrong(False)


@given(size=st.integers(2, 40), seed=st.integers(0, 2**31))
def test_a_weighing_allows_for_the_type_that_a_pass_computes_in(size: int, seed: int) -> None:
    """Kernels that add in an order of their own round a bfloat16 pass differently, also where gradients are float32."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(size, 3, 7, generator=generator)
    rounding = 1 + 2.0**-9 * (2 * torch.rand(size, 3, 7, generator=generator) - 1)

    def wrong(dtypes: set[torch.dtype]) -> bool:
        weighing = Weighing(size, dtypes, torch.device("cpu"))
        weighing.see_plain({"tap": gradients})
        return any(
            weighing.wrong(weight, {"tap": gradients * rounding * weight.view(-1, 1, 1)}) for weight in weighing.weights
        )

    assert not wrong({torch.float32, torch.bfloat16})
    assert wrong({torch.float32})


# ---- random models ----


class Block(nn.Module):
    """A layer, and what is done to the rows around it; a loss stays its own example's whatever that is."""

    def __init__(self, kind: str, layer: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(WIDTH, WIDTH) if layer == "linear" else nn.LayerNorm(WIDTH)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        score, flat = x[..., 0], h.flatten(0, 1)
        marked = (score > 0.5).flatten()
        match self.kind:
            case "plain":
                y = self.layer(h)
            case "flattened":
                y = self.layer(flat).view_as(h)
            case "one token":
                y = h + self.layer(h[:, 0]).unsqueeze(1)
            case "gathered":
                y = flat.index_put((marked.nonzero()[:, 0],), self.layer(flat[marked])).view_as(h)
            case "sorted":
                order = score[:, 0].argsort()
                y = self.layer(h[order])[order.argsort()]
            case "listed":
                order = score[:, 0].argsort().tolist()
                y = self.layer(h[order])[torch.tensor(order).argsort()]
            case "branching":
                y = self.layer(h.flip(0)).flip(0) if score[0, 0] > 0.5 else self.layer(h)
            case "skipping":
                y = torch.where(marked.view(h.shape[:2]).unsqueeze(-1), self.layer(h), h) if marked.any() else h
            case "time first":
                y = self.layer(h.transpose(0, 1)).transpose(0, 1)
            case _:  # a mixture of experts, whose experts are one layer and none
                rows = torch.where(marked)[0]
                y = flat.index_add(0, rows, self.layer(flat[rows])).view_as(h) if len(rows) else h
        return torch.tanh(y) + 0.1 * h


class Stack(nn.Module):
    def __init__(self, blocks: list[tuple[str, str]]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(*block) for block in blocks)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = block(h, x)
        return h


HONEST = ["plain", "flattened", "one token"]
MOVING = ["gathered", "sorted", "listed", "branching", "skipping", "time first", "experts"]
LAYERS = st.sampled_from(["linear", "norm"])


def random_batches(size: int, length: int, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(5):
        x = torch.randn(size, length, WIDTH, generator=generator)
        marked = torch.rand(size, length, generator=generator) < 0.2 * number  # none at first
        x[..., 0] = marked + 0.1 * torch.rand(size, length, generator=generator)
        found.append({"x": x})
    return found


def settings_of(kinds: list[str]) -> dict[str, Any]:
    blocks = st.lists(st.tuples(st.sampled_from(kinds), LAYERS), min_size=1, max_size=3)
    return {"blocks": blocks, "size": st.integers(1, 5), "length": st.integers(1, 4), "seed": st.integers(0, 2**31)}


@settings(max_examples=12)
@given(**settings_of(HONEST + MOVING))
def test_random_models_are_exact_or_refused(blocks: list[tuple[str, str]], size: int, length: int, seed: int) -> None:
    torch.manual_seed(seed)
    exact_or_refused(Stack(blocks), random_batches(size, length, seed))


@pytest.mark.slow
@settings(max_examples=400)
@given(**settings_of(HONEST + MOVING))
def test_many_random_models_are_exact_or_refused(
    blocks: list[tuple[str, str]], size: int, length: int, seed: int
) -> None:
    torch.manual_seed(seed)
    exact_or_refused(Stack(blocks), random_batches(size, length, seed))


@settings(max_examples=6)
@given(**settings_of(HONEST))
def test_honest_models_are_neither_refused_nor_slowed_down(
    blocks: list[tuple[str, str]], size: int, length: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model, sequence = Stack(blocks), random_batches(size, length, seed)
    assert exact_or_refused(model, sequence) == ""
    plan = Clipper(model, squares, clip_norm=CLIP_NORM).plan_for(sequence[0])
    assert plan.one_by_one is None
    assert plan.every_batch is None
