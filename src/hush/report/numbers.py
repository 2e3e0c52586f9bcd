"""The numbers that a report shows of a plan: secrets, posterior curves, noise by method, and the packed table.

:class:`SecretNumbers` has each secret's closest promised point and its examples before and after weighting.
:func:`noise_by_method` is the noise that the same promise would need by other proofs and with all the data.
:func:`packed_rows` is the table of secrets as one compact block of bytes: all float64 columns, then all int32 columns,
then ids (and texts, if the owner asked) as JSON; little-endian, deflated, base64. The page reads it as typed arrays:
500,000 rows take a few megabytes, and no numbers need to be parsed.

Shapes: N examples, S secrets, Q promised points of a secret.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting import calibrate, posterior
from hush.accounting.arguments import Bound
from hush.accounting.sampling_error import with_sampling_error
from hush.arrays import Array
from hush.certificate import Certificate
from hush.errors import CannotCertify, InfeasiblePlan
from hush.plan import Plan
from hush.plan.plan import drawable_examples, kept_weight
from hush.report.markup import printable

if TYPE_CHECKING:
    from hush.audit.session import StepProgress

__all__ = [
    "MAX_COMPARED_SECRETS",
    "MAX_TABLE_ROWS",
    "MethodNoise",
    "PackedRows",
    "SecretCurve",
    "SecretNumbers",
    "binned_counts",
    "closest_curves",
    "kept_weight",
    "noise_by_method",
    "packed_rows",
    "secret_curve",
]


SHOWN_PRIORS = (1e-4, 1e-2, 0.5)  # whose posteriors the report states in words
MIN_PRIOR, MAX_PRIOR, CURVE_POINTS = 1e-12, 0.5, 48  # of a posterior curve
MAX_CURVES = 3
SIMILAR_WEIGHT = 0.04  # relative difference of their examples' weight below which two curves would coincide
MAX_COMPARED_SECRETS = 2_000  # above it noise by method takes minutes, and is computed only on request
MAX_TABLE_ROWS = 1_000_000  # of the table of secrets: 16 bytes each in the file, and about 200 in the browser
BOUNDS: tuple[Bound, ...] = ("kl", "renyi", "blowup")
BOUND_NAMES: Mapping[str, str] = {"kl": "KL (the paper)", "renyi": "Rényi", "blowup": "blow-up (hush)"}


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SecretNumbers:
    """One entry a secret. prior, ceiling and posterior are those of the promised point closest to its ceiling.

    share_S: posterior divided by ceiling, at most 1. before_S: the number of its examples. after_S: the sum of their
    weights, that is, their number after weighting. sampling_error: what a run's computed draws and noise add to
    posteriors; those here include it.
    """

    prior_S: Array
    ceiling_S: Array
    posterior_S: Array
    share_S: Array
    before_S: NDArray[np.int64]
    after_S: Array
    binding_S: NDArray[np.bool_]
    sampling_error: float

    @classmethod
    def of(cls, plan: Plan, certificate: Certificate | None = None) -> Self:
        """From a plan, and the certificate of a run under it if there is one."""
        trained = None if certificate is None else certificate.trained_parameters
        posterior_SQ = plan.posterior if trained is None else plan.posterior_of_run(trained)
        share_SQ = posterior_SQ / plan.ceiling
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
            posterior_S=posterior_SQ[secrets, point_S],
            share_S=share_SQ[secrets, point_S],
            before_S=graph.examples_per_secret,
            after_S=after_S.astype(np.float64),  # without entries, bincount gives integers
            binding_S=binding_S,
            sampling_error=(None if certificate is None else certificate.sampling_error) or 0.0,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecretCurve:
    """The largest posterior from each prior, for one secret, and its promised point closest to the ceiling.

    shown_points: the prior and posterior of each of ``SHOWN_PRIORS``.
    """

    name: str
    priors: tuple[float, ...]
    posteriors: tuple[float, ...]
    shown_points: tuple[tuple[float, float], ...]
    prior: float
    ceiling: float


def closest_curves(plan: Plan, numbers: SecretNumbers) -> list[SecretCurve]:
    """The curves of a few binding secrets, or of those closest to their ceilings; of coinciding curves only one."""
    order = np.argsort(-numbers.share_S, kind="stable")
    closest = order[np.argsort(~numbers.binding_S[order], kind="stable")]
    chosen: list[int] = []
    while closest.size and len(chosen) < MAX_CURVES:
        chosen.append(int(closest[0]))
        size = numbers.after_S[chosen[-1]]
        closest = closest[np.abs(numbers.after_S[closest] - size) > SIMILAR_WEIGHT * size]
        if numbers.binding_S.any():
            closest = closest[numbers.binding_S[closest]]
    return [secret_curve(plan, numbers, secret) for secret in chosen]


def secret_curve(plan: Plan, numbers: SecretNumbers, secret: int) -> SecretCurve:
    """The posterior curve of one secret, proven at every point."""
    grid = np.geomspace(MIN_PRIOR, MAX_PRIOR, CURVE_POINTS)
    promised = float(numbers.prior_S[secret])
    priors = np.unique(np.concatenate([grid, SHOWN_PRIORS, [promised]]))
    posteriors = np.asarray(
        posterior(
            plan.rates[plan.incidence.examples_of(secret)],
            noise_multiplier=plan.noise_multiplier,
            rounds=plan.rounds,
            prior=priors,
            bound=plan.bound,
        )
    )
    if numbers.sampling_error:
        posteriors = with_sampling_error(posteriors, numbers.sampling_error)
    by_prior = dict(zip(priors.tolist(), posteriors.tolist(), strict=True))
    return SecretCurve(
        name=plan.secret_ids[secret],
        priors=tuple(by_prior),
        posteriors=tuple(by_prior.values()),
        shown_points=tuple((prior, by_prior[prior]) for prior in SHOWN_PRIORS),
        prior=promised,
        ceiling=float(numbers.ceiling_S[secret]),
    )


def binned_counts(before_S: NDArray[np.int64], after_S: Array) -> tuple[list[str], list[int], list[int]]:
    """How many secrets are in 0, 1, 2, 3–4, 5–8, … examples, before and (rounded) after weighting.

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


# Noise by method.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MethodNoise:
    """The noise that one method needs. kept_weight: the share of their weight that examples with secrets keep.

    bound: the bound that proves it. chosen: whether it is the plan that the report is about.
    """

    name: str
    noise_multiplier: float
    kept_weight: float
    bound: str
    chosen: bool = False


def noise_by_method(plan: Plan, *, progress: "StepProgress | None" = None) -> tuple[MethodNoise, ...]:
    """The noise by the KL, Rényi and blow-up bounds, each with all data and with the plan's rates; loosest first.

    Guarantee: each noise is proven to keep every promise of the plan. Methods by which no noise does are left out.
    """
    all_data = drawable_examples(plan).astype(np.float64)
    all_data *= plan.batch_size / all_data.sum()
    kept = kept_weight(plan)
    weightings = [("all data", all_data, 1.0)]
    if kept < 1:
        weightings.append(("this plan's rates", plan.rates, kept))
    methods: list[MethodNoise] = []
    for label, rate_N, share in weightings:
        for bound in BOUNDS:
            name, chosen = f"{BOUND_NAMES[bound]}, {label}", bound == plan.bound and share == kept
            noise = plan.noise_multiplier if chosen else _calibrated_noise(plan, rate_N, bound, name, progress)
            if noise is not None:
                methods.append(
                    MethodNoise(name=name, noise_multiplier=noise, kept_weight=share, bound=bound, chosen=chosen)
                )
    return tuple(methods)


def _calibrated_noise(
    plan: Plan, rate_N: Array, bound: Bound, name: str, progress: "StepProgress | None"
) -> float | None:
    def report_progress(done: int, total: int) -> None:
        if progress is not None:
            progress(name, done, total)

    try:
        return calibrate(
            plan.incidence, prior=plan.prior, ceiling=plan.ceiling, rates=rate_N, rounds=plan.rounds, bound=bound,
            progress=report_progress,
        ).noise_multiplier  # fmt: skip
    except (InfeasiblePlan, CannotCertify):
        return None


# The packed table of secrets.


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PackedRows:
    """content: base64 of the deflated block. layout: its columns, for the page. left_out: rows that are not in it."""

    content: str
    layout: Mapping[str, Any]
    rows: int
    left_out: int


def packed_rows(ids: Sequence[str], numbers: SecretNumbers, texts: Sequence[str] | None) -> PackedRows:
    """A row for each secret, closest to its ceiling first, so that the page need not sort; MAX_TABLE_ROWS at most."""
    chosen = np.argsort(-numbers.share_S, kind="stable")[:MAX_TABLE_ROWS]
    floats = {
        "prior": numbers.prior_S, "posterior": numbers.posterior_S, "ceiling": numbers.ceiling_S,
        "after": numbers.after_S,
    }  # fmt: skip
    integers = {"before": numbers.before_S, "binding": numbers.binding_S}
    columns: list[tuple[str, NDArray[Any]]] = [
        *((name, column[chosen].astype("<f8")) for name, column in floats.items()),
        *((name, column[chosen].astype("<i4")) for name, column in integers.items()),
    ]
    strings: dict[str, Sequence[str]] = {"ids": ids} if texts is None else {"ids": ids, "texts": texts}
    rows: list[int] = chosen.tolist()
    safe = {name: [printable(column[row]) for row in rows] for name, column in strings.items()}
    tail = json.dumps(safe, separators=(",", ":"), ensure_ascii=False).encode()
    block = b"".join(column.tobytes() for _, column in columns) + tail
    return PackedRows(
        content=base64.b64encode(zlib.compress(block, 6)).decode("ascii"),
        layout={"rows": len(chosen), "columns": [[name, column.dtype.str[1:]] for name, column in columns]},
        rows=len(chosen),
        left_out=len(ids) - len(chosen),
    )
