"""A game that takes a second to play, and owners who break one condition of a promise about slots."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hush.audit.game import RULE, Game, Steps
from hush.incidence import Incidence
from hush.slots import Spans, slots_of_spans

# One, two and three letters, so that a length tells something.
CANDIDATES = ["".join(letters) for length in (1, 2, 3) for letters in product("abc", repeat=length)]
TEXTS = ["xx {secret} yxyy {secret} x", "yx {secret} xyx", "xyxxy", "yyxyx", "yxxxyx"]

Scanner = Callable[[Sequence[str], str], tuple[Incidence, Spans]]


def literal_scan(
    texts: Sequence[str], secret: str, *, others: Sequence[str] = (), whole: Sequence[str] = ()
) -> tuple[Incidence, Spans]:
    """A plain search instead of the product's scan, which takes longer. Secret 0 is the drawn one.

    others: further secrets that are hidden as spans; whole: secrets whose examples are secret as a whole.
    """
    found = [
        (example, match.start(), match.end(), number, literal not in whole)
        for number, literal in enumerate((secret, *others, *whole))
        for example, text in enumerate(texts)
        for match in re.finditer(re.escape(literal), text)
    ]
    example, begin, end, number, hides_span = (np.array(column) for column in zip(*found, strict=True))
    incidence = Incidence.from_pairs(example, number, num_examples=len(texts), num_secrets=1 + len(others) + len(whole))
    columns = {"example": example, "begin": begin, "end": end, "secret": number}
    spans = {name: column[hides_span] for name, column in columns.items()}
    return incidence, slots_of_spans(incidence, [RULE], rule=np.zeros(int(hides_span.sum()), dtype=int), **spans)


def small_game(**changes: object) -> Game:
    arguments = {"texts": TEXTS, "candidates": CANDIDATES, "ceiling": 0.15, "batch_size": 0.1, "rounds": 40}
    return Game(**(arguments | {"steps": Steps(scan=literal_scan)} | changes))  # type: ignore[arg-type]


def one_occurrence_left(texts: Sequence[str], secret: str, *, scan: Scanner) -> tuple[Incidence, Spans]:
    """The second occurrence in a text is not found."""
    incidence, spans = scan(texts, secret)
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


def broken_owners(scan: Scanner) -> dict[str, Steps]:
    """Owners who break one condition each."""
    return {
        "one occurrence left": Steps(scan=partial(one_occurrence_left, scan=scan)),
        "a placeholder whose length tells": Steps(scan=scan, placeholder=telling_placeholder),
        "a border that moves with the secret": Steps(scan=scan, windows=moving_windows),
        "a shared draw": Steps(scan=scan, public_weights=shared_draw),
    }


BROKEN = broken_owners(literal_scan)
