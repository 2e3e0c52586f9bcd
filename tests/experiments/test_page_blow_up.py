"""The page of the blow-up function says what the results say."""

import math
from typing import Any

from pages import RESULTS, at_most, missing, short, table

from experiments.runs import RunLog


def test_the_page_says_what_the_results_say() -> None:
    rows = table(RESULTS / "blowup_feasible" / "table.csv")
    kept = [row for row in rows if row["noise_from"] == "blowup" and row["ceiling"] == 1e-3 and row["prior"] == 1e-10]

    def of(examples: int, interval: float, made: str = "connect the dots") -> dict[str, Any]:
        (found,) = (
            row for row in kept if (row["examples"], row["interval"], row["table"]) == (examples, interval, made)
        )
        return found

    said: list[str] = []
    for examples in (1, 10, 30, 100, 300):
        fine, buckets = of(examples, 1e-4), of(examples, 1e-3, "privacy buckets")
        sides, curve = _sides(fine), short(fine["peer_posterior_curve_without"], 2 if examples >= 100 else 1)
        reading, bucket = fine["peer_posterior_thresholds"], buckets["peer_posterior_thresholds"]
        said += [
            f"| {examples} | {fine['noise_multiplier']:.3g} | {sides} | {short(reading, 3)} | {curve} | "
            f"{short(bucket)} |",
            f"e-4 | {sides} |",  # beside the simulated runs
        ]
    said += [
        f"| {short(row['ceiling'], 0)} | {row['noise_multiplier']:.3f} | {_sides(row)} | "
        f"{short(row['peer_posterior_thresholds'], 3)} |"
        for row in rows
        if row["prior"] == 1e-20
    ]
    for row in table(RESULTS / "blowup_feasible" / "noise.csv"):
        if row["panel"] == "examples" and row["examples"] in (1, 10, 30, 1000):
            said.append(
                f"| {row['examples']:.0f} | 1e-10 → 1e-3 | {row['kl']:.3g} | {row['renyi']:.3g} | "
                f"{row['blowup']:.3g} | {row['kl_over_blowup']:.{1 if row['examples'] <= 10 else 0}f} |"
            )
    one = {(row["examples"], row["noise_multiplier"], row["prior"]): row for row in rows}.values()
    costs = [
        seconds
        for entry in RunLog(RESULTS / "blowup_feasible" / "runs.jsonl").entries()
        if entry["key"]["part"] == "hush"
        for seconds in (entry["outcome"]["cpu_seconds"], entry["outcome"]["cpu_seconds_lower"])
    ]
    default = [row for row in rows if row["interval"] == 1e-4]
    width = 100 * max(row["hush_relative_width"] for row in one)
    masses = max(abs(row[f"hush_mass_{side}"] - 1) for row in one for side in ("with", "without"))
    simulated = [of(examples, 1e-4) for examples in (1, 10, 30, 100, 300)]
    errors = [(row["simulated"] - row["hush_upper"]) / row["simulated_standard_error"] for row in simulated]
    renyi = [row["renyi_over_blowup"] - 1 for row in table(RESULTS / "blowup_feasible" / "noise.csv")]
    own = [row["hush_cpu_seconds"] for row in one]
    said += [
        f"at most {at_most(width, 2)} % apart, each side proven, in {1e3 * min(costs):.0f} to {1e3 * max(costs):.0f} "
        "milliseconds a side",
        f"| upper over lower side | at most {at_most(width, 2)} % |",
        f"| largest distance of either mass from 1 | {math.ceil(1e6 * masses)}e-6 |",
        f"| processor seconds for one posterior | {min(own):.3f} to {max(own):.3f} | "
        f"{min(row['peer_cpu_seconds'] for row in default):.1f} to "
        f"{max(row['peer_cpu_seconds'] for row in default):.0f} |",
        f"All five lie below hush, by at most {at_most(-min(errors), 1)} of them",
        f"within {100 * min(renyi):.0f} to {100 * max(renyi):.0f} % of the blow-up function",
    ]
    assert missing("docs/studies/blow-up.md", said) == []
    assert len(one) == 60  # questions
    assert max(errors) < 0


def test_the_page_says_how_the_masses_fail() -> None:
    rows = [row for row in table(RESULTS / "blowup_feasible" / "table.csv") if row["prior"] == 1e-10]
    kept = {
        (row["noise_from"], row["examples"], row["table"]): row
        for row in rows
        if row["ceiling"] == 1e-3 and row["interval"] == 1e-3
    }
    own = {  # the table has too few digits for these
        (entry["key"]["examples"], entry["key"]["noise_multiplier"]): entry["outcome"]
        for entry in RunLog(RESULTS / "blowup_feasible" / "runs.jsonl").entries()
        if entry["key"]["part"] == "hush"
    }
    said: list[str] = []
    for examples in (1, 10, 30, 100, 300):
        cells, errors = [], []
        for bound in ("kl", "blowup"):
            row = kept[bound, examples, "connect the dots"]
            masses = (row[f"peer_mass_{side}"] for side in ("with", "without"))
            cells += [f"{row['noise_multiplier']:#.3g}", *map(_mass, masses)]
            found = own[row["examples"], row["noise_multiplier"]]
            errors += [abs(found[f"mass_{side}"] - 1) for side in ("with", "without")]
        said.append(f"| {examples} | {' | '.join(cells)} | 1 ± {math.ceil(1e9 * max(errors))}e-9 |")
    right = kept["kl", 100, "privacy buckets"]["peer_mass_with"]
    few, many = (kept["blowup", examples, "privacy buckets"] for examples in (100, 300))
    said += [
        f"of KL the total is {right:.2f}",
        f"is above 1, {few['peer_mass_with']:.1f} at 100 examples and {many['peer_mass_with']:.0f} at 300",
    ]
    assert missing("docs/studies/blow-up.md", said) == []
    for row in (few, many):
        assert math.isclose(10 ** row["peer_log10_exact_mass_with"], row["peer_mass_with"], rel_tol=0.01)
        assert row["peer_posterior_thresholds"] < row["hush_lower"]
    usual = [row for row in rows if row["table"] == "connect the dots"]
    assert max(-row["peer_smallest_loss_with"] for row in usual if row["examples"] == 1) < math.log(5e8)
    orders = [
        math.log10(abs(row["peer_mass_with"] - 1)) + 17 + row["peer_smallest_loss_with"] / math.log(10)
        for row in usual
        if abs(row["peer_mass_with"] - 1) > 1e-3
    ]
    assert (round(min(orders)), round(max(orders))) == (1, 3)


def test_the_page_says_where_thresholds_lie() -> None:
    rows = [
        row
        for row in table(RESULTS / "blowup_feasible" / "table.csv")
        if row["prior"] == 1e-10 and row["noise_from"] == "blowup" and row["table"] == "connect the dots"
    ]
    over = [row["peer_posterior_thresholds"] / row["hush_upper"] - 1 for row in rows if row["interval"] == 1e-2]
    fine = [row for row in rows if row["interval"] in (1e-3, 1e-4)]
    assert missing("docs/studies/blow-up.md", [f"is up to {100 * max(over):.1f} % above the upper one"]) == []
    assert len(fine) == 15
    assert all(row["hush_lower"] <= row["peer_posterior_thresholds"] <= row["hush_upper"] for row in fine)


def test_the_page_says_that_the_law_matters_and_not_the_reading() -> None:
    rows = [row for row in table(RESULTS / "blowup_feasible" / "table.csv") if row["table"] == "connect the dots"]
    assert missing("docs/studies/blow-up.md", [f"to six digits in all {len(rows)} cases"]) == []
    for row in rows:
        assert math.isclose(row["peer_posterior_curve_with"], row["peer_posterior_thresholds"], rel_tol=1e-6)


def test_the_page_says_when_and_with_what_its_runs_were_made() -> None:
    entries = RunLog(RESULTS / "blowup_feasible" / "runs.jsonl").entries()
    ((day, versions, commit),) = {
        (entry["date"][:10], entry["versions"].split(", torch")[0], entry["commit"][:7]) for entry in entries
    }
    said = [f"on {day}, with {versions} and", f"at commit `{commit}`"]
    assert missing("docs/studies/blow-up.md", said) == []


def _mass(mass: float) -> str:
    """Near 1 with four digits, else short."""
    return f"{mass:.4f}" if abs(mass - 1) < 0.01 else short(mass, 1)


def _sides(row: dict[str, Any]) -> str:
    return f"{short(row['hush_lower'], 3)} to {short(row['hush_upper'], 3)}"
