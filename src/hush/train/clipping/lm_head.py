"""The output layer (head) of a language model with its loss: at labelled positions only, in chunks of examples.

The logits of a micro-batch, B × T × V, are the largest tensor in training a language model, and their gradient is a
factor of the head's per-example gradients. Here neither is materialised for all examples unless it fits a budget: the
forward pass runs in chunks, stores the gradient at its input, and either keeps the gradient at the logits or recomputes
it when needed. The model runs with its head bypassed, so that its "logits" are the head's input.

Shapes: B examples, L labelled positions (padded), D hidden, V words.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.clipping.norms import Factors, PerExampleGrads, times
from hush.train.distributed import full_tensors
from hush.train.language_models import IGNORED, Loss, causal_lm_loss, masked_lm_loss

__all__ = ["Head", "HeadFactors", "find_head"]


CHUNK_ENTRIES = {"cuda": 2**30, "cpu": 2**26}  # of logits at a time
MAX_KEPT_ENTRIES = {"cuda": 2**33, "cpu": 2**28}  # of logits' gradients kept from the forward pass
DENSE_FROM = 0.6  # labelled positions per hidden unit from which dense gradients are cheaper than their factors
POSITION_MULTIPLE = 16  # labelled positions are padded to a multiple of this, so that few shapes occur
WORD_MULTIPLE = {"cuda": 8}  # words are padded to it: products over 30,522 or 50,257 words take a GPU twice as long


@dataclass(frozen=True, slots=True, eq=False)
class HeadFactors:
    """Factors of the gradients of the head's weight, chunk by chunk; the logits' gradient may have zeros appended.

    kept: gradients at the logits by the first example of their chunk, or none, and `derive` gives them.
    """

    x: Tensor  # B × L × D
    kept: Mapping[int, Tensor]
    derive: Callable[[slice], Tensor]
    chunk: int

    def pieces(self) -> Iterator[tuple[slice, Factors]]:
        """(examples, factors of their gradients), chunk by chunk."""
        for start in range(0, len(self.x), self.chunk):
            part = slice(start, start + self.chunk)
            gradient = self.kept[start] if self.kept else self.derive(part)
            yield part, Factors(gradient, self.x[part], y_is_finite=True)  # see _derive

    def scaled_(self, rows: Tensor, columns: Tensor) -> "HeadFactors":
        """The factors of the scaled gradients. They take the place of these, which must not be used any more: what is
        kept is the largest tensor of a pass, and is scaled in place."""
        words = self.kept[0].shape[-1] if self.kept else self.derive(slice(0, 1)).shape[-1]
        rows = functional.pad(rows, (0, words - len(rows)), value=1.0)
        for gradient in self.kept.values():
            gradient.mul_(rows)
        return HeadFactors(times(self.x, columns), self.kept, lambda part: self.derive(part).mul_(rows), self.chunk)


@dataclass(eq=False)
class Head:
    """A model's output layer and what the model does to its result: an optional soft cap, c tanh(z / c)."""

    module: nn.Linear
    config: Any
    cap: float | None
    shifted: bool  # whether position t predicts the token at t + 1
    backend: str | None  # of torch.compile; None to run eagerly

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        """Inside the block the model returns the head's input instead of logits."""
        original = type(self.module)
        self.module.__class__ = _Bypassed
        settings = vars(self.config)  # set directly: some configurations refuse None for their cap
        if self.cap is not None:
            settings["final_logit_softcapping"] = None
        try:
            yield
        finally:
            self.module.__class__ = original
            if self.cap is not None:
                settings["final_logit_softcapping"] = self.cap

    @contextmanager
    def amplified(self, factor: float) -> Iterator[None]:
        """Inside the block the head's input is multiplied by this."""
        handle = self.module.register_forward_pre_hook(lambda _, inputs: tuple(x * factor for x in inputs))
        try:
            yield
        finally:
            handle.remove()

    def most_labelled(self, labels: Tensor) -> int:
        """Positions to compute per example: the most labelled ones of any, rounded up. Cheap for labels on the CPU."""
        words = self.module.out_features
        unknown = (labels != IGNORED) & ((labels < 0) | (labels >= words))
        count = (self._targets(labels) != IGNORED).sum(1)
        most, wrong = torch.stack([count.max(), unknown.sum()]).tolist()  # waits for the device once
        if wrong:
            raise InvalidInput(
                f"{wrong} labels are none of the model's {words:,} words; use {IGNORED} for tokens that are not learnt"
            )
        most = -(-most // POSITION_MULTIPLE) * POSITION_MULTIPLE
        return most if most <= 0.8 * labels.shape[1] else labels.shape[1]

    def _targets(self, labels: Tensor) -> Tensor:
        return functional.pad(labels[:, 1:], (0, 1), value=IGNORED) if self.shifted else labels

    def losses(self, hidden: Tensor, labels: Tensor, most: int) -> tuple[Tensor, PerExampleGrads, Tensor | None]:
        """Mean loss of each example over its labelled positions, differentiable in hidden; then the per-example
        gradients of weight and bias."""
        labels = self._targets(labels)
        if most < labels.shape[1]:
            index = (labels != IGNORED).byte().argsort(dim=1, descending=True, stable=True)[:, :most]
            labels = labels.gather(1, index)
            hidden = hidden.gather(1, index.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        with torch.no_grad():
            losses, gradient, of_weight, of_bias = self._forward(hidden.detach(), labels)
        return _Attach.apply(hidden, losses, gradient), of_weight, of_bias  # pyright: ignore[reportReturnType]

    def _forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, PerExampleGrads, Tensor | None]:
        # A sharded model may have resharded them after its forward pass.
        weight = full_tensors(self.module.weight.detach()).to(x.dtype)
        bias = None if self.module.bias is None else full_tensors(self.module.bias.detach()).to(x.dtype)
        words = len(weight)
        if self.cap is None:
            weight, bias = _aligned(weight, bias, -words % WORD_MULTIPLE.get(x.device.type, 1))
        share = (labels != IGNORED) / (labels != IGNORED).sum(1, keepdim=True).clamp_min(1)
        kind, per_example = x.device.type, max(labels.shape[1] * weight.shape[0], 1)
        chunk = max(1, CHUNK_ENTRIES.get(kind, CHUNK_ENTRIES["cuda"]) // per_example)
        # Dense gradients if they are smaller than the logits' and fit; otherwise factors, recomputed if necessary.
        budget = MAX_KEPT_ENTRIES.get(kind, MAX_KEPT_ENTRIES["cuda"])
        trained = self.module.weight.requires_grad
        dense = trained and labels.shape[1] > DENSE_FROM * x.shape[-1] and len(x) * weight.numel() <= budget
        gradients = weight.new_empty(len(x), words, x.shape[-1]) if dense else None
        keeps = trained and not dense and len(x) * per_example <= budget
        loss, back = x.new_empty(len(x), dtype=torch.float32), torch.empty_like(x)
        total = x.new_empty(labels.shape, dtype=torch.float32)
        has_bias = self.module.bias is not None
        bias_gradient = x.new_empty(len(x), words, dtype=torch.float32) if has_bias else None
        stored: dict[int, Tensor] = {}
        functions = (_measure_and_derive, _derive, _add_up_positions)
        both, derive, add_up = (_compiled(function, self.backend) for function in functions)
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            logits = functional.linear(x[part], weight, bias)
            total[part], loss[part], gradient = both(logits, labels[part], share[part], self.cap)
            back[part] = gradient @ weight
            if bias_gradient is not None:
                add_up(gradient, bias_gradient[part])
            if gradients is not None:
                torch.bmm(gradient[..., :words].transpose(1, 2), x[part], out=gradients[part])
            if keeps:
                stored[start] = gradient

        def derived(part: slice) -> Tensor:
            return derive(functional.linear(x[part], weight, bias), labels[part], share[part], total[part], self.cap)

        of_weight = HeadFactors(x, stored, derived, chunk) if gradients is None else gradients
        return loss, back, of_weight, bias_gradient


def find_head(model: nn.Module, loss: Loss, *, backend: str | None) -> Head | None:
    """The head of a Hugging Face language model trained by one of our own losses; None if anything is unusual."""
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # a PEFT model
        inner = inner.get_base_model()
    if loss not in (causal_lm_loss, masked_lm_loss) or not hasattr(inner, "get_output_embeddings"):
        return None
    module = inner.get_output_embeddings()
    if type(module) is not nn.Linear:
        return None
    cap = getattr(inner.config, "final_logit_softcapping", None)
    return Head(module, inner.config, cap, shifted=loss is causal_lm_loss, backend=backend)


class _Bypassed(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return input.clone()  # FSDP registers hooks on outputs, and warns if one is a view


class _Attach(torch.autograd.Function):
    """Losses that were computed together with their gradient in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, losses: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = ctx.saved_tensors
        return gradient * grad.view(-1, 1, 1).to(gradient.dtype), None, None


@cache
def _compiled(function: Callable[..., Any], backend: str | None) -> Callable[..., Any]:
    return function if backend is None else torch.compile(function, dynamic=False, fullgraph=True, backend=backend)


def _aligned(weight: Tensor, bias: Tensor | None, more: int) -> tuple[Tensor, Tensor | None]:
    """Weight and bias with ``more`` appended words, whose probability and gradient are exactly 0."""
    if more == 0:
        return weight, bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return functional.pad(weight, (0, 0, 0, more)), functional.pad(bias, (0, more), value=-torch.inf)


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    if cap is None:
        return logits.float()
    if logits.dtype == torch.float32:
        return cap * torch.tanh(logits / cap)
    return cap * (
        2 * torch.sigmoid(logits.float() * (2 / cap)) - 1
    )  # the same, faster, and exact enough for these types


def _measure(logits: Tensor, labels: Tensor, share: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
    """(log of the sum of exponentials at each position, mean loss of each example)."""
    capped = _capped(logits, cap)
    if cap is not None and cap <= 40:  # no exponential can under- or overflow, so the maximum is not needed
        total = torch.exp(capped - cap).sum(-1).log() + cap
    else:
        total = torch.logsumexp(capped, -1)
    target = _capped(logits.gather(-1, labels.clamp_min(0).unsqueeze(-1)), cap).squeeze(-1)
    return total, ((total - target) * share).sum(1)


def _derive(logits: Tensor, labels: Tensor, share: Tensor, total: Tensor, cap: float | None) -> Tensor:
    """Gradient of each example's mean loss in its logits, in their type. It is finite: 0 where the loss is not."""
    capped = _capped(logits, cap)
    words = torch.arange(logits.shape[-1], device=logits.device)
    gradient = torch.exp(capped - total.unsqueeze(-1)) - (labels.unsqueeze(-1) == words).float()
    gradient = gradient * share.unsqueeze(-1)
    if cap is not None:
        gradient = gradient * (1 - (capped / cap).square())  # the cap's derivative
    # A finite total bounds every logit from above and rules out NaN.
    return torch.where(total.isfinite().unsqueeze(-1), gradient, 0.0).to(logits.dtype)


def _add_up_positions(gradient: Tensor, of_bias: Tensor) -> None:
    """Write each example's gradient of the bias, B × V; without the appended words."""
    of_bias.copy_(gradient[..., : of_bias.shape[1]].sum(1, dtype=torch.float32))


def _measure_and_derive(
    logits: Tensor, labels: Tensor, share: Tensor, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Both in one kernel, which reads the logits once."""
    total, loss = _measure(logits, labels, share, cap)
    return total, loss, _derive(logits, labels, share, total, cap)
