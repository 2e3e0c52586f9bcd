"""The code rule as a finder: a chunk contains what its file contains."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

from hush.corpus.blocks import Block
from hush.errors import InvalidInput
from hush.scan.code.repository import Repository
from hush.scan.code.settings import CodeSettings
from hush.scan.code.spread import Containment, containment
from hush.scan.finder import Declared
from hush.scan.hits import Hits

__all__ = ["CodeSecrets"]


@final
@dataclass(frozen=True, eq=False)
class CodeSecrets:
    """Finds the secrets of a repository's files in their chunks, by the column path. The secrets' names are public."""

    contained: Containment

    @classmethod
    def of(cls, repository: Repository, settings: CodeSettings) -> Self:
        """Reads what the rules need of the repository: its files, history, owners and imports."""
        return cls(containment(repository, settings))

    @property
    def columns(self) -> tuple[str, ...]:
        return ("path",)

    @property
    def declared(self) -> Sequence[Declared]:
        return [
            Declared(key=secret.name, name=secret.name, protection=secret.protection)
            for secret in self.contained.secrets
        ]

    def find(self, block: Block) -> Hits:
        paths: list[str] = block.columns["path"].to_pylist()
        example: list[int] = []
        key: list[int] = []
        reasons: dict[str, int] = {}
        reason: list[int] = []
        for row, path in enumerate(paths):
            if path not in self._files:
                raise InvalidInput(
                    f"an example is of file {path!r}, which the repository did not have when its rules were read; "
                    "scan the chunks of the same repository, while nothing changes it"
                )
            for secret, sentence in self.contained.reasons.get(path, ()):
                example.append(row)
                key.append(secret)
                reason.append(reasons.setdefault(sentence, len(reasons)))
        keys = tuple(secret.name for secret in self.contained.secrets)
        return Hits.of(example, key, keys=keys, reasons=tuple(reasons), reason=reason)

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(self.contained.files)

    def __getstate__(self) -> Containment:
        return self.contained

    def __setstate__(self, contained: Containment) -> None:
        object.__setattr__(self, "contained", contained)

    def __repr__(self) -> str:
        return f"CodeSecrets({len(self.contained.secrets)} secrets in {len(self.contained.reasons)} files)"
