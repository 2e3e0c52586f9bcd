"""The public stream: examples without a secret whose mean gradient joins each update without clipping or noise.

It is off by default. Why it costs no privacy: round t releases, in the worst case, the noisy sum of the private draw,
given the model before it; that is what the plan accounts for. The public part of the update is a function of that
model, of examples that no secret touches, and of its own seed. Anybody who sees the noisy sums can compute it, so the
updates, and with them every model, are a function of the noisy sums and of inputs that do not depend on the secrets:
post-processing, round by round. Three conditions are needed, and this module ensures them: no example of the stream is
listed for any secret; which examples are drawn, and how many, does not depend on the private draw; nor does the
randomness of their forward pass (dropout and collators have seeds of their own, because the position in a shared random
stream would tell how much of it the private draw consumed).

The same examples remain in the private draw at the plan's rates, so the certificate holds unchanged. Their rates enter
no secret's accounting: a plan may have any rates for them.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from hush.arrays import chosen_indices
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.make import public_examples
from hush.train.clipping import Loss
from hush.train.distributed import gradients_of

__all__ = ["PublicStream"]


Collate = Callable[[NDArray[np.int64]], Mapping[str, Tensor]]


@final
class PublicStream:
    """Adds to each update ``weight`` times the mean gradient of a batch of examples without secrets.

    collate makes a batch from example numbers. examples are all that contain no secret of the plan and are not held out
    by it, unless some are chosen. The draw is uniform without replacement and is a function of seed and round alone; it
    is public, so the seed needs no secrecy.

    Guarantee: the promises of the plan hold unchanged, for the reasons above; an example with a secret is refused.
    """

    def __init__(
        self,
        plan: Plan,
        collate: Collate,
        *,
        batch_size: int,
        weight: float = 1.0,
        examples: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        secrets_N = plan.incidence.secrets_per_example
        public = public_examples(plan)
        without_secrets = public[secrets_N[public] == 0]
        ids = without_secrets if examples is None else chosen_indices("examples", examples, secrets_N.size)
        touched = ids[secrets_N[ids] > 0]
        if touched.size:
            raise InvalidInput(
                f"{touched.size} of the public examples contain a secret, example {touched[0]} first; leave them "
                "to the private draw"
            )
        if not 0 < batch_size <= ids.size:
            raise InvalidInput(
                f"there are {ids.size} public examples; draw from 1 to all of them",
                setting="public.batch",
                value=batch_size,
            )
        if not 0 < weight < np.inf:
            raise InvalidInput(
                "pass a finite number above 0, or leave the public stream out", setting="public.weight", value=weight
            )
        if seed < 0:
            raise InvalidInput(f"seed={seed}; pass a whole number of at least 0")
        self.examples, self.batch_size, self.weight, self.seed = np.sort(ids), batch_size, weight, seed
        self._collate = collate

    def round(self, index: int) -> NDArray[np.int64]:
        """The public examples of round ``index``, sorted."""
        rng = np.random.default_rng([self.seed, index])
        return np.sort(rng.choice(self.examples, self.batch_size, replace=False)).astype(np.int64)

    def gradients(
        self,
        model: nn.Module,
        loss: Loss,
        trainable: Mapping[str, nn.Parameter],
        *,
        round: int,
        autocast: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """``weight`` times the mean gradient of this round's batch; the same on every rank."""
        device = next(iter(trainable.values())).device
        with _own_random_state(device, int(np.random.default_rng([self.seed, round, 1]).integers(2**63))):
            batch = self._collate(self.round(round))
            with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
                losses = loss(model, batch)
            return gradients_of(losses.float().mean() * self.weight, trainable)

    def __repr__(self) -> str:
        return f"PublicStream({self.examples.size} examples, batch_size={self.batch_size}, weight={self.weight:g})"


@contextmanager
def _own_random_state(device: torch.device, seed: int) -> Iterator[None]:
    """Seed every generator that a model or a collator may draw from, and restore its state afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng([device] if device.type != "cpu" else [], device_type=device.type):
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
