"""A game that takes a second to play, and owners who break one condition of a promise about slots."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hush.audit.game import RULE, Game, Steps, literal_scan
from hush.incidence import Incidence
from hush.slots import Spans, slots_of_spans

# One, two and three letters, so that a length tells something.
CANDIDATES = ["".join(letters) for length in (1, 2, 3) for letters in product("abc", repeat=length)]
TEXTS = ["xx{secret}yxyy{secret}x", "yx{secret}xyx", "xyxxy", "yyxyx", "yxxxyx"]


def small_game(**changes: object) -> Game:
    arguments = {"texts": TEXTS, "candidates": CANDIDATES, "ceiling": 0.15, "batch_size": 0.1, "rounds": 40}
    return Game(**(arguments | changes))  # type: ignore[arg-type]


def one_occurrence_left(texts: Sequence[str], secret: str) -> tuple[Incidence, Spans]:
    """The second occurrence in a text is not found."""
    incidence, spans = literal_scan(texts, secret)
    first_L = np.diff(spans.slots.example_L, prepend=-1) > 0
    columns = {"begin": spans.begin_L, "end": spans.end_L, "example": spans.slots.example_L, "rule": spans.slots.rule_L}
    kept = {name: column[first_L] for name, column in columns.items()}
    return incidence, slots_of_spans(incidence, [RULE], secret=np.zeros(int(first_L.sum()), dtype=int), **kept)


def telling_placeholder(rule: str, secret_text: str) -> str:
    """As long as what it stands for."""
    return f"[{rule:_<{len(rule) + len(secret_text)}}]"


def moving_windows(length_T: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The text is cut, not the skeleton."""
    return (np.cumsum(length_T) - length_T) // size


def shared_draw(round: int, drawn_RE: NDArray[np.bool_], public_W: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """The skeletons of the examples that were drawn privately."""
    return drawn_RE[:, public_W] / size


BROKEN = {
    "one occurrence left": Steps(scan=one_occurrence_left),
    "a placeholder whose length tells": Steps(placeholder=telling_placeholder),
    "a border that moves with the secret": Steps(windows=moving_windows),
    "a shared draw": Steps(public_weights=shared_draw),
}
