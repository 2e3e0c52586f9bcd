"""The same question to dp_accounting: its privacy loss distribution of one round, composed, and read in three ways.

The library keeps the loss log(P/Q) with its probabilities under P (`with` the secret; it calls this direction remove)
and the loss log(Q/P) with its probabilities under Q (`without`; add). From either, the other law's mass is the sum of
exp(-loss) times the probability, and must be 1. The paper writes Q-probabilities with v = log(P/Q): `without`.

Where the mass goes wrong is told apart by what can be known exactly. The mass of T rounds is the T-th power of one
round's, so the table of one round alone says what an exact composition would give; anything else is the FFT's, and
the part of it that is rounding shrinks when the same steps run in extended precision.
"""

import math
from typing import Any

import numpy as np
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss
from scipy.stats import binom

from experiments.blowup_feasible.cases import ROUNDS, Array, PeerCase, Point
from experiments.blowup_feasible.measure import finite, measured

__all__ = ["anatomy", "ask", "curve_at", "least_over_thresholds", "mass_of_other_law"]

RARE = 1e-30  # counts with less probability than this are left out: sums over them are far below any figure shown
TRUNCATION = 1e-15  # what the library cuts off the composed law, its default


def ask(case: PeerCase) -> dict[str, Any]:
    """Masses, readings, cost and diagnosis of one case."""
    (single, total), seconds, peak = measured(lambda: _build_and_compose(case))
    answer: dict[str, Any] = {"cpu_seconds": seconds, "peak_mb": peak}
    for name in ("with", "without"):
        answer[name] = _diagnosis(single[name], total[name])
    (loss, with_secret), (loss_back, without) = _law(total["with"]), _law(total["without"])
    certain = total["with"]._infinity_mass
    prior = case.point.prior
    with np.errstate(over="ignore"):
        answer["posterior"] = {
            "curve, without": finite(curve_at(prior, without, without * np.exp(-loss_back))),
            "curve, with": finite(
                curve_at(prior, (with_secret * np.exp(-loss))[::-1], with_secret[::-1], certain=certain)
            ),
            "thresholds, with": least_over_thresholds(prior, loss, with_secret, certain=certain),
        }
        answer["second_moment"] = finite(float(with_secret @ np.exp(loss)))
    answer["second_moment_in_closed_form"] = _second_moment(case.point)
    if case.table == "privacy buckets":
        answer["largest_inverse_error"] = _inverse_error(case.point)
    return answer


def mass_of_other_law(loss: Array, probability: Array) -> float:
    """Sum of exp(-loss) * probability: 1 if nothing went wrong."""
    with np.errstate(over="ignore"):
        return float(np.exp(-loss) @ probability)


def curve_at(prior: float, q_mass: Array, p_mass: Array, *, certain: float = 0.0) -> float:
    """The blow-up function as partial sums of both masses, the largest ratios first, interpolated at the prior."""
    allowed = np.maximum.accumulate(np.append(0.0, np.cumsum(q_mass)))  # round-off can make masses negative
    return float(np.interp(prior, allowed, certain + np.append(0.0, np.cumsum(p_mass))))


def least_over_thresholds(prior: float, loss: Array, p_mass: Array, *, certain: float = 0.0) -> float:
    """The blow-up function as the least over t of t * prior + E_P[(1 - t / R)+]: no weight in it is above 1.

    The second term is what the library calls delta at epsilon = log t; an error of a probability is never amplified.
    """
    right = np.cumsum(p_mass[::-1])[::-1]
    discounted = _discounted_right_sums(loss, p_mass)
    near = loss <= -math.log(prior)  # beyond, t * prior alone is above 1
    bounds = np.exp(loss[near] + math.log(prior)) + certain + right[near] - discounted[near]
    return float(np.min(bounds, initial=1.0))


def anatomy(case: PeerCase) -> dict[str, Any]:
    """Probability per unit of loss after all rounds, `with` the secret: as composed, and by way of the tilted law.

    The second multiplies one round's table by exp(-loss), which makes it Q's, before the same FFT, and undoes that
    after: what decides the mass is then in the bulk, where absolute round-off is harmless. Also the mass where the
    library is told to cut nothing off.
    """
    single, total = _build_and_compose(case)
    table, (loss, probability) = single["with"], _law(total["with"])
    one_loss, one_probability = _law(table)
    first, tilted = common.self_convolve(one_probability * np.exp(-one_loss), ROUNDS, TRUNCATION)
    tilted_loss = (ROUNDS * table._lower_loss + first + np.arange(len(tilted))) * case.interval
    edges = np.arange(math.floor(loss[0]), 1.0)
    as_composed, _ = np.histogram(loss, edges, weights=np.abs(probability))
    by_tilting, _ = np.histogram(tilted_loss, edges, weights=np.exp(tilted_loss) * tilted)
    return {
        "loss": ((edges[:-1] + edges[1:]) / 2).tolist(),
        "as_composed": as_composed.tolist(),
        "by_tilting": by_tilting.tolist(),
        "mass_as_composed": finite(mass_of_other_law(loss, probability)),
        "mass_by_tilting": float(np.sum(tilted)),
        "mass_if_nothing_is_cut": finite(mass_of_other_law(*_law(table.self_compose(ROUNDS, 0.0)))),
    }


def _build_and_compose(case: PeerCase) -> tuple[dict[str, pld_pmf.DensePLDPmf], dict[str, pld_pmf.DensePLDPmf]]:
    counts, probabilities = _counts(case.point)
    built = loss_distribution.from_mixture_gaussian_mechanism(
        standard_deviation=case.point.noise_multiplier,
        sensitivities=counts.tolist(),
        sampling_probs=probabilities.tolist(),
        value_discretization_interval=case.interval,
        use_connect_dots=case.table == "connect the dots",
    )
    single = {"with": built._pmf_remove.to_dense_pmf(), "without": built._pmf_add.to_dense_pmf()}
    total = {name: pmf.self_compose(ROUNDS, TRUNCATION) for name, pmf in single.items()}
    return single, total


def _counts(point: Point) -> tuple[Array, Array]:
    """How many of the secret's examples a round draws, and with which probability."""
    count = np.arange(point.examples + 1.0)
    probability = np.asarray(binom.pmf(count, point.examples, point.rates[0]))
    kept = probability > RARE
    return count[kept], probability[kept] / probability[kept].sum()


def _law(pmf: pld_pmf.DensePLDPmf) -> tuple[Array, Array]:
    """Losses of the lattice and their probabilities."""
    loss = (pmf._lower_loss + np.arange(pmf.size, dtype=np.float64)) * pmf._discretization
    return loss, np.asarray(pmf._probs, dtype=np.float64)


def _diagnosis(single: pld_pmf.DensePLDPmf, total: pld_pmf.DensePLDPmf) -> dict[str, Any]:
    one_loss, one_probability = _law(single)
    loss, probability = _law(total)
    one_mass = mass_of_other_law(one_loss, one_probability)
    return {
        "mass": finite(mass_of_other_law(loss, probability)),
        "mass_in_extended_precision": _mass_in_extended_precision(single),
        "log10_mass_if_composed_exactly": ROUNDS * math.log10(one_mass),
        "one_round_mass_less_1": one_mass - 1,
        "one_round_probability_less_1": float(one_probability.sum()) + single._infinity_mass - 1,
        "mass_at_infinity": total._infinity_mass,
        "smallest_loss": float(loss[0]),
        "largest_loss": float(loss[-1]),
        "one_round_points": single.size,
        "points": total.size,
    }


def _mass_in_extended_precision(single: pld_pmf.DensePLDPmf) -> float | None:
    """The library's own composition of the same table with 64 bits of mantissa; None where the machine has no more."""
    if np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps:
        return None
    first, probability = common.self_convolve(np.asarray(single._probs, dtype=np.longdouble), ROUNDS, TRUNCATION)
    index = ROUNDS * single._lower_loss + first + np.arange(len(probability), dtype=np.longdouble)
    return finite(float(np.exp(-index * single._discretization) @ np.asarray(probability)))


def _discounted_right_sums(loss: Array, p_mass: Array) -> Array:
    """For each i the sum over j >= i of p_j exp(loss_i - loss_j), in blocks so that no exponent overflows."""
    sums, carried, last = np.empty_like(p_mass), 0.0, float(loss[-1])
    block = max(1, int(100.0 / float(loss[1] - loss[0]))) if loss.size > 1 else 1
    for end in range(loss.size, 0, -block):
        part = slice(max(0, end - block), end)
        scaled = p_mass[part] * np.exp(loss[part][0] - loss[part])
        inner = np.cumsum(scaled[::-1])[::-1] * np.exp(loss[part] - loss[part][0])
        sums[part] = inner + carried * np.exp(loss[part] - last)
        carried, last = float(sums[part][0]), float(loss[part][0])
    return sums


def _second_moment(point: Point) -> float | None:
    """E_P[P/Q] of all rounds: a double sum over counts."""
    counts, probabilities = _counts(point)
    with np.errstate(over="ignore"):
        one = probabilities @ np.exp(np.outer(counts, counts) / point.noise_multiplier**2) @ probabilities
        return finite(float(np.exp(ROUNDS * np.log(one))))


def _inverse_error(point: Point) -> float:
    """How far the loss at the output that the library gives for a loss is from that loss, one loss asked at a time."""
    counts, probabilities = _counts(point)
    mechanism = MixtureGaussianPrivacyLoss(
        point.noise_multiplier, counts.tolist(), probabilities.tolist(), adjacency_type=AdjacencyType.REMOVE
    )
    ends = mechanism.privacy_loss_tail()
    least, most = (mechanism.privacy_loss(x) for x in (ends.upper_x_truncation, ends.lower_x_truncation))
    asked = np.linspace(least / 2, most / 2, 41)
    return max(abs(mechanism.privacy_loss(mechanism.inverse_privacy_loss(x)) - x) for x in asked.tolist())
