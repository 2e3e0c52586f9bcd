"""What `training.py` measures: cases, their models and batches, the nearest models that Opacus accepts, and arithmetic.

Shapes: B examples of a micro-batch, T positions, L labelled positions, I × O a linear layer, V words.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.train.clipping import Clipper
from hush.train.language_models import IGNORED, Loss, causal_lm_loss, masked_lm_loss

__all__ = ["Case", "accepted_by_opacus", "all_cases", "flops", "labelled_positions", "make_batches", "make_model"]

Batch = Mapping[str, Tensor]

BERT_TINY: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
GEMMA_225M: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 640,
    "num_hidden_layers": 10,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "head_dim": 64,
    "intermediate_size": 2560,
    "query_pre_attn_scalar": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, the shape of its batches and how many of them are timed together."""

    title: str
    family: str  # "bert" or "gemma2"
    config: dict[str, Any]
    length: int
    micro_batch: int
    block: int  # micro-batches between two readings of the clock
    lora: bool = False
    autocast: torch.dtype | None = None

    @property
    def masked(self) -> bool:
        return self.family == "bert"

    @property
    def loss(self) -> Loss:
        return masked_lm_loss if self.masked else causal_lm_loss


def all_cases(device: str) -> dict[str, Case]:
    """By name. On a CPU the Gemma cases are shrunk, and of (a)'s logical batch of 2048 a part is timed."""
    small = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    tiny = Case(
        title="BERT of 0.1 M parameters, for checking",
        family="bert",
        config=BERT_TINY | small | {"intermediate_size": 128},
        length=32,
        micro_batch=8,
        block=2,
    )
    a = Case(
        title="BERT-Tiny MLM, float32, 128 tokens, 15 % labelled, logical batch 2048",
        family="bert",
        config=BERT_TINY,
        length=128,
        micro_batch=512,
        block=4,
    )
    b = Case(
        title="Gemma-2 architecture, 225 M parameters, tied, bf16 autocast, 512 tokens",
        family="gemma2",
        config=GEMMA_225M,
        length=512,
        micro_batch=16,
        block=8,
        autocast=torch.bfloat16,
    )
    if device == "cpu":
        a = replace(a, micro_batch=32, block=2)
        shrunk = GEMMA_225M | {"vocab_size": 8000, "num_hidden_layers": 2}
        title = "Gemma-2 architecture shrunk for a CPU: vocabulary 8000, 2 layers, tied, float32, 128 tokens"
        b = replace(b, title=title, config=shrunk, length=128, micro_batch=4, block=4, autocast=None)
    long = replace(
        b, title=b.title.replace(f"{b.length} tokens", f"{2 * b.length} tokens"), length=2 * b.length,
        micro_batch=b.micro_batch // 2,
    )  # fmt: skip
    lora = {"title": "LoRA, rank 16, on all linear layers of: ", "lora": True}
    c, c_long = (replace(case, **lora | {"title": lora["title"] + case.title}) for case in (b, long))
    return {"tiny": tiny, "a": a, "b512": b, "b1024": long, "c512": c, "c1024": c_long}


def make_model(case: Case, device: str, *, dropout: bool = True) -> nn.Module:
    """The case's model in training mode, always with the same weights."""
    import transformers

    torch.manual_seed(0)
    if case.masked:
        config: Any = transformers.BertConfig(**case.config, max_position_embeddings=max(case.length, 512))
        model: Any = transformers.BertForMaskedLM(config)
    else:
        config = transformers.Gemma2Config(**case.config, max_position_embeddings=2048, use_cache=False)
        model = transformers.Gemma2ForCausalLM(config)
    if case.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # 0 at first, which leaves the other factor without a gradient
                nn.init.normal_(parameter, std=0.02)
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return model.to(device).train()


def make_batches(case: Case, device: str, *, size: int, count: int) -> list[dict[str, Tensor]]:
    """Micro-batches as a loader hands them over: on the CPU, pinned where there is a GPU."""
    generator = torch.Generator().manual_seed(1)
    batches: list[dict[str, Tensor]] = []
    for _ in range(count):
        ids = torch.randint(5, case.config["vocab_size"], (size, case.length), generator=generator)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
        if case.masked:
            masked = torch.rand(ids.shape, generator=generator) < 0.15
            masked[:, 0] = True  # at least one
            batch |= {"input_ids": ids.masked_fill(masked, 4), "labels": ids.masked_fill(~masked, IGNORED)}
        batches.append({name: value.pin_memory() if device == "cuda" else value for name, value in batch.items()})
    return batches


def labelled_positions(labels: Tensor) -> Tensor:
    """B × L: an example's labelled positions first, L rounded up to a multiple of 16."""
    labelled = labels != IGNORED
    most = -(-int(labelled.sum(1).max()) // 16) * 16
    return labelled.byte().argsort(dim=1, descending=True, stable=True)[:, :most]


class _ScaledEmbedding(nn.Module):
    """Gemma's embedding without a buffer: a plain embedding, then its constant scale."""

    def __init__(self, plain: nn.Embedding, scale: float) -> None:
        super().__init__()
        self.plain, self.scale = plain, scale

    def forward(self, ids: Tensor) -> Tensor:
        return self.plain(ids) * self.scale


def accepted_by_opacus(case: Case, model: Any, *, ghost: bool) -> str:
    """Change the model in place into the nearest one that Opacus accepts; says what was changed."""
    changes: list[str] = []
    if case.masked:
        # The prediction head holds the bias that its decoder uses: Opacus takes the whole head for one layer.
        head = model.cls.predictions
        head.decoder.bias = nn.Parameter(head.bias.detach().clone())
        head.bias.requires_grad_(False)
        changes.append("head's bias held by the decoder alone, positions and token types given for each example")
    elif not case.lora:
        inner = model.model.embed_tokens
        plain = nn.Embedding(inner.num_embeddings, inner.embedding_dim, _weight=inner.weight)
        model.model.embed_tokens = _ScaledEmbedding(plain, float(inner.embed_scale))
        changes.append("scaled embedding split into a plain one and a constant")
    if ghost and not case.lora:
        output = model.get_output_embeddings()
        output.weight = nn.Parameter(output.weight.detach().clone())
        changes.append("embedding and head untied")
    return "; ".join(changes) or "none"


def _linear_shapes(model: nn.Module, forward: Any) -> Iterator[tuple[str, nn.Module, int]]:
    """(name, module, positions of all examples) of every call of a linear layer or embedding."""
    calls: list[tuple[str, nn.Module, int]] = []
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):

            def note(module: nn.Module, args: Any, result: Tensor, name: str = name) -> None:
                calls.append((name, module, result.numel() // result.shape[-1]))

            handles.append(module.register_forward_hook(note))
    with torch.no_grad():
        forward()
    for handle in handles:
        handle.remove()
    yield from calls


def flops(case: Case, model: Any, clipper: Clipper, batch: Batch) -> dict[str, float]:
    """Multiplications and additions of one micro-batch in matrix products: ordinary training's, and what hush adds.

    Ordinary: a linear layer of N = B T positions and P = I O weights has 2 N P forward, 2 N P for the gradient of its
    input and 2 N P for that of its weight, if that is trained (of a first layer, whose input needs no gradient, this
    counts too much); attention 12 B T² × heads × width of a head.
    hush adds, for each trained weight, by the route of its per-example gradients:
      dense     4 B P: norms and weighted sum of B gradients. They come from the product that ordinary training has
                too, cut by examples.
      factors   2 B T² (I + O): inner products between positions, of inputs and of output gradients; then the sum is
                ordinary training's product.
      rows      2 B T² D for an embedding of width D.
    and for an embedding tied to the head, both in factors, 2 B L T D for the cross term. The head has L labelled
    positions instead of T where fewer are labelled: `saved` of ordinary training's 6 B T D V.
    """
    size, length = batch["input_ids"].shape
    taps = clipper.plan_for(batch).taps
    head: Any = clipper._head  # pyright: ignore[reportPrivateUsage]
    few = labelled_positions(batch["labels"]).shape[1]
    looked = few if case.masked and head is not None and few <= 0.8 * length else length
    ordinary = added = saved = 0.0
    text = model.config
    attention = 12 * size * length**2 * text.num_attention_heads * text.num_hidden_layers
    ordinary += attention * getattr(text, "head_dim", text.hidden_size // text.num_attention_heads)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    for name, module, positions in _linear_shapes(model, lambda: model(**inputs)):
        weight: Any = module.weight
        route = taps.get((name, "weight"))
        if isinstance(module, nn.Embedding):
            if weight.requires_grad and route is not None:
                added += 2 * size * (length**2 * weight.shape[1] if route.pair else weight.numel())
            continue
        products = 6 if weight.requires_grad else 4
        ordinary += products * positions * weight.numel()
        if head is not None and module is head.module:
            saved += products * (positions - size * looked) * weight.numel()
            if weight.requires_grad and _head_is_whole(clipper, batch):
                added += 4 * size * weight.numel()
            elif weight.requires_grad:
                added += 2 * size * looked**2 * sum(weight.shape)
                tied = model.get_input_embeddings().weight is weight
                added += 2 * size * looked * length * weight.shape[1] * tied
        elif weight.requires_grad and route is not None:
            each = positions // size
            added += 2 * size * each**2 * sum(weight.shape) if route.pair else 4 * size * weight.numel()
    return {
        "ordinary": ordinary,
        "added": added,
        "saved": saved,
        "overhead": added / ordinary,
        "ordinary_over_hush": ordinary / (ordinary - saved + added),
    }


def _head_is_whole(clipper: Clipper, batch: Batch) -> bool:
    """Whether the head gives gradients rather than factors, seen while one micro-batch passes."""
    head: Any = clipper._head  # pyright: ignore[reportPrivateUsage]
    seen: list[bool] = []
    original = head.losses

    def watched(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        seen.append(isinstance(answer[1], Tensor))
        return answer

    head.losses = watched
    try:
        clipper.accumulate(batch, torch.ones(len(batch["labels"]), dtype=torch.bool))
    finally:
        del head.losses
    return seen[0]


def labelled_loss(model: Any, batch: Batch, index: Tensor) -> Tensor:
    """Ordinary masked-language-model loss, with the head at labelled positions only."""
    hidden = model.bert(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    hidden = hidden.gather(1, index.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
    logits, labels = model.cls(hidden), batch["labels"].gather(1, index)
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)
