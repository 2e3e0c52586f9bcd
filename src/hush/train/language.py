"""Losses of Hugging Face models, one number per example: what a :class:`~hush.train.clipping.Clipper` differentiates.

Transformers' own losses divide by the number of labelled tokens in the whole batch, so that one example's gradient
depends on all others. Here each example is divided by its own number of labelled tokens and by nothing else; for a
batch of one the two agree. An example without a labelled token has loss 0. Log-probabilities are float32 or better,
whatever the model computes in.

Shapes: B examples, T tokens, V words of the vocabulary or classes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.refusals import refuse_batch

__all__ = [
    "IGNORED",
    "Loss",
    "causal_lm_loss",
    "classification_loss",
    "default_loss",
    "logits_and_labels",
    "masked_lm_loss",
    "token_losses",
]

Loss = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]

IGNORED = -100  # the label of a token that is not learnt


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each example over its own labelled tokens: logits [B, T, V], labels [B, T] -> [B].

    >>> token_losses(torch.zeros(2, 3, 8), torch.tensor([[1, 2, IGNORED], [IGNORED, IGNORED, IGNORED]])).tolist()
    [2.079441547393799, 0.0]
    """
    flat = functional.cross_entropy(
        _precise(logits).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    token_BT = flat.view_as(labels)
    count_B = (labels != IGNORED).sum(dim=1)
    return token_BT.sum(dim=1) / count_B.clamp(min=1)


def causal_lm_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Each text's mean loss of predicting its labelled tokens from those before them: [B].

    Guarantee: row i depends on the model and on row i of the batch alone, if the model's own forward pass does.
    """
    logits, labels = logits_and_labels(model, batch)
    following = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)  # moving labels is cheaper than cutting logits
    return token_losses(logits, following)


def masked_lm_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Each text's mean loss of its labelled tokens, each predicted in place: masked language models, taggers: [B].

    Guarantee: row i depends on the model and on row i of the batch alone, if the model's own forward pass does.
    """
    return token_losses(*logits_and_labels(model, batch))


def classification_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Each image's or text's loss of its class: cross-entropy, or by the model's ``config.problem_type``: [B].

    Labels are class numbers [B], a 0 or 1 per class [B, V], or real numbers (regression: mean squared error).

    Guarantee: row i depends on the model and on row i of the batch alone, if the model's own forward pass does.
    """
    logits, labels = logits_and_labels(model, batch)
    logits = _precise(logits)
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem == "regression" or (problem is None and logits.shape[-1] == 1):
        return (logits - labels.reshape(logits.shape).to(logits.dtype)).square().mean(dim=1)
    if problem == "multi_label_classification" or labels.is_floating_point():
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(
            dim=1
        )
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")


_BY_CLASS_NAME: dict[str, Loss] = {
    "ForCausalLM": causal_lm_loss,
    "LMHeadModel": causal_lm_loss,
    "ForMaskedLM": masked_lm_loss,
    "ForTokenClassification": masked_lm_loss,
    "ForSequenceClassification": classification_loss,
    "ForImageClassification": classification_loss,
}


def default_loss(model: nn.Module) -> Loss:
    """The loss that a Hugging Face model's class calls for; adapters and subclasses count as what they wrap."""
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # a PEFT model
        inner = inner.get_base_model()
    names = [kind.__name__ for kind in type(inner).__mro__]
    encoder_decoder = getattr(getattr(inner, "config", None), "is_encoder_decoder", False)
    for name in names:
        # Of the few classes named WithLMHeadModel some are masked models, some causal: the name does not tell.
        if encoder_decoder or name.endswith("WithLMHeadModel"):
            break
        for ending, loss in _BY_CLASS_NAME.items():
            if name.endswith(ending):
                return loss
    raise InvalidInput(
        f"no loss is known for {names[0]}{' (an encoder-decoder)' if encoder_decoder else ''}; known are classes whose "
        f"names end in {', '.join(_BY_CLASS_NAME)}; pass loss=, a function of (model, batch) that returns one loss per "
        "example, each from that example alone"
    )


def logits_and_labels(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The model's logits without its own loss, which normalises over the batch, and the labels."""
    if "labels" not in batch:
        raise InvalidInput(f"the batch has no 'labels', only {sorted(batch)}; use a collator that adds them")
    if not torch.compiler.is_compiling():  # where values cannot be read; training looks at every batch before
        refuse_batch(batch, len(batch["labels"]))
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    # Nobody reads the cache of keys and values that a generating model keeps by default.
    options = {"use_cache": False} if getattr(getattr(model, "config", None), "use_cache", False) else {}
    return model(**inputs, **options).logits, batch["labels"]


def _precise(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
