"""The model and its two ways to learn: plain steps, and rounds of clipped sums with noise under a plan.

All arms share one model object, whose weights are put back before each, and one compiled clipper for each choice of
trained parameters: a program is compiled once, not once per arm. Hence the round is written out here, from the parts
that :class:`hush.train.private_training.PrivateTraining` is made of; a test holds that both train the same model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from experiments.code_base.prepared import Blocks
from experiments.code_base.scales import Scale, Setting, Trained
from hush.plan import Plan
from hush.train.clipping import Clipper
from hush.train.language_models import IGNORED, causal_lm_loss
from hush.train.noise import Noise
from hush.train.round import micro_batches
from hush.train.sampler import Draws

__all__ = ["Learner", "Table", "make_model"]

WARMUP = 0.1  # of the steps


@final
class Table:
    """Examples on the device, and batches of them."""

    def __init__(self, blocks: Blocks, device: torch.device) -> None:
        self._tokens = torch.from_numpy(blocks.tokens.astype(np.int32)).to(device)
        self._lengths = torch.from_numpy(blocks.lengths).to(device)

    def __len__(self) -> int:
        return len(self._lengths)

    def batch(self, examples: Any) -> dict[str, Tensor]:
        """Padding stands at the end, where causal attention does not look: it needs no mask, only no label."""
        rows = torch.as_tensor(examples, device=self._tokens.device)
        tokens = self._tokens[rows].long()
        inside = torch.arange(tokens.shape[1], device=tokens.device) < self._lengths[rows, None]
        return {"input_ids": tokens, "labels": torch.where(inside, tokens, IGNORED)}


def make_model(scale: Scale, device: torch.device) -> nn.Module:
    """A GPT-2 with random weights, always the same for a scale."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape: dict[str, Any] = {
        "vocab_size": scale.vocabulary,
        "n_positions": scale.length,
        "n_embd": scale.width,
        "n_layer": scale.layers,
        "n_head": scale.heads,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "use_cache": False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config(**shape))
    return model.to(device)


@final
@dataclass(eq=False, kw_only=True)
class Learner:
    """One model that learns again and again from the same start."""

    model: nn.Module
    scale: Scale
    compile: bool
    start: dict[str, Tensor] = field(default_factory=dict)
    _clippers: dict[Trained, Clipper] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.device.type == "cuda" else None

    def keep_as_start(self) -> None:
        self.start = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def put_back(self) -> None:
        """The weights of the start."""
        self.model.load_state_dict(self.start)

    def choose(self, trained: Trained) -> None:
        """Which parameters are to be trained from here on."""
        for parameter in self.model.parameters():
            parameter.requires_grad_(trained == "all" or parameter.ndim == 1)  # biases and layer norms are vectors

    def plain(self, table: Table, examples: np.ndarray, *, steps: int, batch: int, rate: float, seed: int) -> None:
        """Steps on these examples, each as often as any other."""
        optimizer, schedule = self._optimizer(rate, steps)
        rng = np.random.default_rng(seed)
        waiting = np.zeros(0, dtype=np.int64)
        self.model.train()
        for _ in range(steps):
            while len(waiting) < batch:
                waiting = np.concatenate([waiting, rng.permutation(examples)])
            rows, waiting = waiting[:batch], waiting[batch:]
            with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
                loss = causal_lm_loss(self.model, table.batch(rows)).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()

    def private(self, table: Table, plan: Plan, setting: Setting) -> None:
        """Rounds under a plan. Draws and noise come from the system's entropy.

        Guarantee: each round sums the clipped gradients of all that Draws gives for the plan's rates, adds the plan's
        noise once and divides by the planned batch size.
        """
        clipper = self._clipper(setting.trained, plan.clip_norm)
        optimizer, schedule = self._optimizer(setting.learning_rate, plan.rounds)
        parameters = dict(self.model.named_parameters())
        draws, noise = Draws(plan.rates), Noise(compile=self.compile and self.device.type == "cuda")
        scale = plan.clip_norm * plan.training_noise_multiplier
        self.model.train()
        for index in range(plan.rounds):
            for part in micro_batches(draws.round(index), size=self.scale.micro_batch):
                clipper.accumulate(table.batch(part.examples), torch.from_numpy(part.real))
            sums: Mapping[str, Tensor] = clipper.take()
            noise.add_(sums, scale=scale, round=index)
            for name, total in sums.items():
                parameters[name].grad = total.div_(plan.batch_size)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()

    def _clipper(self, trained: Trained, clip_norm: float) -> Clipper:
        if trained not in self._clippers:
            self._clippers[trained] = Clipper(
                self.model, causal_lm_loss, clip_norm=clip_norm, compile=self.compile, autocast=self.autocast
            )
        self._clippers[trained].take()  # what a run that failed in the middle of a round has left
        return self._clippers[trained]

    def _optimizer(self, rate: float, steps: int) -> tuple[AdamW, LambdaLR]:
        """Adam, with the rate up during the warm-up, then down to 0 in a line; no gradient is left of a failed run."""
        self.model.zero_grad(set_to_none=True)
        optimizer = AdamW([p for p in self.model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
        first = max(1, round(WARMUP * steps))
        return optimizer, LambdaLR(
            optimizer, lambda step: min((step + 1) / first, (steps - step) / (steps - first + 1))
        )
