"""The study of owners runs from end to end on abstracts made on the spot; its page says what its plans say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pages import RESULTS, missing
from programs import run_program
from safetensors.torch import save_file
from test_secret_words import material  # noqa: F401  (a fixture: abstracts, a vocabulary and a public text)

import hush
from experiments.owners.arms import Arm, Planned
from experiments.owners.data import Canaries, kept_by_cap
from experiments.owners.table import plan_table
from experiments.runs import RunLog
from experiments.secret_words.data import Prepared
from experiments.secret_words.training import Task, new_model

ROOT = Path(__file__).parents[2]
PAGE = "docs/studies/owners.md"
TRAINED = "before", "none", "one-hush-04-of-1", "one-bounding-04-of-4"
CANARIES = 2  # of the smallest scale, each with as many copies


@pytest.fixture(scope="module")
def study(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The folder of a study at its smallest scale, with random weights; every tenth abstract has no author."""
    folder = tmp_path_factory.mktemp("owners")
    abstracts = pq.read_table(material / "abstracts.parquet")
    ids = [f"{number:04d}" for number in range(len(abstracts))]
    rng = np.random.default_rng(1)
    names = [
        [] if number % 10 == 0 else sorted({f"A. {author}" for author in rng.zipf(1.4, size=2) % 300})
        for number in range(len(ids))
    ]
    pq.write_table(abstracts.append_column("id", pa.array(ids)), folder / "abstracts.parquet")
    pq.write_table(pa.table({"id": ids, "authors": names}), folder / "authors.parquet")
    size = len((material / "vocab.txt").read_text().splitlines())
    start = new_model(Task(rows={}, vocabulary=size, device="cpu", micro_batch=1), None)
    # Tied weights are saved once.
    saved = {
        name: value for name, value in start.state_dict().items() if not name.startswith("cls.predictions.decoder")
    }
    save_file({name: value.contiguous() for name, value in saved.items()}, folder / "start.safetensors")
    words = ["--scale", "smoke", "--work", str(folder / "work")]
    words += ["--abstracts", str(folder / "abstracts.parquet"), "--authors", str(folder / "authors.parquet")]
    words += ["--vocabulary", str(material / "vocab.txt"), "--public", str(material / "public.jsonl.gz")]
    words += ["--start", str(folder / "start.safetensors"), "--output", str(folder / "results")]
    for arm in TRAINED:
        words += ["--arm", arm]
    run_program("owners/__main__.py", *words)
    return folder


def test_every_kind_of_run_ends_with_losses_and_ranks(study: Path) -> None:
    text = (study / "results" / "runs.jsonl").read_text()
    assert "failed" not in text, text
    entries = RunLog(study / "results" / "runs.jsonl").entries()
    keys = [entry["key"] for entry in entries]
    assert {key["arm"] for key in keys} == set(TRAINED)
    assert {key["model"] for key in keys} == {"bert", "causal"}
    assert {key["trained"] for key in keys} == {"all", "lora", "bias"}
    assert {key["exponent"] for key in keys} == {None, -0.25}
    assert {key["part"] for key in keys if key["arm"] == "none"} == {1, 4, 16}
    for entry in entries:
        outcome = entry["outcome"]
        assert np.isfinite([outcome["validation"], outcome["test"], outcome["exposure"]]).all()
        assert len(outcome["canary_ranks"]) == CANARIES
    table = (study / "results" / "table.md").read_text()
    assert all(arm in table for arm in TRAINED)


def test_no_abstract_is_without_an_owner_and_canaries_come_first(study: Path) -> None:
    work = study / "work"
    incidence = hush.Incidence.from_parquet(work / "incidence.parquet")
    rows = Prepared.load(work, ("train", "validation", "test")).rows
    planted = CANARIES * CANARIES
    assert sum(map(len, rows.values())) == 360 + planted
    assert len(rows["train"]) == incidence.num_examples
    assert (incidence.secrets_per_example > 0).all()
    vocabulary = int((work / "vocabulary.txt").read_text())
    canaries = Canaries(count=CANARIES, copies=CANARIES, vocabulary=vocabulary)
    np.testing.assert_array_equal(rows["train"][:planted], canaries.rows())
    for canary in range(CANARIES):
        assert incidence.examples_of(canary).tolist() == [canary, canary + CANARIES]
    assert (incidence.secrets_per_example[:planted] == 1).all()


def test_plans_are_stored_without_loss_and_keep_every_promise(study: Path, tmp_path: Path) -> None:
    incidence = hush.Incidence.from_parquet(study / "work" / "incidence.parquet")
    for arm in (Arm(method="hush", level=4, promise="decades"), Arm(method="bounding", level=4, part=4)):
        planned = Planned.load(study / "work" / "plans-8-1" / arm.name, arm, incidence)
        planned.save(tmp_path / arm.name)
        again = Planned.load(tmp_path / arm.name, arm, incidence)
        assert again.plan == planned.plan
        np.testing.assert_array_equal(again.rows, planned.rows)
        planned.plan.save(tmp_path / "plan")
        assert hush.verify(tmp_path / "plan").passed
        assert planned.plan.incidence == incidence.select(examples=planned.rows)


def test_a_cap_keeps_all_that_fits_and_no_more() -> None:
    rng = np.random.default_rng(2)
    incidence = hush.Incidence.from_pairs(
        np.arange(600) % 300, rng.integers(0, 40, 600), num_examples=300, num_secrets=40
    )
    previous = 0
    for cap in (1, 4, 8):
        kept = kept_by_cap(incidence, cap)
        per_owner = incidence.select(examples=kept).examples_per_secret
        assert per_owner.max() <= cap
        assert kept.size > previous
        previous = kept.size
        left = np.setdiff1d(np.arange(300), kept)
        owners = incidence.to_scipy()
        assert all((per_owner[owners[[example]].indices] == cap).any() for example in left)  # no other one fits
    assert kept_by_cap(incidence, 600).size == 300


def test_what_is_planted_depends_on_the_vocabulary_alone() -> None:
    canaries = Canaries(count=3, copies=2, vocabulary=2000)
    np.testing.assert_array_equal(canaries.rows(), Canaries(count=3, copies=2, vocabulary=2000).rows())
    assert canaries.candidates.min() >= 999
    assert canaries.candidates.max() < 2000
    assert len({row.tobytes() for row in canaries.rows()}) == 3


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads((RESULTS / "owners" / "promises.json").read_text())


def test_the_page_shows_the_plans(record: dict[str, Any]) -> None:
    page = (ROOT / PAGE).read_text()
    for promise, part in (("one", 1), ("decades", 1), ("one", 4), ("one", 16)):
        assert plan_table(record, promise, part) in page


def test_what_the_page_says_of_the_plans_follows_from_them(record: dict[str, Any]) -> None:
    plans = {plan["name"]: plan for plan in record["plans"]}
    noise = {name: plan["noise_multiplier"] for name, plan in plans.items()}
    said = [f"{record['owners'] - 64:,} authors", f"{record['examples'] - 1024:,} abstracts"]
    for promise in ("one", "decades"):
        paper, tight = noise[f"{promise}-paper-00-of-1"], noise[f"{promise}-hush-00-of-1"]
        said += [f"{paper / tight:.1f}", f"{paper:.0f}", f"{tight:.1f}"]
        for cap in (4, 8, 24):
            ours, bounding = (plans[f"{promise}-{method}-{cap:02d}-of-1"] for method in ("hush", "bounding"))
            assert ours["noise_multiplier"] == bounding["noise_multiplier"]
            assert ours["signal"] == pytest.approx(bounding["signal"])
            said.append(f"{100 * ours['kept_weight']:.1f} % instead of {100 * bounding['kept_weight']:.1f} %")
    step, most = plans["one-paper-06-of-1"], plans["one-hush-24-of-1"]
    said += [f"keeps {100 * step['kept_weight']:.1f} % the paper needs {step['noise_multiplier']:.1f}"]
    said += [f"keeps {100 * most['kept_weight']:.1f} % at {most['noise_multiplier']:.2f}"]
    said += [f"gives up {100 - 100 * most['kept_weight']:.1f} % of the weight leaves a "
             f"{noise['one-hush-00-of-1'] / most['noise_multiplier']:.0f}nd"]  # fmt: skip
    limits = [plans[f"decades-{method}-04-of-1"]["limit"] for method in ("hush", "bounding")]
    said += [
        f"{limits[0]:,.0f} instead of {limits[1]:,.0f}",
        f"at {plans['one-bounding-04-of-1']['elbow']:,.0f} examples",
    ]
    assert missing(PAGE, said) == []
