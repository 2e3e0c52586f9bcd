"""The tokens around a canary that are the same whatever it is: all that its prompt may show.

A tokenizer may merge the letter before a slot with the first letter of some candidates, and not of others. A prompt
that ends where the true candidate's tokens begin would tell which kind it is, and a model with an answer for each kind
would be right more often than the prior says. So the prompt ends with the last token that candidates share, and what
the model has to say begins there. A canary whose tokens fall otherwise counts as no hit. Every candidate that counts is
then asked for in the same way.

What candidates share is read off some of them, which do not depend on the true one.

Shapes: N candidates, the true one last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hush.audit.canaries import Canary
from hush.audit.candidates import Candidates
from hush.audit.sequences import Sequences, secret_sequences

__all__ = ["Frame", "frame_of", "framed"]

COMPARED = 256  # candidates whose tokens are compared


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Frame:
    """Tokens of a canary's text, and where in them its target begins and ends.

    more: tokens that are hidden beside those of a candidate, at most; 0 where nothing is shown behind it. shared:
    whether the true candidate has around it what the others have.
    """

    tokens: NDArray[np.int32]
    begin: int
    end: int
    more: int
    shared: bool

    def __repr__(self) -> str:
        return f"Frame(shared={self.shared})"


def frame_of(canary: Canary, candidates: Candidates, tokenizer: Any, *, both_sides: bool) -> Frame | None:
    """The frame of a canary; None where no tokens stand for it. both_sides: what follows it is shown as well."""
    numbers = candidates.some(COMPARED, Random(0))  # the same ones whatever is true
    texts = [candidates.text(number) for number in (*numbers, canary.truth)]
    first = len(canary.template.before)
    made = secret_sequences(
        map(canary.template.filled, texts),
        tokenizer,
        example=range(len(texts)),
        secret=range(len(texts)),
        begin=[first] * len(texts),
        end=[first + len(text) for text in texts],
    )
    if len(made) < 2 or made.example_N[-1] != len(numbers):
        return None
    *others, tokens = made.tokens
    begin_N, end_N = made.begin_N, made.end_N
    before = min(_alike(others), int(begin_N[:-1].min()))
    shared = before <= begin_N[-1] and np.array_equal(tokens[:before], others[0][:before])
    if not both_sides:
        return Frame(tokens=tokens, begin=before, end=int(end_N[-1]), more=0, shared=bool(shared))
    behind_N = made.length_N - end_N
    after = min(_alike([row[::-1] for row in others]), int(behind_N[:-1].min()))
    last_N = made.length_N - after
    more_N = begin_N - before + last_N - end_N
    more = int(more_N[:-1].max())
    shared = shared and after <= behind_N[-1] and np.array_equal(tokens[last_N[-1] :], others[0][last_N[0] :])
    # More hidden tokens than with any other that was compared would be a number without an answer in the prior.
    return Frame(
        tokens=tokens, begin=before, end=int(last_N[-1]), more=more, shared=bool(shared and more_N[-1] <= more)
    )


def framed(sequences: Sequences, frames: Mapping[int, Frame | None]) -> tuple[Sequences, NDArray[np.bool_]]:
    """The sequences with the targets of canaries moved into their frames, and which of all sequences can be a hit.

    frames: of each secret that is a canary. Where training cut off a part of the target, it cannot.
    """
    begin_N, end_N = sequences.begin_N.copy(), sequences.end_N.copy()
    counts_N = np.ones(len(sequences), dtype=bool)
    for row in np.flatnonzero(np.isin(sequences.secret_N, list(frames))):
        frame = frames[int(sequences.secret_N[row])]
        counts_N[row] = (
            frame is not None
            and frame.shared
            and np.array_equal(sequences.tokens[row][: frame.end], frame.tokens[: frame.end])
        )
        if frame is not None and counts_N[row]:
            begin_N[row], end_N[row] = frame.begin, frame.end
    return replace(sequences, begin_N=begin_N, end_N=end_N), counts_N


def _alike(rows: list[NDArray[np.int32]]) -> int:
    """With how many tokens all of these begin."""
    shortest = min(len(row) for row in rows)
    same_T = (np.stack([row[:shortest] for row in rows]) == rows[0][:shortest]).all(axis=0)
    return shortest if same_T.all() else int(same_T.argmin())
