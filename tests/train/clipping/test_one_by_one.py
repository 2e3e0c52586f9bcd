"""The last resort, a pass for each example, is exact for any model; families that need it, or that just do not."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from attacks import all_real, squares, tried
from models import PADDING, VOCABULARY, tiny_batch
from reference import check, clipped_sum, difference
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper
from hush.train.language_models import default_loss, masked_lm_loss

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

NOTICE = "gradients are taken example by example, which is exact and slow"


def families() -> dict[str, tuple[Any, bool]]:
    """Tiny models, and whether each needs a pass for every example."""
    import transformers as hf

    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40}
    shape |= {"initializer_range": 0.2, "pad_token_id": PADDING, "bos_token_id": 1, "eos_token_id": 2}
    masked: dict[str, Any] = shape | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    experts: dict[str, Any] = shape | {"num_key_value_heads": 2, "num_experts_per_tok": 2, "attention_dropout": 0.0}
    opt: dict[str, Any] = {
        name: value for name, value in shape.items() if name not in ("intermediate_size", "initializer_range")
    }
    opt |= {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, "init_std": 0.2}
    qwen: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    relative: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    return {
        "falcon": (lambda: hf.FalconForCausalLM(hf.FalconConfig(**shape)), False),
        "opt": (lambda: hf.OPTForCausalLM(hf.OPTConfig(**opt)), False),
        "mixtral": (lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**experts, num_local_experts=4)), False),
        "qwen2 moe": (lambda: hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**experts, **qwen)), False),
        "mpnet": (lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**masked)), True),
        "deberta": (lambda: hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**masked, **relative)), True),
    }


@pytest.mark.filterwarnings(f"ignore:{NOTICE}", "ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("name", families())
def test_families_with_flattened_shared_and_routed_rows_are_exact(name: str) -> None:
    torch.manual_seed(0)
    make, one_by_one = families()[name]
    model = make().train()
    loss = default_loss(model)
    kind = "bert" if loss is masked_lm_loss else "gpt2"
    batch = tiny_batch(kind, 5, generator=torch.Generator().manual_seed(3))
    tried(model, loss, batch)
    clipper = check(model, loss, batch)
    assert (clipper.plan_for(batch).one_by_one is not None) == one_by_one


class Recurrent(nn.Module):
    """Its LSTM cannot be run by vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(5, 5), nn.LSTM(5, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.first(x))[0]


def batch_of(size: int, seed: int = 0) -> dict[str, Tensor]:
    return {"x": torch.randn(size, 3, 5, generator=torch.Generator().manual_seed(seed))}


def test_the_plan_and_a_notice_give_the_reason_and_the_cost() -> None:
    clipper = Clipper(Recurrent(), squares, clip_norm=1.0)
    with pytest.warns(UserWarning, match=rf"{NOTICE}: module lstm \(LSTM\)") as notices:
        plan = clipper.plan_for(batch_of(4))
    clipper.plan_for(batch_of(5))  # one notice for each clipper
    assert {row.parameter for row in plan.routes} == set(clipper.names)
    assert {row.route for row in plan.routes} == {"example by example"}
    assert "lstm" in str(plan)
    assert "own" in str(notices[0].message)


@pytest.mark.filterwarnings(f"ignore:{NOTICE}")
@pytest.mark.parametrize("options", [{}, {"compile": "aot_eager"}], ids=["eager", "compiled"])
def test_padded_slots_and_broken_examples_add_exactly_nothing(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, batch = Recurrent(), batch_of(5)
    real = torch.tensor([True, True, False, True, True])
    batch["x"][1] = torch.nan
    sums, norms = clipped_sum(model, squares, batch, real, clip_norm=0.1 * (1 - MARGIN))
    clipper = Clipper(model, squares, clip_norm=0.1, **options)
    clipped = clipper.accumulate(batch, real)
    assert difference(clipper.take(), sums) < 1e-5
    assert clipped.norms[1].isnan()
    kept = [0, 3, 4]
    assert torch.allclose(clipped.norms[kept].double(), norms[kept], rtol=1e-5)


@pytest.mark.filterwarnings(f"ignore:{NOTICE}")
def test_bfloat16_never_exceeds_the_clip_norm() -> None:
    torch.manual_seed(0)
    clipper = Clipper(Recurrent(), squares, clip_norm=0.05, autocast=torch.bfloat16)
    for example in range(4):
        clipper.accumulate(batch_of(4), torch.arange(4) == example)
        total = sum(float(value.double().square().sum()) for value in clipper.take().values()) ** 0.5
        assert 0.04 < total <= 0.05


def test_shards_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hush.train.clipping.is_sharded", lambda _: True)
    with pytest.raises(InvalidInput, match=r"\(LSTM\).*train replicas instead of shards"):
        Clipper(Recurrent(), squares, clip_norm=1.0).accumulate(batch_of(4), all_real(4))


@pytest.mark.filterwarnings(f"ignore:{NOTICE}")
def test_a_loss_that_is_no_loss_per_example_is_refused() -> None:
    def averaged(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return squares(model, batch).mean()

    with pytest.raises(InvalidInput, match="one loss for each"):
        Clipper(Recurrent(), averaged, clip_norm=1.0).accumulate(batch_of(3), all_real(3))
