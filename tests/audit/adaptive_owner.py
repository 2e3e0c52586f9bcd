"""An owner who chooses the settings of the second release by looking at the first: how often the secret is found.

Two releases of a secret in one example. The owner, or an adversary who advises the owner, sees the first model and
picks the settings of the second from a list. A release is one round: the example is drawn with probability ``rate``,
and the model shows K + noise, K being 0 or 1. With rate 1, T rounds at noise σ are one round at σ/√T, so this covers
longer trainings too.

Given the threshold t of the attacker's test, the owner's best choice after a likelihood ratio R of the first release is
the one with the largest H(t / R), where H(u) is the hockey-stick divergence of the second release. So the largest
success from the prior p is min over t of t p + E[max over settings of H(t / R)], the mean over the first release with
the secret (docs/proofs.md, "Settings chosen by looking at earlier models"). H has a closed form and the mean is a
one-dimensional integral. Nothing here uses the accountant.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]

LARGEST_DEVIATION = 14.0  # of a normal variable: what lies beyond has a probability of 1e-44
GRID_POINTS = 20_001


@dataclass(frozen=True, kw_only=True)
class Release:
    """One round of a secret in one example."""

    rate: float
    noise: float

    def log_ratio(self, output: ArrayLike) -> Array:
        """Log likelihood ratio of an output, with the secret against without it."""
        with np.errstate(divide="ignore"):
            absent = np.log1p(-self.rate)
        return np.logaddexp(absent, np.log(self.rate) + (2 * np.asarray(output) - 1) / (2 * self.noise**2))

    def hockey_stick(self, threshold: ArrayLike) -> Array:
        """H(u), the largest P(E) - u Q(E) over events E: the best one is that the output exceeds some x."""
        u = np.asarray(threshold, dtype=np.float64)
        over = u - (1 - self.rate)
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(over > 0, 0.5 + self.noise**2 * np.log(over / self.rate), -np.inf)
        absent = ndtr(-x / self.noise)
        return (1 - self.rate) * absent + self.rate * ndtr((1 - x) / self.noise) - u * absent

    def drawn(self, runs: int, rng: np.random.Generator) -> Array:
        """Outputs of runs with the secret."""
        return (rng.random(runs) < self.rate) + self.noise * rng.standard_normal(runs)

    def grid(self) -> tuple[Array, Array]:
        """Outputs with the secret and their probabilities."""
        z = np.linspace(-LARGEST_DEVIATION, LARGEST_DEVIATION, GRID_POINTS)
        mass = np.exp(-z * z / 2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
        outputs = np.concatenate([self.noise * z, 1 + self.noise * z])
        return outputs, np.concatenate([(1 - self.rate) * mass, self.rate * mass])


def shifted(mu: float) -> Release:
    """Drawn in every round: a normal law moved by ``mu`` standard deviations."""
    return Release(rate=1.0, noise=1 / mu)


@dataclass(frozen=True, kw_only=True)
class Game:
    """A first release, and the settings that the owner may choose for the second."""

    prior: float
    first: Release
    seconds: tuple[Release, ...]

    def best(self) -> tuple[float, float]:
        """The largest success over all owners and attackers, and the log of the attacker's threshold."""
        output, mass = self.first.grid()
        log_ratio = self.first.log_ratio(output)

        def bound(log_threshold: float) -> float:
            """An upper bound on the success, whatever the threshold."""
            with np.errstate(over="ignore"):
                thresholds = np.exp(log_threshold - log_ratio)
            gain = np.max([second.hockey_stick(thresholds) for second in self.seconds], axis=0)
            return float(np.exp(log_threshold) * self.prior + mass @ gain)

        scale = float(-np.log(self.prior))
        found = minimize_scalar(bound, bounds=(-3.0, 3 * scale + 10), method="bounded", options={"xatol": 1e-9})
        return float(found.fun), float(found.x)

    def choice(self, log_ratio: Array, log_threshold: float) -> NDArray[np.int64]:
        """Which settings the owner picks after these log ratios of the first release."""
        with np.errstate(over="ignore"):
            thresholds = np.exp(log_threshold - log_ratio)
        return np.argmax([second.hockey_stick(thresholds) for second in self.seconds], axis=0)

    def played(self, runs: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.int64]]:
        """Log likelihood ratios of simulated games with the secret, and what the owner chose in each."""
        _, log_threshold = self.best()
        log_ratio = self.first.log_ratio(self.first.drawn(runs, rng))
        chosen = self.choice(log_ratio, log_threshold)
        for place, second in enumerate(self.seconds):
            at = chosen == place
            log_ratio[at] += second.log_ratio(second.drawn(int(at.sum()), rng))
        return log_ratio, chosen


def product_posterior(prior: float, first: Release, second: Release) -> float:
    """B(prior) of two releases with settings fixed beforehand."""
    return Game(prior=prior, first=first, seconds=(second,)).best()[0]


def crossing_game(prior: float, stated: float, *, share: float, noise: float) -> Game:
    """Two settings for the second release, one rare draw with little noise and certain draws with more.

    With either of them the product bound is ``stated``. share: of the squared shift, what the first release uses.
    """
    shift = float(ndtri(stated) - ndtri(prior))
    first, second = shifted(shift * share**0.5), shifted(shift * (1 - share) ** 0.5)
    return Game(prior=prior, first=first, seconds=(rarer(prior, first, second, noise=noise), second))


def rarer(prior: float, first: Release, second: Release, *, noise: float) -> Release:
    """A release with less noise and a smaller rate than the second, with the same product bound after the first."""
    value = product_posterior(prior, first, second)
    rate = _root(
        lambda rate: product_posterior(prior, first, Release(rate=rate, noise=noise)) - value, 1e-3 * value, 0.999
    )
    return Release(rate=rate, noise=noise)


def filtered_game(prior: float, budget: float, moment: Callable[[Release], float], *, share: float) -> Game:
    """The same under a filter: the first release spends a share of the budget, either second one all that is left.

    moment: what a release spends, of certain draws and of rarer ones with half their noise.
    """
    first = shifted(_root(lambda mu: moment(shifted(mu)) - share * budget, 1e-3, 30))
    left = budget - moment(first)
    mu = _root(lambda mu: moment(shifted(mu)) - left, 1e-3, 30)
    rate = _root(lambda rate: moment(Release(rate=rate, noise=0.5 / mu)) - left, 1e-9, 1 - 1e-9)
    return Game(prior=prior, first=first, seconds=(Release(rate=rate, noise=0.5 / mu), shifted(mu)))


def log_moment(release: Release, order: float) -> float:
    """log E[(P/Q)^order] without the secret, by the trapezoidal rule; its mass lies between 0 and the order."""
    reach = LARGEST_DEVIATION * release.noise
    x = np.arange(-reach, order + reach, release.noise / 200)
    log_density = -(x**2) / (2 * release.noise**2) - np.log(release.noise * np.sqrt(2 * np.pi))
    terms = log_density + order * release.log_ratio(x)
    most = terms.max()
    return float(most + np.log(np.exp(terms - most).sum() * (x[1] - x[0])))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-15, rtol=1e-12))


# Two candidates, so that the secret itself is named.


@dataclass(frozen=True, kw_only=True)
class NamingGame:
    """The secret is one of two equally likely words, which move the output by +K and -K.

    The owner sees the first model as the attacker does, and picks the second release for which the better guess is
    right more often. The best attacker succeeds as often as the product bound allows if the settings are fixed
    beforehand, up to what the noise of a rare draw hides.
    """

    first: Release
    seconds: tuple[Release, ...]

    def gain(self, second: Release, odds: Array) -> Array:
        """The probability that the better guess is right after a second release, from these odds of one word.

        The guess is this word unless the output says the opposite, with odds above them.
        """
        x = np.linspace(-1 - LARGEST_DEVIATION * second.noise, 1 + LARGEST_DEVIATION * second.noise, 8001)
        density = np.exp(-(x**2) / (2 * second.noise**2)) / (second.noise * np.sqrt(2 * np.pi)) * (x[1] - x[0])
        with np.errstate(over="ignore"):
            for_word, against = density * np.exp(second.log_ratio(x)), density * np.exp(second.log_ratio(-x))
        share = odds / (1 + odds)
        return np.array([np.maximum(one * for_word, (1 - one) * against).sum() for one in share])

    def success(self, *, choices: Sequence[int] | None = None, points: int = 801) -> float:
        """The probability that the word is named; choices: the settings that the owner may pick, by default all."""
        z = np.linspace(-8, 8, points)
        mass = np.exp(-z * z / 2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
        # The first release draws in every round; by symmetry the word is the one that moves by +1.
        odds = np.exp(2 * np.abs(1 + self.first.noise * z) / self.first.noise**2)
        allowed = range(len(self.seconds)) if choices is None else choices
        return float(mass @ np.max([self.gain(self.seconds[place], odds) for place in allowed], axis=0))

    def named(self, runs: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Simulated games: whether the word was named. Odds are rounded to a grid only for the owner's choice."""
        word = rng.choice([-1.0, 1.0], runs)
        first = word + self.first.noise * rng.standard_normal(runs)
        log_odds = 2 * first / self.first.noise**2
        grid = np.linspace(0, 60, 601)
        gains = np.array([self.gain(second, np.exp(grid)) for second in self.seconds])
        chosen = gains.argmax(axis=0)[np.minimum(np.rint(np.abs(log_odds) * 10).astype(np.int64), grid.size - 1)]
        for place, second in enumerate(self.seconds):
            at = chosen == place
            drawn = word[at] * (rng.random(int(at.sum())) < second.rate)
            output = drawn + second.noise * rng.standard_normal(drawn.size)
            log_odds[at] += second.log_ratio(output) - second.log_ratio(-output)
        return (log_odds > 0) == (word > 0)


@dataclass(frozen=True, kw_only=True)
class StoppingGame:
    """Equal releases, each a certain draw with shift ``shift``, until one of two words has these odds or all are made.

    After n releases the product bound states ndtr(shift √n). The attacker names the likelier word.
    """

    shift: float
    releases: int
    odds: float

    def stated(self) -> Array:
        """The product bound after each number of releases."""
        return ndtr(self.shift * np.sqrt(np.arange(1, self.releases + 1)))

    def played(self, runs: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many releases each game made, and whether the word (the one with positive log odds) was named."""
        log_odds = np.zeros(runs)
        made = np.zeros(runs, dtype=np.int64)
        going = np.ones(runs, dtype=bool)
        for _ in range(self.releases):
            outputs = self.shift + rng.standard_normal(int(going.sum()))
            log_odds[going] += 2 * self.shift * outputs
            made[going] += 1
            going &= np.abs(log_odds) < np.log(self.odds)
        return made, log_odds > 0
