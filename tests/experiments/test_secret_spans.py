"""The study of secret words as spans runs from end to end under two promises; its page says what its results say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import RESULTS, missing
from programs import run_program
from safetensors.torch import save_file
from test_secret_words import material  # noqa: F401  (a fixture: abstracts and a vocabulary)

import hush
from experiments.runs import RunLog, interval
from experiments.secret_spans.__main__ import SCALES
from experiments.secret_spans.data import Part
from experiments.secret_spans.jobs import Promise, table
from experiments.secret_words.training import Task, new_model

PAGE = "docs/studies/secret-spans.md"
PROMISES = ("0.01", "0.3"), ("0.4", "0.6")


@pytest.fixture(scope="module")
def study(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The folder of a study at its smallest scale, with a start of random weights."""
    folder = tmp_path_factory.mktemp("spans")
    size = len((material / "vocab.txt").read_text().splitlines())
    start = new_model(Task(rows={}, vocabulary=size, device="cpu", micro_batch=1), None)
    # Tied weights are saved once.
    saved = {
        name: value for name, value in start.state_dict().items() if not name.startswith("cls.predictions.decoder")
    }
    save_file({name: value.contiguous() for name, value in saved.items()}, folder / "start.safetensors")
    words = ["--scale", "smoke", "--work", str(folder), "--start", str(folder / "start.safetensors")]
    words += ["--abstracts", str(material / "abstracts.parquet"), "--vocabulary", str(material / "vocab.txt")]
    for prior, ceiling in PROMISES:
        words += ["--promise", prior, ceiling]
    run_program("secret_spans/__main__.py", *words)
    return folder


def test_every_arm_is_run_and_each_promise_has_its_own_noise(study: Path) -> None:
    text = (study / "results" / "runs.jsonl").read_text()
    assert "failed" not in text
    rows = json.loads((study / "results" / "summary.json").read_text())
    arms = [row["arm"] for row in rows]
    assert [arm for arm in arms if "private" in arm and "way" not in arm] == [
        "skeletons, then the private part (0.01 to 0.3)", "skeletons, then the private part (0.4 to 0.6)"
    ]  # fmt: skip
    ways = {arm.rpartition("), ")[2] for arm in arms if "of the way" in arm}
    assert ways == {"0 of the way", "0.25 of the way", "0.5 of the way", "0.75 of the way"}
    assert set(arms) >= {"before training", "no protection", "skeletons", "words left out", "skeletons, longer"}
    assert all(row["runs"] for row in rows)
    noise = {}
    for entry in RunLog(study / "results" / "runs.jsonl").entries():
        key = entry["key"]
        if key["arm"] == "private part":
            plan = hush.Plan.load(study / f"plan-16-2-{key['prior']:g}-{key['ceiling']:g}")
            assert entry["outcome"]["noise_multiplier"] == plan.noise_multiplier
            assert (plan.prior == key["prior"]).all()
            assert (plan.ceiling == key["ceiling"]).all()
            noise[key["prior"]] = plan.noise_multiplier
    assert noise[0.4] > noise[0.01]


def test_no_piece_of_a_secret_is_in_a_skeleton(study: Path) -> None:
    """Skeletons have the pieces of the text outside of the slots, in order, as far as both were not cut."""
    part = Part.load(study / "train.npz")
    for tokens, secrets, skeleton in zip(part.token_NT, part.secret_NT, part.skeleton_NT, strict=True):
        public, shown = tokens[(secrets < 0) & (tokens > 0)], skeleton[(skeleton > 0) & (skeleton != 2)]
        size = min(len(public), len(shown)) - 1  # without the mark at the end
        np.testing.assert_array_equal(public[:size], shown[:size])


def test_the_page_says_how_well_the_words_are_guessed() -> None:
    """And that a stated prior of 0.5 is not contradicted, while 0.3 and 1e-4 are."""
    record = json.loads((RESULTS / "secret_spans" / "prior.json").read_text())
    context = [
        {guess["knowledge"]: guess for guess in result["guesses"] if guess["guesser"] == "context"}
        for result in record["results"]
    ]
    listed = [guesses["listed"] for guesses in context]
    said = [
        f"{100 * guess['hits'] / guess['tried']:.1f} % ({100 * guess['lower']:.1f} to {100 * guess['upper']:.1f})"
        for guess in listed
    ]
    assert missing(PAGE, said) == missing("benchmarks/README.md", said) == []
    assert all(guess["lower"] > 1e-4 for guess in listed)
    assert listed[-1]["lower"] > 0.3
    assert max(guess["upper"] for guess in listed) < 0.5
    assert max(guesses["open"]["upper"] for guesses in context) < 0.03


# The page


def test_the_page_says_what_the_promises_cost() -> None:
    record = json.loads((RESULTS / "secret_spans" / "promises.json").read_text())
    said = [
        f"| {plan['noise_multiplier']:.2f} | {plan['signal']:,.0f} | {plan['limit']:,.0f} | {plan['elbow']:.0f} |"
        for plan in record["plans"]
    ]
    study, defended = (next(plan for plan in record["plans"] if plan["prior"] == prior) for prior in (1e-4, 0.5))
    said += [f"leaves {defended['signal'] / study['signal']:.2f} of the signal", f"a batch of {defended['elbow']:.0f}"]
    assert missing(PAGE, said) == []
    planned = {plan["prior"]: plan["noise_multiplier"] for plan in record["plans"]}
    entries = RunLog(RESULTS / "secret_spans" / "runs.jsonl").entries()
    trained = [(e["key"]["prior"], e["outcome"]["noise_multiplier"]) for e in entries if "prior" in e["key"]]
    assert {prior for prior, _ in trained} == {1e-4, 0.03, 0.5}
    for prior, noise in trained:
        assert noise == pytest.approx(planned[prior], rel=1e-4)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    found = table(RunLog(RESULTS / "secret_spans" / "runs.jsonl"), SCALES["full"], interval)
    assert json.loads((RESULTS / "secret_spans" / "summary.json").read_text()) == json.loads(json.dumps(found))
    return {row["arm"]: dict(row) for row in found}


def test_the_table_of_the_page_is_that_of_the_runs(rows: dict[str, dict[str, Any]]) -> None:
    names = {"skeletons": "redacting: skeletons alone", "skeletons, longer": "redacting, longer",
             "words left out": "words left out, one half at a time",
             f"skeletons, then the private part ({Promise(prior=1e-4, ceiling=0.1)})":
             "skeletons, then the private part"}  # fmt: skip
    said = []
    for arm, row in rows.items():
        if "private" in arm and arm not in names:
            continue  # they are in the table of differences
        cells = []
        for where, digits in (("elsewhere", 3), ("secret pieces", 3), ("whole words", 2)):
            mean, radius = row[where]
            shown = f" ± {radius:.{digits}f}" if radius == radius and arm != "words left out" else ""
            cells.append(f"{mean:.{digits}f}{shown}")
        said.append(f"| {names.get(arm, arm)} | {row['runs']} | {' | '.join(cells)} |")
    assert missing(PAGE, said) == []


def test_the_page_says_what_the_private_part_changes_under_promises_that_can_be_defended(rows: dict[str, Any]) -> None:
    said, known = [], rows["skeletons"]["secret pieces"][0] - rows["words left out"]["secret pieces"][0]
    for entry in RunLog(RESULTS / "secret_spans" / "runs.jsonl").entries():
        key, outcome = entry["key"], entry["outcome"]
        if "shares" not in outcome:
            continue
        began = outcome["shares"]["0"]["test"]
        weight = "rule" if key["weight"] is None else f"{key['weight']:g}"
        models = {share: each["test"] for share, each in outcome["shares"].items() if share != "0"}
        models["1"] = outcome["test"]
        for share, losses in models.items():
            if key["weight"] is None and share != "1":
                continue
            gain = {where: losses[where] - began[where] for where in began}
            said.append(
                f"| \\({key['prior']:g} \\to {key['ceiling']:g}\\) | {outcome['noise_multiplier']:.2f} | {weight} | "
                f"{share} | {gain['elsewhere']:+.3f} | {gain['secret pieces']:+.3f} | {gain['whole words']:+.2f} |"
            )
        if weight == "30":
            said.append(f"{-100 * (outcome['test']['secret pieces'] - began['secret pieces']) / known:.0f} %")
    assert len(said) == 12
    assert missing(PAGE, [*said, f"What can be known is {known:.3f}"]) == []
