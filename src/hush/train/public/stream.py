"""The public stream: what is public of the examples joins each update without clipping or noise, as a mean gradient.

Public are the examples without a secret and, under a plan with slots, the skeletons. With slots the stream is on by
default, since private rounds alone would forget what is public; otherwise it is off.

Why it costs no privacy: round t releases, in the worst case, the noisy sum of the private draw, given the model before
it; that is what the plan accounts for. The public part of the update is a function of that model, of public text, and
of its own seed; so is the factor of the private part (``private_scale``). Anybody who sees the noisy sums can compute
both, so the updates, and with them every model, are a function of the noisy sums and of inputs that do not depend on
the secrets: post-processing, round by round. Three conditions are needed, and this module ensures them: no text of the
stream holds a secret; which examples are drawn, and how many, does not depend on the private draw; nor does the
randomness of their forward pass (dropout and collators have seeds of their own, because the position in a shared random
stream would tell how much of it the private draw consumed).

Without slots the same examples remain in the private draw at the plan's rates, so the certificate holds unchanged.
Their rates enter no secret's accounting: a plan may have any rates for them.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hush.arrays import chosen_indices
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.make import public_examples
from hush.train.clipping import Loss
from hush.train.distributed import Ranks, gradients_of
from hush.train.slots.batches import SkeletonBatches

__all__ = ["PublicStream", "check_public", "default_batch", "own_random_state"]


# Of the norm of the public gradient: the most that noise has, by default. benchmarks/slot_training.py: at 0.3 the loss
# outside of slots is that of the stream alone; at 1 it rises.
NOISE_SHARE = 0.3
MIN_BATCH, MAX_BATCH = 32, 1024  # examples per round, by default

Collate = Callable[[NDArray[np.int64]], Mapping[str, Tensor]]


@final
class PublicStream:
    """Adds to each update ``weight`` times the mean gradient of a batch of public examples.

    collate makes a batch from example numbers. examples are all that are public under the plan and not held out by it,
    unless some are chosen; those with slots take part only if collate is
    :class:`~hush.train.slots.batches.SkeletonBatches`, which knows their skeletons and nothing else of them. The draw
    is uniform without replacement and is a function of seed and round alone; it is public, so the seed needs no
    secrecy.

    Without a weight, the public gradient counts once and the private part is scaled down where needed, so that the norm
    of its noise is at most ``noise_share`` times that of the public gradient. micro_batch is how many examples the
    model sees at once (by default all of a batch): it changes memory and speed.

    Guarantee: the promises of the plan hold unchanged, for the reasons above; the text of an example with a secret is
    refused.
    """

    def __init__(
        self,
        plan: Plan,
        collate: Collate,
        *,
        batch_size: int,
        weight: float | None = 1.0,
        examples: ArrayLike | None = None,
        seed: int = 0,
        micro_batch: int | None = None,
        noise_share: float = NOISE_SHARE,
    ) -> None:
        ids = check_public(plan, collate, examples)
        if not 0 < batch_size <= ids.size:
            raise InvalidInput(
                f"there are {ids.size} public examples; draw from 1 to all of them",
                setting="public.batch",
                value=batch_size,
            )
        if weight is not None and not 0 < weight < np.inf:
            raise InvalidInput(
                "pass a finite number above 0, or leave the public stream out", setting="public.weight", value=weight
            )
        if not 0 < noise_share < np.inf:
            raise InvalidInput(f"noise_share={noise_share}; pass a finite number above 0, such as {NOISE_SHARE}")
        if micro_batch is not None and micro_batch < 1:
            raise InvalidInput("pass a whole number of at least 1", setting="micro_batch", value=micro_batch)
        if seed < 0:
            raise InvalidInput(f"seed={seed}; pass a whole number of at least 0")
        self.examples, self.batch_size, self.weight, self.seed = np.sort(ids), batch_size, weight, seed
        self.collate, self._micro_batch, self._noise_share = collate, micro_batch or batch_size, noise_share

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
        drawn, total = self.round(round), dict[str, Tensor]()
        share = (1.0 if self.weight is None else self.weight) / self.batch_size
        with own_random_state(device, int(np.random.default_rng([self.seed, round, 1]).integers(2**63))):
            for begin in range(0, drawn.size, self._micro_batch):
                batch = self._batch(drawn[begin : begin + self._micro_batch], round)
                with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
                    losses = loss(model, batch)
                gradients = gradients_of(losses.float().sum() * share, trainable)
                total = {name: total[name] + g if total else g for name, g in gradients.items()}
        return total

    def _batch(self, examples: NDArray[np.int64], round: int) -> Mapping[str, Tensor]:
        if isinstance(self.collate, SkeletonBatches):
            return self.collate(examples, round=round)
        return self.collate(examples)

    def private_scale(self, gradients: Mapping[str, Tensor], noise_norm: float, ranks: Ranks) -> float:
        """The factor of the private part beside these public gradients; noise_norm: that of its noise, expected."""
        if self.weight is not None or noise_norm == 0:
            return 1.0
        parts = list(gradients.values())
        sharded = any(isinstance(part, DTensor) for part in parts)
        norm = ranks.norm(parts) if sharded else torch.linalg.vector_norm(torch.stack([p.norm() for p in parts]))
        return ranks.broadcast(min(1.0, self._noise_share * float(norm) / noise_norm))

    def __repr__(self) -> str:
        weight = "automatic" if self.weight is None else f"{self.weight:g}"
        return f"PublicStream({self.examples.size} examples, batch_size={self.batch_size}, weight={weight})"


def check_public(plan: Plan, collate: Collate, examples: ArrayLike | None = None) -> NDArray[np.int64]:
    """The public examples that may be learnt with this collate, or the chosen ones of them.

    Guarantee: the text of an example with a secret is refused, and so are skeletons of another plan.
    """
    secrets_N = plan.incidence.secrets_per_example
    takes_N = secrets_N == 0
    if isinstance(collate, SkeletonBatches):
        _refuse_other_skeletons(plan, collate)
        takes_N = takes_N | collate.texts.slots.has_slots_N
    public = public_examples(plan)
    ids = public[takes_N[public]] if examples is None else chosen_indices("examples", examples, secrets_N.size)
    touched = ids[~takes_N[ids]]
    if touched.size:
        raise InvalidInput(
            f"{touched.size} of the public examples contain a secret, example {touched[0]} first; leave them "
            "to the private draw, or pass SkeletonBatches as collate if they have slots"
        )
    return ids


def default_batch(plan: Plan, public: int) -> int:
    """Public examples per round under a plan with slots: as many as private ones, from 32 to 1,024 if there are."""
    return min(public, max(MIN_BATCH, min(MAX_BATCH, round(plan.batch_size))))


def _refuse_other_skeletons(plan: Plan, collate: SkeletonBatches) -> None:
    """Refuse skeletons that are not the plan's."""
    texts = collate.texts
    stated, found = plan.skeleton_fingerprint, texts.fingerprint
    if texts.slots != plan.slots or (None not in (stated, found) and stated != found):
        raise InvalidInput(
            "the skeletons are not those of the plan; make them with tokenise_slots from the plan, its data and the "
            "spans of the scan that was planned for"
        )


@contextmanager
def own_random_state(device: torch.device, seed: int) -> Iterator[None]:
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
