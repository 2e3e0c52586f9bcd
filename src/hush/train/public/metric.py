"""The public metric: scales in which gradients are clipped and receive noise, measured from public examples.

With v the mean square of each coordinate of public per-example gradients, clipped in the ordinary norm, noise over
signal of a clipped sum is proportional to (Σ s²v)(Σ s⁻²) in a metric s. It is least at s = v^(-1/4); without a metric
it is d·Σv. v is factored as Adafactor does (row means × column means / mean), so that s is an outer product.

Why it costs no privacy: s is a function of public text, of a seed of its own and of the model before the round, which
is a function of earlier noisy sums. So it is fixed, given the past, before the round's draw. In the metric an example
with a secret adds at most C to the sum, against zero without it, and the noise there is C times the noise multiplier:
the pair that the plan accounts for. The division by s afterwards is post-processing. docs/proofs, "Public metric".
"""

import math
from collections.abc import Mapping
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from hush.errors import InvalidInput, Setting
from hush.plan import Plan
from hush.train.clipping import Clipper, Loss
from hush.train.clipping.metric import MAX_FACTOR, Metric, Scale
from hush.train.distributed import Ranks
from hush.train.public.stream import Collate, check_public, own_random_state
from hush.train.settings import MetricSettings
from hush.train.slots.batches import SkeletonBatches

__all__ = ["PublicMetric", "metric_of"]


@final
class PublicMetric:
    """Measures a :class:`~hush.train.clipping.metric.Metric` for a model, again every so many rounds.

    Make one with :meth:`of_plan` or :meth:`of_corpus`, which take the settings of
    :class:`~hush.train.settings.MetricSettings` by name. Draws are functions of seed and round alone, and public.

    Guarantee: nothing that holds a secret is measured, and what is measured does not depend on the private draw, so the
    promises of the plan hold unchanged, for the reasons above.
    """

    def __init__(
        self,
        examples: NDArray[np.int64],
        collate: Collate,
        *,
        plan: Plan | None,
        seed: int = 0,
        micro_batch: int = 32,
        **settings: Any,
    ) -> None:
        if micro_batch < 1:
            raise InvalidInput("pass a whole number of at least 1", setting="micro_batch", value=micro_batch)
        if not examples.size:
            raise InvalidInput(
                "nothing of the data is public to measure a metric from; name a public corpus: ",
                Setting("metric.corpus"),
                setting="metric",
            )
        self.examples, self.plan = examples, plan
        self._collate, self._micro_batch, self._seed = collate, micro_batch, seed
        self._settings = MetricSettings(**settings)
        self._count = min(self._settings.count, examples.size)

    @classmethod
    def of_plan(cls, plan: Plan, collate: Collate, *, examples: ArrayLike | None = None, **settings: Any) -> Self:
        """Measured from the plan's public examples; those that have slots from their skeletons, as in a stream."""
        return cls(check_public(plan, collate, examples), collate, plan=plan, **settings)

    @classmethod
    def of_corpus(cls, texts: int, collate: Collate, **settings: Any) -> Self:
        """Measured from another corpus of so many texts, which the caller states to be public: no secret is in it.

        collate makes a batch from numbers of its texts.
        """
        return cls(np.arange(texts, dtype=np.int64), collate, plan=None, **settings)

    @property
    def settings(self) -> dict[str, float | str]:
        """What a resumed run must have like the first one."""
        return {
            "from": "a corpus stated to be public" if self.plan is None else "public examples of the plan",
            **self._settings.model_dump(exclude={"corpus", "count"}),
            "count": self._count,
            "seed": self._seed,
        }

    def refuse_other_plan(self, plan: Plan) -> None:
        """Refuse a metric of another plan's public examples: they may hold secrets of this one."""
        mine = self.plan
        if mine is not None and mine is not plan and _public_part(mine) != _public_part(plan):
            raise InvalidInput(
                "the metric is measured from the public examples of another plan, which may hold secrets of this one; "
                "make it from this plan",
                setting="metric",
            )

    def is_due(self, round: int) -> bool:
        """Whether the metric is measured before this round."""
        return round % self._settings.every == 0

    def measure(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        round: int,
        clip_norm: float,
        autocast: torch.dtype | None = None,
    ) -> Metric:
        """The metric from this round on, the same on every rank; all call it together."""
        clipper = Clipper(model, loss, clip_norm=clip_norm, autocast=autocast, squares=True)
        device = next(p for p in model.parameters() if p.requires_grad).device
        rng = np.random.default_rng([self._seed, round, 2])
        drawn = np.sort(rng.choice(self.examples, self._count, replace=False)).astype(np.int64)
        with own_random_state(device, int(rng.integers(2**63))):
            for begin in range(0, drawn.size, self._micro_batch):
                ids = drawn[begin : begin + self._micro_batch]
                real = torch.arange(min(self._micro_batch, drawn.size)) < ids.size  # all batches have one shape
                ids = np.resize(ids, real.numel())
                clipper.accumulate(self._batch(ids, round), real)
        squares = {name: total / self._count for name, total in clipper.take(exact=True).items()}
        stated = self._settings.model_dump(include={"exponent", "floor", "precondition"})
        metric = metric_of(squares, **stated)
        return Metric.from_state(Ranks.current().broadcast(metric.state()))

    def _batch(self, ids: NDArray[np.int64], round: int) -> Mapping[str, Tensor]:
        if isinstance(self._collate, SkeletonBatches):
            return self._collate(ids, round=round)
        return self._collate(ids)

    def __repr__(self) -> str:
        return f"PublicMetric({', '.join(f'{name}={value}' for name, value in self.settings.items())})"


@torch.no_grad()
def metric_of(
    squares: Mapping[str, Tensor], *, exponent: float = -0.25, floor: float = 0.1, precondition: float = 0.0
) -> Metric:
    """The metric v^exponent of mean squares v of coordinates, factored and floored.

    It is normalised to Σ s²v = Σ v: a gradient has about the norm in it that it has without it, so a clip norm keeps
    its meaning. A parameter's mean counts at least the floor's share of the mean over all parameters, so that one
    without a gradient so far (an adapter at its start) has a scale as well.
    """
    total = sum(float(v.double().sum()) for v in squares.values())
    overall = total / max(1, sum(v.numel() for v in squares.values()))
    if not 0 < overall < float("inf"):
        raise InvalidInput("the public examples give no finite gradient to measure a metric from; use other examples")
    factored = {name: _factored(v.double() / overall, floor) for name, v in squares.items()}
    raw = {name: _power(factors, exponent) for name, factors in factored.items()}
    weighed = sum(_weighed(squares[name], factors) for name, factors in raw.items())
    unit = (total / weighed) ** 0.5
    scales = {
        name: Scale.rounded(_within(rows * unit), None if columns is None else _within(columns))
        for name, (rows, columns) in raw.items()
    }
    if precondition == 0:
        return Metric(scales)
    roots = {name: _power(factors, precondition) for name, factors in factored.items()}
    unit = overall**precondition
    return Metric(scales, {name: Scale.rounded(rows * unit, columns) for name, (rows, columns) in roots.items()})


def _public_part(plan: Plan) -> tuple[object, ...]:
    """What says which examples are public, and of which data."""
    slots = None if plan.slots is None else plan.slots.fingerprint
    held_out = None if plan.held_out is None else plan.held_out.tobytes()
    return plan.incidence.fingerprint, plan.data_fingerprint, plan.skeleton_fingerprint, slots, held_out


Factors = tuple[Tensor, Tensor | None]


def _factored(v: Tensor, floor: float) -> Factors:
    """Rows and columns whose outer product stands for v: means of rows, and means of columns over the mean."""
    if v.numel() == 0:
        return v.new_ones(v.shape[0]), None if v.dim() < 2 else v.new_ones(math.prod(v.shape[1:]))
    mean = v.mean().clamp_min(floor)
    if v.dim() < 2:
        return v.reshape(-1).clamp_min(floor * float(mean)), None
    matrix = v.flatten(1)
    return matrix.mean(1).clamp_min(floor * float(mean)), matrix.mean(0).clamp_min(floor * float(mean)) / mean


def _power(factors: Factors, exponent: float) -> Factors:
    rows, columns = factors
    return rows.pow(exponent), None if columns is None else columns.pow(exponent)


def _weighed(v: Tensor, factors: Factors) -> float:
    """Σ s²v."""
    rows, columns = factors
    if columns is None:
        return float((rows.square() * v.double().reshape(-1)).sum())
    return float(rows.square() @ v.double().flatten(1) @ columns.square())


def _within(factor: Tensor) -> Tensor:
    return factor.clamp(1 / MAX_FACTOR, MAX_FACTOR)
