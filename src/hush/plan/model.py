"""Stage 4, the plan: how often each example is drawn and how much noise is added, frozen. The only way to train.

Legend: N examples, S secrets, Q promised points of a secret.
"""

import hashlib
import platform
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting import posterior
from hush.accounting.inputs import Bound
from hush.certificate import Certificate
from hush.errors import CannotCertify, InvalidInput
from hush.incidence import Incidence
from hush.weights.choose import KEPT, Capacity, rates_of

Array = NDArray[np.float64]

CURVE = np.array([1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
CURVES = 3  # binding secrets whose curve the certificate shows


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plan:
    """Rates, weights, noise and the posteriors they lead to.

    Invariants: rates are batch_size * weights / sum(weights), all in [0, 1]; every posterior is at most its ceiling.
    noise_scale other than 1 makes it a simulation: training uses noise_multiplier * noise_scale, and nothing is
    certified.
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

    def __post_init__(self) -> None:
        n, m = self.incidence.num_examples, self.incidence.num_secrets
        if self.weights.shape != (n,) or len(self.secret_ids) != m or self.prior.shape[0] != m:
            raise InvalidInput(
                f"the incidence has {n} examples and {m} secrets, the plan {self.weights.shape} weights, "
                f"{len(self.secret_ids)} ids and {self.prior.shape[0]} promises; they must match"
            )
        if self.prior.shape != self.ceiling.shape or self.prior.shape != self.posterior.shape:
            raise InvalidInput("priors, ceilings and posteriors must have the same shape")
        broken = ~(self.posterior <= self.ceiling)
        if broken.any():
            raise CannotCertify(f"{int(broken.sum())} posteriors exceed their ceilings; this plan is void")
        for array in (self.prior, self.ceiling, self.posterior, self.binding, self.weights, self.rates):
            array.flags.writeable = False

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
    def promises_fingerprint(self) -> str:
        """SHA-256 of ids, priors and ceilings; all of them are public."""
        digest = hashlib.sha256(b"hush promises 1\n")
        digest.update("\n".join(self.secret_ids).encode())
        for array in (self.prior, self.ceiling):
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return digest.hexdigest()

    @cached_property
    def certificate(self) -> Certificate:
        """What this plan promises and what it does not, with the curve prior -> posterior of binding secrets."""
        shown = self.binding[:CURVES].tolist()
        ids = [self.secret_ids[secret] for secret in self.binding.tolist()]
        return Certificate(
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            batch_size=self.batch_size,
            clip_norm=self.clip_norm,
            bound=self.bound,
            capacity=self.capacity,
            num_examples=self.incidence.num_examples,
            num_secrets=self.incidence.num_secrets,
            kept_fraction=self.kept_fraction,
            strictest={
                "largest_prior": float(self.prior.max(initial=0.0)),
                "smallest_ceiling": float(self.ceiling.min(initial=1.0)),
                "largest_ceiling": float(self.ceiling.max(initial=0.0)),
                "largest_share_of_ceiling": float((self.posterior / self.ceiling).max(initial=0.0)),
            },
            binding=tuple(ids[:10]) + ((f"and {len(ids) - 10} more",) if len(ids) > 10 else ()),
            curve={self.secret_ids[secret]: self._curve(secret) for secret in shown},
            fingerprints={"incidence": self.incidence.fingerprint, "promises": self.promises_fingerprint},
            versions={name: version(name) for name in ("hush", "numpy", "scipy")}
            | {"python": platform.python_version()},
            created=self.created,
            marks=(f"simulation, noise scaled by {self.noise_scale:g}",) if self.noise_scale != 1 else (),
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
        """Read a folder that ``save`` wrote; every digest and fingerprint is checked."""
        from hush.plan.files import load_plan

        return cls(**load_plan(Path(folder)))

    def __repr__(self) -> str:
        return (
            f"Plan(noise_multiplier={self.noise_multiplier:.6g}, kept={self.kept_fraction:.1%}, rounds={self.rounds}, "
            f"batch_size={self.batch_size:g}, secrets={len(self.secret_ids)}, bound={self.bound!r})"
        )
