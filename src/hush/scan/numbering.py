"""Secrets get their numbers, between the finders and everything public: in an order that the public graph decides.

While shards come in, numbers are provisional: a rule's declared secrets first, then those that were found, as they
first appear in the data. Such an order tells: of a list by the alphabet who is who, of a text what stands before what.
So the secrets of a rule are put into another order in the end: by their examples, then by what they are promised, then
by their public names. All of this is public anyway. Secrets that still are equal look the same to everybody but their
owner, whatever order they get; theirs is that of their texts, so that it does not depend on the list's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.protection import Protection
from hush.scan.finder import Declared, Prepared
from hush.scan.hits import Hits
from hush.secret_table import Secrets

__all__ = ["Numbering", "Unordered", "public_order", "secret_table", "unordered"]


@final
class Numbering:
    """The secrets of one rule, numbered for now while the shards come in. A repr shows how many, and no key."""

    def __init__(self, declared: Sequence[Declared]) -> None:
        self.declared = tuple(declared)
        self._number: dict[str, int] = {secret.key: index for index, secret in enumerate(self.declared)}
        if len(self._number) != len(self.declared):
            raise InvalidInput(f"{len(self.declared) - len(self._number)} secrets are declared twice; name each once")

    def numbers(self, hits: Hits) -> NDArray[np.int64]:
        """Each hit's secret. The hits are sorted, and come after all that were numbered before."""
        seen, first_K = np.unique(hits.key_H, return_index=True)
        for key in seen[np.argsort(first_K)].tolist():
            self._number.setdefault(hits.keys[key], len(self._number))
        number_K = np.array([self._number.get(key, -1) for key in hits.keys], dtype=np.int64)
        return number_K[hits.key_H]

    @property
    def keys(self) -> Iterable[str]:
        """Private: they may be the secrets' text."""
        return self._number.keys()

    def __len__(self) -> int:
        return len(self._number)

    def __repr__(self) -> str:
        return f"Numbering({len(self)} secrets)"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unordered:
    """A secret before it has its place. rule: its name. name: for the public id, where there is one. key: private."""

    rule: str
    name: str | None
    protection: Protection
    key: str = field(repr=False)


def unordered(rules: Sequence[Prepared], numberings: Sequence[Numbering]) -> list[Unordered]:
    """All secrets, rule by rule, by their provisional numbers."""
    found: list[Unordered] = []
    for rule, numbering in zip(rules, numberings, strict=True):
        for number, key in enumerate(numbering.keys):
            declared = numbering.declared[number] if number < len(numbering.declared) else None
            name = declared.name if declared is not None else key if rule.public_names else None
            own = None if declared is None else declared.protection
            found.append(Unordered(rule=rule.name, name=name, protection=own or rule.protection, key=key))
    return found


def public_order(secrets: Sequence[Unordered], incidence: Incidence) -> NDArray[np.int64]:
    """Which secret comes at each place: rule by rule, by example lists (those without any last), promises, names.

    Guarantee: whoever sees everything public in this order can compute the order himself from the same in any other
    order, so it tells nothing. It does not depend on the order that the secrets of a rule are given in.
    """
    rank = {rule: place for place, rule in enumerate(dict.fromkeys(secret.rule for secret in secrets))}

    def place(number: int) -> tuple[object, ...]:
        secret = secrets[number]
        examples = incidence.examples_of(number).astype(">i8").tobytes()  # these compare as the lists do
        return rank[secret.rule], not examples, examples, secret.protection.points, secret.name or "", secret.key

    return np.array(sorted(range(len(secrets)), key=place), dtype=np.int64)


def secret_table(secrets: Iterable[Unordered]) -> Secrets:
    """The secrets in their order: public ids, promises, and the keys as texts, for the owner."""
    ids: list[str] = []
    protections: list[Protection] = []
    texts: list[str] = []
    before: dict[str, int] = {}
    for secret in secrets:
        number = before[secret.rule] = before.get(secret.rule, -1) + 1
        ids.append(f"{secret.rule}-{number:06d}" if secret.name is None else f"{secret.rule}:{secret.name}")
        protections.append(secret.protection)
        texts.append(secret.key)
    return Secrets(protections, ids=ids, texts=texts)
