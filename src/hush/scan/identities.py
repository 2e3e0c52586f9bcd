"""The same secret in one scan and the next: ids that stay, by keyed fingerprints of what identifies a secret.

What identifies a secret is its key as its rule normalises it: its text, or the name of a project, or the pattern that
stands for it. Under the owner's data key it becomes a fingerprint of 32 bytes, in a domain of its own, so that no
fingerprint of a row is that of a secret. A scan that is given the identities of earlier scans gives a known secret its
known id, whatever became of its examples; new secrets get ids that no secret ever had.

Without known identities the ids of a scan only count, as they always did. A rule that was renamed keeps the ids of its
secrets: a fingerprint that is known under another rule's name, and in no rule of this scan under that name, is taken.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from hush.errors import InvalidInput
from hush.keys import FINGERPRINT_BYTES, DataKey
from hush.storage import read_table, write_table

if TYPE_CHECKING:
    from hush.scan.collect import UnorderedSecret

__all__ = ["IDENTITIES_FILE", "Identities", "given_ids", "identities_of"]


IDENTITIES_FILE = "identities.parquet"  # among the owner's files
KIND = "secret identities"
COLUMNS = ("id", "rule", "fingerprint")

Identity = tuple[str, bytes]  # the rule's name, and the fingerprint of the secret


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Identities:
    """Which secrets have which ids, without their texts. For the owner: with the key it confirms guesses.

    key: the id of the data key of the fingerprints. ids, rules, fingerprints: one row for each secret and each name
    that its rule had.

    Invariants: a rule and a fingerprint have one id, and an id has one fingerprint.
    """

    key: str
    ids: tuple[str, ...]
    rules: tuple[str, ...]
    fingerprints: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.rules) == len(self.fingerprints):
            raise InvalidInput(
                f"{len(self.ids)} ids, {len(self.rules)} rules and {len(self.fingerprints)} fingerprints; pass one each"
            )
        if any(len(each) != FINGERPRINT_BYTES for each in self.fingerprints):
            raise InvalidInput(f"a fingerprint of a secret has {FINGERPRINT_BYTES} bytes; scan again")
        if len(self.by_identity) < len(self):
            raise InvalidInput("a secret is listed twice among the identities; scan again")
        if len(set(zip(self.ids, self.fingerprints, strict=True))) > len(set(self.ids)):
            raise InvalidInput("two different secrets have the same id; scan again, with the identities of the ledger")

    @cached_property
    def by_identity(self) -> Mapping[Identity, str]:
        """The id of a rule's name and a fingerprint."""
        return dict(zip(zip(self.rules, self.fingerprints, strict=True), self.ids, strict=True))

    @classmethod
    def none(cls, key: str) -> Self:
        """No identities under this key."""
        return cls(key=key, ids=(), rules=(), fingerprints=())

    def joined(self, other: "Identities") -> Self:
        """These identities and those of a later scan, which must have been given these."""
        self.check_key(other.key)
        new = [number for number, identity in enumerate(other._pairs()) if identity not in self.by_identity]
        if not self.agrees(other):
            raise InvalidInput(
                "a secret has another id here than in the ledger, which gained secrets since this scan; scan again "
                "with the ledger"
            )
        return type(self)(
            key=self.key,
            ids=(*self.ids, *(other.ids[number] for number in new)),
            rules=(*self.rules, *(other.rules[number] for number in new)),
            fingerprints=(*self.fingerprints, *(other.fingerprints[number] for number in new)),
        )

    def agrees(self, other: "Identities") -> bool:
        """Whether both give the same secret the same id, and no id to two secrets."""
        fingerprint_of = dict(zip(self.ids, self.fingerprints, strict=True))
        return all(
            self.by_identity.get(identity, name) == name and fingerprint_of.get(name, identity[1]) == identity[1]
            for identity, name in other.by_identity.items()
        )

    def check_key(self, key: str) -> None:
        """Refuse fingerprints under another key, with which no secret would be recognised."""
        if key != self.key:
            raise InvalidInput(
                f"the known secrets have fingerprints under the key {self.key}, but this key is {key}; pass that key",
                setting="key",
            )

    def save(self, path: Path) -> None:
        """Write the table, to a file that only its owner can read."""
        import pyarrow as pa

        columns = {
            "id": pa.array(self.ids, pa.string()),
            "rule": pa.array(self.rules, pa.string()),
            "fingerprint": pa.array(self.fingerprints, pa.binary(FINGERPRINT_BYTES)),
        }
        write_table(pa.table(columns), path, kind=KIND, metadata={"key": self.key}, owner_only=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        table, labels = read_table(path, kind=KIND, columns=COLUMNS)
        ids, rules, fingerprints = (tuple(table.column(name).to_pylist()) for name in COLUMNS)
        return cls(key=labels.get("key", ""), ids=ids, rules=rules, fingerprints=fingerprints)

    def _pairs(self) -> Iterator[Identity]:
        return zip(self.rules, self.fingerprints, strict=True)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Identities({len(self)} secrets)"


def identities_of(secrets: Sequence["UnorderedSecret"], ids: Sequence[str], key: DataKey) -> Identities:
    """The identities of a scan's secrets, which have these ids."""
    return Identities(
        key=key.id,
        ids=tuple(ids),
        rules=tuple(secret.rule for secret in secrets),
        fingerprints=tuple(_fingerprint(secret, key) for secret in secrets),
    )


def given_ids(
    secrets: Sequence["UnorderedSecret"], *, known: Identities | None = None, key: DataKey | None = None
) -> list[str]:
    """The ids of secrets that are given in public order: the known one, or one that no secret ever had.

    key: for the fingerprints, needed if there are known identities.

    Guarantee: no id depends on the text of a secret, except for names that the owner declared public.
    """
    if known is None:
        fresh = _Fresh(())
        return [fresh.id(secret) for secret in secrets]
    if key is None:
        raise InvalidInput("secrets are recognised by keyed fingerprints; pass the data key too", setting="key")
    known.check_key(key.id)
    identities = [(secret.rule, _fingerprint(secret, key)) for secret in secrets]
    ids = [known.by_identity.get(identity) for identity in identities]
    renamed = _RenamedRules(known, identities)
    fresh = _Fresh(known.ids)
    for number, (_, fingerprint) in enumerate(identities):
        if ids[number] is None:
            ids[number] = renamed.take(fingerprint)
    return [fresh.id(secret) if name is None else name for secret, name in zip(secrets, ids, strict=True)]


def _fingerprint(secret: "UnorderedSecret", key: DataKey) -> bytes:
    return key.fingerprint_identity(secret.kind, secret.key if secret.identity is None else secret.identity)


@final
class _RenamedRules:
    """Known ids whose rule is no longer among those of a scan under that name, by fingerprint."""

    def __init__(self, known: Identities, identities: Iterable[Identity]) -> None:
        present = set(identities)
        taken = {name for identity, name in known.by_identity.items() if identity in present}
        self._free: dict[bytes, list[str]] = {}
        for (_, fingerprint), name in known.by_identity.items():
            names = self._free.setdefault(fingerprint, [])
            if name not in taken and name not in names:
                names.append(name)

    def take(self, fingerprint: bytes) -> str | None:
        """The id of a secret that another name of its rule had; None if there is none, each at most once."""
        names = self._free.get(fingerprint)
        return names.pop(0) if names else None


@final
class _Fresh:
    """Ids that no secret ever had: RULE-NUMBER after the highest number, or RULE:NAME, with ~2 and so on if taken."""

    def __init__(self, known: Iterable[str]) -> None:
        self._taken = set(known)
        self._last: dict[str, int] = {}
        for name in self._taken:
            match = re.fullmatch(r"(.+)-(\d+)", name)
            if match is not None:
                self._last[match[1]] = max(self._last.get(match[1], -1), int(match[2]))

    def id(self, secret: "UnorderedSecret") -> str:
        """The next id for this secret."""
        if secret.name is None:
            number = self._last[secret.rule] = self._last.get(secret.rule, -1) + 1
            return f"{secret.rule}-{number:06d}"
        plain = f"{secret.rule}:{secret.name}"
        name, times = plain, 1
        while name in self._taken:
            times += 1
            name = f"{plain}~{times}"
        return name
