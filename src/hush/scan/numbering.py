"""Secrets get their numbers, between the finders and everything public: in an order that says nothing about their text.

A rule's declared secrets come first, as declared; then those that were found, in the order in which they first appear
in the data (example, begin, end; those that begin and end together as their finder gives them: by place in the cell).
"""

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.finder import Declared, Prepared
from hush.scan.hits import Hits
from hush.secret_table import Secrets

__all__ = ["Numbering", "secret_table"]


@final
class Numbering:
    """The secrets of one rule, numbered while the shards come in, in order. A repr shows how many, and no key."""

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


def secret_table(rules: Sequence[Prepared], numberings: Sequence[Numbering]) -> Secrets:
    """All secrets, rule by rule: public ids, promises, and the keys as texts, for the owner."""
    ids: list[str] = []
    protections: list[Protection] = []
    texts: list[str] = []
    for rule, numbering in zip(rules, numberings, strict=True):
        for number, key in enumerate(numbering.keys):
            declared = numbering.declared[number] if number < len(numbering.declared) else None
            name = key if declared is None and rule.public_names else None if declared is None else declared.name
            ids.append(f"{rule.name}-{number:06d}" if name is None else f"{rule.name}:{name}")
            own = None if declared is None else declared.protection
            protections.append(own or rule.protection)
            texts.append(key)
    return Secrets(protections, ids=ids, texts=texts)
