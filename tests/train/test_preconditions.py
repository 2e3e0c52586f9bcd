"""Couplings that can be read off a model, a batch or a scaler are refused by name; nothing harmless is."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from private_runs import DATA, private_training
from reference import small_plan
from torch import Tensor, nn

import hush
from hush.accounting.sampling_error import sampling_error
from hush.errors import CannotCertify, InvalidInput
from hush.train.preconditions import refuse_batch, refuse_coupled, refuse_passed_ceilings, refuse_scaler


def inside(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"part": module}))


class OwnBatchNorm(nn.Module):
    """A re-implementation without torch's base class, as several libraries have one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4))


class FrozenBatchNorm2d(OwnBatchNorm):
    pass


class Experts(nn.Module):
    def __init__(self, expert_capacity: int | None) -> None:
        super().__init__()
        self.expert_capacity = expert_capacity


class Routed(nn.Module):
    def __init__(self, *, output_router_logits: bool, router_aux_loss_coef: float) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            output_router_logits=output_router_logits, router_aux_loss_coef=router_aux_loss_coef
        )


class FakeQuantizeBase(nn.Module):
    pass


COUPLED = {
    "BatchNorm1d": lambda: nn.BatchNorm1d(4),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4, affine=False),
    "BatchNorm3d": lambda: nn.BatchNorm3d(4),
    "LazyBatchNorm1d": lambda: nn.LazyBatchNorm1d(affine=False),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(4),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    "OwnBatchNorm": OwnBatchNorm,
    "Experts": lambda: Experts(64),
    "Routed": lambda: Routed(output_router_logits=True, router_aux_loss_coef=0.01),
    "_SpectralNorm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "Linear": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "FakeQuantizeBase": FakeQuantizeBase,
    "DataParallel": lambda: nn.DataParallel(nn.Linear(4, 4)),
}

HARMLESS = {
    "LayerNorm": lambda: nn.LayerNorm(4),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "RMSNorm": lambda: nn.RMSNorm(4),
    "InstanceNorm": lambda: nn.InstanceNorm2d(4, affine=True),
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(2),
    "Dropout": lambda: nn.Dropout(0.1),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "frozen batch norm": lambda: nn.BatchNorm2d(4).eval(),
    "frozen batch norm of another library": FrozenBatchNorm2d,
    "frozen spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "experts without capacity": lambda: Experts(None),
    "router without its loss": lambda: Routed(output_router_logits=False, router_aux_loss_coef=0.01),
    "router with a weight of 0": lambda: Routed(output_router_logits=True, router_aux_loss_coef=0.0),
}


@pytest.mark.parametrize("kind", COUPLED)
def test_a_part_that_ties_examples_is_refused_by_path_and_class(kind: str) -> None:
    with pytest.raises(InvalidInput, match=rf"module '1\.part[^']*' \({kind}\)"):
        refuse_coupled(inside(COUPLED[kind]()))


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_part_that_treats_examples_apart_is_accepted(kind: str) -> None:
    refuse_coupled(inside(HARMLESS[kind]()))


def test_batch_norm_without_stored_statistics_is_refused_even_in_eval_mode() -> None:
    with pytest.raises(InvalidInput, match="BatchNorm1d"):
        refuse_coupled(inside(nn.BatchNorm1d(4, track_running_stats=False)).eval())


def test_frozen_batch_norm_is_refused_once_train_thaws_it() -> None:
    model = inside(nn.BatchNorm1d(4).eval())
    refuse_coupled(model)
    with pytest.raises(InvalidInput, match="freeze it"):
        refuse_coupled(model.train())


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no trainable parameter"):
        refuse_coupled(nn.Linear(2, 2).requires_grad_(False))


def test_parameters_that_cannot_be_trained_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"'weight'.*meta device"):
        refuse_coupled(nn.Linear(2, 2, device="meta"))
    with pytest.raises(InvalidInput, match=r"'weight'.*no shape yet"):
        refuse_coupled(nn.LazyLinear(2))
    with pytest.raises(InvalidInput, match=r"'weight'.*not a real floating-point"):
        refuse_coupled(nn.Linear(2, 2, dtype=torch.complex64))

    class Quantised(nn.Parameter):
        pass

    model = nn.Linear(2, 2, bias=False)
    model.weight = Quantised(torch.ones(2, 2))
    with pytest.raises(InvalidInput, match=r"'weight' \(Quantised"):
        refuse_coupled(model)


def test_frozen_parameters_may_be_of_any_kind() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_parameter("packed", nn.Parameter(torch.ones(3, dtype=torch.uint8), requires_grad=False))
    model.register_parameter("absent", nn.Parameter(torch.ones(3, device="meta"), requires_grad=False))
    refuse_coupled(model)


def test_gradient_hooks_on_trainable_parameters_are_refused() -> None:
    before, after = nn.Linear(2, 2), nn.Linear(2, 2)
    before.weight.register_hook(lambda gradient: gradient * 2)
    after.weight.register_post_accumulate_grad_hook(lambda _: None)
    for model in (before, after):
        with pytest.raises(InvalidInput, match=r"'weight'.*gradient hook"):
            refuse_coupled(model)


def test_forward_hooks_are_accepted() -> None:
    # This is how Hugging Face models let gradients flow into frozen embeddings.
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())
    refuse_coupled(model)


@pytest.mark.parametrize("name", ["mixtral", "switch", "gpt2", "llama", "gemma2", "bert", "vit"])
def test_hugging_face_models_are_judged_by_what_they_compute(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text = small | {"vocab_size": 11}
    grouped = text | {"num_key_value_heads": 1, "head_dim": 4}
    match name:
        case "mixtral":
            config = transformers.MixtralConfig(**grouped, num_local_experts=2, output_router_logits=True)
            model = transformers.MixtralForCausalLM(config)
            with pytest.raises(InvalidInput, match=r"load-balancing loss.*output_router_logits = False"):
                refuse_coupled(model)
            model.config.output_router_logits = False
        case "switch":
            config = transformers.SwitchTransformersConfig(
                vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2, num_experts=2
            )
            with pytest.raises(InvalidInput, match="expert_capacity"):
                refuse_coupled(transformers.SwitchTransformersForConditionalGeneration(config))
            return
        case "gpt2":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11))
        case "llama":
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**grouped))
        case "gemma2":
            model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**grouped))
        case "bert":
            model = transformers.BertForMaskedLM(transformers.BertConfig(**text))
        case _:
            model = transformers.ViTForImageClassification(
                transformers.ViTConfig(**small, image_size=8, patch_size=4, num_channels=1)
            )
    refuse_coupled(model.train())


def test_a_scaler_is_refused_unless_it_is_switched_off() -> None:
    refuse_scaler(None)
    refuse_scaler(torch.amp.GradScaler("cpu", enabled=False))
    for scaler in (torch.amp.GradScaler("cpu"), object()):
        with pytest.raises(InvalidInput, match="bfloat16 or float32"):
            refuse_scaler(scaler)


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize("key", ["num_items_in_batch", "cu_seq_lens_q", "cu_seqlens", "max_length_k", "seq_idx"])
def test_counts_over_the_batch_and_packed_sequences_are_refused_by_key(key: str) -> None:
    with pytest.raises(InvalidInput, match=key):
        refuse_batch({"input_ids": ids([1, 2], [3, 4]), key: torch.tensor([2, 2])}, 2)


def test_a_batch_needs_one_row_per_example() -> None:
    refuse_batch({"x": torch.zeros(3, 2), "y": torch.zeros(3)}, 3)
    for odd in (torch.zeros(1, 6), torch.zeros(()), torch.zeros(4)):
        with pytest.raises(InvalidInput, match="3 examples"):
            refuse_batch({"x": torch.zeros(3, 2), "odd": odd}, 3)
    with pytest.raises(InvalidInput, match="not a tensor"):
        refuse_batch({"x": torch.zeros(3, 2), "text": ["a", "b", "c"]}, 3)  # pyright: ignore[reportArgumentType]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 4), st.booleans())
def test_positions_that_start_again_within_a_row_are_refused_and_padding_is_not(
    lengths: list[int], padding: int, left: bool
) -> None:
    counted = [position for length in lengths for position in range(length)]
    # Hugging Face numbers padded positions 1 on the left and 0 on the right, both outside the attention mask.
    row = [1] * padding + counted if left else counted + [0] * padding
    seen = [0] * padding + [1] * len(counted) if left else [1] * len(counted) + [0] * padding
    batch = {"position_ids": ids(row), "attention_mask": ids(seen)}
    if any(length > 1 for length in lengths[1:]):  # a restart that goes on; single tokens look like padding
        with pytest.raises(InvalidInput, match="starts again"):
            refuse_batch(batch, 1)
    elif len(lengths) == 1:
        refuse_batch(batch, 1)


def test_packing_is_seen_without_an_attention_mask() -> None:
    with pytest.raises(InvalidInput, match="starts again"):
        refuse_batch({"position_ids": ids([0, 1, 2, 0, 1])}, 1)
    refuse_batch({"position_ids": ids([0, 1, 2, 0, 0])}, 1)  # padded


def test_a_ceiling_that_sampling_would_pass_is_refused_before_training() -> None:
    """By however little: posterior plus the distance of computed draws and noise from ideal ones must stay below."""
    plan = small_plan()
    exact = replace(plan, ceiling=plan.posterior)
    with pytest.raises(CannotCertify, match=r"above the ceiling, by up to .* make the plan again"):
        private_training(plan=exact)
    private_training().close()
    refuse_passed_ceilings(plan, 10**9)
    with pytest.raises(CannotCertify, match="2 secrets"):
        refuse_passed_ceilings(plan, 10**18)
    with pytest.raises(CannotCertify, match="2048 devices"):
        refuse_passed_ceilings(plan, 10, streams=2048)


def test_a_batch_whose_sum_is_not_proven_is_refused_before_training() -> None:
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=2**19, num_secrets=1)
    plan = hush.make_plan(incidence, prior=1e-3, ceiling=0.5, batch_size=2**18 + 1, rounds=1, capacity="none")
    with pytest.raises(CannotCertify, match="up to 262,144 examples"):
        private_training(plan=plan)


def test_the_certificate_of_a_run_states_what_sampling_adds() -> None:
    private = private_training()
    for round in private.rounds():
        for part in round.micro_batches():
            private.accumulate({name: rows[part.examples] for name, rows in DATA.items()}, part.real)
        private.step()
    certificate = private.finish()
    trained = sum(parameter.numel() for parameter in private.model.parameters())
    assert certificate.trained_parameters == trained
    assert certificate.sampling_error == sampling_error(trained, batch_size=8.0, rounds=12)
