"""Stage 4, the plan: how often each example is drawn and how much noise is added, frozen. The only way to train.

Legend: N examples, S secrets, Q promised points of a secret.
"""

import platform
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from hush import __version__
from hush.accounting import posterior
from hush.accounting.inputs import Bound
from hush.certificate import DATA_FINGERPRINT, NOT_COVERED, Certificate
from hush.incidence import Incidence
from hush.plan.invariants import check_numbers, check_sizes, fingerprint, promises_fingerprint
from hush.plan.remarks import remarks
from hush.rounding import rounded_up
from hush.weights.choose import KEPT, Capacity, rates_of

Array = NDArray[np.float64]

CURVE = np.array([1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
CURVES = 3  # secrets whose curve the certificate shows
NAMED = 10  # binding secrets that the certificate names


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plan:
    """Rates, weights, noise and the posteriors they lead to.

    prior, ceiling and posterior have a row per secret and a column per promised point; binding lists the secrets whose
    promise about 1 % less noise would break. weights_gap is how far the sum of the weights may be from the best, of
    weights that hold out the same examples.

    Invariants: weights lie in [0, 1]; rates are batch_size * weights / sum(weights), all in [0, 1]; every posterior is
    at most its ceiling; every array is read-only. noise_scale other than 1 makes it a simulation: training uses
    noise_multiplier * noise_scale, and nothing is certified. data_fingerprint, if given, names the very data that the
    examples are, row by row, under the owner's key (``DataKey.fingerprint_rows``).
    """

    incidence: Incidence
    secret_ids: tuple[str, ...]
    prior: Array
    ceiling: Array
    posterior: Array
    binding: NDArray[np.int64]
    weights: Array
    noise_multiplier: float
    rounds: int
    batch_size: float
    clip_norm: float
    bound: Bound
    capacity: Capacity
    weights_gap: float
    noise_scale: float
    created: str
    data_fingerprint: str | None = None

    def __post_init__(self) -> None:
        for name in ("prior", "ceiling", "posterior", "binding", "weights"):
            array = np.array(getattr(self, name), dtype=np.int64 if name == "binding" else np.float64)
            array.flags.writeable = False  # a copy: the caller keeps theirs, and cannot change this one
            object.__setattr__(self, name, array)
        check_sizes(self)
        check_numbers(self)
        self.rates.flags.writeable = False

    @cached_property
    def rates(self) -> Array:
        """Sampling probability of each example in each round."""
        return rates_of(self.weights, self.batch_size)

    @property
    def training_noise_multiplier(self) -> float:
        """What training adds: the certified noise, unless this is a simulation."""
        return self.noise_multiplier * self.noise_scale

    @property
    def kept_fraction(self) -> float:
        """Share of the examples that are ever used."""
        return float(np.mean(self.weights > KEPT))

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum())

    @property
    def effective_size(self) -> float:
        """(sum w)^2 / sum w^2: how many equally used examples would be as diverse."""
        return self.total_weight**2 / float(self.weights @ self.weights)

    @property
    def promises_fingerprint(self) -> str:
        """SHA-256 of ids, priors and ceilings; all of them are public."""
        return promises_fingerprint(self.secret_ids, self.prior, self.ceiling)

    @cached_property
    def certificate(self) -> Certificate:
        """What this plan promises and what it does not, with the curve prior -> posterior of binding secrets."""
        share_S = (self.posterior / self.ceiling).max(axis=1)
        closest = self.binding if self.binding.size else np.argsort(-share_S, kind="stable")
        named: list[int] = self.binding[:NAMED].tolist()
        shown: list[int] = closest[:CURVES].tolist()
        return Certificate(
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            batch_size=self.batch_size,
            clip_norm=self.clip_norm,
            bound=self.bound,
            capacity=self.capacity,
            weights_gap=self.weights_gap,
            num_examples=self.incidence.num_examples,
            num_secrets=self.incidence.num_secrets,
            kept_fraction=self.kept_fraction,
            strictest={
                "largest_prior": float(self.prior.max(initial=0.0)),
                "smallest_ceiling": float(self.ceiling.min(initial=1.0)),
                "largest_ceiling": float(self.ceiling.max(initial=0.0)),
                "largest_share_of_ceiling": float(share_S.max(initial=0.0)),
            },
            num_binding=self.binding.size,
            binding=tuple(self.secret_ids[secret] for secret in named),
            curve={self.secret_ids[secret]: self._curve(secret) for secret in shown},
            fingerprints={
                "incidence": self.incidence.fingerprint,
                "promises": self.promises_fingerprint,
                "weights": fingerprint(b"hush weights 1\n", self.weights),
                "posteriors": fingerprint(b"hush posteriors 1\n", self.posterior, self.binding),
                **({} if self.data_fingerprint is None else {DATA_FINGERPRINT: self.data_fingerprint}),
            },
            versions=_versions(),
            created=self.created,
            marks=(f"simulation, noise scaled by {self.noise_scale!r}",) if self.noise_scale != 1 else (),
            not_covered=(*NOT_COVERED, *remarks(self)),
        )

    def _curve(self, secret: int) -> tuple[tuple[float, float], ...]:
        after = posterior(
            self.rates[self.incidence.examples_of(secret)],
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            prior=CURVE,
            bound=self.bound,
        )
        return tuple(zip(CURVE.tolist(), np.asarray(after).tolist(), strict=True))

    def save(self, folder: str | Path) -> None:
        """Write the plan, its graph and its certificate as a folder, whole or not at all."""
        from hush.plan.files import save_plan

        save_plan(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a folder that ``save`` wrote; every digest is checked, nothing is computed again (``verify`` does)."""
        from hush.plan.files import load_plan

        return cls(**load_plan(Path(folder)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    def __hash__(self) -> int:
        return hash((self.incidence, self.promises_fingerprint, self.noise_multiplier))

    def __repr__(self) -> str:
        return (
            f"Plan(noise_multiplier={rounded_up(self.noise_multiplier, 6)}, kept={self.kept_fraction:.1%}, "
            f"rounds={self.rounds}, batch_size={self.batch_size:g}, secrets={len(self.secret_ids)}, "
            f"bound={self.bound!r})"
        )


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def _versions() -> dict[str, str]:
    import scipy

    return {
        "hush": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }
