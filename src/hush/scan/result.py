"""What a scan found: the public graph and promises, and for their owner the reasons. Frozen; saved as a folder."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.corpus.shards import ShardSource
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.scan.owner import OwnerFiles
from hush.secret_table import Secrets

__all__ = ["Data", "Reason", "Scan"]

SHOWN = 10  # secrets and examples in a summary
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why an example contains a secret. begin, end: which characters of its text, -1 where nobody can say."""

    example: int
    secret: int
    secret_id: str
    rule: str
    reason: str
    begin: int
    end: int

    @property
    def has_span(self) -> bool:
        return self.begin >= 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the texts of the examples can be read again, with the columns that the scan read: the same rows then.

    same_N: a hash of each text under a key that was drawn for the scan; tells whether the texts are what was scanned.
    """

    corpus: ShardSource
    columns: tuple[str, ...]
    copy_key: bytes = field(repr=False)
    same_N: NDArray[np.uint64] = field(repr=False)


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Scan:
    """Which examples contain which secrets, what each secret is promised, and why each pair is there.

    rules: name and number of secrets of each rule, in the order of the secrets. skipped: rows that were passed over;
    inherited: pairs that are there only because of copies; both are for the owner to know, and 0 without his side.
    data_fingerprint: of the examples' texts, under the owner's key. owner: the owner's side; None where only the public
    one is at hand. data: where the texts can be read again, if they have to be saved with the scan.
    """

    incidence: Incidence
    secrets: Secrets
    rules: tuple[tuple[str, int], ...]
    skipped: int = 0
    inherited: int = 0
    data_fingerprint: str | None = None
    owner: OwnerFiles | None = None
    data: Data | None = None

    def __post_init__(self) -> None:
        sizes = (self.incidence.num_secrets, len(self.secrets), sum(count for _, count in self.rules))
        if len(set(sizes)) > 1:
            raise InvalidInput(
                f"the graph has {sizes[0]} secrets, the table {sizes[1]} and the rules {sizes[2]}; pass what belongs "
                "together"
            )

    def why(self, *, example: int | str | None = None, secret: int | str | None = None) -> Iterator[Reason]:
        """Why this example contains what it does, or who contains this secret and why; or both; each reason in turn.

        Examples and secrets are named by number or id. No reason holds the text of a secret.
        """
        chosen = self._examples(example)
        number = None if secret is None else self._secret(secret)
        if number is not None:
            holders = self.incidence.examples_of(number)
            chosen = holders if chosen is None else np.intersect1d(chosen, holders)
        for batch in self._owner().reasons(examples=chosen, secret=number):
            for row in batch.to_pylist():
                yield Reason(secret_id=self.secrets.ids[row["secret"]], **row)

    def spans(self, example: int | str) -> list[Reason]:
        """Where in the example's text secrets stand, by place; only what finders can point at."""
        found = (reason for reason in self.why(example=example) if reason.has_span)
        return sorted(found, key=lambda reason: (reason.begin, reason.end, reason.secret))

    def summary(self) -> dict[str, Any]:
        """Sizes, how they are distributed, who has most; with the owner's side also how they came about. No text."""
        by_secret, by_example = self.incidence.examples_per_secret, self.incidence.secrets_per_example
        own: dict[str, Any] = {}
        if self.owner is not None:
            by_file = self.owner.skipped() if self.skipped else {}
            own = {"pairs_from_copies": self.inherited, "skipped": self.skipped, "skipped_by_file": by_file}
        return {
            "examples": self.incidence.num_examples,
            "examples_with_secrets": int(np.count_nonzero(by_example)),
            "secrets": self.incidence.num_secrets,
            "pairs": self.incidence.num_entries,
            "examples_per_secret": _quantiles(by_secret),
            "secrets_per_example": _quantiles(by_example),
            "most_widespread": [
                {"secret": self.secrets.ids[index], "examples": int(by_secret[index])} for index in _largest(by_secret)
            ],
            "most_secrets": [
                {"example": int(index), "secrets": int(by_example[index])} for index in _largest(by_example)
            ],
            "rules": [
                {
                    "rule": name,
                    "secrets": end - begin,
                    "secrets_found": int(np.count_nonzero(by_secret[begin:end])),
                    "pairs": int(by_secret[begin:end].sum()),
                }
                for name, begin, end in self._ranges()
            ],
            "data_fingerprint": self.data_fingerprint,
            **own,
        }

    def save(self, folder: str | os.PathLike[str], *, also: Callable[[Path], None] | None = None) -> None:
        """Write the scan as a folder, which appears whole or not at all; an older scan there is replaced.

        public/ may be shown to anyone; owner/ is readable by its owner alone. also: writes more into owner/ (it is
        given that folder).
        """
        from hush.scan.files import save_scan

        save_scan(self, Path(folder), also)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what ``save`` wrote, or its public side alone. Guarantee: the public files are as they were written."""
        from hush.scan.files import load_scan

        return cls(**load_scan(Path(folder)))

    def _ranges(self) -> Iterator[tuple[str, int, int]]:
        """Each rule with its first secret and the one after its last."""
        begin = 0
        for name, count in self.rules:
            yield name, begin, begin + count
            begin += count

    def _owner(self) -> OwnerFiles:
        if self.owner is None:
            raise InvalidInput("reasons stay on the owner's side of a scan, which is not here; load the whole folder")
        return self.owner

    def _examples(self, example: int | str | None) -> NDArray[np.integer] | None:
        if isinstance(example, str):
            found = self._owner().numbers_of(example)
            if not found:
                raise InvalidInput("no example of this scan has that id; pass one of owner/examples.parquet")
            return np.array(found)
        if example is not None and not 0 <= example < self.incidence.num_examples:
            raise InvalidInput(f"example {example} is outside [0, {self.incidence.num_examples}); they count from 0")
        return None if example is None else np.array([example])

    def _secret(self, secret: int | str) -> int:
        if isinstance(secret, str):
            if secret not in self.secrets.ids:  # it may be a text by mistake, so it is not repeated
                raise InvalidInput("no secret of this scan has that id; pass one of public/secrets.parquet")
            return self.secrets.ids.index(secret)
        if not 0 <= secret < self.incidence.num_secrets:
            raise InvalidInput(f"secret {secret} is outside [0, {self.incidence.num_secrets}); they count from 0")
        return secret

    def __repr__(self) -> str:
        sizes = f"{self.incidence.num_examples} examples, {self.incidence.num_secrets} secrets"
        return f"Scan({sizes}, {self.incidence.num_entries} pairs)"


def _quantiles(counts: NDArray[np.int64]) -> dict[str, int]:
    """Observed counts at these shares of all; empty for no counts."""
    if not len(counts):
        return {}
    values = np.quantile(counts, QUANTILES, method="inverted_cdf").tolist()
    return {f"{share:g}": int(value) for share, value in zip(QUANTILES, values, strict=True)}


def _largest(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the largest counts are, zeros left out, largest first, then by number."""
    order = np.argsort(-counts, kind="stable")[:SHOWN]
    return order[counts[order] > 0]
