"""The numbers of the page, each by a second route."""

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_plans import put_together, small_plan

from hush.accounting import calibrate
from hush.errors import InvalidInput
from hush.report import numbers
from hush.report.markup import at_least, at_most, percent_at_least, percent_at_most
from hush.report.numbers import SecretNumbers, binned_counts, closest_curves, kept_weight, noise_by_method, secret_curve
from hush.report.plots import GRID_CELLS, MAX_SINGLE_POINTS, scatter_plot
from hush.report.report import checked_training, frontier_rows, read_frontier, read_source
from hush.storage import record_digest
from hush.weights import frontier

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=30)


def numbers_of(counts: Sequence[int]) -> SecretNumbers:
    rng = np.random.default_rng(len(counts))
    return SecretNumbers.of(put_together(np.array(counts), rng.random(len(counts)), num_examples=600))


@given(st.floats(1e-300, 1e300))
def test_bounds_are_rounded_to_the_safe_side_and_no_further_than_a_digit(value: float) -> None:
    assert value <= float(at_most(value)) <= value * 1.0011
    assert value * 0.9989 <= float(at_least(value)) <= value


@given(st.floats(1e-290, 1))
def test_percents_are_rounded_to_the_safe_side(share: float) -> None:
    hair = 1e-15
    assert float(percent_at_most(share)[:-2]) >= 100 * share * (1 - hair)
    assert float(percent_at_least(share)[:-2]) <= 100 * share * (1 + hair)


@given(COUNTS)
def test_a_secret_counts_after_weighting_as_the_weights_of_its_examples(counts: list[int]) -> None:
    plan = put_together(np.array(counts), np.full(len(counts), 0.5), num_examples=600)
    found = SecretNumbers.of(plan)
    one_by_one = [plan.weights[plan.incidence.examples_of(secret)].sum() for secret in range(len(counts))]
    np.testing.assert_allclose(found.after_S, one_by_one, rtol=1e-12)
    assert found.before_S.tolist() == counts


@given(COUNTS)
def test_every_secret_is_in_one_bin_and_weighting_only_moves_it_down(counts: list[int]) -> None:
    found = numbers_of(counts)
    names, before, after = binned_counts(found.before_S, found.after_S)
    assert sum(before) == sum(after) == len(counts)
    assert np.all(np.cumsum(after) >= np.cumsum(before))
    low_high = [name.split("–") for name in names]
    by_hand = [sum(int(pair[0]) <= count <= int(pair[-1]) for count in counts) for pair in low_high]
    assert before == by_hand


@given(COUNTS, st.integers(1, 20))
def test_the_block_of_rows_reads_back_as_it_was(counts: list[int], most: int) -> None:
    found = numbers_of(counts)
    ids = [f"s-{place}" for place in range(len(counts))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "MAX_TABLE_ROWS", most)
        packed = numbers.packed_rows(ids, found, None)
    block, offset, read = zlib.decompress(base64.b64decode(packed.content)), 0, {}
    for name, kind in packed.layout["columns"]:
        read[name] = np.frombuffer(block, f"<{kind}", packed.rows, offset)
        offset += read[name].nbytes
    rows = [ids.index(name) for name in json.loads(block[offset:])["ids"]]
    assert len(rows) == min(most, len(counts)) == packed.rows
    assert packed.left_out == len(counts) - len(rows)
    for name in ("prior", "posterior", "ceiling", "after", "before"):
        np.testing.assert_array_equal(read[name], getattr(found, f"{name}_S")[rows])
    others = np.setdiff1d(np.arange(len(counts)), rows)
    assert found.share_S[others].max(initial=0.0) <= found.share_S[rows].min()  # the closest stay
    assert (np.diff(found.share_S[rows]) <= 0).all()  # the page shows them in this order


def test_curves_are_those_of_the_certificate_and_rise_with_the_prior() -> None:
    plan = small_plan()
    curves = closest_curves(plan, SecretNumbers.of(plan))
    certified = plan.certificate.curve
    assert any(curve.name in certified for curve in curves)
    for curve in curves:
        assert list(curve.posteriors) == sorted(curve.posteriors)
        assert all(after >= prior for prior, after in curve.shown_points)
        by_prior = dict(zip(curve.priors, curve.posteriors, strict=True))
        assert by_prior[curve.prior] <= curve.ceiling * 1.001  # accurate to 1e-3, as every bound is
        for prior, after in certified.get(curve.name, ()):
            if prior in by_prior:
                assert by_prior[prior] == pytest.approx(after, rel=2e-3)


def test_the_noise_of_each_method_is_what_calibration_finds_and_the_plan_is_the_least() -> None:
    plan = small_plan()
    calls: list[str] = []
    found = noise_by_method(plan, progress=lambda name, _done, _total: calls.append(name))
    assert len(found) == 6
    chosen = [method for method in found if method.chosen]
    assert [method.noise_multiplier for method in chosen] == [plan.noise_multiplier]
    assert min(method.noise_multiplier for method in found) == plan.noise_multiplier
    rate = plan.batch_size / plan.incidence.num_examples
    all_data = calibrate(
        plan.incidence, prior=plan.prior, ceiling=plan.ceiling, rates=rate, rounds=plan.rounds, bound="kl"
    )
    assert found[0].noise_multiplier == pytest.approx(all_data.noise_multiplier, rel=1e-6)
    assert found[0].kept_weight == 1 > chosen[0].kept_weight == kept_weight(plan)
    assert calls


@pytest.mark.parametrize("size", [40, MAX_SINGLE_POINTS + 500])
def test_the_picture_shows_every_secret_that_an_example_contains(size: int) -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 50, size)
    plan = put_together(counts, rng.random(size) ** 4, num_examples=4000)
    plot = scatter_plot(plan.secret_ids, SecretNumbers.of(plan))
    gathered = 0
    for trace in plot.traces:
        more = [text.partition("and ")[2].partition(" more")[0].replace(",", "") for text in trace["text"]]
        gathered += len(more) + sum(int(each) for each in more if each)
        assert max(trace["y"]) <= 100
    assert gathered == np.count_nonzero(counts)
    assert sum(len(trace["x"]) for trace in plot.traces) <= max(MAX_SINGLE_POINTS, 2 * GRID_CELLS[0] * GRID_CELLS[1])


def test_a_frontier_is_the_same_from_memory_and_from_its_file(tmp_path: Path) -> None:
    plan = small_plan()
    swept = frontier(plan.incidence, prior=1e-10, ceiling=1e-3, batch_size=20, rounds=50, settings=[1.0, 2.0])
    kind = {"capacity": swept.capacity, "bound": swept.bound}
    path = tmp_path / "frontier.json"
    path.write_text(json.dumps({"rows": [kind | row for row in swept.records()]}))
    shown = ("capacity", "bound", "noise_multiplier", "kept_weight")
    one, other = (
        [tuple(row[name] for name in shown) for row in rows] for rows in (frontier_rows(swept), read_frontier(path))
    )
    assert one == other


HUGE = f"1{'0' * 400}"  # JSON has whole numbers that no float holds


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}', '{"rows": [{"capacity": "paper"}]}', '{"rows": [1]}',
    f'{{"rows": [{{"capacity": "paper", "bound": "kl", "noise_multiplier": {HUGE}, "kept_weight": 1}}]}}',
    '{"rows": [{"capacity": "paper", "bound": "kl", "noise_multiplier": 1, "kept_weight": 1e308}]}'])  # fmt: skip
def test_what_is_no_frontier_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "frontier.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="hush frontier"):
        read_frontier(path)


def test_of_a_training_only_rounds_names_and_scores_are_taken() -> None:
    odd = {"note": "hunter2", "bad": float("nan"), "on": True, "huge": int(HUGE)}
    rows = checked_training([{"round": 3, "run": "a", "loss": 1.5, **odd}])
    assert rows == ({"round": 3, "run": "a", "loss": 1.5},)
    for bad in ({"loss": 1.0}, {"round": 1.5}, {"round": True}):
        with pytest.raises(InvalidInput, match="round"):
            checked_training([bad])


def test_a_folder_that_is_neither_a_plan_nor_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="neither a plan nor a finished run"):
        read_source(tmp_path)
    with pytest.raises(InvalidInput, match="not a folder"):
        read_source(tmp_path / "nothing")


def test_the_words_of_a_plan_of_another_format_are_not_shown(tmp_path: Path) -> None:
    small_plan().save(tmp_path / "plan")
    assert read_source(tmp_path / "plan").certificate == small_plan().certificate
    record = json.loads((tmp_path / "plan" / "plan.json").read_text()) | {"format": "1.2"}
    (tmp_path / "plan" / "plan.json").write_text(json.dumps(record | {"digest": record_digest(record)}))
    with pytest.raises(InvalidInput, match=r"format 1\.2"):
        read_source(tmp_path / "plan")


def test_a_point_of_a_curve_reads_the_same_in_certificate_and_report() -> None:
    plan = small_plan()
    numbers = SecretNumbers.of(plan)
    rows = [line.strip("| ").split(" | ") for line in plan.certificate.to_markdown().splitlines() if line[:3] == "| 0"]
    read = {float(prior): [float(cell) for cell in cells] for prior, *cells in rows}
    for place, name in enumerate(plan.certificate.curve):
        told = dict(secret_curve(plan, numbers, plan.secret_ids.index(name)).shown_points)
        assert {prior: read[prior][place] for prior in told} == {
            prior: float(at_most(after)) for prior, after in told.items()
        }
