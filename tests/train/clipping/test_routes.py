"""Clipping plans: one for each shape of batch, immutable, with the route of every trained layer and its reason."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from models import NAMES, batch_of, tiny
from torch import Tensor, nn

from hush.train.clipping import Clipper, routes
from hush.train.language_models import causal_lm_loss, default_loss


class Twice(nn.Module):
    """A linear layer that is called twice, an embedding, and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.again = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.idle = nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.again(self.again(self.words(ids)))).sum((1, 2))


def losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(batch["ids"])


def ids(size: int = 3, length: int = 5) -> dict[str, Tensor]:
    return {"ids": torch.arange(size * length).view(size, length) % 50}


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_every_trained_parameter_has_a_route_and_a_reason(name: str, lora: bool) -> None:
    model = tiny(name, lora=lora)
    clipper = Clipper(model, default_loss(model), clip_norm=1.0)
    assert clipper.routes() == ()
    plan = clipper.plan_for(batch_of(name))
    assert {row.parameter for row in plan.routes} == set(clipper.names)
    assert all(row.reason for row in plan.routes)
    assert clipper.routes() == plan.routes
    assert str(plan).count("\n") == len(plan.routes)


def test_a_shape_is_planned_once_and_another_gets_a_plan_of_its_own() -> None:
    clipper = Clipper(Twice(), losses, clip_norm=1.0)
    clipper.accumulate(ids(), torch.ones(3, dtype=torch.bool))
    first = clipper.plan_for(ids())
    assert clipper.plan_for(ids()) is first
    assert clipper.plan_for(ids(length=6)) is not first
    assert first.batch_shape == (("ids", (3, 5)),)


def test_a_plan_cannot_be_changed() -> None:
    plan: Any = Clipper(Twice(), losses, clip_norm=1.0).plan_for(ids())
    first: Any = plan.routes[0]
    with pytest.raises(FrozenInstanceError):
        first.route = "ghost norm"
    with pytest.raises(FrozenInstanceError):
        plan.routes = ()
    with pytest.raises(TypeError):
        plan.taps["again", "weight"] = None


def test_routes_follow_how_a_layer_is_used() -> None:
    rows = {row.parameter: row for row in Clipper(Twice(), losses, clip_norm=1.0).plan_for(ids()).routes}
    assert (rows["words.weight"].layer, rows["words.weight"].route) == ("words", "ghost norm")
    assert rows["again.weight"].route == "dense per-example gradient"
    assert rows["again.weight"].reason == "again is called 2 times in a forward pass"
    assert "bias" in rows["again.bias"].reason
    assert rows["norm.weight"].route == rows["norm.bias"].route == "vmap fallback"
    assert "LayerNorm" in rows["norm.weight"].reason
    assert "not used" in rows["idle.weight"].reason


@pytest.mark.parametrize(("balance", "route"), [(0.0, "dense per-example gradient"), (1e9, "ghost norm")])
def test_the_cheaper_route_is_taken(balance: float, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BALANCE", {("cpu", 4): balance})
    clipper = Clipper(tiny("llama"), lambda *arguments: causal_lm_loss(*arguments), clip_norm=1.0)
    rows = [row for row in clipper.plan_for(batch_of("llama")).routes if row.layer.endswith("_proj")]
    assert rows
    assert {row.route for row in rows} == {route}


def test_what_shares_its_weight_with_the_lm_head_comes_in_factors() -> None:
    model = tiny("gemma2")
    rows = Clipper(model, causal_lm_loss, clip_norm=1.0).plan_for(batch_of("gemma2")).routes
    shared = {row.layer: row for row in rows if row.parameter == "model.embed_tokens.weight"}
    assert shared["lm_head"].route == "lm head"
    assert shared["model.embed_tokens"].route == "ghost norm"
    assert "lm head" in shared["model.embed_tokens"].reason


def test_planning_adds_nothing_and_draws_no_random_number() -> None:
    model = tiny("gpt2", dropout=0.3)
    clipper = Clipper(model, causal_lm_loss, clip_norm=1.0)
    before = torch.get_rng_state()
    clipper.plan_for(batch_of("gpt2"))
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(value.any() for value in clipper.take().values())
