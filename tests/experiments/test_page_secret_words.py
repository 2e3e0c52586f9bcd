"""The page of the secret words, and what the page on noise takes from it and from other results."""

import json
from typing import Any

import numpy as np
import pytest
from pages import RESULTS, missing, table

from experiments.runs import RunLog
from experiments.secret_words.arms import ROUNDS
from hush.storage import file_digest


@pytest.fixture(scope="module")
def words() -> dict[str, dict[str, Any]]:
    """Rows of the secret words' summary by arm, each with the loss that its runs in the log have on average."""
    summary = json.loads((RESULTS / "secret_words" / "summary.json").read_text())
    log = RunLog(RESULTS / "secret_words" / "runs.jsonl")
    firsts: dict[float, str] = {}  # arms that train nearly the same show the runs of the first
    for row in summary["rows"]:
        first = firsts.setdefault(row["loss"], row["arm"])
        key = {"arm": first, "noise": True, "learning_rate": row["learning_rate"], "rounds": ROUNDS}
        runs = [entry["outcome"] for entry in log.entries() if entry["key"].items() >= key.items()]
        assert len(runs) == row["seeds"]
        assert np.mean([run["test"] for run in runs]) == pytest.approx(row["loss"], rel=1e-12)
    free = summary["references"]
    others = {name: {"loss": float(np.mean(losses))} for name, losses in free.items()}
    return {row["arm"]: row for row in summary["rows"]} | others


def loss_of(
    log: RunLog, arm: str, rate: float, *, part: str = "test", noise: bool = True, seed: int = 0, rounds: int = ROUNDS
) -> float | None:
    key = {"arm": arm, "noise": noise, "learning_rate": rate, "seed": seed, "rounds": rounds}
    return (log.outcome(key) or {part: None})[part]


def apart(first: list[float | None], second: list[float | None]) -> list[float]:
    """By how much runs that are in both logs differ."""
    assert None not in first + second
    return [a - b for a, b in zip(first, second, strict=True) if a is not None and b is not None]


def best_step(words: dict[str, dict[str, Any]], method: str) -> dict[str, Any]:
    steps = [row for row in words.values() if row.get("step") and row["arm"].startswith(method)]
    most = max(row["seeds"] for row in words.values() if "seeds" in row)
    return min((row for row in steps if row["seeds"] == most), key=lambda row: row["validation"])


def test_the_page_says_what_the_results_say(words: dict[str, dict[str, Any]]) -> None:
    paper, ours = ([words[f"{method}-{step:02d}"] for step in range(6)] for method in ("paper", "hush"))
    end = words["paper-10"]
    said = [
        f"| {step} | {100 * p['kept']:.1f} % | {p['noise_multiplier']:.1f} | {100 * h['kept']:.1f} % | "
        f"{h['noise_multiplier']:.2f} |"
        for step, (p, h) in enumerate(zip(paper, ours, strict=True))
    ]
    said += [
        f"| {row['step']} | {100 * row['kept']:.1f} % | {row['noise_multiplier']:.1f} | | |"
        for row in (words["paper-06"], end)
    ]
    base, free = words["paper-00"], words["no protection"]
    program, best = best_step(words, "paper"), best_step(words, "hush")

    def below(row: dict[str, Any], other: dict[str, Any]) -> str:
        return f"{100 * (1 - row['loss'] / other['loss']):.1f} %"

    def times(row: dict[str, Any]) -> float:
        return base["noise_multiplier"] / row["noise_multiplier"]

    closed = (base["loss"] - best["loss"]) / (base["loss"] - free["loss"])
    said += [
        f"lowers the noise by {times(end):.1f} times here",
        f"by {times(ours[0]):.0f} times with every example kept, and by {times(ours[3]):.0f} times with 90 % kept",
        f"{below(best, base)} below the paper's baseline and {below(best, program)} below its program",
        f"it is {below(ours[0], base)} and {below(ours[0], program)} below",
        f"without protection is {best['loss'] - free['loss']:.2f}; the baseline's is {base['loss'] - free['loss']:.2f}",
        f"So hush closes {100 * closed:.0f} % of it",
        f"hush is best at step {best['step']}, with {100 * best['kept']:.0f} % of the examples",
        f"step {best['step']} keeps {100 * best['kept_weight']:.0f} %, and the paper's step {program['step']} "
        f"{100 * program['kept_weight']:.0f} %",
        f"the baseline ends at {base['loss_clean']:.3f}, no protection at {free['loss']:.3f}",
        f"with {100 * paper[4]['kept']:.0f} % of the examples, ends at {paper[4]['loss_clean']:.3f}, "
        f"{paper[4]['loss_clean'] - base['loss_clean']:.2f} higher, as in the paper, and at step 6 at "
        f"{words['paper-06']['loss_clean']:.3f}",
        f"with {100 * ours[4]['kept']:.0f} %, is at {ours[4]['loss_clean']:.3f} and at step 5 at "
        f"{ours[5]['loss_clean']:.3f}",
        f"here {below(program, base)}, since",
    ]
    assert missing("docs/studies/secret-words.md", said) == []


def test_the_page_says_how_the_rates_were_chosen(words: dict[str, dict[str, Any]]) -> None:
    log = RunLog(RESULTS / "secret_words" / "runs.jsonl")
    rates = {1e-4: "1e-4", 3e-4: "3e-4", 1e-3: "1e-3", 3e-3: "3e-3"}
    names = {"paper-00": "the paper's baseline: KL, all data", "paper-06": "the paper's program, step 6",
             "hush-00": "hush on all data", "hush-05": "hush, step 5"}  # fmt: skip
    said = ["| validation loss, all rounds, first seed | " + " | ".join(rates.values()) + " |"]
    for arm, name in names.items():
        losses = {rate: loss_of(log, arm, rate, part="validation") for rate in rates}
        best = min((loss, rate) for rate, loss in losses.items() if loss is not None)[1]
        assert best == words[arm]["learning_rate"]
        shown = [(f" {loss:.3f} " if rate != best else f" **{loss:.3f}** ") if loss else " "
                 for rate, loss in losses.items()]  # fmt: skip
        said.append(f"| {name} |{'|'.join(shown)}|")
    larger, chosen = (loss_of(log, "paper-06", rate) for rate in (1e-3, 3e-4))
    clean = [[loss_of(log, "paper-00", rate, part="validation", noise=False)] for rate in (3e-3, 1e-2)]
    said += [f"at a test loss of {larger:.3f} instead of {chosen:.3f}", f"below it is worse by {apart(*clean)[0]:.2f}"]
    for method, rate in (("paper", 3e-4), ("hush", 1e-3)):
        assert {row["learning_rate"] for arm, row in words.items() if arm.startswith(method)} == {rate}
    assert missing("docs/studies/secret-words.md", said) == []


def test_the_page_says_how_much_the_start_matters(words: dict[str, dict[str, Any]]) -> None:
    log, other = (RunLog(RESULTS / "secret_words" / name) for name in ("runs.jsonl", "other_runs.jsonl"))
    before = [entry["outcome"]["test"] for entry in other.entries() if entry["key"]["arm"] == "before"]
    there, here = ([loss_of(which, "paper-00", 3e-4, seed=seed) for seed in range(3)] for which in (other, log))
    said = [
        f"a test loss of {before[0]:.3f} instead of {words['before fine-tuning']['loss']:.3f} before fine-tuning",
        f"is at {sum(filter(None, there)) / 3:.3f} from the other start, {np.mean(apart(there, here)):.2f} higher",
    ]
    twice = ([loss_of(which, f"hush-{step:02d}", 3e-3) for step in range(1, 6)] for which in (log, other))
    assert max(map(abs, apart(*twice))) < 0.01
    tuned = {"noise": False, "seed": 100, "rounds": ROUNDS // 5}
    short = ([loss_of(which, arm, 1e-2, **tuned) for arm in ("no protection", "paper-00")] for which in (log, other))
    assert max(map(abs, apart(*short))) < 0.003
    assert missing("docs/studies/secret-words.md", said) == []


def test_every_run_with_noise_began_with_the_weights_that_are_kept() -> None:
    folder = RESULTS / "secret_words"
    kept = file_digest(folder / "start.safetensors")[:12]
    noisy = [entry for entry in RunLog(folder / "runs.jsonl").entries() if entry["key"]["noise"]]
    assert len(noisy) > 60
    assert {entry["outcome"]["start"] for entry in noisy} == {kept}


def test_the_page_on_noise_says_what_the_results_say(words: dict[str, dict[str, Any]]) -> None:
    rows = json.loads((RESULTS / "arxiv_frontier.json").read_text())["frontiers"]
    kl, tight = rows["paper, KL"], rows["accounted, tight"]
    ours = next(row for row in tight if row["kept_weight"] < 0.9)
    program = next(row for row in kl if row["kept_weight"] < ours["kept_weight"])  # the nearest of the sweep
    losses = [f"{words[name]['loss']:.2f}" for name in ("paper-00", "before fine-tuning", "no protection")]
    renyi = [row["renyi_over_blowup"] - 1 for row in table(RESULTS / "blowup_feasible" / "noise.csv")]
    said = [
        f"a test loss of {best_step(words, 'hush')['loss']:.2f} by hush, where the paper's two methods end at "
        f"{losses[0]} and {best_step(words, 'paper')['loss']:.2f}, before training it is {losses[1]}, and without "
        f"protection {losses[2]}",
        f"a noise multiplier of {kl[0]['noise_multiplier']:.0f} on all data, and of {program['noise_multiplier']:.0f} "
        f"where its program keeps {100 * program['kept_weight']:.0f} % of their weight; hush keeps "
        f"{100 * ours['kept_weight']:.0f} % at {ours['noise_multiplier']:.1f}",
        f"needs {100 * min(renyi):.0f} to {100 * max(renyi):.0f} % more noise than the tight bound",
    ]
    assert missing("docs/noise.md", said) == []
