"""LoRA on a base in four bits (QLoRA): are gradients per example exact in one pass, and how fast is it?

    PYTHONPATH=src python benchmarks/qlora.py [--device cuda|cpu] [--size tiny|1b|8b] [--output FILE]

Needs bitsandbytes and peft. A Llama with random weights, made on the device block by block: its linear layers in NF4
with quantised scales and bf16 compute, LoRA of rank 16 on all of them, the rest frozen in bf16. The clip norm is the
median norm, so that half of the examples are clipped. Compared, for the same examples:

- norms and clipped sums of one pass (hush's Clipper) with those of plain autograd, example by example;
- the same on the same weights computed in float32, where rounding cannot hide a mistake;
- examples per second and peak memory: clipped sums, ordinary training, and both on a base in bf16.

Ends with an error if a norm or the sum is further off than rounding in the type that is computed in explains.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from training_measures import hardware, installed

from hush.train.clipping import MARGIN, Clipper
from hush.train.language_models import causal_lm_loss

SIZES: dict[str, dict[str, int]] = {  # as Llama has them; examples at once, tokens
    "tiny": {"layers": 2, "width": 64, "inner": 128, "heads": 4, "kv": 2, "words": 97, "examples": 4, "tokens": 16},
    "1b": {"layers": 16, "width": 2048, "inner": 8192, "heads": 32, "kv": 8, "words": 32000, "examples": 8,
           "tokens": 512},
    "8b": {"layers": 32, "width": 4096, "inner": 14336, "heads": 32, "kv": 8, "words": 32000, "examples": 4,
           "tokens": 512},
}  # fmt: skip
RANK = 16
# Relative: how far a norm, and the sum over its own norm, may be off.
MAX_OFF = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    shape = SIZES[asked.size]
    result: dict[str, Any] = {
        "what": f"LoRA of rank {RANK} on all linear layers of a Llama in NF4, {asked.size}: {shape}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "hardware": hardware(asked.device),
        "versions": {name: installed(name) for name in ("torch", "transformers", "peft", "bitsandbytes")},
        "exactness": [],
        "speed": [],
    }
    for compute in (torch.bfloat16, torch.float32):
        say(f"exactness, computed in {compute}")
        model = adapted(shape, asked.device, four_bits=True, compute=compute)
        result["exactness"].append(exactness(model, batch_of(shape, asked.device), compute))
        say(json.dumps(result["exactness"][-1]))
        del model
        free(asked.device)
    for four_bits in (True, False):
        say(f"speed, base in {'NF4' if four_bits else 'bf16'}")
        model = adapted(shape, asked.device, four_bits=four_bits, compute=torch.bfloat16)
        result["speed"] += list(speeds(model, batch_of(shape, asked.device), four_bits))
        say(json.dumps(result["speed"][-2:]))
        del model
        free(asked.device)
    print(json.dumps(result, indent=2))
    if asked.output is not None:
        asked.output.write_text(json.dumps(result, indent=2) + "\n")
    if not all(row["passed"] for row in result["exactness"]):
        raise SystemExit("further off than rounding explains")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def free(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()


def adapted(shape: dict[str, int], device: str, *, four_bits: bool, compute: torch.dtype) -> nn.Module:
    """The model with its adapters, whose up-projections are drawn, too: at 0 the down-projections have no gradient."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=shape["width"], intermediate_size=shape["inner"], num_hidden_layers=0, vocab_size=shape["words"],
        num_attention_heads=shape["heads"], num_key_value_heads=shape["kv"], pad_token_id=0,
    )  # fmt: skip
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    with torch.device(device):
        model: Any = LlamaForCausalLM(config).to(torch.bfloat16)
        for number in range(shape["layers"]):
            block = LlamaDecoderLayer(config, number).to(torch.bfloat16)
            if four_bits:
                quantise(block, compute)
            model.model.layers.append(block)
    model.config.num_hidden_layers = shape["layers"]
    if compute == torch.float32:
        for module in model.modules():  # all but the codes
            if type(module).__name__ != "Linear4bit":
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.float()
    model.requires_grad_(False)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    made: Any = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=targets))
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    return made.to(device).train()


def quantise(block: nn.Module, compute: torch.dtype) -> None:
    """Replace linear layers by those of bitsandbytes, with the same weights in NF4 and quantised scales."""
    import bitsandbytes as bnb

    for parent in list(block.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                made: Any = bnb.nn.Linear4bit(
                    child.in_features, child.out_features, bias=False, compute_dtype=compute, quant_type="nf4"
                )
                weight = child.weight.detach()
                made.weight = bnb.nn.Params4bit(
                    weight.cpu(), requires_grad=False, quant_type="nf4", compress_statistics=True
                )
                setattr(parent, name, made.to(weight.device))


def batch_of(shape: dict[str, int], device: str) -> dict[str, Tensor]:
    """Texts of random tokens, the later ones shorter and padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, shape["words"], (shape["examples"], shape["tokens"]), generator=generator)
    lengths = shape["tokens"] - torch.arange(shape["examples"]) * shape["tokens"] // (2 * shape["examples"])
    inside = torch.arange(shape["tokens"]) < lengths[:, None]
    batch = {"input_ids": ids * inside, "attention_mask": inside.long(), "labels": ids.masked_fill(~inside, -100)}
    return {name: value.to(device) for name, value in batch.items()}


def exactness(model: nn.Module, batch: dict[str, Tensor], compute: torch.dtype) -> dict[str, Any]:
    """One pass against plain autograd on each example alone, in the same precision."""
    size, device = len(batch["input_ids"]), batch["input_ids"].device
    autocast = compute if compute != torch.float32 else None
    real = torch.ones(size, dtype=torch.bool, device=device)
    norms = Clipper(model, causal_lm_loss, clip_norm=1.0, autocast=autocast).accumulate(batch, real).norms
    clip_norm = float(norms.median())
    clipper = Clipper(model, causal_lm_loss, clip_norm=clip_norm, autocast=autocast)
    clipped = clipper.accumulate(batch, real)
    sums = {name: value.double() for name, value in clipper.take(exact=True).items()}
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    expected = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in trainable.items()}
    off: list[float] = []
    for example in range(size):
        row = {name: value[example : example + 1] for name, value in batch.items()}
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            loss = causal_lm_loss(model, row).sum()
        gradients = [gradient.double() for gradient in torch.autograd.grad(loss, list(trainable.values()))]
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        off.append(abs(float(clipped.norms[example]) / norm - 1))
        for name, gradient in zip(trainable, gradients, strict=True):
            expected[name] += gradient * min(1.0, clip_norm * (1 - MARGIN) / norm)
    difference = math.sqrt(sum(float((sums[name] - expected[name]).square().sum()) for name in expected))
    size_of_sum = math.sqrt(sum(float(value.square().sum()) for value in expected.values()))
    routes = {str(row.route) for row in clipper.plan_for(batch).routes}
    return {
        "computed_in": str(compute).removeprefix("torch."),
        "trained_parameters": sum(parameter.numel() for parameter in trainable.values()),
        "routes": sorted(routes),
        "clip_norm": clip_norm,
        "norms_between": [float(clipped.norms.min()), float(clipped.norms.max())],
        "worst_norm_relative": max(off),
        "sum_relative": difference / size_of_sum,
        "allowed": MAX_OFF[compute],
        "passed": max(*off, difference / size_of_sum) <= MAX_OFF[compute] and "example by example" not in routes,
    }


def speeds(model: nn.Module, batch: dict[str, Tensor], four_bits: bool) -> Iterator[dict[str, Any]]:
    """Clipped sums, and ordinary training's mean gradient, on the same batch."""
    size, device = len(batch["input_ids"]), batch["input_ids"].device
    real = torch.ones(size, dtype=torch.bool, device=device)
    clipper = Clipper(model, causal_lm_loss, clip_norm=1.0, autocast=torch.bfloat16)

    def private() -> None:
        clipper.accumulate(batch, real)
        clipper.take()

    def ordinary() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = causal_lm_loss(model, batch).mean()
        loss.backward()
        model.zero_grad(set_to_none=True)

    for name, work in (("clipped sums", private), ("ordinary training", ordinary)):
        yield {"method": name, "base": "NF4" if four_bits else "bf16", **timed(work, size, device)}


def timed(work: Callable[[], None], size: int, device: torch.device) -> dict[str, float]:
    on_gpu, seconds = device.type == "cuda", list[float]()
    for repeat in range(REPEATS + 2):
        if repeat == 2 and on_gpu:
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else float("nan")
    row = {"examples_per_second": size / sorted(seconds[2:])[REPEATS // 2]}
    return {**row, "peak_gb": peak} if on_gpu else row


if __name__ == "__main__":
    main()
