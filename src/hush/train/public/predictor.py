"""What public gradients say about how much a model can learn under noise, before any training.

Two numbers turn a signal budget into a forecast for one model (:class:`hush.accounting.signal.Prediction`): the
alignment of its clipped gradients, that is the norm of their mean, and the number of directions in which noise counts.
Both are measured on public examples alone, so they cost no promise and may be shown to anyone who may see those.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hush.accounting.signal import GradientStatistics
from hush.errors import InvalidInput
from hush.train.clipping import Loss
from hush.train.language_models import TokenizedTexts
from hush.train.pretrained import Pretrained, choose_device, load_pretrained, unloaded
from hush.train.settings import Lora, Task
from hush.train.slots.batches import Batches

__all__ = ["count_trained", "gradient_statistics", "statistics_of_texts"]


MIN_EXAMPLES, MAX_EXAMPLES = 32, 256  # that are measured; the error of the squared alignment is about one over them
WORK = 2e12  # multiplications that the measurement may take: a few minutes of a processor


def gradient_statistics(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    clip_norm: float,
    scales: Mapping[str, Tensor] | None = None,
) -> GradientStatistics:
    """Alignment and effective dimension of the trained parameters' gradients.

    batches: of one public example each. scales: s by parameter name, broadcast to its shape, if clipping and noise use
    the metric of s * gradient; by default that of the gradient itself, whose effective dimension is the number of
    parameters.

    With u the gradient (times s) clipped to C, the alignment is the norm of E u over C: the mean of u_i . u_j over
    pairs of different examples estimates its square without bias. With v the mean square of a coordinate of the
    gradient clipped in the ordinary norm, the effective dimension is (sum s^2 v)(sum s^-2) / sum v.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise InvalidInput("the model has no parameter that is trained; set requires_grad on some")
    total = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in trained.items()}
    weighted, plain, squares, count = 0.0, 0.0, 0.0, 0
    for batch in batches:
        gradients = _gradients(loss(model, batch).float().sum(), trained)
        ordinary = _norm(gradients.values())
        scaled = gradients if scales is None else {name: g * scales[name] for name, g in gradients.items()}
        norm = ordinary if scales is None else _norm(scaled.values())
        if not (math.isfinite(norm) and math.isfinite(ordinary)):
            continue  # an example that is not finite adds nothing in training either
        factor = min(1.0, clip_norm / max(norm, 1e-30)) / clip_norm
        for name, gradient in scaled.items():
            total[name].add_(gradient, alpha=factor)
        squares += (factor * norm) ** 2
        shrunk = min(1.0, clip_norm / max(ordinary, 1e-30)) ** 2
        weighted, plain = weighted + shrunk * norm**2, plain + shrunk * ordinary**2
        count += 1
    if count < 2:
        raise InvalidInput(f"{count} public examples have a finite gradient; pass at least 2")
    aligned = (_norm(total.values()) ** 2 - squares) / (count * (count - 1))
    parameters = sum(parameter.numel() for parameter in trained.values())
    dimension = float(parameters)
    if scales is not None and plain > 0:
        inverse = sum(float(torch.ones_like(p).div(scales[name]).double().pow(2).sum()) for name, p in trained.items())
        dimension = weighted / plain * inverse
    return GradientStatistics(
        parameters=parameters,
        alignment=math.sqrt(max(aligned, 0.0)),
        effective_dimension=dimension,
        examples=count,
    )


def statistics_of_texts(
    name: str,
    texts: Sequence[str],
    *,
    clip_norm: float,
    task: Task | None = None,
    lora: Lora | None = None,
    max_length: int | None = None,
    device: str | None = None,
    seed: int = 0,
) -> GradientStatistics | None:
    """The statistics of a language model on a few public texts; None if fewer than 32 of them have two tokens.

    The texts are drawn with ``seed``; how many depends on the size of the model.
    """
    pretrained = load_pretrained(name, task=task, max_length=max_length)
    if lora is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # adapters begin at random
            pretrained = pretrained.with_lora(lora)
    place = choose_device(device)
    model = pretrained.model.to(place).eval()  # without dropout, so that the same texts give the same numbers
    parameters = sum(parameter.numel() for parameter in model.parameters())
    drawn = np.random.default_rng(seed).permutation(len(texts))[:MAX_EXAMPLES]
    tokens = _tokens(pretrained, [texts[int(example)] for example in drawn])
    length = float(np.mean(tokens.lengths)) if len(tokens) else 1.0
    affordable = int(WORK / (6 * parameters * max(length, 1.0)))
    count = min(len(tokens), MAX_EXAMPLES, max(MIN_EXAMPLES, affordable))
    if count < MIN_EXAMPLES:
        return None
    batches = Batches(tokens, pretrained.collator(pretrained.max_length), place)
    single = (batches.of(np.array([example]), round=0) for example in range(count))
    return gradient_statistics(model, pretrained.loss, single, clip_norm=clip_norm)


def count_trained(name: str, *, task: Task | None = None, lora: Lora | None = None) -> int:
    """How many parameters of a language model are trained; its weights are not read."""
    pretrained = unloaded(name, task=task)
    if lora is not None:
        pretrained = pretrained.with_lora(lora)
    return sum(parameter.numel() for parameter in pretrained.model.parameters() if parameter.requires_grad)


def _tokens(pretrained: Pretrained, texts: Sequence[str]) -> TokenizedTexts:
    rows = pretrained.tokenizer(list(texts), truncation=True, max_length=pretrained.max_length)["input_ids"]
    return TokenizedTexts([np.asarray(row, dtype=np.int32) for row in rows if len(row) > 1])


def _gradients(loss: Tensor, trained: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    pairs = zip(trained.items(), found, strict=True)
    return {name: (torch.zeros_like(p) if g is None else g).float() for (name, p), g in pairs}


def _norm(parts: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().pow(2).sum()) for part in parts))
