"""What a chain has spent: by the bounds of the chain, and by composing its releases a second way."""

from pathlib import Path

import numpy as np
import pytest
from small_chains import FILTER, SERIES, identities, month, opened, planned

import hush
from hush.ledger import Ledger
from hush.ledger.spending import shares_left, spending_of
from hush.report.releases import chain_sentence, ledger_page

LATER = {0: ["s-000000"], 2: ["s-000002"], 8: ["s-000005"]}  # s-000001 is gone, s-000005 is new


def released(folder: Path, kind: object) -> Ledger:
    ledger = opened(folder / "ledger").register(identities(["s-000000", "s-000001", "s-000002", "s-000005"]))
    for number, pairs in enumerate((None, LATER)):
        plan = planned(ledger, folder / f"plan-{number}", **({} if pairs is None else {"pairs": pairs}), kind=kind)  # pyright: ignore
        ledger = ledger.begin(plan, folder / f"training-{number}", month())
        ledger = ledger.advance(ledger.entries[-1].plan, state="finished")
    return ledger


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return released(tmp_path_factory.mktemp("series"), SERIES)


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return released(tmp_path_factory.mktemp("filter"), FILTER)


def composed(ledger: Ledger, secret: str) -> float:
    """The posterior of the releases as they were made, as one product."""
    rates, noise, rounds = [], [], []
    for entry in ledger.entries:
        plan = ledger.plan(entry)
        if secret in plan.secret_ids:
            rates.append(plan.rates[plan.incidence.examples_of(plan.secret_ids.index(secret))])
            noise.append(plan.noise_multiplier)
            rounds.append(plan.rounds)
    return float(np.asarray(hush.joint_posterior(rates, noise_multipliers=noise, rounds=rounds, prior=1e-6)))


@pytest.mark.parametrize("kind", ["series", "filtered"])
def test_what_is_spent_bounds_what_the_releases_did_and_stays_within_the_promise(
    kind: str, request: pytest.FixtureRequest
) -> None:
    ledger: Ledger = request.getfixturevalue(kind)
    spending = spending_of(ledger)
    used = [(-row.spent / row.ceiling, row.left, row.secret) for row in spending.secrets]
    assert used == sorted(used)
    assert {row.secret: row.releases for row in spending.secrets} == {
        "s-000000": (1, 2), "s-000001": (1,), "s-000002": (1, 2), "s-000005": (2,)
    }  # fmt: skip
    for row in spending.secrets:
        assert composed(ledger, row.secret) <= row.spent <= row.ceiling == 1e-2
        assert row.spent <= row.stated <= row.ceiling
        assert 0 <= row.left < 1
    assert [row.new_secrets for row in spending.releases] == [3, 1]
    assert spending.releases[0].used_most < spending.releases[1].used_most <= 1


def test_a_series_counts_its_releases(series: Ledger) -> None:
    spending = spending_of(series)
    assert (spending.count, spending.releases_left, spending.share) == (3, 1, None)
    assert np.allclose(shares_left(series.plan(series.entries[0])), 2 / 3)
    assert "Release 2 of 3" in chain_sentence(series.plan(series.entries[1]))


def test_a_filter_counts_its_budget_and_less_is_left_after_each_release(filtered: Ledger) -> None:
    spending = spending_of(filtered)
    assert (spending.count, spending.releases_left, spending.share) == (None, None, 0.3)
    first, second = (filtered.plan(entry) for entry in filtered.entries)
    left = dict(zip(first.secret_ids, shares_left(first), strict=True))
    later = dict(zip(second.secret_ids, shares_left(second), strict=True))
    assert left["s-000000"] >= 0.7 - 1e-9  # it may spend its share and no more
    assert all(later[name] < left[name] for name in ("s-000000", "s-000002"))
    assert "at least" in chain_sentence(second)


def test_the_page_names_every_release_and_loads_nothing(series: Ledger, tmp_path: Path) -> None:
    page = ledger_page(spending_of(series))
    assert "2 of 3 announced releases have begun" in page
    assert all(name in page for name in ("s-000000", "s-000005", 'id="plot-releases"', 'id="plot-left"'))
    assert "default-src 'none'" in page
    empty = opened(tmp_path / "ledger")
    assert "No training has begun" in ledger_page(spending_of(empty))


def test_a_plan_by_itself_has_all_left_and_no_sentence() -> None:
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=20, num_secrets=1)
    plan = hush.make_plan(incidence, prior=1e-6, ceiling=1e-2, batch_size=4, rounds=5)
    assert shares_left(plan).tolist() == [1.0]
    assert chain_sentence(plan) == ""
