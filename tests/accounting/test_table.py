"""The worked example: one secret in k of 1.7 million examples, batches of 2048, 2000 rounds, a prior of 1e-10."""

from types import ModuleType
from typing import Literal

import numpy as np
import pytest
from scipy import optimize, special

import hush

RATE, ROUNDS, PRIOR = 2048 / 1.7e6, 2000, 1e-10

# examples, ceiling, least noise by KL, by Renyi (beyond a conceded tail) and by the blow-up function
ROWS = [
    (100, 1e-3, 30.99, 1.93, 1.816),
    (100, 2e-4, 73.3, 2.19, 2.0686),
    (50, 1e-3, 15.5, 1.132, 1.08),
    (50, 2e-4, 36.7, 1.256, 1.20),
    (25, 2e-4, 18.3, 0.844, 0.80),
    (12, 2e-4, 8.8, 0.643, 0.599),
    (1, 1e-3, 0.64, 0.33, 0.307),
]


def _half_a_unit(printed: float) -> float:
    digits = str(printed).split(".")[1].rstrip("0")
    return 0.5 * 10.0 ** -max(len(digits), 1)


def _incidence(k: int) -> hush.Incidence:
    return hush.Incidence.from_pairs(np.arange(k), np.zeros(k, dtype=int), num_examples=k, num_secrets=1)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"k={row[0]},r={row[1]:g}")
@pytest.mark.parametrize("column", ["kl", "renyi", "blowup"])
def test_calibration_finds_the_least_noise_of_the_table(
    row: tuple[int, float, float, float, float], column: Literal["kl", "renyi", "blowup"]
) -> None:
    k, ceiling = row[:2]
    expected = row[2:][["kl", "renyi", "blowup"].index(column)]
    found = hush.calibrate(_incidence(k), prior=PRIOR, ceiling=ceiling, rates=RATE, rounds=ROUNDS, bound=column)
    # The search ends within 0.1 % above the least noise.
    assert found.noise_multiplier == pytest.approx(expected, abs=max(0.005 * expected, _half_a_unit(expected)))
    assert found.posterior[0] <= ceiling


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"k={row[0]},r={row[1]:g}")
def test_at_the_noise_of_the_table_lower_and_upper_are_within_one_percent(
    row: tuple[int, float, float, float, float],
) -> None:
    ask = {"noise_multiplier": row[4], "rounds": ROUNDS, "prior": PRIOR}
    upper = hush.posterior([RATE] * row[0], **ask)
    lower = hush.posterior([RATE] * row[0], **ask, side="lower")
    assert lower <= upper <= 1.01 * lower
    assert upper == pytest.approx(row[1], rel=0.08)  # the printed noise is rounded, and the posterior steep in it


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"k={row[0]},r={row[1]:g}")
def test_a_plain_fft_of_the_law_with_the_secret_confirms_the_tight_column(
    reference: ModuleType, row: tuple[int, float, float, float, float]
) -> None:
    rates, sigma = np.full(row[0], RATE), row[4]
    found = reference.plain_fft_posterior(rates, sigma, ROUNDS, PRIOR, step=1e-4, size=1 << 21)
    ask = {"noise_multiplier": sigma, "rounds": ROUNDS, "prior": PRIOR}
    assert hush.posterior(rates, **ask, side="lower") * (1 - 1e-4) <= found
    assert found <= hush.posterior(rates, **ask) * (1 + 1e-4)


@pytest.mark.parametrize(
    ("k", "sigma", "tilt", "target"), [(100, 2.0686, 2.3, 2e-4), (12, 0.599, 1.35, 2e-4), (1, 0.307, 1.0, 1e-3)]
)
def test_simulation_confirms_the_tight_column(
    reference: ModuleType, k: int, sigma: float, tilt: float, target: float
) -> None:
    # The plain simulation of a million runs at k = 12 gave (1.94 ± 0.09)e-4; tilted ones need fewer.
    rng = np.random.default_rng(k)
    simulation = reference.Simulation(np.full(k, RATE), sigma, ROUNDS, runs=20_000, rng=rng, tilt=tilt)
    found = simulation.posterior(PRIOR)
    assert abs(found.value - target) <= 5 * found.error + 0.02 * target


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"k={row[0]},r={row[1]:g}")
def test_the_renyi_column_is_the_best_order_beyond_a_conceded_tail(
    reference: ModuleType, row: tuple[int, float, float, float, float]
) -> None:
    # Outputs beyond `end` are granted to the adversary; the moments are those of the rest, by a plain midpoint sum.
    k, _, _, sigma, _ = row
    mass = reference.count_masses(np.full(k, RATE))[:16]
    end = -special.ndtri(1e-9 * PRIOR / ROUNDS)
    edge = np.linspace(-9, end, 20_001)
    u = 0.5 * (edge[1:] + edge[:-1])
    loss = reference.log_ratio(mass, sigma, u * sigma)
    log_q = -0.5 * u * u - 0.5 * np.log(2 * np.pi) + np.log(edge[1] - edge[0])
    leaves = float(mass @ special.ndtr(np.arange(mass.size) / sigma - end))
    granted = -np.expm1(ROUNDS * np.log1p(-leaves))

    def posterior(order: float) -> float:
        moment = ROUNDS * (special.logsumexp(log_q + order * loss) - order * np.log1p(-leaves))

        def miss(log_r: float) -> float:
            r = np.exp(log_r)
            first = order * log_r + (1 - order) * np.log(PRIOR)
            second = order * np.log1p(-r) + (1 - order) * np.log1p(-PRIOR)
            return float(np.logaddexp(first, second) - moment)

        if miss(-1e-9) < 0:
            return 1.0
        return float(np.exp(optimize.brentq(miss, np.log(PRIOR), -1e-9, xtol=1e-12)))

    best = min(posterior(float(order)) for order in 1 + np.geomspace(0.01, 20, 400))
    expected = granted + (1 - granted) * best
    found = hush.posterior([RATE] * k, noise_multiplier=sigma, rounds=ROUNDS, prior=PRIOR, bound="renyi")
    assert expected * (1 - 2e-4) <= found <= expected * (1 + 3e-3)
