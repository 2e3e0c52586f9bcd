"""Several releases under one promise: a series that is announced, and releases that are added under a filter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chain_instances import CEILING, PRIOR, Month, failed, loaded, month, planned, saved

import hush
from hush.accounting.releases import Shape, limit_posterior
from hush.accounting.sampling_error import chain_ceiling, planning_ceiling, sampling_error
from hush.plan.after import ReleaseRefused
from hush.plan.chain import Filter, Series, budgets, spent_shares, used_shares
from hush.plan.earlier import Earlier, History, joined_graph
from hush.plan.make import held_out_examples, make_plan_holding_out
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.train.preconditions import refuse_passed_ceilings
from hush.weights.accounts import intensities

FIRST = {"a": 6, "b": 12, "c": 9}
SERIES = SeriesSettings(count=3, growth=1.5)


def series_of(plan: hush.Plan) -> Series:
    assert plan.chain is not None
    assert isinstance(plan.chain.kind, Series)
    return plan.chain.kind


def filter_of(plan: hush.Plan) -> Filter:
    assert plan.chain is not None
    assert isinstance(plan.chain.kind, Filter)
    return plan.chain.kind


def joint(plans: list[hush.Plan], name: str) -> float:
    """The posterior of a secret by the product of the pairs of these releases, at their very rates."""
    rates = [
        plan.rates[plan.incidence.examples_of(plan.secret_ids.index(name))] if name in plan.secret_ids else np.empty(0)
        for plan in plans
    ]
    return hush.joint_posterior(
        rates,
        noise_multipliers=[plan.noise_multiplier for plan in plans],
        rounds=[plan.rounds for plan in plans],
        prior=PRIOR,
    )


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> list[Earlier]:
    """Three monthly releases: one more example a month, a secret appears, one vanishes and returns."""
    root, made = tmp_path_factory.mktemp("series"), list[Earlier]()
    for number, sizes in enumerate([FIRST, {"a": 7, "c": 9, "d": 5}, {"a": 7, "b": 13, "c": 10, "d": 6}]):
        plan = planned(month(sizes, seed=number), series=SERIES, after=made)
        made.append(loaded(plan, root / str(number)))
    return made


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> list[Earlier]:
    root, made = tmp_path_factory.mktemp("filter"), list[Earlier]()
    for number, sizes in enumerate([FIRST, {"a": 7, "c": 9, "d": 5}, {"a": 7, "b": 13, "c": 10, "d": 6}]):
        plan = planned(month(sizes, seed=number), filter=FilterSettings(share=0.25), after=made, keep=0.5)
        made.append(loaded(plan, root / str(number)))
    return made


# A series.


def test_equal_releases_of_a_series_are_one_release_of_all_their_rounds_up_to_poisson_counts() -> None:
    data = month(FIRST)
    together = planned(data, rounds=60, capacity="none")
    first = planned(data, series=SeriesSettings(count=3), capacity="none")
    assert together.noise_multiplier <= first.noise_multiplier <= 1.1 * together.noise_multiplier
    assert np.array_equal(first.rates, together.rates)


def test_every_plan_of_a_series_states_the_same_posteriors_and_never_less_than_all_releases_reach(
    series: list[Earlier],
) -> None:
    plans = [one.plan for one in series]
    for plan in plans:
        assert (plan.posterior <= planning_ceiling(plan.prior, plan.ceiling)).all()
    for name in "abcd":
        stated = {plan.posterior[plan.secret_ids.index(name), 0] for plan in plans if name in plan.secret_ids}
        assert len(stated) == 1
        assert joint(plans, name) <= stated.pop()


def test_what_is_announced_is_kept(series: list[Earlier]) -> None:
    shapes = series_of(series[0].plan).shapes
    for number, one in enumerate(series, start=1):
        kind = series_of(one.plan)
        assert (kind.number, kind.shapes) == (number, shapes)
        assert one.plan.noise_multiplier >= kind.shape.noise_multiplier
        assert one.plan.rounds <= kind.shape.rounds
        assert (intensities(one.plan.incidence, one.plan.rates) <= kind.limit_S).all()
    limits = [dict(zip(one.plan.secret_ids, series_of(one.plan).limit_SR.tolist(), strict=True)) for one in series]
    assert limits[0]["a"] == limits[1]["a"] == limits[2]["a"]
    assert limits[0]["b"] == limits[2]["b"], "it was away, and has what it had"
    assert limits[1]["d"][0] == 0, "it was not there in the first release"
    assert limits[1]["d"][1] > limits[0]["a"][1], "so two releases have what otherwise three share"


def test_a_series_leaves_room_to_grow() -> None:
    data = month(FIRST)
    small, large = (planned(data, series=SeriesSettings(count=3, growth=growth)) for growth in (1.0, 2.0))
    assert large.noise_multiplier > small.noise_multiplier
    need_S = intensities(large.incidence, large.rates)
    assert (2 * need_S <= series_of(large).limit_S).all()


def test_every_plan_of_a_series_verifies_with_those_before_it_and_says_which_is_missing(
    series: list[Earlier], tmp_path: Path
) -> None:
    folders = [saved(one.plan, tmp_path / str(number)) for number, one in enumerate(series)]
    for number in range(3):
        assert failed(folders[number], folders[:number]) == {}
    alone = failed(folders[2], [])
    assert alone.keys() == {"predecessors"}
    assert "2 of the 2 earlier releases are missing: release 1" in alone["predecessors"]
    assert series[0].digest[:16] in alone["predecessors"]
    assert "1 of the 2" in failed(folders[2], [folders[0]])["predecessors"]
    assert "another order" in failed(folders[2], [folders[1], folders[0]])["predecessors"]
    assert "not one that the plan names" in failed(folders[1], folders[:2])["predecessors"]
    assert (
        "names no earlier releases" in failed(saved(planned(month(FIRST)), tmp_path / "plain"), folders)["predecessors"]
    )


def test_releases_with_unlike_shapes_can_be_announced(tmp_path: Path) -> None:
    shapes = [Shape(noise_multiplier=3.0, rounds=30), Shape(noise_multiplier=2.0, rounds=10)]
    first = planned(month(FIRST), shapes=shapes, rounds="auto", keep="auto")
    assert (first.noise_multiplier, first.rounds) == (3.0, 30)
    second = planned(month(FIRST, seed=1), rounds=8, keep="auto", after=[saved(first, tmp_path / "1")])
    assert (second.noise_multiplier, second.rounds) == (2.0, 8)
    assert np.array_equal(second.posterior, first.posterior)
    expected = limit_posterior(series_of(first).limit_SR, shapes, prior=first.prior)
    assert first.posterior == pytest.approx(expected, rel=2e-2)
    assert failed(saved(second, tmp_path / "2"), [tmp_path / "1"]) == {}
    for wrong in ({"rounds": 11}, {"noise_multiplier": 1.0}):
        with pytest.raises(hush.InvalidInput, match="was announced with"):
            planned(month(FIRST), keep="auto", after=[tmp_path / "1"], **wrong)


def test_what_passes_the_limits_is_refused_with_what_would_do(series: list[Earlier]) -> None:
    grown = month({"a": 60, "b": 60, "c": 60})
    with pytest.raises(
        ReleaseRefused, match=r"keep .* % of their weight, not 90 %: 3 secrets .* lower keep to 0\.\d"
    ) as told:
        planned(grown, after=series[:1])
    assert set(told.value.secrets) == {"a", "b", "c"}
    possible = float(str(told.value).split("lower keep to ")[1].split(",")[0])
    assert planned(grown, after=series[:1], keep=possible).chain is not None
    everywhere = month(dict.fromkeys("abc", 110), examples=112)
    with pytest.raises(
        hush.InfeasiblePlan, match=r"batch_size=6 is more than the limits of the series allow.* lower it to"
    ) as error:
        planned(everywhere, after=series[:1])
    largest = int(str(error.value).split("at most ")[1].split(",")[0])
    assert planned(everywhere, after=series[:1], batch_size=largest, keep="auto").chain is not None
    with pytest.raises(hush.InvalidInput, match="all 3 announced releases"):
        planned(month(FIRST), after=series)


def test_a_plan_that_keeps_everything_must_stay_inside_its_limits(series: list[Earlier]) -> None:
    with pytest.raises(ReleaseRefused, match=r"these rates draw 1 secret \(a\) more often than was announced") as told:
        planned(month({"a": 60, "c": 3}), after=series[:1], capacity="none")
    assert told.value.secrets == ("a",)
    assert planned(month(FIRST), after=series[:1], capacity="none").capacity == "none"


def test_a_plan_outside_its_limits_does_not_exist(series: list[Earlier]) -> None:
    plan = series[1].plan
    with pytest.raises(hush.CannotCertify, match="announced with a noise of at least"):
        replace(plan, noise_multiplier=0.99 * plan.noise_multiplier)
    with pytest.raises(hush.CannotCertify, match="at most 20 rounds"):
        replace(plan, rounds=21)
    with pytest.raises(hush.CannotCertify, match="drawn more often than their limits"):
        replace(plan, batch_size=40.0)


# A filter.


def test_a_filter_never_spends_more_than_its_budget_and_states_what_all_releases_reach(filtered: list[Earlier]) -> None:
    plans = [one.plan for one in filtered]
    for number, plan in enumerate(plans, start=1):
        kind = filter_of(plan)
        assert (spent_shares(plan) <= 0.25 * number).all()
        assert (plan.posterior <= planning_ceiling(plan.prior, plan.ceiling)).all()
        for row, name in enumerate(plan.secret_ids):
            assert joint(plans[:number], name) <= plan.posterior[row, 0]
            assert kind.after_SQ[row, 0] <= kind.allowed_SQ[row, 0]
    orders = [dict(zip(plan.secret_ids, filter_of(plan).order_SQ[:, 0].tolist(), strict=True)) for plan in plans]
    assert orders[0]["a"] == orders[1]["a"] == orders[2]["a"]
    assert orders[0]["b"] == orders[2]["b"]
    for name in "ac":
        stated = [float(plan.posterior[plan.secret_ids.index(name), 0]) for plan in plans]
        assert stated == sorted(stated)


def test_what_a_plan_alone_spent_can_be_more_than_a_filter_takes(tmp_path: Path) -> None:
    folder = saved(planned(month(FIRST), rounds=200, batch_size=2), tmp_path / "1")
    settings = {"after": [folder], "filter": FilterSettings(share=0.1), "rounds": 200, "batch_size": 2}
    with pytest.raises(ReleaseRefused, match="may have spent more on") as told:
        planned(month(FIRST, seed=1), **settings)
    enough = float(str(told.value).split("raise their ceilings: ")[1].split(" ")[0])
    assert planned(month(FIRST, seed=1), **settings, ceiling=enough).chain is not None


def test_a_secret_that_was_away_has_spent_what_it_spent(filtered: list[Earlier]) -> None:
    first, _, third = (one.plan for one in filtered)
    row_1, row_3 = first.secret_ids.index("b"), third.secret_ids.index("b")
    assert filter_of(third).before_SQ[row_3] == filter_of(first).after_SQ[row_1]
    new = filtered[1].plan.secret_ids.index("d")
    assert filter_of(filtered[1].plan).before_SQ[new, 0] == 0


def test_every_plan_under_a_filter_verifies_with_those_before_it(filtered: list[Earlier], tmp_path: Path) -> None:
    folders = [saved(one.plan, tmp_path / str(number)) for number, one in enumerate(filtered)]
    for number in range(3):
        assert failed(folders[number], folders[:number]) == {}
    assert failed(folders[2], folders[1:2]).keys() == {"predecessors"}


def test_what_is_left_is_never_passed_and_the_error_says_what_would_do(tmp_path: Path) -> None:
    data, made = month(FIRST), list[Earlier]()
    for number in range(2):  # half of the budget for each
        made.append(loaded(planned(data, filter=FilterSettings(share=0.5), after=made), tmp_path / str(number)))
    with pytest.raises(ReleaseRefused, match=r"too little is left of the promises of . secrets? \(.*b") as told:
        planned(data, after=made, keep=1.0)
    assert "b" in told.value.secrets
    possible = float(str(told.value).split("lower keep to ")[1])
    assert planned(data, after=made, keep=0.99 * possible).chain is not None
    enough = float(str(told.value).split("raise their ceilings: ")[1].split(" ")[0])
    again = planned(data, after=made, ceiling=enough)
    assert again.chain is not None
    assert again.chain.raised == ("a", "b", "c")
    assert "3 secrets have a higher ceiling than before" in again.certificate.to_markdown()
    without = month({"e": 6, "f": 9})  # left out of this release, and others taken in
    assert planned(without, after=made).chain is not None


@pytest.mark.parametrize("keep", [0.8, 0.9, 1.0])
def test_a_release_equal_to_the_first_is_possible_also_where_rates_are_large(keep: float, tmp_path: Path) -> None:
    data, made = month({"a": 8, "b": 8, "c": 8}, examples=40), list[Earlier]()
    for number in range(3):
        plan = planned(data, series=SeriesSettings(count=3), after=made, batch_size=8, keep=keep)
        made.append(loaded(plan, tmp_path / str(number)))
    assert made[-1].plan.noise_multiplier == made[0].plan.noise_multiplier


def test_a_secret_that_was_not_protected_once_is_counted_from_then_on(tmp_path: Path) -> None:
    data, made, folders = month(FIRST), list[Earlier](), list[Path]()
    for number, uncovered in enumerate(((), ("b",), ())):
        plan = planned(data, series=SeriesSettings(count=3), after=made, uncovered=uncovered)
        assert plan.chain is not None
        assert plan.chain.uncovered == (("b",) if number else ())
        said = "1 secret was not protected in some examples of an earlier release" in plan.certificate.to_markdown()
        assert said == bool(number)
        folders.append(saved(plan, tmp_path / str(number)))
        assert failed(folders[-1], folders[:-1]) == {}
        made.append(Earlier.load(folders[-1]))
    with pytest.raises(hush.InvalidInput, match="uncovered"):
        planned(data, after=made[:1], uncovered=("nobody",))


def test_another_share_on_the_way_allows_the_whole_budget(filtered: list[Earlier], tmp_path: Path) -> None:
    data = month(FIRST)
    same, other = (planned(data, after=filtered[:1], filter=FilterSettings(share=share)) for share in (0.25, 0.3))
    assert (other.posterior > 2 * same.posterior).all(), "nothing less holds if the share depends on earlier models"
    saved(filtered[0].plan, tmp_path / "1")
    assert failed(saved(other, tmp_path / "2"), [tmp_path / "1"]) == {}


def test_a_secret_that_was_away_when_the_share_changed_is_allowed_the_whole_budget_too(tmp_path: Path) -> None:
    """The other share may have been chosen by looking at a model that saw the secret."""
    there, away = month({"a": 6, "b": 12, "c": 9}), month({"a": 6, "b": 12}, seed=1)
    made, folders = list[Earlier](), list[Path]()
    for data, share in ((there, 0.2), (away, 0.1), (there, 0.1)):
        plan = planned(data, filter=FilterSettings(share=share), after=made)
        folders.append(saved(plan, tmp_path / str(len(made))))
        assert failed(folders[-1], folders[:-1]) == {}
        made.append(Earlier.load(folders[-1]))
    last = made[-1].plan.chain
    assert last is not None
    assert isinstance(last.kind, Filter)
    plan = made[-1].plan
    whole_SQ, _ = budgets(plan.prior, chain_ceiling(plan.prior, plan.ceiling, last.sampling_total), last.kind.order_SQ)
    assert last.kind.allowed_SQ == pytest.approx(whole_SQ)


def test_a_plan_that_stood_alone_is_continued_by_a_filter(tmp_path: Path) -> None:
    alone = planned(month(FIRST), noise_multiplier=5.0)
    folder = saved(alone, tmp_path / "1")
    with pytest.raises(hush.InvalidInput, match="pass the share of the budget"):
        planned(month(FIRST, seed=1), after=[folder])
    with pytest.raises(hush.InvalidInput, match="announced before its first release"):
        planned(month(FIRST, seed=1), after=[folder], series=SERIES)
    second = planned(month(FIRST, seed=1), after=[folder], filter=FilterSettings(share=0.3))
    assert failed(saved(second, tmp_path / "2"), [folder]) == {}
    for row, name in enumerate(second.secret_ids):
        assert joint([alone, second], name) <= second.posterior[row, 0] <= CEILING


# Identities.


def test_a_merged_secret_takes_over_what_its_parts_were_allowed(series: list[Earlier], tmp_path: Path) -> None:
    merged = month({"a": 8, "bc": 12, "d": 8}, seed=4)
    with pytest.raises(hush.InvalidInput, match="ancestors are in no earlier plan"):
        planned(merged, after=series[:1], ancestors={"bc": ["x"]})
    plan = planned(merged, after=series[:1], ancestors={"bc": ["b", "c"]}, keep="auto", ceiling=0.1)
    kind, first = series_of(plan), series_of(series[0].plan)
    assert kind.limit_SR[1, 0] == pytest.approx(first.limit_SR[1, 0] + first.limit_SR[2, 0])
    assert 0 < kind.limit_SR[1, 1] < kind.limit_SR[2, 1], "a new secret is allowed more"
    folder = saved(series[0].plan, tmp_path / "1")
    assert failed(saved(plan, tmp_path / "2"), [folder]) == {}
    chain = plan.chain
    assert chain is not None
    third = planned(
        month({"a": 8, "bc": 13, "d": 8}, seed=5),
        after=[*series[:1], loaded(plan, tmp_path / "2")],
        keep="auto",
        ceiling=0.1,
    )
    assert third.chain is not None
    assert third.chain.ancestors == {"bc": ("b", "c")}, "no need to state it again"
    assert np.array_equal(series_of(third).limit_SR, kind.limit_SR)


def test_a_merged_secret_under_a_filter_spent_what_the_union_of_its_examples_did(tmp_path: Path) -> None:
    begin = planned(month(FIRST), filter=FilterSettings(share=0.05))
    past = loaded(begin, tmp_path / "1")
    merged = month({"a": 8, "bc": 12}, seed=4)
    plan = planned(merged, after=[past], ancestors={"bc": ["b", "c"]}, keep=0.5)
    assert failed(saved(plan, tmp_path / "2"), [tmp_path / "1"]) == {}
    assert filter_of(plan).before_SQ[1, 0] > 0
    for row, name in enumerate(plan.secret_ids):
        names = (name, *(plan.chain.ancestors.get(name, ()) if plan.chain is not None else ()))
        union = joined_graph(begin, [names]).examples_of(0)
        both = hush.joint_posterior(
            [begin.rates[union], plan.rates[plan.incidence.examples_of(row)]],
            noise_multipliers=[begin.noise_multiplier, plan.noise_multiplier],
            rounds=[20, 20],
            prior=PRIOR,
        )
        assert both <= plan.posterior[row, 0]


def test_merging_what_is_all_spent_is_refused(tmp_path: Path) -> None:
    names = {f"s{number}": 8 for number in range(6)}
    first = saved(planned(month(names), series=SeriesSettings(count=2)), tmp_path / "1")
    with pytest.raises(ReleaseRefused, match=r"can lift 1 secret \(all\) above the ceiling") as told:
        planned(month({"all": 20}), after=[first], ancestors={"all": list(names)})
    assert told.value.secrets == ("all",)
    enough = float(str(told.value).split("raise their ceilings: ")[1].split(" ")[0])
    assert planned(month({"all": 20}), after=[first], ancestors={"all": list(names)}, ceiling=enough, keep="auto").chain


def test_secrets_keep_their_priors_and_a_filter_never_lowers_a_ceiling(
    series: list[Earlier], filtered: list[Earlier]
) -> None:
    data = month(FIRST)
    for chain in (series, filtered):
        with pytest.raises(hush.InvalidInput, match="a secret keeps its priors"):
            planned(data, after=chain[:1], prior=2e-6)
    with pytest.raises(ReleaseRefused, match="are lower than in earlier releases"):
        planned(data, after=filtered[:1], ceiling=0.5 * CEILING)
    with pytest.raises(ReleaseRefused, match="limits announced for them can lift 3 secrets"):
        planned(data, after=series[:1], ceiling=0.5 * CEILING)
    with pytest.raises(hush.InvalidInput, match="known by its id"):
        hush.make_plan(data.incidence, prior=PRIOR, ceiling=CEILING, batch_size=6, rounds=20, series=SERIES)


def test_only_whole_chains_are_continued(series: list[Earlier], filtered: list[Earlier]) -> None:
    data = month(FIRST)
    for wrong in (series[1:2], [series[0], series[2]], [series[0], filtered[1]]):
        with pytest.raises(hush.InvalidInput, match="does not follow"):
            planned(data, after=wrong)
    with pytest.raises(hush.InvalidInput, match="a filter cannot be added"):
        planned(data, after=series[:1], filter=FilterSettings())
    with pytest.raises(hush.InvalidInput, match="it cannot be changed"):
        planned(data, after=series[:1], series=SeriesSettings(count=4))
    simulated = replace(series[0].plan, noise_scale=0.5)
    with pytest.raises(hush.InvalidInput, match="is a simulation"):
        History.of((Earlier(plan=simulated, digest="0" * 64),), data.ids, None)


# What computed draws and noise add.


def test_all_releases_together_stay_within_what_is_left_to_the_sampling_error(
    series: list[Earlier], filtered: list[Earlier]
) -> None:
    room = 1e-3 * (CEILING - PRIOR)
    for made in (series, filtered):
        limits = [one.plan.chain.sampling_limit for one in made if one.plan.chain is not None]
        assert sum(limits) <= room
        assert limits[0] == pytest.approx(room / 3 if made is series else 0.25 * room)
        for one in made:
            chain = one.plan.chain
            assert chain is not None
            assert (one.plan.posterior + chain.sampling_total <= one.plan.ceiling).all()
    plan = series[0].plan
    trained = 10**6
    assert plan.sampling_error_of_run(trained) >= 2 * limits_of(plan) + sampling_error(trained, batch_size=6, rounds=20)
    refuse_passed_ceilings(plan, trained)
    too_many = int(1.1 * limits_of(plan) * 2.0**64 / plan.rounds)
    with pytest.raises(hush.CannotCertify, match="the releases of the chain leave"):
        refuse_passed_ceilings(plan, too_many)


def limits_of(plan: hush.Plan) -> float:
    assert plan.chain is not None
    return plan.chain.sampling_limit


# Random chains.


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["series", "filter"])
def test_random_chains_keep_every_promise(kind: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    made: list[Earlier] = []
    settings = (
        {"series": SeriesSettings(count=4, growth=2.0)} if kind == "series" else {"filter": FilterSettings(share=0.2)}
    )
    for number in range(3):
        names = rng.permutation(list("abcdefg"))[: rng.integers(1, 6)].tolist()
        data: Month = month({name: int(rng.integers(1, 12)) for name in names}, seed=int(rng.integers(99)))
        try:
            plan = planned(data, **settings, after=made, keep="auto" if kind == "series" and made else 0.5)
        except hush.InfeasiblePlan:
            continue
        assert plan.chain is not None
        assert (used_shares(plan.chain, plan.incidence, plan.rates) <= 1).all()
        made.append(loaded(plan, tmp_path / str(number)))
    plans = [one.plan for one in made]
    for plan in plans:
        for row, name in enumerate(plan.secret_ids):
            so_far = plans if kind == "series" else plans[: plans.index(plan) + 1]
            assert joint(so_far, name) <= plan.posterior[row, 0] <= CEILING


# With held-out examples, and with slots.


def test_a_release_of_a_chain_may_hold_out_examples_and_draw_secrets_only(
    series: list[Earlier], tmp_path: Path
) -> None:
    data = month({"a": 7, "b": 12, "c": 9})
    free = np.flatnonzero(data.incidence.secrets_per_example == 0)[:10]
    arguments = {"prior": PRIOR, "ceiling": CEILING, "rounds": 20, "secret_ids": data.ids, "after": series[:1]}
    folder = saved(series[0].plan, tmp_path / "1")
    ways: tuple[dict[str, Any], ...] = ({"batch_size": 6.0}, {"batch_size": 1.0, "draw": "secrets"})
    for number, more in enumerate(ways):
        plan = make_plan_holding_out(data.incidence, free, **arguments, **more)
        assert np.array_equal(held_out_examples(plan), free)
        assert np.array_equal(series_of(plan).limit_SR, series_of(series[0].plan).limit_SR)
        assert failed(saved(plan, tmp_path / f"2-{number}"), [folder]) == {}
