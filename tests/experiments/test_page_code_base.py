"""The page of the code base, and the README's table from it, say what the log of its runs says."""

from typing import Any

import numpy as np
from pages import RESULTS, at_most, missing

from experiments.code_base.tables import base_of, rows_of, total
from experiments.code_base.tuning import tuned
from experiments.runs import RunLog


def test_the_page_says_what_the_results_say() -> None:
    log = RunLog(RESULTS / "code_base" / "full" / "runs.jsonl")
    start = base_of(log)
    assert start is not None
    base = start["outcome"]
    rows = {row["arm"].title: row for row in rows_of(log)}
    free, projects, spans = (
        {title: float(np.mean([one[name] for one in row["outcomes"]])) for title, row in rows.items()}
        for name in ("loss_free", "loss_projects", "loss_trained_spans")
    )
    noise = {title: row["outcomes"][0]["noise_multiplier"] for title, row in rows.items()}
    two = (("loss_free", free), ("loss_projects", projects))

    def gained(title: str) -> list[str]:
        return [f"{100 * (base[name] - of[title]) / (base[name] - of['no protection']):.0f} %" for name, of in two]

    def over(title: str, other: str, digits: int) -> list[str]:
        return [f"{of[title] - of[other]:.{digits}f}" for _, of in two]

    drop, after, twice, tenth = (
        "dropping", "dropping, then hush", "dropping, twice", "dropping, then hush, a tenth of the noise"
    )  # fmt: skip
    lack = projects[drop] - projects["no protection"]
    gain = [base[name] - of["hush"] for name, of in two]
    noisy = (free["hush"] - free["hush, no noise"]) / (free["hush"] - free["no protection"])
    sittings = max(np.ptp([one[name] for one in rows[drop]["outcomes"]]) for name, _ in two)
    remembered = [projects[title] - spans[title] for title in ("no protection", "hush")]
    remaining = max(one["memorised_limits"][1] for row in rows.values() for one in row["outcomes"])
    said = [
        f"enough for {gained(drop)[0]} of what unprotected training gains on code without secrets, and for "
        f"{gained(drop)[1]} of the gain on",
        f"ends {over(drop, 'no protection', 2)[0]} above no protection on the first and "
        f"{over(drop, 'no protection', 2)[1]} on the second",
        f"by {over(drop, after, 3)[0]} on code without secrets and by {over(drop, after, 3)[1]} on the projects' code",
        f"from two sessions, differ by {at_most(float(sittings), 3)} at most",
        f"raises the second by {over(twice, drop, 3)[1]}",
        f"{100 * (projects[drop] - projects[after]) / lack:.1f} % of what dropping lacks",
        f"It gains {gain[0]:.2f} on code without secrets and {gain[1]:.2f} on the projects' code, {gained('hush')[0]} "
        f"and {gained('hush')[1]} of the unprotected gain",
        f"stays {over('hush', 'no protection', 1)[0]} above no protection. Noise is {100 * noisy:.0f} % of that",
        f"a {noise['paper, program'] / noise['hush']:.0f}th of the noise of the paper's program and a "
        f"{noise['paper, all data'] / noise['hush']:,.0f}th of the paper's on all data",
        f"it is {remembered[0]:.2f} lower on the spans' blocks",
        f"it is {base['loss_projects'] - base['loss_trained_spans']:.2f} lower, for hush {remembered[1]:.2f}",
        f"but the limits leave room for {at_most(100 * remaining, 1)} %",
        f"is {over(drop, tenth, 3)[1]} below dropping on the projects' code, "
        f"{(projects[drop] - projects[tenth]) / (projects[drop] - projects[after]):.1f} times as much",
    ]
    assert missing("docs/studies/code-base.md", said) == []
    quoted = (
        f"of {base['facts']['examples']:,} examples, most of them with a secret, hush reached {gained('hush')[0]} of "
        f"what training without protection gains, and dropping the secret files, where that was possible, "
        f"{gained(drop)[0]}"
    )
    assert missing("docs/faq.md", [quoted]) == []
    assert free[twice] > free[drop]  # the control does not lower it
    edges = {title for title, row in rows.items() if _is_edge(tuned(log, row["arm"]))}
    assert edges == {"no protection", "hush, a tenth of the noise", "paper, all data", twice}  # as the page lists them


def test_the_readme_says_what_the_results_say() -> None:
    log = RunLog(RESULTS / "code_base" / "full" / "runs.jsonl")
    start = base_of(log)
    assert start is not None
    base, facts = start["outcome"], start["outcome"]["facts"]
    rows = {row["arm"].title: row["outcomes"] for row in rows_of(log)}
    names = {
        "no protection": "no protection",
        "dropping": "dropping every file that holds a secret",
        "paper, program": "the paper's method: weights by its program, KL bound",
        "hush": "hush alone",
        "dropping, then hush": "**dropping, then hush on all files**",
    }
    said = [
        f"{100 * facts['examples_with_secrets'] / facts['examples']:.0f} % of the {facts['examples']:,} examples "
        f"contain one of {facts['secret_projects']:,} secret projects",
        f"| base model, before training | | {base['loss_free']:.3f} | {base['loss_projects']:.3f} | "
        f"{total([base], 'named')} | |",
    ]
    mean = {
        title: [float(np.mean([one[name] for one in outcomes])) for name in ("loss_free", "loss_projects")]
        for title, outcomes in rows.items()
    }
    for title, name in names.items():
        outcomes = rows[title]
        assert len(outcomes) == 3
        said.append(
            f"| {name} | {outcomes[0]['noise_multiplier']:.3g} | {mean[title][0]:.3f} | {mean[title][1]:.3f} | "
            f"{total(outcomes, 'named')} | {'yes' if outcomes[0]['certified'] else 'no'} |"
        )
    better = [drop - after for drop, after in zip(mean["dropping"], mean["dropping, then hush"], strict=True)]
    said.append(f"slightly better than dropping, by {better[0]:.3f} and {better[1]:.3f}")
    assert missing("README.md", said) == []


def test_the_page_says_at_which_commits_settings_were_tried() -> None:
    log = RunLog(RESULTS / "code_base" / "full" / "runs.jsonl")
    shown = {commit for row in rows_of(log) for commit in row["commits"]}
    others = list(dict.fromkeys(entry["commit"][:7] for entry in log.entries() if entry["commit"] not in shown))
    said = [f"Some settings were tried at {' and '.join(f'`{commit}`' for commit in others)}."]
    assert missing("docs/studies/code-base.md", said) == []


def test_the_page_says_no_more_of_the_small_scale_than_its_results_do() -> None:
    log = RunLog(RESULTS / "code_base" / "small" / "runs.jsonl")
    base = base_of(log)
    assert base is not None
    rows = {row["arm"].title: row for row in rows_of(log)}
    loss = {title: row["outcomes"][0]["loss_free"] for title, row in rows.items()}
    noise = {title: row["outcomes"][0]["noise_multiplier"] for title, row in rows.items()}
    start, drop, twice = base["outcome"]["loss_free"], loss["dropping"], loss["dropping, twice"]
    said = [
        f"{noise['hush']:.1f} for hush, {noise['paper, program']:.1f} for the paper's program and "
        f"{noise['paper, all data']:.0f} for the paper's on all data",
        f"the base model ({start:.3f}) or dropping ({drop:.3f})",
        f"Dropping twice is far below all others ({twice:.3f})",
    ]
    assert missing("docs/studies/code-base.md", said) == []
    for title, row in rows.items():
        if row["outcomes"][0]["certified"]:
            assert abs(loss[title] - (start if row["arm"].after is None else drop)) < 0.01
    assert all(twice < other - 0.1 for title, other in loss.items() if title != "dropping, twice")


def _is_edge(losses: dict[Any, float]) -> bool:
    """Whether the best of the rates tried for all parameters is the smallest or the largest."""
    best = min(losses, key=losses.__getitem__)
    rates = [setting.learning_rate for setting in losses if setting.trained == best.trained]
    return len(rates) > 1 and best.learning_rate in (min(rates), max(rates))
