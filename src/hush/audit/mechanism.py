"""The attack that the accountant's bound allows, carried out: the best test on simulated runs of the worst case.

For one secret the worst case is a pair of laws: T rounds of N(K, σ²), K the number of its examples drawn, against T
rounds of N(0, σ²). B(p) is the most that a test with a false-alarm probability of p can detect, and the accountant's
claim is an interval around it. Here B(p) is found a second time, by simulation and with no code of the accountant:
if the claim were too low the simulated attack would beat it, if it were loose the attack would fall short.

Both sides come from runs with the secret alone. Let L be the log of the likelihood ratio R of a run, t a threshold
fixed beforehand and E the event R > t. A run in E is called an alarm if a coin of probability t/R says so, otherwise a
gain. Since Q(E) = E_P[1/R; E], an alarm has probability t Q(E), a gain E_P[(1 - t/R)+] =: H(t), and either P(E). All
three counts are binomial, hence have exact limits, and they bracket B(p) whatever t is:

- B(p) <= t p + H(t), by duality;
- if Q(E) <= q, the attack "E, thinned by p/q" (for q > p) or "E, or else a guess" (for q < p) has a false-alarm
  probability of at most p, so that its success is at most B(p).

Rare false alarms are therefore measured where they are common: an event with Q(E) = 1e-4 has many runs with the secret
in it. An independent pilot sample chooses t so that Q(E) is about p.
"""

from dataclasses import dataclass, replace
from typing import Self, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.accounting.arguments import checked_noise, checked_priors, checked_rates, checked_rounds
from hush.audit.statistics import LEVEL, Success, checked_level
from hush.errors import InvalidInput

__all__ = ["MechanismAttack", "attack_mechanism", "log_ratios"]


Array = NDArray[np.float64]

LARGEST_LOG = 700.0  # with any prior that the accountant takes, e to the power of it is far above 1
NEGLIGIBLE = 1e-18  # counts that a round has with less probability than this are left out


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAttack:
    """What the best test detected in simulated runs.

    detected counts the runs with the secret whose likelihood ratio passes the threshold; alarms counts those of them
    that stand for a run without it, each weighted by threshold / ratio.
    """

    prior: float
    log_threshold: float
    detected: Success
    alarms: Success

    @property
    def success(self) -> float:
        """Estimated success of the attack from the prior."""
        return float(_at_prior(self.detected.rate, self.alarms.rate * np.exp(-self.log_threshold), self.prior))

    def lower(self, level: float = LEVEL) -> float:
        """Lower limit of the success that is possible from the prior.

        Guarantee: with the error probability ``level`` at most, it is above B(prior).
        """
        half = checked_level(level) / 2  # one half for the detections, one for the false alarms
        false_alarm = self.alarms.upper(half) * np.exp(-self.log_threshold)
        return float(_at_prior(self.detected.lower(half), false_alarm, self.prior))

    def upper(self, level: float = LEVEL) -> float:
        """Upper limit of it. Guarantee: with the error probability ``level`` at most, it is below B(prior)."""
        gains = Success(hits=self.detected.hits - self.alarms.hits, runs=self.detected.runs)
        weight = np.exp(min(self.log_threshold, LARGEST_LOG))  # beyond it the sum is above 1 in any case
        return float(min(1.0, self.prior * weight + gains.upper(level)))

    def at_best(self) -> Self:
        """As many runs, had all of them, the pilot's too, given the secret away: beyond any threshold, no alarm."""
        runs = self.detected.runs
        return replace(
            self, log_threshold=np.inf, detected=Success(hits=runs, runs=runs), alarms=Success(hits=0, runs=runs)
        )


def attack_mechanism(
    rates: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    prior: float,
    trials: int,
    rng: np.random.Generator,
) -> MechanismAttack:
    """Play the best attack on the worst case of a secret, in ``trials`` runs after a pilot of half as many.

    rates are those of the examples that contain the secret. Laid beside :func:`hush.posterior`: ``lower`` above its
    upper bound means that the bound is wrong, ``upper`` far below it that the bound is loose, and ``upper`` below its
    lower side that this side claims an attack that does not exist.

    >>> attack = attack_mechanism([0.5], noise_multiplier=1.0, rounds=4, prior=0.1, trials=20_000,
    ...                           rng=np.random.default_rng(0))
    >>> attack.lower() < 0.4 < attack.upper()
    True
    """
    p = float(checked_priors(float(prior)))
    pilot = log_ratios(rates, noise_multiplier=noise_multiplier, rounds=rounds, trials=max(trials // 2, 1), rng=rng)
    threshold = _threshold(pilot, p)
    loss = log_ratios(rates, noise_multiplier=noise_multiplier, rounds=rounds, trials=trials, rng=rng)
    beyond = loss > threshold
    coin = rng.random(trials) < np.exp(np.minimum(threshold - loss, 0.0))
    return MechanismAttack(
        prior=p,
        log_threshold=threshold,
        detected=Success(hits=int(beyond.sum()), runs=trials),
        alarms=Success(hits=int((beyond & coin).sum()), runs=trials),
    )


def log_ratios(
    rates: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    trials: int,
    rng: np.random.Generator,
    secret: bool = True,
) -> Array:
    """Log likelihood ratio of each of ``trials`` simulated runs, with the secret's examples or with them zeroed.

    Counts of less than 1e-18 probability are left out, so the simulated law is within 1e-16 per round of the true one.
    """
    from hush.audit.mechanism_kernels import sum_log_ratios

    rate_N, sigma, count = checked_rates(rates), checked_noise(noise_multiplier), checked_rounds(rounds)
    if sigma == 0:
        raise InvalidInput(
            "noise_multiplier=0 leaves nothing to simulate: any draw of the secret's examples gives it away"
        )
    if trials < 1:
        raise InvalidInput(f"trials={trials}; simulate at least one run")
    mass_K = _count_masses(rate_N)
    k = np.arange(mass_K.size, dtype=np.float64)
    with np.errstate(divide="ignore"):  # a count that cannot occur has weight 0
        log_weight_K = np.log(mass_K) - k * k / (2 * sigma * sigma)
    drawn_K = np.cumsum(mass_K) if secret else np.ones(1)
    return sum_log_ratios(rng, drawn_K, log_weight_K, sigma, count, trials)


def _at_prior(detected: ArrayLike, false_alarm: ArrayLike, prior: float) -> Array:
    """Success of the test moved to a false-alarm probability of the prior: thinned, or with a guess where it is silent.

    Rises with ``detected`` and falls with ``false_alarm``, so limits of these two give a limit.
    """
    h, q = np.asarray(detected, dtype=np.float64), np.minimum(false_alarm, 1.0)
    guessing = h + (1 - h) * (prior - np.minimum(q, prior)) / (1 - np.minimum(q, prior))
    return np.maximum(prior, np.where(q > prior, h * prior / np.maximum(q, prior), guessing))


def _threshold(pilot: Array, prior: float) -> float:
    """The log ratio beyond which the pilot's runs make the best attack, their false alarms raised by a deviation.

    Too many false alarms must be paid for by thinning, which costs more than too few.
    """
    falling = np.sort(pilot)[::-1]
    with np.errstate(over="ignore"):
        weight = np.exp(-falling)
        alarm = (np.cumsum(weight) + np.sqrt(np.cumsum(weight * weight))) / falling.size
    detected = np.arange(1, falling.size + 1) / falling.size
    best = int(_at_prior(detected, alarm, prior)[:-1].argmax()) if falling.size > 1 else -1
    return float(falling[best + 1])


def _count_masses(rates: Array) -> Array:
    """Law of the number of examples drawn in a round, one example at a time; its negligible upper end is left out."""
    mass = np.ones(1)
    for rate in rates[rates > 0]:
        mass = np.append(mass * (1 - rate), 0.0) + np.append(0.0, mass * rate)
        above = np.cumsum(mass[::-1])[::-1]
        mass = mass[: max(1, int(np.count_nonzero(above > NEGLIGIBLE / rates.size)))]
    return mass / mass.sum()
