"""The page of noise against extraction says what the results say, and what the accountant says beside them."""

from collections.abc import Iterable
from typing import Any

from pages import RESULTS, missing, short, table

import hush


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
    for rows in (1, 4, 16, 64, 256):
        graph = hush.Incidence.from_pairs(range(rows), [0] * rows, num_examples=rows, num_secrets=1)
        least = hush.calibrate(graph, prior=prior, ceiling=1e-3, rates=rate, rounds=rounds).noise_multiplier
        little, more = (
            hush.posterior([rate] * rows, noise_multiplier=at, rounds=rounds, prior=prior) for at in (0.1, 1.0)
        )
        said.append(f"| {rows} | {little:.2f} | {f'{more:.2f}' if more > 0.01 else short(more, 1)} | {least:.2f} |")
    assert missing("docs/studies/extraction.md", said) == []
    assert all(most[size, noise, *at] == 0 for size in sizes for noise in (0.1, 1.0) for at in _lengths(most))


def _lengths(most: dict[tuple[Any, ...], int]) -> set[tuple[float, float]]:
    return {(prompt, continuation) for _, _, prompt, continuation in most}
