"""LoRA whose weights never move while training looks healthy: reported to Opacus, and what hush does in its place.

Report: github.com/meta-pytorch/opacus/issues/820. GPT-2 with LoRA on c_attn; the loss fell, epsilon was counted, and
the weights of the adapters were the same before and after. Cause: github.com/huggingface/peft/issues/3409. Something
put other tensors in the place of the parameters after the optimizer and the hooks had taken hold of them, so that the
optimizer updated tensors that no model used.
"""

from importlib.metadata import version
from typing import Any

import pytest
import torch
from models import SIZE, batch_of, tiny
from peft import LoraConfig, get_peft_model
from reference import check
from torch import nn

import hush
from hush.errors import InvalidInput
from hush.train import PrivateTraining, causal_lm_loss


def adapted() -> Any:
    """The set-up of the report on a tiny GPT-2."""
    config = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return get_peft_model(tiny("gpt2"), config).train()  # pyright: ignore[reportArgumentType]


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def replace_parameters(model: nn.Module) -> None:
    """Equal values in other tensors, as after a lazy loading or a conversion."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad))


def steps(model: nn.Module, *, replaced_before: int | None) -> None:
    """Four private rounds of AdamW; parameters are replaced before this one."""
    incidence = hush.Incidence.from_pairs([0, 1], [0, 1], num_examples=SIZE, num_secrets=2)
    plan = hush.make_plan(incidence, prior=1e-6, ceiling=1e-2, batch_size=2, rounds=4, capacity="none")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    private, whole = PrivateTraining(model, optimizer, plan, loss=causal_lm_loss), batch_of("gpt2")
    for current in private.rounds():
        if current.index == replaced_before:
            replace_parameters(model)
        for batch in current.micro_batches():
            rows = torch.as_tensor(batch.examples)
            private.accumulate({name: value[rows] for name, value in whole.items()}, batch.real)
        private.step()
    assert private.finish().is_real


def test_norms_of_adapters_are_those_of_one_example_at_a_time_and_every_adapter_moves() -> None:
    model = adapted()
    before = trained(model)
    check(model, causal_lm_loss, batch_of("gpt2"))
    steps(model, replaced_before=None)
    after = trained(model)
    assert {name.split(".")[-3] for name in after} == {"lora_A", "lora_B"}
    assert all(not torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("model", [adapted, lambda: tiny("gpt2")], ids=["adapters", "all parameters"])
@pytest.mark.parametrize("round", [0, 2])
def test_parameters_that_were_replaced_after_training_began_are_refused(model: Any, round: int) -> None:
    with pytest.raises(InvalidInput, match=r"trainable parameters of the model \(.*are other tensors than when"):
        steps(model(), replaced_before=round)


def test_an_optimizer_of_parameters_that_were_replaced_before_is_refused_too() -> None:
    model = adapted()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    replace_parameters(model)
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=SIZE, num_secrets=1)
    plan = hush.make_plan(incidence, prior=1e-6, ceiling=1e-2, batch_size=2, rounds=1, capacity="none")
    with pytest.raises(InvalidInput, match="the optimizer lacks 4 trainable parameters"):
        PrivateTraining(model, optimizer, plan, loss=causal_lm_loss)


@pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:Full backward hook")
@pytest.mark.parametrize("replaced", [False, True])
def test_what_opacus_does_in_the_same_place(replaced: bool) -> None:
    """Opacus 1.6.0 with PEFT 0.21 on a CPU: adapters move; replaced parameters end in an error that names no cause.

    So the silent failure, seen on GPUs with Opacus 1.5.4, does not show here. Nothing is claimed of later versions.
    """
    if version("opacus") != "1.6.0":
        pytest.skip("describes Opacus 1.6.0")
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model = adapted()
    before = trained(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    loader = DataLoader(TensorDataset(batch_of("gpt2")["input_ids"]), batch_size=SIZE)
    made: Any = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,  # the whole batch, once
    )
    wrapped, optimizer, loader = made
    if replaced:
        replace_parameters(model)
    (ids,) = next(iter(loader))
    if replaced:
        with pytest.raises(AttributeError, match="_forward_counter"):
            wrapped(input_ids=ids, labels=ids)
        return
    wrapped(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    assert all(not torch.equal(value, before[name]) for name, value in trained(model).items())
