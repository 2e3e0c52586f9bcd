"""What kind of text a continuation is: why a model may say it without having memorised it.

A continuation is of the first kind whose rule holds; rules look at tokens alone.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "kinds"]

KINDS = (
    "stands elsewhere too",  # its beginning is in other rows of the training data
    "repeats its prompt",  # at least half of its runs of four tokens stand in the prompt
    "numbers",  # a quarter of its tokens holds a digit
    "lines",  # a list, a table or verse: a line ends at least every tenth token
    "running text",
)
GRAM = 4


def kinds(
    row_NT: NDArray[np.uint16],
    other_RT: NDArray[np.uint16],
    strings: Sequence[str],
    *,
    prompt: int,
    length: int,
    begins: int,
) -> list[str]:
    """The kind of each row's tokens from `prompt` on, `length` of them. other_RT: the rest of the training data.

    Two texts begin the same if their first `begins` tokens are the same.
    """
    digit = np.array([any(sign.isdigit() for sign in string) for string in strings])
    newline = np.array(["\n" in string for string in strings])
    text = np.ascontiguousarray(other_RT).tobytes()
    found: list[str] = []
    for row in row_NT:
        said = row[prompt : prompt + length]
        shown = {tuple(gram) for gram in np.lib.stride_tricks.sliding_window_view(row[:prompt], GRAM).tolist()}
        grams = np.lib.stride_tricks.sliding_window_view(said, GRAM).tolist()
        rules = (
            _stands_in(said[:begins], text),
            2 * sum(tuple(gram) in shown for gram in grams) >= len(grams),
            4 * digit[said].sum() >= len(said),
            10 * newline[said].sum() >= len(said),
            True,
        )
        found.append(KINDS[rules.index(True)])
    return found


def _stands_in(tokens: NDArray[np.uint16], text: bytes) -> bool:
    wanted, at = tokens.tobytes(), -1
    while (at := text.find(wanted, at + 1)) >= 0:
        if at % tokens.itemsize == 0:
            return True
    return False
