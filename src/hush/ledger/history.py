"""What earlier releases saw of the rows of a scan: secrets that were in the clear there, and secrets that went missing.

A plan of a chain accounts for the examples that earlier plans listed. Two mistakes are not among them, since only the
owner's data shows them. A rule that improved finds a secret in a row that an earlier release was trained on without
listing it there: that training did not protect it in this row, and no later plan can (``uncovered``). A rule that
changed no longer finds a secret in a row that is still in the data: this release would learn it there unprotected
(``missing``). Rows are recognised by keyed fingerprints.

A row was seen by a release if it had a weight, if it was learnt as public, or if the text around its slots was. A row
that was never drawn and nowhere public was not.

Legend: N rows of the scan, M rows of a release, P pairs of the scan, E pairs of the release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.incidence import Incidence
from hush.ledger.ledger import Ledger
from hush.numbers import counted
from hush.plan import Plan

__all__ = ["Crossing", "History", "compared"]

NAMED_SECRETS = 3  # at most, in a sentence


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Rows in which a secret is listed by a release and not by this scan, or the other way round.

    unprotected: of the rows, how many held no other secret at the time either, so that they were learnt in the clear.
    """

    release: int
    secret: str
    rows: int
    unprotected: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """uncovered: secrets in rows that earlier releases saw without them. missing: secrets no longer found in a row.

    same_rows: how many rows of the scan each earlier release had.
    """

    uncovered: tuple[Crossing, ...]
    missing: tuple[Crossing, ...]
    same_rows: tuple[int, ...]

    @property
    def sentences(self) -> list[str]:
        """What the owner is told, apart from refusals."""
        return [sentence for sentence in (self.uncovered_sentence, self.missing_sentence) if sentence]

    @property
    def uncovered_sentence(self) -> str:
        """Which secrets earlier releases did not protect, and where; empty if there are none."""
        return _sentence(self.uncovered, "stood, unprotected, in", "then")

    @property
    def missing_sentence(self) -> str:
        """Which secrets this scan no longer finds in the same rows; empty if there are none."""
        return _sentence(self.missing, "not found any more in", "now")


def compared(
    ledger: Ledger, incidence: Incidence, ids: Sequence[str], rows: NDArray[np.uint8], *, entries: int | None = None
) -> History:
    """Compare a scan with the releases in a ledger, or with the first ``entries`` of them.

    incidence, ids: the pairs of the scan and the ids of its secrets. rows: the keyed fingerprint of each of its
    examples, (N, 32) bytes.
    """
    uncovered: list[Crossing] = []
    missing: list[Crossing] = []
    same_rows: list[int] = []
    row_N = _as_words(rows)
    ancestors = ledger.ancestors_of(ids)
    for entry in ledger.entries[:entries]:
        plan = ledger.plan(entry)
        row_M = _as_words(ledger.rows(entry))
        then = _Release(plan, np.arange(len(row_M)))
        place_N = _places(row_N, row_M)
        same_rows.append(int(np.count_nonzero(place_N >= 0)))
        uncovered += _uncovered(entry.number, incidence, ids, ancestors, place_N, then)
        missing += _missing(entry.number, incidence, ids, ancestors, _places(row_M, row_N), then)
    return History(uncovered=tuple(uncovered), missing=tuple(missing), same_rows=tuple(same_rows))


@final
class _Release:
    """The pairs of an earlier release among its first rows, and which of these rows it saw."""

    def __init__(self, plan: Plan, rows: NDArray[np.int64]) -> None:
        self.ids = plan.secret_ids
        self.number_of = {name: number for number, name in enumerate(plan.secret_ids)}
        count = len(rows)
        graph = plan.incidence
        inside_E = graph.example_of_entry < count
        self.example_E = np.asarray(graph.example_of_entry[inside_E], dtype=np.int64)
        self.secret_E = np.repeat(np.arange(graph.num_secrets), graph.examples_per_secret)[inside_E]
        bearing_M = graph.secrets_per_example[:count] > 0
        has_skeleton_M = np.zeros(count, np.bool_) if plan.slots is None else plan.slots.has_slots_N[:count]
        # Held-out rows count as seen: scores on them are released, and they hold no secret by that plan.
        self.is_seen_M = (plan.weights[:count] > 0) | ~bearing_M | has_skeleton_M
        self.is_bearing_M = bearing_M


def _uncovered(
    release: int,
    incidence: Incidence,
    ids: Sequence[str],
    ancestors: Mapping[str, tuple[str, ...]],
    place_N: NDArray[np.int64],
    then: _Release,
) -> list[Crossing]:
    names = list(ids)
    secret_P = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
    row_P = place_N[incidence.example_of_entry]
    known_P = row_P >= 0
    secret_P, row_P = secret_P[known_P], row_P[known_P]
    seen_P = then.is_seen_M[row_P]
    secret_P, row_P = secret_P[seen_P], row_P[seen_P]
    listed_P = _are_pairs(row_P, _numbers(ids, then.number_of)[secret_P], then)
    if ancestors:
        for secret in np.unique(secret_P).tolist():
            for name in ancestors.get(names[secret], ()):
                chosen_P = secret_P == secret
                number = then.number_of.get(name, -1)
                listed_P[chosen_P] |= _are_pairs(row_P[chosen_P], np.full(int(chosen_P.sum()), number), then)
    return _crossings(release, ids, secret_P[~listed_P], ~then.is_bearing_M[row_P[~listed_P]])


def _missing(
    release: int,
    incidence: Incidence,
    ids: Sequence[str],
    ancestors: Mapping[str, tuple[str, ...]],
    place_M: NDArray[np.int64],
    then: _Release,
) -> list[Crossing]:
    number_of = {name: number for number, name in enumerate(ids)}
    row_E, secret_E = place_M[then.example_E], then.secret_E
    still_E = row_E >= 0
    row_E, secret_E = row_E[still_E], secret_E[still_E]
    now_E = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
    pairs = np.unique(incidence.example_of_entry.astype(np.int64) * max(incidence.num_secrets, 1) + now_E)
    stands_for: dict[str, list[str]] = {}
    for name, earlier in ancestors.items():
        for each in earlier:
            stands_for.setdefault(each, []).append(name)

    def listed(rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (numbers >= 0) & _contains(pairs, rows * max(incidence.num_secrets, 1) + numbers)

    listed_E = listed(row_E, _numbers(then.ids, number_of)[secret_E])
    if stands_for:
        for secret in np.unique(secret_E).tolist():
            for name in stands_for.get(then.ids[secret], ()):
                chosen_E = secret_E == secret
                listed_E[chosen_E] |= listed(row_E[chosen_E], np.full(int(chosen_E.sum()), number_of.get(name, -1)))
    bearing_N = incidence.secrets_per_example > 0
    return _crossings(release, then.ids, secret_E[~listed_E], ~bearing_N[row_E[~listed_E]])


def _crossings(
    release: int, ids: Sequence[str], secret_P: NDArray[np.int64], unprotected_P: NDArray[np.bool_]
) -> list[Crossing]:
    names = list(ids)
    secrets, inverse_P = np.unique(secret_P, return_inverse=True)
    rows, clear = np.bincount(inverse_P), np.bincount(inverse_P, weights=unprotected_P)
    return [
        Crossing(release=release, secret=names[secret], rows=int(count), unprotected=int(alone))
        for secret, count, alone in zip(secrets.tolist(), rows.tolist(), clear.tolist(), strict=True)
    ]


def _numbers(ids: Sequence[str], number_of: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array([number_of.get(name, -1) for name in ids], dtype=np.int64)


def _are_pairs(row_P: NDArray[np.int64], secret_P: NDArray[np.int64], then: _Release) -> NDArray[np.bool_]:
    size = max(len(then.ids), 1)
    return (secret_P >= 0) & _contains(np.unique(then.example_E * size + then.secret_E), row_P * size + secret_P)


def _contains(sorted_values: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(sorted_values):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return sorted_values[place] == values


def _as_words(rows: NDArray[np.uint8]) -> NDArray[np.void]:
    """Each row's fingerprint as one value that can be sorted and compared."""
    return np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel()


def _places(wanted: NDArray[np.void], rows: NDArray[np.void]) -> NDArray[np.int64]:
    """For each wanted fingerprint a row that has it; -1 if there is none. Equal texts have equal secrets."""
    if not len(rows):
        return np.full(len(wanted), -1)
    distinct, first = np.unique(rows, return_index=True)
    place = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
    return np.where(distinct[place] == wanted, first[place], -1)


def _sentence(crossings: Sequence[Crossing], what: str, when: str) -> str:
    if not crossings:
        return ""
    secrets = list(dict.fromkeys(each.secret for each in crossings))
    shown = ", ".join(secrets[:NAMED_SECRETS]) + (
        f" and {len(secrets) - NAMED_SECRETS:,} more" if len(secrets) > NAMED_SECRETS else ""
    )
    by_release: dict[int, tuple[int, int]] = {}
    for each in crossings:
        rows, clear = by_release.get(each.release, (0, 0))
        by_release[each.release] = rows + each.rows, clear + each.unprotected
    where = "; ".join(
        f"{counted(rows, 'row')} of release {release} ({clear:,} with no secret at all {when})"
        for release, (rows, clear) in by_release.items()
    )
    return f"{counted(len(secrets), 'secret')} ({shown}) {what} {where}"
