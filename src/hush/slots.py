"""Slots: the places in an example's text where secrets stand, and the text around them, the skeleton.

A rule that hides spans keeps secret what stands in the slots of its secrets. The text around them is public in the
sense of the promise: a model may learn it without clipping and without noise. The slots themselves (how many, where in
the skeleton, found by which rule, belonging to which secrets) are as public as the incidence; they say nothing about
the content of a slot, its length included, because a place counts the characters of the public text before the slot.

An example with secrets has slots for all of them or for none. Without slots the whole example is the secret: it has no
skeleton. So the incidence and the slots together say what each promise covers, and nothing else needs to be stored.
Shapes: N examples, S secrets, L slots, P pairs of slot and secret, H spans that were found.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.arrays import checked_indices
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.numbers import checked_size
from hush.storage import read_table, table_digest, write_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Slots", "Spans", "placeholder", "save_spans", "skeleton", "slots_of_spans", "spans_in"]


MAX_PLACE = 2**53  # characters; exact as a double


def placeholder(rule: str) -> str:
    """The text that stands for a slot in a skeleton. It depends on the rule's name alone.

    >>> placeholder("rare-words")
    '[rare-words]'
    """
    return f"[{rule}]"


def skeleton(text: str, begin: Sequence[int], end: Sequence[int], placeholders: Sequence[str]) -> str:
    """The text with each span replaced by its placeholder; the spans ascend and do not touch.

    >>> skeleton("Ann met Bob.", [0, 8], [3, 11], ["[names]", "[names]"])
    '[names] met [names].'
    """
    parts, done = list[str](), 0
    for first, last, instead in zip(begin, end, placeholders, strict=True):
        if not done <= first < last <= len(text):
            raise InvalidInput("the spans of an example do not ascend within its text; scan the data again")
        parts += (text[done:first], instead)
        done = last
    return "".join((*parts, text[done:]))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Slots:
    """The slots of all examples, ordered by example and place; no two slots of an example have the same place.

    Slot l is in example ``example_L[l]``, after ``place_L[l]`` characters of its public text, was found by the rule
    ``rules[rule_L[l]]`` and belongs to the secrets ``secret_P[offset_L[l]:offset_L[l + 1]]``, which ascend. The arrays
    are read-only.

    >>> slots = Slots(num_examples=2, num_secrets=1, rules=("names",), example_L=[1], place_L=[4], rule_L=[0],
    ...               offset_L=[0, 1], secret_P=[0])
    >>> slots
    Slots(1 slots in 1 of 2 examples)
    """

    num_examples: int
    num_secrets: int
    rules: tuple[str, ...]
    example_L: NDArray[np.int64]
    place_L: NDArray[np.int64]
    rule_L: NDArray[np.int64]
    offset_L: NDArray[np.int64]
    secret_P: NDArray[np.int64]

    def __init__(
        self,
        *,
        num_examples: SupportsIndex,
        num_secrets: SupportsIndex,
        rules: Sequence[str],
        example_L: ArrayLike,
        place_L: ArrayLike,
        rule_L: ArrayLike,
        offset_L: ArrayLike,
        secret_P: ArrayLike,
    ) -> None:
        n, m = checked_size("num_examples", num_examples), checked_size("num_secrets", num_secrets)
        columns = {
            "example_L": checked_indices("example_L", example_L, n),
            "place_L": checked_indices("place_L", place_L, MAX_PLACE),
            "rule_L": checked_indices("rule_L", rule_L, len(rules)),
            "secret_P": checked_indices("secret_P", secret_P, m),
        }
        columns["offset_L"] = checked_indices("offset_L", offset_L, len(columns["secret_P"]) + 1)
        for name, value in (("num_examples", n), ("num_secrets", m), ("rules", tuple(rules))):
            object.__setattr__(self, name, value)
        for name, array in columns.items():
            frozen = np.array(array, dtype=np.int64)  # a copy, so that the caller cannot change it
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)
        self._check()

    def _check(self) -> None:
        number, pairs = len(self.example_L), len(self.secret_P)
        if len(set(self.rules)) != len(self.rules):
            raise InvalidInput("two rules of the slots have the same name; rename one")
        if not len(self.place_L) == len(self.rule_L) == number or len(self.offset_L) != number + 1:
            raise InvalidInput(f"the columns of the {number} slots have different lengths; scan the data again")
        if self.offset_L[0] != 0 or self.offset_L[-1] != pairs or (np.diff(self.offset_L) < 1).any():
            raise InvalidInput("every slot must belong to at least one secret; scan the data again")
        same_example_L = np.diff(self.example_L) == 0
        if (np.diff(self.example_L) < 0).any() or (np.diff(self.place_L)[same_example_L] <= 0).any():
            raise InvalidInput("slots must be ordered by example and place, one at a place; scan the data again")
        falls = np.flatnonzero(np.diff(self.secret_P) <= 0) + 1
        if not np.isin(falls, self.offset_L).all():
            raise InvalidInput("the secrets of a slot must be sorted and distinct; scan the data again")

    @classmethod
    def none(cls, incidence: Incidence) -> Self:
        """No slots: every example with a secret is secret as a whole."""
        sizes = {"num_examples": incidence.num_examples, "num_secrets": incidence.num_secrets}
        return cls(**sizes, rules=(), example_L=[], place_L=[], rule_L=[], offset_L=[0], secret_P=[])

    # What the slots say about examples and secrets

    def check_against(self, incidence: Incidence) -> None:
        """Refuses slots that do not belong to this incidence.

        They do if an example with slots has in them exactly the secrets that the incidence says it contains.
        """
        if (self.num_examples, self.num_secrets) != (incidence.num_examples, incidence.num_secrets):
            raise InvalidInput(
                f"the slots are of {self.num_examples} examples and {self.num_secrets} secrets, the graph is of "
                f"{incidence.num_examples} and {incidence.num_secrets}; pass those of the same scan"
            )
        example_P = np.repeat(self.example_L, np.diff(self.offset_L))
        in_slots = np.unique(example_P * self.num_secrets + self.secret_P)
        secret_E = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
        with_slots_E = self.has_slots_N[incidence.example_of_entry]
        listed = incidence.example_of_entry[with_slots_E].astype(np.int64) * self.num_secrets + secret_E[with_slots_E]
        wrong = np.setxor1d(in_slots, listed)
        if wrong.size:
            example, secret = divmod(int(wrong[0]), self.num_secrets)
            raise InvalidInput(
                f"example {example} has slots, but not for exactly the secrets that the graph lists for it (secret "
                f"{secret} first); pass slots and graph of the same scan"
            )

    @cached_property
    def has_slots_N(self) -> NDArray[np.bool_]:
        """Which examples have slots, and therefore a skeleton."""
        return np.bincount(self.example_L, minlength=self.num_examples) > 0

    def whole_examples(self, incidence: Incidence) -> NDArray[np.bool_]:
        """Which examples are secret as a whole: they contain a secret and have no skeleton."""
        return (incidence.secrets_per_example > 0) & ~self.has_slots_N

    def whole_examples_of_secrets(self, incidence: Incidence) -> NDArray[np.int64]:
        """In how many of each secret's examples the whole example is covered, shape (S,)."""
        whole_E = ~self.has_slots_N[incidence.example_of_entry]
        return np.add.reduceat(np.append(whole_E, False), incidence.offset_S[:-1], dtype=np.int64) * (
            incidence.examples_per_secret > 0
        )

    def of_example(self, example: int) -> range:
        """The numbers of the example's slots, in the order of their places."""
        first, last = np.searchsorted(self.example_L, (example, example + 1))
        return range(int(first), int(last))

    def secrets_of(self, slot: int) -> NDArray[np.int64]:
        """The secrets that a slot belongs to, ascending."""
        return self.secret_P[self.offset_L[slot] : self.offset_L[slot + 1]]

    def __len__(self) -> int:
        return len(self.example_L)

    # Files

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything above. A plain hash is enough, since the slots are public and hold no text."""
        digest = hashlib.sha256(b"hush slots 1\n")
        digest.update("\n".join(self.rules).encode())
        sizes = np.array([self.num_examples, self.num_secrets, len(self), len(self.secret_P)])
        for array in (sizes, self.example_L, self.place_L, self.rule_L, self.offset_L, self.secret_P):
            digest.update(np.ascontiguousarray(array, dtype="<i8").data)
        return digest.hexdigest()

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes one row a slot (example, place, rule, secrets); the file appears complete or not at all."""
        table, labels = self._stored()
        write_table(table, path, kind="slots", metadata=labels)

    @property
    def parquet_digest(self) -> str:
        """SHA-256, in hex, of the file that ``to_parquet`` writes with this version of Arrow."""
        table, labels = self._stored()
        return table_digest(table, kind="slots", metadata=labels)

    def _stored(self) -> "tuple[pa.Table, dict[str, str]]":
        import pyarrow as pa

        rule = pa.DictionaryArray.from_arrays(pa.array(self.rule_L, pa.int32()), pa.array(self.rules, pa.string()))
        secrets = pa.LargeListArray.from_arrays(pa.array(self.offset_L, pa.int64()), pa.array(self.secret_P))
        table = pa.table({"example": self.example_L, "place": self.place_L, "rule": rule, "secrets": secrets})
        sizes = {"num_examples": str(self.num_examples), "num_secrets": str(self.num_secrets)}
        return table, sizes | {"rules": "\n".join(self.rules), "fingerprint": self.fingerprint}

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file that ``to_parquet`` wrote. Guarantee: the slots have the fingerprint stored with them."""
        import pyarrow as pa

        table, labels = read_table(path, kind="slots", columns=("example", "place", "rule", "secrets"))
        try:
            rules = tuple(labels["rules"].split("\n")) if labels["rules"] else ()
            number = {name: index for index, name in enumerate(rules)}
            secrets: Any = table.column("secrets").combine_chunks().cast(pa.large_list(pa.int64()))
            slots = cls(
                num_examples=int(labels["num_examples"]),
                num_secrets=int(labels["num_secrets"]),
                rules=rules,
                example_L=table.column("example").to_numpy(),
                place_L=table.column("place").to_numpy(),
                rule_L=[number[name] for name in table.column("rule").to_pylist()],
                offset_L=np.append(0, np.cumsum(secrets.value_lengths().to_numpy(zero_copy_only=False))),
                secret_P=secrets.flatten().to_numpy(),
            )
        except (KeyError, ValueError, TypeError, pa.ArrowException) as error:
            raise InvalidInput(f"{path} does not hold slots; scan the data again") from error
        if slots.fingerprint != labels.get("fingerprint"):
            raise InvalidInput(f"{path} was changed after it was written; scan the data again")
        return slots

    def __eq__(self, other: object) -> bool:
        return self.fingerprint == other.fingerprint if isinstance(other, Slots) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Slots({len(self)} slots in {np.count_nonzero(self.has_slots_N)} of {self.num_examples} examples)"


def slots_of_spans(
    incidence: Incidence,
    rules: Sequence[str],
    *,
    example: ArrayLike,
    begin: ArrayLike,
    end: ArrayLike,
    rule: ArrayLike,
    secret: ArrayLike,
) -> "Spans":
    """The slots of the spans that were found, with where each begins and ends in its text.

    Spans that overlap or touch become one slot, which belongs to the secrets of all of them and carries the name of the
    first of their rules. An example with a secret that has no span in it gets no slots: it is secret as a whole.

    >>> graph = Incidence.from_pairs([0, 0], [0, 1], num_examples=1, num_secrets=2)
    >>> spans = slots_of_spans(graph, ["names"], example=[0, 0, 0], begin=[3, 5, 9], end=[6, 8, 10], rule=[0, 0, 0],
    ...                        secret=[0, 1, 0])
    >>> spans.begin_L.tolist(), spans.end_L.tolist(), spans.slots.place_L.tolist(), spans.slots.secrets_of(0).tolist()
    ([3, 9], [8, 10], [3, 4], [0, 1])
    """
    columns = [np.asarray(values, dtype=np.int64).reshape(-1) for values in (example, begin, end, rule, secret)]
    num_secrets = incidence.num_secrets
    example_H, begin_H, end_H, _, secret_H = columns
    if ((begin_H < 0) | (end_H <= begin_H)).any():
        raise InvalidInput("a span is empty or begins before its text; fix the finder")
    found = np.unique(example_H * num_secrets + secret_H)
    secret_E = np.repeat(np.arange(num_secrets), incidence.examples_per_secret)
    listed = incidence.example_of_entry.astype(np.int64) * num_secrets + secret_E
    is_whole_N = np.zeros(incidence.num_examples, dtype=bool)
    is_whole_N[np.setdiff1d(listed, found) // max(num_secrets, 1)] = True
    unlisted = np.setdiff1d(found, listed)
    if unlisted.size:
        raise InvalidInput(f"example {unlisted[0] // num_secrets} has a span of a secret that the graph does not list")
    kept_H = ~is_whole_N[example_H]
    order_H = np.lexsort((end_H[kept_H], begin_H[kept_H], example_H[kept_H]))
    example_H, begin_H, end_H, rule_H, secret_H = (column[kept_H][order_H] for column in columns)
    # One number for example and position, so that a running maximum never reaches into the next example.
    stride = int(end_H.max(initial=0)) + 1
    reach_H = np.maximum.accumulate(example_H * stride + end_H)
    opens_H = np.ones(len(example_H), dtype=bool)
    opens_H[1:] = (example_H * stride + begin_H)[1:] > reach_H[:-1]
    opens_H[1:] |= example_H[1:] != example_H[:-1]
    first_L = np.flatnonzero(opens_H)
    slot_H = np.cumsum(opens_H) - 1
    example_L, begin_L = example_H[first_L], begin_H[first_L]
    end_L = np.maximum.reduceat(end_H, first_L) if len(first_L) else end_H
    rule_L = np.minimum.reduceat(rule_H, first_L) if len(first_L) else rule_H
    pairs = np.unique(slot_H * max(num_secrets, 1) + secret_H)
    slot_P, secret_P = np.divmod(pairs, max(num_secrets, 1))
    slots = Slots(
        num_examples=incidence.num_examples,
        num_secrets=num_secrets,
        rules=rules,
        example_L=example_L,
        place_L=_places(example_L, begin_L, end_L),
        rule_L=rule_L,
        offset_L=np.searchsorted(slot_P, np.arange(len(first_L) + 1)),
        secret_P=secret_P,
    )
    return Spans(slots, begin_L, end_L)


def _places(example_L: NDArray[np.int64], begin_L: NDArray[np.int64], end_L: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many public characters stand before each slot in its example."""
    hidden_L = np.cumsum(end_L - begin_L) - (end_L - begin_L)  # secret characters before the slot, in all examples
    new_example_L = np.diff(example_L, prepend=-1) != 0
    before_example_L = hidden_L[new_example_L][np.cumsum(new_example_L) - 1] if len(example_L) else hidden_L
    return begin_L - (hidden_L - before_example_L)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Spans:
    """Where each slot begins and ends in the text of its example. Private: the lengths tell something of the secrets.

    Slot l of ``slots`` covers the characters ``begin_L[l]`` to ``end_L[l]``. The owner keeps this file beside the data;
    with both, any skeleton can be made again.

    Guarantee: the public places of the slots are those of these spans.
    """

    slots: Slots
    begin_L: NDArray[np.int64]
    end_L: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("begin_L", "end_L"):
            frozen = np.array(checked_indices(name, getattr(self, name), MAX_PLACE), dtype=np.int64)
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)
        same = len(self.slots) == len(self.begin_L) == len(self.end_L) and (self.begin_L < self.end_L).all()
        if not same or (_places(self.slots.example_L, self.begin_L, self.end_L) != self.slots.place_L).any():
            raise InvalidInput("the spans are not those of these slots; pass slots and spans of the same scan")

    @classmethod
    def none(cls, incidence: Incidence) -> Self:
        """No spans: every example with a secret is secret as a whole."""
        empty = np.empty(0, dtype=np.int64)
        return cls(Slots.none(incidence), empty, empty)

    def of_example(self, example: int) -> list[tuple[int, int]]:
        """The spans of an example, in order; they ascend and do not touch."""
        numbers = self.slots.of_example(example)
        part = slice(numbers.start, numbers.stop)
        return list(zip(self.begin_L[part].tolist(), self.end_L[part].tolist(), strict=True))

    def skeleton(self, example: int, text: str) -> str:
        """The text of an example with its slots replaced by placeholders; an example without slots is unchanged.

        An example that is secret as a whole has no skeleton: do not ask for it.
        """
        numbers = self.slots.of_example(example)
        part = slice(numbers.start, numbers.stop)
        names = [placeholder(self.slots.rules[rule]) for rule in self.slots.rule_L[part].tolist()]
        return skeleton(text, self.begin_L[part].tolist(), self.end_L[part].tolist(), names)

    def public_rows(self, incidence: Incidence, texts: Iterable[str]) -> Iterator[str]:
        """What is public of each example, in order: its text, its skeleton, or "" if it is secret as a whole.

        This is what the keyed fingerprint of the skeletons is computed from. texts: of all examples, in order.
        """
        secrets_N, has_slots_N = incidence.secrets_per_example, self.slots.has_slots_N
        for example, text in enumerate(texts):
            if has_slots_N[example]:
                yield self.skeleton(example, text)
            else:
                yield "" if secrets_N[example] else text

    def with_more(
        self,
        incidence: Incidence,
        rule: str,
        *,
        example: ArrayLike,
        begin: ArrayLike,
        end: ArrayLike,
        secret: ArrayLike,
    ) -> "Spans":
        """The spans of a graph with more examples and secrets at its end, which a further rule found."""
        slots = self.slots
        slot_P = np.repeat(np.arange(len(slots)), np.diff(slots.offset_L))
        more = [np.asarray(values, dtype=np.int64).reshape(-1) for values in (example, begin, end, secret)]
        before = [slots.example_L[slot_P], self.begin_L[slot_P], self.end_L[slot_P], slots.secret_P]
        joined = [np.concatenate(columns) for columns in zip(before, more, strict=True)]
        rule_H = np.concatenate([slots.rule_L[slot_P], np.full(len(more[0]), len(slots.rules))])
        names = (*slots.rules, rule)
        return slots_of_spans(
            incidence, names, example=joined[0], begin=joined[1], end=joined[2], rule=rule_H, secret=joined[3]
        )

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes begin and end of every slot to a file that only its owner can read."""
        import pyarrow as pa

        table = pa.table({"begin": self.begin_L, "end": self.end_L})
        write_table(table, path, kind="spans", metadata={"slots": self.slots.fingerprint}, owner_only=True)

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str], slots: Slots) -> Self:
        """Reads a file that ``to_parquet`` wrote for these slots."""
        table, labels = read_table(path, kind="spans", columns=("begin", "end"))
        if labels.get("slots") != slots.fingerprint:
            raise InvalidInput(f"{path} is about other slots; pass slots and spans of the same scan")
        return cls(slots, table.column("begin").to_numpy(), table.column("end").to_numpy())

    def __repr__(self) -> str:
        return f"Spans(of {len(self.slots)} slots)"


SLOTS_FILE, SPANS_FILE = Path("public", "slots.parquet"), Path("owner", "spans.parquet")


def spans_in(folder: Path) -> Spans | None:
    """The spans in the folder of a scan, or of canaries planted after one; None if nothing there hides spans."""
    if not (folder / SLOTS_FILE).is_file():
        return None
    slots = Slots.from_parquet(folder / SLOTS_FILE)
    if not (folder / SPANS_FILE).is_file():
        raise InvalidInput(
            f"{folder} has slots but no {SPANS_FILE}, which says where they are in the texts; pass the owner's folder"
        )
    return Spans.from_parquet(folder / SPANS_FILE, slots)


def save_spans(spans: Spans, folder: Path) -> None:
    """Writes slots and spans into the folders public/ and owner/ of this folder, which exist."""
    spans.slots.to_parquet(folder / SLOTS_FILE)
    spans.to_parquet(folder / SPANS_FILE)
