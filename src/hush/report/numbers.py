"""What a report tells of a plan, as arrays: each secret's closest point, its examples before and after weighting.

Legend: N examples, S secrets, Q promised points of a secret, B bins.

The noise that the same promise would take by other proofs and with all the data: what the plan saved.
"""

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting import calibrate, posterior
from hush.accounting.arguments import Bound
from hush.errors import CannotCertify, InfeasiblePlan
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.plan.plan import kept_weight
from hush.report.markup import printable

__all__ = [
    "MOST_ROWS",
    "MOST_SECRETS",
    "Curve",
    "MethodNoise",
    "PackedRows",
    "SecretNumbers",
    "binned_counts",
    "curve_of",
    "kept_weight",
    "noise_by_method",
    "packed_rows",
    "shown_curves",
]


Array = NDArray[np.float64]
TOLD = (1e-4, 1e-2, 0.5)  # priors that the report tells about in words
LEAST, MOST, POINTS = 1e-12, 0.5, 48
CURVES = 3
ALIKE = 0.04  # secrets whose examples weigh so nearly the same are drawn as one


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SecretNumbers:
    """A row for each secret. prior, ceiling and posterior are those of the point that comes closest to its ceiling.

    after_S is the sum of the weights of the secret's examples: by how many full examples it is drawn.
    """

    prior_S: Array
    ceiling_S: Array
    posterior_S: Array
    before_S: NDArray[np.int64]
    after_S: Array
    binding_S: NDArray[np.bool_]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """From a plan."""
        share_SQ = plan.posterior / plan.ceiling
        secrets = np.arange(len(plan.secret_ids))
        point_S = share_SQ.argmax(axis=1) if share_SQ.size else secrets
        binding_S = np.zeros(len(secrets), dtype=bool)
        binding_S[plan.binding] = True
        graph = plan.incidence
        secret_of_entry = np.repeat(secrets, graph.examples_per_secret)
        after_S = np.bincount(secret_of_entry, plan.weights[graph.example_of_entry], minlength=len(secrets))
        return cls(
            prior_S=plan.prior[secrets, point_S],
            ceiling_S=plan.ceiling[secrets, point_S],
            posterior_S=plan.posterior[secrets, point_S],
            before_S=graph.examples_per_secret,
            after_S=after_S.astype(np.float64),  # without entries they come as whole numbers
            binding_S=binding_S,
        )

    @property
    def share_S(self) -> Array:
        """Posterior by ceiling, at most 1."""
        return self.posterior_S / self.ceiling_S


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What every prior may rise to, for one secret; upper bounds, with the promised point nearest its ceiling."""

    name: str
    priors: tuple[float, ...]
    posteriors: tuple[float, ...]
    told: tuple[tuple[float, float], ...]
    prior: float
    ceiling: float


def shown_curves(plan: Plan, numbers: SecretNumbers) -> list[Curve]:
    """The curves of a few secrets that bind, or come closest; of those drawn alike only one."""
    order = np.argsort(-numbers.share_S, kind="stable")
    closest = order[np.argsort(~numbers.binding_S[order], kind="stable")]
    chosen: list[int] = []
    while closest.size and len(chosen) < CURVES:
        chosen.append(int(closest[0]))
        size = numbers.after_S[chosen[-1]]
        closest = closest[np.abs(numbers.after_S[closest] - size) > ALIKE * size]  # their curves would coincide
        if numbers.binding_S.any():
            closest = closest[numbers.binding_S[closest]]
    return [curve_of(plan, numbers, secret) for secret in chosen]


def curve_of(plan: Plan, numbers: SecretNumbers, secret: int) -> Curve:
    """Prior → posterior for one secret, proven at every point."""
    grid = np.geomspace(LEAST, MOST, POINTS)
    promised = float(numbers.prior_S[secret])
    asked = np.unique(np.concatenate([grid, TOLD, [promised]]))
    found = np.asarray(
        posterior(
            plan.rates[plan.incidence.examples_of(secret)],
            noise_multiplier=plan.noise_multiplier,
            rounds=plan.rounds,
            prior=asked,
            bound=plan.bound,
        )
    )
    by_prior = dict(zip(asked.tolist(), found.tolist(), strict=True))
    return Curve(
        name=plan.secret_ids[secret],
        priors=tuple(by_prior),
        posteriors=tuple(by_prior.values()),
        told=tuple((prior, by_prior[prior]) for prior in TOLD),
        prior=promised,
        ceiling=float(numbers.ceiling_S[secret]),
    )


def binned_counts(before_S: NDArray[np.int64], after_S: Array) -> tuple[list[str], list[int], list[int]]:
    """How many secrets are in 0, 1, 2, 3–4, 5–8, … examples, before and (to the nearest) after weighting.

    >>> binned_counts(np.array([0, 1, 4, 9]), np.array([0.0, 0.2, 2.4, 6.0]))
    (['0', '1', '2', '3–4', '5–8', '9–16'], [1, 1, 0, 1, 0, 1], [2, 0, 1, 0, 1, 0])
    """
    tops = [0, 1, 2]
    while tops[-1] < before_S.max(initial=0):
        tops.append(2 * tops[-1])
    edges = np.array(tops) + 0.5
    low = [0, *(top + 1 for top in tops[:-1])]
    names = [f"{top}" if bottom == top else f"{bottom}–{top}" for bottom, top in zip(low, tops, strict=True)]
    counts = [np.bincount(np.searchsorted(edges, each), minlength=len(tops)) for each in (before_S, after_S)]
    return names, counts[0].tolist(), counts[1].tolist()


MOST_SECRETS = 2_000  # beyond it the comparison takes minutes, and waits to be asked for
BOUNDS: tuple[Bound, ...] = ("kl", "renyi", "blowup")
NAMES: Mapping[str, str] = {"kl": "KL (the paper)", "renyi": "Rényi", "blowup": "blow-up (hush)"}

Progress = Callable[[str, int, int], None]
"""What is being computed, how much of it is done, and how much there is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MethodNoise:
    """One way to keep the promise. kept_weight: the share of their weight that examples with secrets keep.

    bound: by which proof; chosen: whether it is the plan that the report is about.
    """

    name: str
    noise_multiplier: float
    kept_weight: float
    bound: str
    chosen: bool = False


def noise_by_method(plan: Plan, *, progress: Progress | None = None) -> tuple[MethodNoise, ...]:
    """KL, Rényi and blow-up, each with all data and with the plan's rates; loosest first.

    Guarantee: each noise is proven to keep every promise of the plan. Ways in which no noise does are left out.
    """
    all_data = np.full(plan.incidence.num_examples, 1.0)
    all_data[held_out_examples(plan)] = 0.0
    all_data *= plan.batch_size / all_data.sum()
    kept = kept_weight(plan)
    ways = [("all data", all_data, 1.0)]
    if kept < 1:
        ways.append(("this plan's rates", plan.rates, kept))
    found: list[MethodNoise] = []
    for label, rate_N, share in ways:
        for bound in BOUNDS:
            name, chosen = f"{NAMES[bound]}, {label}", bound == plan.bound and share == kept
            noise = plan.noise_multiplier if chosen else _noise(plan, rate_N, bound, name, progress)
            if noise is not None:
                way = MethodNoise(name=name, noise_multiplier=noise, kept_weight=share, bound=bound, chosen=chosen)
                found.append(way)
    return tuple(found)


def _noise(plan: Plan, rate_N: np.ndarray, bound: Bound, name: str, progress: Progress | None) -> float | None:
    def told(done: int, total: int) -> None:
        if progress is not None:
            progress(name, done, total)

    try:
        return calibrate(
            plan.incidence, prior=plan.prior, ceiling=plan.ceiling, rates=rate_N, rounds=plan.rounds, bound=bound,
            progress=told,
        ).noise_multiplier  # fmt: skip
    except (InfeasiblePlan, CannotCertify):
        return None


MOST_ROWS = 100_000


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PackedRows:
    """content: base64 of the deflated block; layout: what the page needs to know to read it; left_out: rows beyond."""

    content: str
    layout: Mapping[str, Any]
    rows: int
    left_out: int


def packed_rows(ids: Sequence[str], numbers: SecretNumbers, texts: Sequence[str] | None) -> PackedRows:
    """A row for each secret, in the plan's order; beyond MOST_ROWS only those closest to their ceilings."""
    chosen = _chosen(numbers)
    floats = {
        "prior": numbers.prior_S, "posterior": numbers.posterior_S, "ceiling": numbers.ceiling_S,
        "after": numbers.after_S,
    }  # fmt: skip
    wholes = {"before": numbers.before_S, "binding": numbers.binding_S}
    columns: list[tuple[str, NDArray[Any]]] = [
        *((name, column[chosen].astype("<f8")) for name, column in floats.items()),
        *((name, column[chosen].astype("<i4")) for name, column in wholes.items()),
    ]
    words: dict[str, Sequence[str]] = {"ids": ids} if texts is None else {"ids": ids, "texts": texts}
    places: list[int] = chosen.tolist()
    names = {name: [printable(each[row]) for row in places] for name, each in words.items()}
    tail = json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()
    block = b"".join(column.tobytes() for _, column in columns) + tail
    return PackedRows(
        content=base64.b64encode(zlib.compress(block, 9)).decode("ascii"),
        layout={"rows": len(chosen), "columns": [[name, column.dtype.str[1:]] for name, column in columns]},
        rows=len(chosen),
        left_out=len(ids) - len(chosen),
    )


def _chosen(numbers: SecretNumbers) -> NDArray[np.int64]:
    order = np.argsort(-numbers.share_S, kind="stable")
    return np.sort(order[:MOST_ROWS])
