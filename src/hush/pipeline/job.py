"""What every stage is given: the config, the folder, the key, what is done so far, and who is watching."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hush.config import Config
from hush.config.sections import AuditSection, CanariesSection
from hush.corpus import Corpus, read_corpus
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.pipeline.folder import RunPaths
from hush.pipeline.record import Record, StageName

if TYPE_CHECKING:
    from hush.train.rounds import LiveNumbers

__all__ = ["Job", "Watch"]


def _nothing(*_: object) -> None:
    pass


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who is told: stage (name, "begins" or "kept"), work (what, done, of how many), live numbers, notices.

    stoppable: entered for as long as training lasts; what it gives is asked after each round whether to stop.
    """

    stage: Callable[[StageName, str], None] = _nothing
    work: Callable[[str, int, int], None] = _nothing
    live: "Callable[[LiveNumbers], None]" = _nothing
    notice: Callable[[str], None] = _nothing
    stoppable: Callable[[], AbstractContextManager[Callable[[], bool]]] = lambda: nullcontext(lambda: False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run under way. new_release: whether the owner asked for a further training of the same data."""

    config: Config
    paths: RunPaths
    key: DataKey
    record: Record
    watch: Watch = field(default_factory=Watch)
    new_release: bool = False

    def outputs(self, stage: StageName) -> dict[str, Any]:
        """What a finished stage left behind."""
        return self.record.stages[stage].outputs

    def fingerprint(self, *parts: object) -> str:
        """Under the owner's key: plain data that may hold private text."""
        return self.key.fingerprint_rows([json.dumps(part, sort_keys=True, default=str) for part in parts])

    @property
    def has_canaries(self) -> bool:
        return self.config.audit is not None and self.config.audit.canaries is not None

    @property
    def audit(self) -> AuditSection:
        """For stages that run only where there is an audit."""
        if self.config.audit is None:
            raise InvalidInput("the config asks for no audit; add the section audit")
        return self.config.audit

    @property
    def canaries(self) -> CanariesSection:
        """For stages that run only where there are canaries."""
        if self.audit.canaries is None:
            raise InvalidInput("the config asks for no canaries; add canaries to the section audit")
        return self.audit.canaries

    def scanned(self) -> Corpus:
        """The examples of the scan, in its order."""
        kept = self.paths.scan / "owner" / "data.parquet"  # there where the examples are not the rows of the source
        if kept.is_file():
            return read_corpus(kept)
        data = self.config.data
        return read_corpus(self.config.source, column=data.column, unit=data.unit)

    def corpus(self) -> Corpus:
        """The examples of the plan: those of the scan, and the canaries after them."""
        if not self.has_canaries:
            return self.scanned()
        return read_corpus(self.paths.canaries / "owner" / "data.parquet")

    def public(self, name: str) -> Path:
        """A public file about those examples: incidence.parquet or secrets.parquet."""
        return (self.paths.canaries if self.has_canaries else self.paths.scan) / "public" / name
