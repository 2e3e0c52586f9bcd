"""The optimal attack on the mechanism: the likelihood-ratio test on simulated runs of a secret's worst case.

For one secret the worst case is a pair of distributions (the dominating pair): T rounds of N(K, σ²), K the number of
its examples drawn, against T rounds of N(0, σ²). For several releases it is the product of their pairs. B(p) is the
largest detection probability of a test with a false-alarm probability of p, and the accountant claims an interval
around it. Here B(p) is estimated a second time, by simulation and without any code of the accountant: if the claim were
too low, the simulated attack would beat it; if it were loose, the attack would fall short of it.

Both sides come from runs with the secret alone. Let L be the log of the likelihood ratio R of a run, t a threshold
fixed in advance and E the event R > t. A run in E is called an alarm with probability t/R, otherwise a gain. Since
Q(E) = E_P[1/R; E], an alarm has probability t Q(E), a gain E_P[(1 - t/R)+] =: H(t), and either of them P(E). All three
counts are binomial, hence have exact limits, and they bracket B(p) whatever t is:

- B(p) <= t p + H(t), by duality;
- if Q(E) <= q, the attack "E, thinned by p/q" (for q > p) or "E, or else a guess" (for q < p) has a false-alarm
  probability of at most p, so its success is at most B(p).

Rare false alarms are therefore measured where they are common (importance sampling): an event with Q(E) = 1e-4 contains
many runs with the secret. An independent pilot sample chooses t so that Q(E) is about p.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike

from hush.accounting.arguments import checked_noise, checked_priors, checked_rates, checked_rounds
from hush.arrays import Array
from hush.audit.statistics import LEVEL, Success, checked_level
from hush.errors import InvalidInput

__all__ = ["MechanismAttack", "attack_joint_mechanism", "attack_mechanism", "log_likelihood_ratios"]


MAX_LOG_THRESHOLD = 700.0  # exp(700) times any prior that the accountant accepts is far above 1, and finite
NEGLIGIBLE_PROBABILITY = 1e-18  # counts of drawn examples that are less likely than this in a round are left out


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAttack:
    """What the optimal test detected in simulated runs.

    detected counts the runs with the secret whose likelihood ratio exceeds the threshold; alarms counts those of them
    that stand for a run without the secret, drawn with probability threshold / ratio.
    """

    prior: float
    log_threshold: float
    detected: Success
    alarms: Success

    @property
    def success(self) -> float:
        """Estimated success probability of the attack from the prior."""
        return float(_at_prior(self.detected.rate, self.alarms.rate * np.exp(-self.log_threshold), self.prior))

    def lower(self, level: float = LEVEL) -> float:
        """Lower limit of the best possible success from the prior.

        Guarantee: it exceeds B(prior) with probability at most ``level``.
        """
        half = checked_level(level) / 2  # one half for the detections, one for the false alarms
        false_alarm = self.alarms.upper(half) * np.exp(-self.log_threshold)
        return float(_at_prior(self.detected.lower(half), false_alarm, self.prior))

    def upper(self, level: float = LEVEL) -> float:
        """Upper limit of the same. Guarantee: it is below B(prior) with probability at most ``level``."""
        gains = Success(hits=self.detected.hits - self.alarms.hits, runs=self.detected.runs)
        weight = np.exp(min(self.log_threshold, MAX_LOG_THRESHOLD))  # beyond it the sum exceeds 1 in any case
        return float(min(1.0, self.prior * weight + gains.upper(level)))

    def at_best(self) -> Self:
        """The same number of runs, as if all of them, the pilot's too, had revealed the secret with no false alarm."""
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
    """Run the optimal attack on the worst case of a secret, in ``trials`` runs after a pilot of half as many.

    rates are those of the examples that contain the secret. Compared with :func:`hush.posterior`: ``lower`` above its
    upper bound means that the bound is wrong, ``upper`` far below it that the bound is loose, and ``upper`` below its
    lower bound that the lower bound claims an attack that does not exist.

    >>> attack = attack_mechanism([0.5], noise_multiplier=1.0, rounds=4, prior=0.1, trials=20_000,
    ...                           rng=np.random.default_rng(0))
    >>> attack.lower() < 0.4 < attack.upper()
    True
    """
    return attack_joint_mechanism(
        [rates], noise_multipliers=[noise_multiplier], rounds=[rounds], prior=prior, trials=trials, rng=rng
    )


def attack_joint_mechanism(
    rates: Sequence[ArrayLike],
    *,
    noise_multipliers: Sequence[float],
    rounds: Sequence[SupportsIndex],
    prior: float,
    trials: int,
    rng: np.random.Generator,
) -> MechanismAttack:
    """Run the optimal attack on several releases at once, by an attacker who holds all of their models.

    Entry r of rates, noise_multipliers and rounds is what release r used; releases are independent given their
    settings, so their log likelihood ratios add up. Compared with :func:`hush.joint_posterior` as
    :func:`attack_mechanism` is with :func:`hush.posterior`.

    >>> twice = attack_joint_mechanism([[1.0], [0.5]], noise_multipliers=[2.0, 1.0], rounds=[2, 4], prior=0.1,
    ...                                trials=20_000, rng=np.random.default_rng(0))
    >>> twice.lower() < 0.491 < twice.upper()
    True
    """
    if not rates or not len(rates) == len(noise_multipliers) == len(rounds):
        raise InvalidInput(
            f"{len(rates)} lists of rates, {len(noise_multipliers)} noise multipliers and {len(rounds)} numbers of "
            "rounds; pass one of each for every release, and at least one release"
        )
    releases = list(zip(rates, noise_multipliers, rounds, strict=True))

    def log_ratios(runs: int) -> Array:
        total = np.zeros(runs)
        for of_release, noise, count in releases:
            total += log_likelihood_ratios(of_release, noise_multiplier=noise, rounds=count, trials=runs, rng=rng)
        return total

    p = float(checked_priors(float(prior)))
    threshold = _threshold(log_ratios(max(trials // 2, 1)), p)
    log_ratio = log_ratios(trials)
    detected = log_ratio > threshold
    coin = rng.random(trials) < np.exp(np.minimum(threshold - log_ratio, 0.0))
    return MechanismAttack(
        prior=p,
        log_threshold=threshold,
        detected=Success(hits=int(detected.sum()), runs=trials),
        alarms=Success(hits=int((detected & coin).sum()), runs=trials),
    )


def log_likelihood_ratios(
    rates: ArrayLike,
    *,
    noise_multiplier: float,
    rounds: SupportsIndex,
    trials: int,
    rng: np.random.Generator,
    secret: bool = True,
) -> Array:
    """Log likelihood ratio of each of ``trials`` simulated runs, with the secret's examples or with them zeroed.

    Counts less likely than 1e-18 are left out, so the simulated distribution is within 1e-16 per round of the true one.
    """
    from hush.audit.mechanism_kernels import sum_log_likelihood_ratios

    rate_N, sigma, count = checked_rates(rates), checked_noise(noise_multiplier), checked_rounds(rounds)
    if sigma == 0:
        raise InvalidInput(
            "without noise there is nothing to simulate: any draw of the secret's examples reveals it; pass a number "
            "above 0",
            setting="noise_multiplier",
            value=0,
        )
    if trials < 1:
        raise InvalidInput("simulate at least one run", setting="trials", value=trials)
    mass_K = _count_masses(rate_N)
    k = np.arange(mass_K.size, dtype=np.float64)
    with np.errstate(divide="ignore"):  # a count of probability 0 has weight 0
        log_weight_K = np.log(mass_K) - k * k / (2 * sigma * sigma)
    drawn_K = np.cumsum(mass_K) if secret else np.ones(1)
    return sum_log_likelihood_ratios(rng, drawn_K, log_weight_K, sigma, count, trials)


def _at_prior(detected: ArrayLike, false_alarm: ArrayLike, prior: float) -> Array:
    """Success of the test brought to a false-alarm probability equal to the prior: by thinning, or by guessing.

    Rises with ``detected`` and falls with ``false_alarm``, so limits of these two give a limit.
    """
    h, q = np.asarray(detected, dtype=np.float64), np.minimum(false_alarm, 1.0)
    guessing = h + (1 - h) * (prior - np.minimum(q, prior)) / (1 - np.minimum(q, prior))
    return np.maximum(prior, np.where(q > prior, h * prior / np.maximum(q, prior), guessing))


def _threshold(pilot: Array, prior: float) -> float:
    """The log ratio above which the pilot's runs make the best attack, with false alarms one deviation above estimate.

    Too many false alarms are compensated by thinning, which costs more than having too few.
    """
    descending = np.sort(pilot)[::-1]
    with np.errstate(over="ignore"):
        weight = np.exp(-descending)
        false_alarm = (np.cumsum(weight) + np.sqrt(np.cumsum(weight * weight))) / descending.size
    detected = np.arange(1, descending.size + 1) / descending.size
    best = int(_at_prior(detected, false_alarm, prior)[:-1].argmax()) if descending.size > 1 else -1
    return float(descending[best + 1])


def _count_masses(rates: Array) -> Array:
    """Distribution of the number of examples drawn in a round, without its negligible upper tail."""
    mass = np.ones(1)
    for rate in rates[rates > 0]:
        mass = np.append(mass * (1 - rate), 0.0) + np.append(0.0, mass * rate)
        tail = np.cumsum(mass[::-1])[::-1]
        mass = mass[: max(1, int(np.count_nonzero(tail > NEGLIGIBLE_PROBABILITY / rates.size)))]
    return mass / mass.sum()
