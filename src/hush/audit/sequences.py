"""What extraction is tried on: token sequences of the training data, with the place of the secret in each.

From a corpus and the characters at which its secrets stand, through the tokenizer's offsets, exactly as training cut
and tokenised the texts. What cannot be tried is counted, never dropped in silence.

Shapes: N sequences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.errors import InvalidInput
from hush.rounding import counted

__all__ = ["LeftOut", "Sequences", "secret_sequences"]

Integers = NDArray[np.int64]
_CHUNK = 256  # texts that a tokenizer gets at once


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How many places of secrets cannot be tried, and why.

    unplaced: no characters are known for them. cut: they begin or end beyond the tokens that training kept. repeated:
    the same secret stands earlier in the same example, or for models that see both sides anywhere else in it, so that a
    prompt could hold it, and copying would pass for memory. copies: of the same tokens, the secret at the same place:
    what comes out of one comes out of all, so they would be counted as tries that they are not.
    """

    unplaced: int = 0
    cut: int = 0
    repeated: int = 0
    copies: int = 0

    @property
    def total(self) -> int:
        return self.unplaced + self.cut + self.repeated + self.copies


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sequences:
    """Rows of tokens, each with the secret at ``begin_N`` up to ``end_N`` (exclusive); prompts end before ``begin_N``.

    example_N and secret_N name them in results; secret -1 stands for a sequence that belongs to no secret.
    """

    tokens: tuple[NDArray[np.int32], ...]
    begin_N: Integers
    end_N: Integers
    example_N: Integers
    secret_N: Integers
    left_out: LeftOut = LeftOut()

    @classmethod
    def of(
        cls,
        tokens: Sequence[Sequence[int] | NDArray[np.integer]],
        *,
        begin: ArrayLike,
        end: ArrayLike | None = None,
        example: ArrayLike | None = None,
        secret: ArrayLike = -1,
        left_out: LeftOut | None = None,
    ) -> Self:
        """Sequences from one entry each; a single number stands for all. By default a target runs to the row's end."""
        rows = tuple(np.asarray(row, dtype=np.int32).reshape(-1) for row in tokens)
        length_N = np.array([len(row) for row in rows], dtype=np.int64)
        columns = (
            begin,
            length_N if end is None else end,
            np.arange(len(rows)) if example is None else example,
            secret,
        )
        try:
            begin_N, end_N, example_N, secret_N = (
                np.broadcast_to(np.asarray(column, dtype=np.int64), length_N.shape) for column in columns
            )
        except ValueError:
            sizes = ", ".join(str(np.size(np.asarray(column))) for column in columns)
            raise InvalidInput(
                f"{len(rows)} sequences with begin, end, example and secret of {sizes} entries; give each sequence one"
            ) from None
        wrong = np.flatnonzero(~((begin_N >= 0) & (begin_N < end_N) & (end_N <= length_N)))
        if wrong.size:
            first = int(wrong[0])
            raise InvalidInput(
                f"sequence {first} has {length_N[first]} tokens and a target from {begin_N[first]} to {end_N[first]}; "
                "a target has at least one token and lies inside its sequence"
            )
        negative = next((place for place, row in enumerate(rows) if row.size and row.min() < 0), None)
        if negative is not None:
            raise InvalidInput(f"sequence {negative} holds a negative token; pass the tokenizer's input_ids")
        return cls(
            tokens=rows,
            begin_N=begin_N,
            end_N=end_N,
            example_N=example_N,
            secret_N=secret_N,
            left_out=LeftOut() if left_out is None else left_out,
        )

    @property
    def length_N(self) -> Integers:
        """Tokens of each sequence."""
        return np.array([len(row) for row in self.tokens], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Sequences({len(self)} sequences, {self.left_out.total} places left out)"


def secret_sequences(
    texts: Iterable[str],
    tokenizer: Any,
    *,
    example: ArrayLike,
    secret: ArrayLike,
    begin: ArrayLike,
    end: ArrayLike,
    max_length: int | None = None,
    both_sides: bool = False,
) -> Sequences:
    """The sequence around each place where a secret stands; example, secret, begin, end have an entry for each place.

    texts are all examples in order, such as ``corpus.texts()``; begin and end count characters, end exclusive, and are
    -1 where unknown. max_length: the tokens that training kept of each text. A token that holds any character of the
    secret belongs to the secret, so no prompt shows any part of it. both_sides: what follows a secret is shown as well,
    as to a masked language model.
    """
    columns = [np.atleast_1d(np.asarray(column, dtype=np.int64)) for column in (example, secret, begin, end)]
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
        sizes = ", ".join(str(column.size) for column in columns)
        raise InvalidInput(f"example, secret, begin and end have {sizes} entries; give each place one of all four")
    example_H, secret_H, begin_H, end_H = columns
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidInput(
            f"{type(tokenizer).__name__} cannot say which characters a token stands for; load the fast version of it"
        )
    if example_H.size and example_H.min() < 0:
        raise InvalidInput(f"example {example_H.min()} does not exist; examples count from 0")
    # First places first, so that what follows in the same example is known as a repetition.
    order = np.lexsort((end_H, begin_H, secret_H, example_H))
    known = order[begin_H[order] >= 0]
    pair_H = np.stack([example_H[known], secret_H[known]], axis=1)
    new = np.ones(len(known), dtype=bool)
    new[1:] = (pair_H[1:] != pair_H[:-1]).any(axis=1)
    kept = known[new & ~_elsewhere(pair_H, begin_H[known], end_H[known])] if both_sides else known[new]
    found: dict[tuple[bytes, int, int, int], tuple[NDArray[np.int32], int]] = {}  # tokens and place, of the first copy
    cut = copies = 0
    for number, text, tokens, offset_T2 in _tokenised(texts, tokenizer, np.unique(example_H[kept]), max_length):
        # Special tokens stand for no character.
        real_T = offset_T2[:, 0] < offset_T2[:, 1]
        for place in kept[np.searchsorted(example_H[kept], number) : np.searchsorted(example_H[kept], number, "right")]:
            first, last = int(begin_H[place]), int(end_H[place])
            if not first < last <= len(text):
                raise InvalidInput(
                    f"secret {secret_H[place]} is said to stand at characters {first} to {last} of example {number}, "
                    f"which has {len(text)}; scan the data that the model was trained on"
                )
            inside = np.flatnonzero(real_T & (offset_T2[:, 0] < last) & (offset_T2[:, 1] > first))
            if not inside.size or offset_T2[inside[-1], 1] < last or text[first : offset_T2[inside[0], 0]].strip():
                cut += 1
                continue
            what = (tokens.tobytes(), int(secret_H[place]), int(inside[0]), int(inside[-1]) + 1)
            copies += what in found
            found.setdefault(what, (tokens, int(place)))
    places = np.array([place for _, place in found.values()], dtype=np.int64)
    return Sequences.of(
        [tokens for tokens, _ in found.values()],
        begin=np.array([begin for *_, begin, _ in found], dtype=np.int64),
        end=np.array([end for *_, end in found], dtype=np.int64),
        example=example_H[places],
        secret=secret_H[places],
        left_out=LeftOut(unplaced=len(order) - len(known), cut=cut, repeated=len(known) - len(kept), copies=copies),
    )


def _elsewhere(pair_H: Integers, begin_H: Integers, end_H: Integers) -> NDArray[np.bool_]:
    """Whether the same secret stands at other characters of the same example too; one place may be listed twice."""
    if not len(pair_H):
        return np.zeros(0, dtype=bool)
    different_H4 = np.unique(np.column_stack([pair_H, begin_H, end_H]), axis=0)
    pairs, places = np.unique(different_H4[:, :2], axis=0, return_counts=True)
    several = {tuple(pair) for pair in pairs[places > 1].tolist()}
    return np.array([tuple(pair) in several for pair in pair_H.tolist()], dtype=bool)


def _tokenised(
    texts: Iterable[str], tokenizer: Any, wanted: Integers, max_length: int | None
) -> Iterable[tuple[int, str, NDArray[np.int32], Integers]]:
    """Number, text, tokens and their characters of the wanted examples, in order; the texts are read once."""
    held: list[tuple[int, str]] = []
    left = iter(wanted.tolist())
    following = next(left, None)
    number = -1
    for number, text in enumerate(texts):
        if following is None:
            break
        if number == following:
            held.append((number, text))
            following = next(left, None)
        if len(held) == _CHUNK:
            yield from _encoded(held, tokenizer, max_length)
            held = []
    if following is not None:
        raise InvalidInput(
            f"a secret stands in example {following}, but the data hold {counted(number + 1, 'example')}"
        )
    if held:
        yield from _encoded(held, tokenizer, max_length)


def _encoded(
    held: list[tuple[int, str]], tokenizer: Any, max_length: int | None
) -> Iterable[tuple[int, str, NDArray[np.int32], Integers]]:
    options = {} if max_length is None else {"truncation": True, "max_length": max_length}
    rows = tokenizer([text for _, text in held], return_offsets_mapping=True, verbose=False, **options)
    for (number, text), tokens, offsets in zip(held, rows["input_ids"], rows["offset_mapping"], strict=True):
        yield number, text, np.asarray(tokens, dtype=np.int32), np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
