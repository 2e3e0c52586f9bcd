"""One size of model, trained again and again from new weights: clipped sums by hush's clipper, noise set by hand.

This is the inside of a private round without a plan: rows come in fixed batches instead of secret draws, the noise has
a known seed, its multiplier belongs to no promise. What it makes is certified for nothing. The clipper is compiled
once; new weights are written over the old ones.

Shapes: R rows, T tokens of a row.
"""

import math
import time
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.noise_and_extraction.scales import Scale, Size
from hush.train.clipping import Clipper
from hush.train.language_models import causal_lm_loss
from hush.train.noise import Noise

__all__ = ["Pretraining", "make_model"]

WARM_UP, LAST = 0.1, 0.1  # share of the rounds in which the learning rate rises; where it ends, relative to its peak
BETAS = (0.9, 0.95)


def make_model(size: Size, scale: Scale, *, device: str, seed: int) -> Any:
    """A Gemma-2 model with random weights. Eager attention, since the fused kernels leave out Gemma-2's soft cap."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    settings: dict[str, Any] = {"attn_implementation": "eager"}
    config = Gemma2Config(
        vocab_size=scale.vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.head_width,
        query_pre_attn_scalar=size.head_width,
        intermediate_size=size.inner_width,
        max_position_embeddings=scale.length,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **settings,
    )
    torch.manual_seed(seed)
    model: Any = Gemma2ForCausalLM(config)
    return model.to(device).train()


@final
class Pretraining:
    """A model of one size, which `train` fills with new weights each time."""

    def __init__(self, size: Size, scale: Scale, *, device: str, compile: bool) -> None:
        self._size, self._scale, self._device, self._compile = size, scale, device, compile
        self.model = make_model(size, scale, device=device, seed=0)
        autocast = torch.bfloat16 if device == "cuda" else None
        self._clipper = Clipper(
            self.model, causal_lm_loss, clip_norm=scale.clip_norm, compile=compile, autocast=autocast
        )

    @property
    def parameters(self) -> int:
        """How many numbers are trained; the head shares the embedding."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def train(self, row_RT: NDArray[np.uint16], *, noise_multiplier: float, seed: int) -> dict[str, Any]:
        """Train on every row once, in batches in random order; says what it took and how the end of it went."""
        begin = time.perf_counter()
        scale, parameters = self._scale, dict(self.model.named_parameters())
        self._clipper.take()  # of a run that was left in the middle
        fresh = make_model(self._size, scale, device=self._device, seed=seed)
        self.model.load_state_dict(fresh.state_dict())
        del fresh
        optimizer = torch.optim.Adam(
            parameters.values(), lr=self._size.learning_rate, betas=BETAS, fused=self._device == "cuda"
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        noise = Noise(insecure_seed=seed, compile=self._compile and self._device == "cuda")
        order = np.random.default_rng(seed).permutation(len(row_RT)).reshape(scale.rounds, scale.batch)
        losses: list[Tensor] = []
        clipped: list[Tensor] = []
        for round_, chosen in enumerate(order):
            for part in np.split(chosen, scale.batch // self._size.micro_batch):
                ids = torch.from_numpy(row_RT[part].astype(np.int64))
                batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
                seen = self._clipper.accumulate(batch, torch.ones(len(ids), dtype=torch.bool))
                losses.append(seen.losses.mean())
                clipped.append((seen.norms > scale.clip_norm).float().mean())
            sums = self._clipper.take()
            noise.add_(sums, scale=noise_multiplier * scale.clip_norm, round=round_)
            for name, parameter in parameters.items():
                parameter.grad = sums[name].div_(scale.batch)
            optimizer.step()
            schedule.step()
        optimizer.zero_grad(set_to_none=True)
        tenth = max(1, len(losses) // 10)
        return {
            "parameters": self.parameters,
            "training_loss": float(torch.stack(losses[-tenth:]).mean()),  # waits for the device
            "clipped_share": float(torch.stack(clipped).mean()),
            "training_seconds": round(time.perf_counter() - begin, 2),
            "compiled": self._compile,
        }

    def _rate(self, round_: int) -> float:
        """Linear warm-up, then half a cosine."""
        rising = max(1, round(WARM_UP * self._scale.rounds))
        if round_ < rising:
            return (round_ + 1) / rising
        done = (round_ - rising) / max(1, self._scale.rounds - rising)
        return LAST + (1 - LAST) * (1 + math.cos(math.pi * done)) / 2
