"""The page of the secret words, and what the README takes from it and from other results."""

import json
from typing import Any

import numpy as np
import pytest
from pages import RESULTS, missing, table

from experiments.runs import RunLog
from experiments.secret_words.arms import ROUNDS


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
        f"{below(best, base)} below the paper's baseline and so far {below(best, program)} below its program",
        f"it is {below(ours[0], base)} and {below(ours[0], program)} below",
        f"without protection is {best['loss'] - free['loss']:.2f}; the baseline's is {base['loss'] - free['loss']:.2f}",
        f"So hush closes {100 * closed:.0f} % of it",
        f"step 4 ends at {ours[4]['loss']:.3f} and step 5, with {100 * ours[5]['kept']:.0f} % of the examples, at "
        f"{ours[5]['loss']:.3f}: {below(ours[5], base)} below the baseline",
        f"the baseline ends at {base['loss_clean']:.3f}, no protection at {free['loss']:.3f}",
        f"with {100 * paper[4]['kept']:.0f} % of the examples, ends at {paper[4]['loss_clean']:.3f}, "
        f"{paper[4]['loss_clean'] - base['loss_clean']:.2f} higher, as in the paper, and at step 6 at "
        f"{words['paper-06']['loss_clean']:.3f}",
        f"with {100 * ours[4]['kept']:.0f} %, is at {ours[4]['loss_clean']:.3f} and at step 5 at "
        f"{ours[5]['loss_clean']:.3f}",
        f"here {below(program, base)} so far",
    ]
    assert missing("docs/studies/secret-words.md", said) == []


def test_the_page_says_what_the_second_start_has_found() -> None:
    logs = [RunLog(RESULTS / "secret_words" / folder / "runs.jsonl") for folder in (".", "second_start")]

    def loss(log: RunLog, arm: str, rate: float, seed: int = 0, rounds: int = ROUNDS) -> float | None:
        key = {"arm": arm, "noise": True, "learning_rate": rate, "seed": seed, "rounds": rounds}
        return (log.outcome(key) or {"test": None})["test"]

    losses = [[loss(log, f"hush-{step:02d}", rate) for step in range(6)] for log, rate in
              ((logs[0], 3e-3), (logs[1], 3e-3), (logs[1], 1e-3))]  # fmt: skip
    names = ("rate 3e-3, the first start", "rate 3e-3, the second start", "rate 1e-3, the second start")
    said = [
        f"| {name} | " + " | ".join("" if found is None else f"{found:.3f}" for found in row) + " |"
        for name, row in zip(names, losses, strict=True)
    ]
    assert max(abs(first - second) for first, second in zip(*losses[:2], strict=True) if first and second) < 0.01
    gains = [large - small for large, small in zip(*losses[1:], strict=True) if large and small]
    before = [entry["outcome"]["test"] for log in logs for entry in log.entries() if entry["key"]["arm"] == "before"]
    short = [loss(log, "paper-00", 3e-4, 100, ROUNDS // 5) for log in logs]
    said += [
        f"is {before[1]:.3f}, not {before[0]:.3f}",
        f"better everywhere, by up to {max(gains):.2f}",
        f"its baseline is at {short[1]:.3f} instead of {short[0]:.3f}",
    ]
    assert min(gains) > 0
    assert missing("docs/studies/secret-words.md", [line.replace("|  |", "| |") for line in said]) == []


def test_the_readme_says_what_the_results_say(words: dict[str, dict[str, Any]]) -> None:
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
    assert missing("README.md", said) == []
