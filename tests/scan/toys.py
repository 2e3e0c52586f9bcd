"""Small corpora and finders with obvious results; other processes can import them."""

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.hits import DeclaredSecret, Hits, PreparedRule
from hush.scan.result import Scan

PROMISE = Protection(1e-10, 1e-3)


def hits_of(found: list[tuple[int, str, int, int, str]]) -> Hits:
    """Hits from example, key, begin, end and reason, with the tables in the order of appearance."""
    keys, reasons = list(dict.fromkeys(hit[1] for hit in found)), list(dict.fromkeys(hit[4] for hit in found))
    return Hits.of(
        [hit[0] for hit in found],
        [keys.index(hit[1]) for hit in found],
        begin=[hit[2] for hit in found],
        end=[hit[3] for hit in found],
        reason=[reasons.index(hit[4]) for hit in found],
        keys=tuple(keys),
        reasons=tuple(reasons),
    )


@dataclass(frozen=True)
class Capitals:
    """Every capital letter is a secret, and so is every run of two; some are declared."""

    known: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return [DeclaredSecret(key=key, protection=Protection(1e-6, 1e-2)) for key in self.known]

    def find(self, block: Block) -> Hits:
        found = []
        for example, text in enumerate(block.strings):
            for pattern, why in (("[A-Z]", "a capital"), ("(?=([A-Z]{2}))", "two capitals")):
                for match in re.finditer(pattern, text):
                    key = match[match.re.groups]
                    found.append((example, key, match.start(), match.start() + len(key), why))
        return hits_of(found[::-1])  # the order does not matter


@dataclass(frozen=True)
class Teams:
    """The column names the secret."""

    columns: tuple[str, ...] = ("team",)
    declared: tuple[DeclaredSecret, ...] = ()

    def find(self, block: Block) -> Hits:
        teams = block.columns["team"].to_pylist()
        return hits_of([(row, team, -1, -1, "column team") for row, team in enumerate(teams) if team])


@dataclass(frozen=True)
class Rare:
    """Letters that occur in this many examples at most."""

    most: int
    columns: tuple[str, ...] = ()

    def count(self, block: Block) -> Counter[str]:
        return Counter(letter for text in block.strings for letter in set(text))

    def merged(self, first: Counter[str], second: Counter[str], /) -> Counter[str]:
        return first + second

    def finder(self, total: Counter[str] | None) -> "Among":
        return Among(frozenset(letter for letter, count in (total or {}).items() if count <= self.most))


@dataclass(frozen=True)
class Among:
    letters: frozenset[str]
    columns: tuple[str, ...] = ()
    declared: tuple[DeclaredSecret, ...] = ()

    def find(self, block: Block) -> Hits:
        return hits_of(
            [
                (example, letter, place, place + 1, f"letter in {len(self.letters)}")
                for example, text in enumerate(block.strings)
                for place, letter in enumerate(text)
                if letter in self.letters
            ]
        )


@dataclass(frozen=True)
class Astray:
    """Points at an example after the block's last."""

    columns: tuple[str, ...] = ()
    declared: tuple[DeclaredSecret, ...] = ()

    def find(self, block: Block) -> Hits:
        return hits_of([(len(block), "x", -1, -1, "astray")])


@dataclass(frozen=True)
class Held:
    """A shard in memory."""

    rows: tuple[tuple[str, str | None], ...]
    size: int
    files: tuple[str, ...] = ("memory",)

    def blocks(self, columns: Sequence[str] = (), *, skip_bad: bool = False) -> Iterator[Block]:
        for begin in range(0, len(self.rows), self.size):
            rows = self.rows[begin : begin + self.size]
            yield Block(
                texts=pa.array([text for text, _ in rows], pa.large_string()),
                columns={"team": pa.array([team for _, team in rows], pa.large_string())},
                rows=np.arange(begin, begin + len(rows)),
            )


@dataclass(frozen=True)
class Memory:
    """A corpus in memory, cut at these places into shards, and these into blocks of a size."""

    rows: list[tuple[str, str | None]] = field(repr=False)
    cuts: tuple[int, ...] = ()
    size: int = 1000
    source: str = "memory"

    def shards(self) -> list[Held]:
        edges = [0, *sorted(min(cut, len(self.rows)) for cut in self.cuts), len(self.rows)]
        return [Held(tuple(self.rows[a:b]), self.size) for a, b in pairwise(edges)]

    def check_columns(self, names: Sequence[str]) -> None:
        assert set(names) <= {"team"}


def prepared(*finders: Any, **options: Any) -> list[PreparedRule]:
    """Rules named after their finders."""
    return [
        PreparedRule(name=type(finder).__name__.lower(), finder=finder, protection=PROMISE, **options)
        for finder in finders
    ]


def content(scan: Scan) -> dict[str, Any]:
    """Everything in a scan that must not depend on how it was made."""
    assert scan.owner is not None
    return {
        "incidence": scan.incidence,
        "ids": scan.secrets.ids,
        "texts": scan.secrets.texts,
        "protections": scan.secrets.protections,
        "rules": scan.rules,
        "summary": scan.summary(),
        "reasons": [row for batch in scan.owner.reasons() for row in batch.to_pylist()],
        "examples": [row for batch in scan.owner.examples() for row in batch.to_pylist()],
    }


def killed_on_text(shard: Held) -> int:
    """A task that ends its process on some shards."""
    if any(text == "kill" for text, _ in shard.rows):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(shard.rows)


def refusing(shard: Held) -> int:
    """A task that refuses some shards."""
    for text, _ in shard.rows:
        if text.startswith("refuse"):
            raise InvalidInput(text)
    return len(shard.rows)


def process_of(shard: Held) -> int:
    """A task that says where it ran."""
    return os.getpid()
