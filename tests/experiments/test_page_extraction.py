"""The page of noise against extraction says what the results say, and what the accountant says beside them."""

from collections.abc import Iterable
from typing import Any

from pages import RESULTS, missing, short, table

import hush
from experiments.noise_and_extraction.summary import Summary
from experiments.runs import RunLog


def test_the_page_says_what_the_results_say() -> None:
    folder = RESULTS / "noise_and_extraction" / "full"
    losses = {(row["size"], row["planted"], row["noise_multiplier"]): row for row in table(folder / "losses.csv")}
    sizes = ("5M", "29M", "101M")

    def cost(size: str, noise: float) -> float:
        return losses[size, "True", noise]["validation_loss"] - losses[size, "True", 0.0]["validation_loss"]

    def listed(values: Iterable[float], digits: int) -> str:
        one, two, three = (f"{value:.{digits}f}" for value in values)
        return f"{one}, {two} and {three}"

    most = {
        (row["size"], row["noise_multiplier"], row["prompt"], row["continuation"]): int(row["memorised"])
        for row in table(folder / "fractions.csv")
        if row["repetitions"] == 256
    }
    lengths = (16, 32, 50)
    small = [[most["5M", noise, 32, said] for noise in (0, 1e-4, 1e-3)] for said in (32, 16)]
    noise_length = [0.01 * losses[size, "True", 0.0]["parameters"] ** 0.5 for size in sizes]
    rate, rounds, prior = 256 / 61_440, 240, 1e-10
    said = [
        f"It costs {listed([cost('5M', 1e-2), cost('29M', 1e-2), cost('101M', 1e-1)], 2)} nats",
        f"At 10⁻² it costs {listed([cost(size, 1e-2) for size in sizes], 2)}",
        f"At 10⁻² it is {listed(noise_length, 0)}",
        f"in their place, have {listed([losses[size, 'False', 0.0]['validation_loss'] for size in sizes], 3)}",
        f"32 tokens of {min(small[0])} to {max(small[0])} of the 32 sequences planted 256 times, up to 10⁻³; "
        f"16 tokens of {min(small[1])} to {max(small[1])}",
        f"for 16 after a prompt of 16 there are {most['29M', 1e-2, 16, 16]}",
        f"None of 32 still allows for up to {100 * (1 - 0.05 ** (1 / 32)):.0f} % (95 % confidence)",
        *(
            f"| {prompt} | " + " | ".join(str(most["101M", 1e-2, prompt, length]) for length in lengths) + " |"
            for prompt in (16, 32, 64)
        ),
    ]
    shares = [f"{(100 * most[size, 1e-2, 32, 32] + 16) // 32} %" for size in sizes[1:]]
    said.append(
        f"from 100 % to {shares[0]} at 29 M and to {shares[1]} at 101 M, and the loss rises by {cost('29M', 1e-2):.2f} "
        f"and {cost('101M', 1e-2):.2f}"
    )
    for rows in (1, 4, 16, 64, 256):
        graph = hush.Incidence.from_pairs(range(rows), [0] * rows, num_examples=rows, num_secrets=1)
        least = hush.calibrate(graph, prior=prior, ceiling=1e-3, rates=rate, rounds=rounds).noise_multiplier
        little, more = (
            hush.posterior([rate] * rows, noise_multiplier=at, rounds=rounds, prior=prior) for at in (0.1, 1.0)
        )
        said.append(f"| {rows} | {little:.2f} | {f'{more:.2f}' if more > 0.01 else short(more, 1)} | {least:.2f} |")
    assert missing("docs/studies/extraction.md", said) == []
    assert all(most[size, noise, *at] == 0 for size in sizes for noise in (0.1, 1.0) for at in _lengths(most))


def test_the_page_says_what_little_noise_hides_and_where_extraction_stops() -> None:
    folder = RESULTS / "noise_and_extraction" / "full"
    planted = {place for place, times in enumerate(Summary.load(folder).about["prompted"]["repetitions"]) if times}
    said = {
        (entry["key"]["size"], entry["key"]["noise_multiplier"], prompt, length): {
            place for place, count in found if count >= length and place in planted
        }
        for entry in RunLog(folder / "runs.jsonl").entries()
        if entry["key"]["planted"]
        for prompt, found in entry["outcome"]["matched"].items()
        for length in (16, 32, 50)
    }
    asked = {(prompt, length) for _, _, prompt, length in said}
    for size in ("29M", "101M"):
        assert all(said[size, 0.0, *at] <= said[size, noise, *at] for noise in (1e-4, 1e-3) for at in asked)
    assert any(not said["5M", 0.0, *at] <= said["5M", 1e-3, *at] for at in asked)
    noises = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    prompts = {prompt for prompt, _ in asked}
    stops = [
        next(noise for noise in noises if not any(said[size, noise, prompt, 32] for prompt in prompts))
        for size in ("5M", "29M", "101M")
    ]
    assert stops == [1e-2, 1e-2, 1e-1]


def _lengths(most: dict[tuple[Any, ...], int]) -> set[tuple[float, float]]:
    return {(prompt, continuation) for _, _, prompt, continuation in most}
