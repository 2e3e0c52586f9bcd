"""What earlier releases saw of the rows of a scan, against the definition, pair by pair."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_chains import FILTER, PAIRS, ROWS, graph, identities, month, opened, planned, row_fingerprints

import hush
from hush.ledger import Ledger
from hush.ledger.history import compared

TEXTS = [f"row {row}" for row in range(ROWS)]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """One release whose rounds draw from all rows, and one that draws from rows with a secret alone."""
    root = tmp_path_factory.mktemp("history")
    ledger = opened(root / "ledger").register(identities(["s-000000", "s-000001", "s-000002", "s-000003"]))
    for number, draw in enumerate((None, "secrets")):
        plan = planned(ledger, root / f"plan-{number}", kind=FILTER, draw=draw)
        ledger = ledger.begin(plan, root / f"training-{number}", month())
        ledger = ledger.advance(ledger.entries[-1].plan, state="finished")
    return ledger.merge("s-000003", ["s-000002"])


def seen(ledger: Ledger, release: int, row: int) -> bool:
    plan = ledger.plan(ledger.entries[release])
    return row not in PAIRS or plan.weights[row] > 0


names = st.lists(st.sampled_from(["s-000000", "s-000001", "s-000002", "s-000003"]), max_size=3, unique=True)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.sampled_from([*TEXTS[:8], "new", "newer"]), min_size=1, max_size=10),
    listed=st.dictionaries(st.sampled_from([*TEXTS[:8], "new", "newer"]), names, max_size=8),
)
def test_every_crossing_is_a_pair_of_one_side_alone(
    ledger: Ledger, rows: list[str], listed: Mapping[str, Sequence[str]]
) -> None:
    pairs = {row: listed[text] for row, text in enumerate(rows) if listed.get(text)}
    if not pairs:
        return
    incidence, ids = graph(pairs, rows=len(rows))
    found = compared(ledger, incidence, ids, row_fingerprints(rows))
    stands_for = {name: {name} | ({"s-000002"} if name == "s-000003" else set()) for name in ids}
    uncovered, missing = dict[tuple[int, str], list[int]](), dict[tuple[int, str], list[int]]()
    for release in (0, 1):
        for row, text in enumerate(rows):
            place = TEXTS.index(text) if text in TEXTS else None
            for name in pairs.get(row, ()):
                if (
                    place is not None
                    and seen(ledger, release, place)
                    and not stands_for[name] & {*PAIRS.get(place, ())}
                ):
                    uncovered.setdefault((release + 1, name), []).append(place not in PAIRS)
        for place, earlier in PAIRS.items():
            if TEXTS[place] in rows:
                now = pairs.get(rows.index(TEXTS[place]), ())
                for name in earlier:
                    if not any(name in stands_for[each] for each in now):
                        missing.setdefault((release + 1, name), []).append(not now)
    assert {(each.release, each.secret): (each.rows, each.unprotected) for each in found.uncovered} == {
        key: (len(value), sum(value)) for key, value in uncovered.items()
    }
    assert {(each.release, each.secret): (each.rows, each.unprotected) for each in found.missing} == {
        key: (len(value), sum(value)) for key, value in missing.items()
    }
    assert found.same_rows == (sum(text in TEXTS for text in rows),) * 2


def test_the_same_scan_crosses_nothing_and_says_nothing(ledger: Ledger) -> None:
    found = compared(ledger, *graph(PAIRS), month())
    assert (found.uncovered, found.missing, found.sentences) == ((), (), [])


def test_a_new_secret_in_an_old_row_is_told_with_its_numbers(ledger: Ledger) -> None:
    found = compared(ledger, *graph({**PAIRS, 4: ["s-000000"], 5: ["s-000000"]}), month(), entries=1)
    assert [(each.rows, each.unprotected) for each in found.uncovered] == [(2, 2)]
    assert found.uncovered_sentence == (
        "1 secret (s-000000) stood, unprotected, in 2 rows of release 1 (2 with no secret at all then)"
    )
    assert found.missing == ()


def test_a_row_that_was_never_drawn_and_nowhere_public_was_not_seen(tmp_path: Path) -> None:
    """A release that gives a row no weight learns nothing of it: a secret found there later is not uncovered."""
    ledger = opened(tmp_path / "ledger", {**PAIRS, 6: ["s-000000", "s-000001", "s-000002"]})
    pairs = {**PAIRS, 6: ["s-000000", "s-000001", "s-000002"]}
    incidence, ids = graph(pairs)
    plan = hush.make_plan(
        incidence, prior=1e-6, ceiling=1e-2, batch_size=2, rounds=10, keep=0.5, secret_ids=ids, draw="secrets", **FILTER
    )
    plan.save(tmp_path / "plan")
    ledger = ledger.begin(tmp_path / "plan", tmp_path / "training", month())
    resting = [row for row in pairs if plan.weights[row] == 0]
    drawn = [row for row in pairs if plan.weights[row] > 0]
    assert resting
    assert drawn
    more = {**pairs, resting[0]: [*pairs[resting[0]], "s-000009"], drawn[0]: [*pairs[drawn[0]], "s-000009"]}
    found = compared(ledger, *graph(more), month())
    assert [(each.secret, each.rows, each.unprotected) for each in found.uncovered] == [("s-000009", 1, 0)]
