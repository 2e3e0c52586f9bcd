"""Study 1 runs from end to end on abstracts made on the spot; what it writes has the right shape, and it goes on."""

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import run_program
from safetensors.torch import load_file, save_file

from experiments.secret_words.data import Prepared, secret_words, word_incidence, words
from experiments.secret_words.training import BERT_TINY

ROOT = Path(__file__).parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def made_word(number: int) -> str:
    return "".join(LETTERS[number // 26**k % 26] for k in range(3))


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Abstracts in which words become rarer and rarer, BERT's special pieces at their places, and a public text.

    The model is narrower than the study's as long as these are used: every step is tried, and nothing need be learnt.
    """
    folder = tmp_path_factory.mktemp("material")
    rng = np.random.default_rng(0)
    chance = 1 / np.arange(1, 2001)
    texts = [
        " ".join(made_word(int(word)) for word in rng.choice(2000, size=20, p=chance / chance.sum()))
        for _ in range(400)
    ]
    pq.write_table(pa.table({"abstract": texts}), folder / "abstracts.parquet")
    special = ["[PAD]", *(f"[unused{i}]" for i in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS), *map(made_word, range(30))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    with gzip.open(folder / "public.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": " ".join(texts[:100])}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        for size in ("hidden_size", "intermediate_size"):
            patch.setitem(BERT_TINY, size, 16)
        yield folder


def study(material: Path, folder: Path, *options: str) -> None:
    places = ["--abstracts", str(material / "abstracts.parquet"), "--vocabulary", str(material / "vocab.txt")]
    places += ["--public", str(material / "public.jsonl.gz"), "--output", str(folder / "results")]
    run_program("secret_words/__main__.py", "--scale", "smoke", "--work", str(folder / "work"), *places, *options)


@pytest.fixture(scope="module")
def finished(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    study(material, folder)
    return folder


def test_every_arm_and_seed_is_run_and_shown(finished: Path) -> None:
    with (finished / "results" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    infeasible = {path.stem for path in (finished / "work" / "plans").glob("*.infeasible")}
    assert {row["arm"] for row in rows} | infeasible == {"paper-00", "paper-05", "paper-10", "hush-00", "hush-05"}
    assert "hush-00" not in infeasible
    assert all(row["seeds"] == "2" and row["loss"] and row["loss_clean"] and row["loss_radius"] for row in rows)
    summary = json.loads((finished / "results" / "summary.json").read_text())
    assert len(summary["references"]["no protection"]) == 2
    assert all(len(summary["runs"][name]) == 1 for name in ("date", "commit", "hardware", "versions"))
    assert all(row["learning_rate"] == "0.001" for row in rows)  # the only one that this scale tries
    assert (finished / "results" / "panels.svg").read_text().lstrip().startswith("<?xml")


def test_runs_that_began_with_other_weights_are_not_taken_as_done(
    material: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.safetensors"
    weights = load_file(finished / "work" / "start.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, other)
    with pytest.raises(SystemExit) as refused:
        study(material, finished, "--stage", "train", "--start", str(other))
    assert refused.value.code == 2
    assert "began with other weights" in capsys.readouterr().err


def test_a_finished_study_trains_nothing_again(material: Path, finished: Path) -> None:
    log = finished / "results" / "runs.jsonl"
    before = log.read_text()
    assert "failed" not in before
    study(material, finished, "--stage", "train")
    assert log.read_text() == before


def test_without_data_it_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.secret_words", "--scale", "smoke", "--work", str(tmp_path / "none")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "pass --abstracts and --vocabulary" in said.stderr
    assert not (tmp_path / "none").exists()


def test_a_noise_scaled_run_is_marked_as_a_simulation(finished: Path) -> None:
    import hush

    plan = hush.Plan.load(finished / "work" / "plans" / "paper-05")
    assert any("simulation" in mark for mark in plan.certificate.marks)


def test_no_example_of_one_part_is_in_another(finished: Path) -> None:
    rows = Prepared.load(finished / "work", ("train", "validation", "test")).rows
    sizes = {name: len(own) for name, own in rows.items()}
    assert sizes["validation"] == sizes["test"] == sum(sizes.values()) // 19
    distinct = [{row.tobytes() for row in own} for own in rows.values()]
    assert not distinct[0] & distinct[1]
    assert not distinct[0] & distinct[2]
    assert not distinct[1] & distinct[2]


def test_words_join_at_hyphens_and_leave_formulas_out() -> None:
    assert words("Well-known $x^2 abc$ don't, B2B") == {"well-known", "don't", "b"}


def test_incidence_holds_exactly_the_words_of_middling_frequency() -> None:
    texts = ["one two", "two three", "three two", "four"]
    secret_of = secret_words(texts, (2, 2))
    kept, incidence = word_incidence(texts, secret_of)
    assert secret_of == {"three": 0}
    assert kept.tolist() == [1, 2]
    assert incidence.num_entries == 2


def test_rows_survive_being_packed(tmp_path: Path) -> None:
    rows = np.zeros((3, 128), dtype=np.uint16)
    rows[0, :4], rows[1, :128], rows[2, :1] = [101, 30000, 256, 102], np.arange(1, 129), [65535]
    Prepared(rows={"train": rows}).save(tmp_path)
    np.testing.assert_array_equal(Prepared.load(tmp_path, ["train"]).rows["train"], rows)


def test_arms_that_train_nearly_the_same_are_run_once(finished: Path, tmp_path: Path) -> None:
    import shutil

    import hush
    from experiments.secret_words.arms import NEAR_NOISE, alike

    plans = tmp_path / "plans"
    shutil.copytree(finished / "work" / "plans", plans)
    same = alike(plans)
    assert same["hush-00", False] == "paper-00"  # both use all data; their noise differs
    assert same["hush-00", True] == "hush-00"
    shutil.copytree(plans / "paper-05", plans / "paper-06")
    plan = hush.Plan.load(plans / "paper-05")
    noisier = replace(plan, noise_multiplier=plan.noise_multiplier * (1 + 2 * NEAR_NOISE))
    noisier.save(plans / "paper-07")
    expected = {**same, ("paper-06", False): "paper-05", ("paper-06", True): "paper-05"}
    assert alike(plans) == {**expected, ("paper-07", False): "paper-05", ("paper-07", True): "paper-07"}


@pytest.mark.parametrize("agree", [True, False])
def test_the_middle_tries_every_rate_and_the_others_follow(finished: Path, tmp_path: Path, agree: bool) -> None:
    from experiments.runs import RunLog
    from experiments.secret_words.schedule import (
        Bench,
        Job,
        chosen_rate,
        final,
        settling_between,
        settling_ends,
        tuning_around,
        tuning_middles,
    )

    rates = (1e-4, 1e-3, 1e-2, 1e-1)
    bench = Bench(
        work=finished / "work", log=tmp_path / "runs.jsonl", rounds=10, batch_size=1, micro_batch=1, vocabulary=1,
        rates=rates, seeds=1, workers=1, compile=False, start=tmp_path, until=None,
    )  # fmt: skip
    log = RunLog(bench.log)
    middles = list(tuning_middles(bench, log))
    assert {job.rate for job in middles if job.arm == "paper-10"} == set(rates)
    assert not list(tuning_around(bench, log))  # nothing is known yet
    assert not list(final(bench, log))

    def lose(job: Job, best: float) -> None:
        log.run(job.key, lambda: {"validation": abs(np.log(job.rate / best)), "test": 0.0})

    for job in middles:
        lose(job, best=1e-1)
    around = list(tuning_around(bench, log))
    assert {(job.arm, job.rate) for job in around} == {("paper-05", 1e-2), ("paper-05", 1e-1)}
    for job in around:
        lose(job, best=1e-2)
    assert not list(final(bench, log))  # a short tuning does not choose
    ends = list(settling_ends(bench, log))
    assert {job.arm for job in ends if job.noise} == {"paper-00", "paper-10", "hush-00"}
    assert {(job.rate, job.rounds, job.seed) for job in ends} == {(1e-1, 10, 0), (1e-2, 10, 0)}
    for job in ends:
        lose(job, best=1e-2 if job.arm == "paper-10" and not agree else 1e-1)
    between = list(settling_between(bench, log))
    expected = set() if agree else {("paper-05", 1e-2, 10, 0), ("paper-05", 1e-3, 10, 0)}
    assert {(job.arm, job.rate, job.rounds, job.seed) for job in between} == expected
    assert chosen_rate(log, "paper-05", "paper, program", bench) == (1e-1 if agree else None)
    for job in between:
        lose(job, best=1e-3)
    assert chosen_rate(log, "paper-05", "paper, program", bench) == (1e-1 if agree else 1e-3)
    assert chosen_rate(log, "paper-10", "paper, program", bench) == (1e-1 if agree else 1e-2)
    jobs = list(final(bench, log))
    assert {job.rate for job in jobs if not job.noise} == {1e-1}  # as tuned where all data are used
    # The first seed's runs are those that chose.
    assert {job.arm for job in jobs if job.noise and not log.outcome(job.key)} == ({"paper-05"} if agree else set())


@pytest.mark.parametrize("best", [1, 2])
def test_the_table_takes_the_step_that_validation_prefers(best: int) -> None:
    from experiments.secret_words.table import same_promise

    def row(step: int, seeds: int, validation: float, loss: float) -> dict[str, Any]:
        return {"arm": f"hush-0{step}", "step": step, "seeds": seeds, "validation": validation, "loss": loss,
                "loss_radius": 0.00101, "trained_noise": 1.0, "kept": 0.9}  # fmt: skip

    rows = [row(0, 3, 9.0, 9.0), *(row(step, 3, float(step != best), 1.0 + step) for step in (1, 2)), row(3, 1, -1, 0)]
    table = same_promise(rows, {"before fine-tuning": [7.0], "no protection": [2.0, 2.0]}).splitlines()
    assert table[2:] == [
        "| before fine-tuning | | | 7.000 | |",
        "| hush on all data | 1 | 3 | 9.000 | ± 0.002 |",
        f"| hush, step {best}: 90 % kept | 1 | 3 | {1 + best}.000 | ± 0.002 |",
        "| no protection | 0 | 2 | 2.000 | ± 0.000 |",
    ]


def test_the_page_shows_the_table_that_the_runs_gave() -> None:
    from experiments.secret_words.table import same_promise

    kept = ROOT / "experiments" / "results" / "secret_words"
    summary = json.loads((kept / "summary.json").read_text())
    table = same_promise(summary["rows"], summary["references"])
    assert (kept / "table.md").read_text().strip() == table
    assert table in (ROOT / "docs" / "studies" / "secret-words.md").read_text()


def test_the_tables_in_a_public_metric_run_and_go_on_where_they_stopped(material: Path, finished: Path) -> None:
    work, log = finished / "work", finished / "geometry" / "geometry.jsonl"

    def geometry(*options: str) -> None:
        places = ["--work", str(work), "--output", str(log.parent), "--start", str(work / "start.safetensors")]
        run_program("secret_words/geometry.py", "--scale", "smoke", *places, *options)

    geometry(
        "--prepare", "--abstracts", str(material / "abstracts.parquet"), "--vocabulary", str(material / "vocab.txt")
    )
    parts = Prepared.load(work, ("train", "validation", "test", "free")).rows
    seen = {row.tobytes() for name in ("train", "validation", "test") for row in parts[name]}
    assert len(parts["free"])
    assert not seen & {row.tobytes() for row in parts["free"]}
    for table in ("books", "free"):
        geometry("--table", table, "--arms", "hush-00")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert all("outcome" in row for row in rows), [row.get("failed") for row in rows]
    keys = [row["key"] for row in rows]
    assert {key["exponent"] for key in keys if key["start"] == "free"} == {-0.25, -0.375, None}
    assert {key["precondition"] for key in keys} == {0.0, 0.5}
    assert (work / "public-start.safetensors").is_file()
    outcomes = {(row["key"]["arm"], row["key"]["start"]): row["outcome"]["test"] for row in rows}
    assert (
        outcomes["before", "books"] != outcomes["before", "free"]
    )  # every arm of the second begins with the free ones
    geometry("--table", "free", "--arms", "hush-00")
    assert len(log.read_text().splitlines()) == len(rows)
