"""What every stage of a run is given, what a stage must be able to do, and the files that fingerprints are taken of.

A stage reads the config and the results of earlier stages from its :class:`RunJob`, and reports progress to the
:class:`Watch` in it. Files are compared by size and time first and read only where those differ; every fingerprint of
private content is taken under the owner's key.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from hush.audit.settings import CanarySettings
from hush.console import counted
from hush.data import Corpus, read_corpus
from hush.data.chat_template import ChatTemplate
from hush.data.text_readers import KINDS, kind_of
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.run.config import Config
from hush.run.folder import RunPaths, RunRecord
from hush.run.sections import SMALL_SPECIAL_TOKENS, AuditSection

if TYPE_CHECKING:
    from hush.train.round import LiveNumbers

__all__ = [
    "Estimate",
    "Known",
    "RunJob",
    "StageWork",
    "Together",
    "Watch",
    "chat_template_of",
    "file_rows",
    "files_of",
    "read_source",
    "unread_files",
]


Together = Callable[[str | None], AbstractContextManager[None]]


def _ignore(*_: object) -> None:
    pass


def _alone(device: str | None) -> AbstractContextManager[None]:
    return nullcontext()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Callbacks of a run.

    stage: called with a stage's name and "begins" or "kept". work: with a label, how much is done and the total. live:
    with the numbers of each training round. notice: with a sentence for the owner. stoppable: a context manager that is
    entered while training lasts; it yields a function that is called after each round and returns whether to stop.
    """

    stage: Callable[[str, str], None] = _ignore
    work: Callable[[str, int, int], None] = _ignore
    live: "Callable[[LiveNumbers], None]" = _ignore
    notice: Callable[[str], None] = _ignore
    stoppable: Callable[[], AbstractContextManager[Callable[[], bool]]] = lambda: nullcontext(lambda: False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """A run in progress. new_release: whether the owner asked for a further training on the same data.

    together: entered around the training, with its device; calls the other processes, if there are any.
    """

    config: Config
    paths: RunPaths
    key: DataKey
    record: RunRecord
    watch: Watch = field(default_factory=Watch)
    new_release: bool = False
    together: Together = field(default=_alone)

    def outputs(self, stage: str) -> dict[str, Any]:
        """What a finished stage recorded."""
        return self.record.stages[stage].outputs

    def fingerprint(self, *parts: object) -> str:
        """A fingerprint of plain data under the owner's key: the data may hold private text."""
        return self.key.fingerprint_rows([json.dumps(part, sort_keys=True, default=str) for part in parts])

    @property
    def has_canaries(self) -> bool:
        return self.config.audit is not None and self.config.audit.canaries is not None

    @property
    def audit(self) -> AuditSection:
        """The config's section, for stages that run only with an audit."""
        if self.config.audit is None:
            raise InvalidInput("the config asks for no audit; add the section audit")
        return self.config.audit

    @property
    def canaries(self) -> CanarySettings:
        """The config's section, for stages that run only with canaries."""
        if self.audit.canaries is None:
            raise InvalidInput("the config asks for no canaries; add canaries to the section audit")
        return self.audit.canaries

    def scanned(self) -> Corpus:
        """The examples of the scan, in its order."""
        saved = self.paths.scan / "owner" / "data.parquet"  # exists where the examples are not the rows of the source
        if saved.is_file():
            return read_corpus(saved)
        return read_source(self.config)

    def corpus(self) -> Corpus:
        """The examples of the plan: those of the scan, then the canaries."""
        if not self.has_canaries:
            return self.scanned()
        return read_corpus(self.paths.canaries / "owner" / "data.parquet")

    def public(self, name: str) -> Path:
        """A public file about the examples of the plan: incidence.parquet or secrets.parquet."""
        return (self.paths.canaries if self.has_canaries else self.paths.scan) / "public" / name


def chat_template_of(config: Config) -> ChatTemplate | Callable[[], ChatTemplate]:
    """The chat template that the config names, or a function that loads the model's where rows are conversations."""
    name, model = config.data.chat_template, config.model
    load = partial(
        ChatTemplate.load,
        None if name is None else config.located(name),
        model=None if model.name is None else config.located(model.name),
        special_tokens=None if model.small is None else SMALL_SPECIAL_TOKENS,
    )
    return load if name is None else load()


def read_source(config: Config) -> Corpus:
    """The rows of the source as texts; conversations as the template of the config or of the model writes them."""
    data = config.data
    return read_corpus(
        config.source,
        column=data.column,
        unit=data.unit,
        columns=data.columns or (),
        template=chat_template_of(config),
    )


class Estimate(NamedTuple):
    """How large a stage is, in words, and about how many seconds it takes; None where nothing tells."""

    size: str
    seconds: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What an estimate is made from, before anything runs.

    files and bytes: of the data; no files for a data set known by name. outputs: of the stages that are finished.
    rounds_done: rounds of the training that were saved.
    """

    config: Config
    files: int
    bytes: int
    outputs: Mapping[str, dict[str, Any]]
    rounds_done: int


class StageWork(Protocol):
    """What a stage does.

    settings: everything that its results depend on besides the stages it needs, as JSON. run: does the work, leaves
    the results in the folder of the run and returns what to record; "fingerprint" in it stands for the results where
    later stages depend on them. has_results: whether the results are still in the folder.
    """

    def settings(self, job: RunJob) -> Any: ...

    def run(self, job: RunJob) -> dict[str, Any]: ...

    def has_results(self, job: RunJob) -> bool: ...

    def estimate(self, known: Known) -> Estimate: ...


# --- files that fingerprints are taken of

READ_BYTES = 2**20  # of a file at once
DATASET_FILES = ("dataset_info.json", "dataset_dict.json")  # mark a saved data set, all of whose files belong to it
GIT_HEADS = ("HEAD", "packed-refs", "refs/heads")  # name the commits of a repository


def files_of(source: str, *, code: bool) -> list[tuple[str, Path]]:
    """The files of some data with their relative names, sorted; none for a data set that is known by name.

    Hidden files count only in code, and of .git only what names the commits.
    """
    root = Path(source)
    if root.is_file():
        return [(root.name, root)]
    paths: list[Path] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".git" and (code or not name.startswith("."))]
        paths += [Path(place, name) for name in names if code or not name.startswith(".")]
    if code:
        for name in GIT_HEADS:
            path = root / ".git" / name
            paths += [path] if path.is_file() else path.rglob("*")
    return sorted((path.relative_to(root).as_posix(), path) for path in paths if path.is_file())


def unread_files(source: str) -> list[str]:
    """A notice about files in a folder of texts or tables that are not read because of how their names end."""
    folder = Path(source)
    if not folder.is_dir() or any((folder / name).is_file() for name in DATASET_FILES):
        return []
    unread = sum(kind_of(path) is None for _, path in files_of(source, code=False))
    endings = ", ".join(KINDS)
    return [f"left out, since their names end in none of {endings}: {counted(unread, 'file')}"] if unread else []


def file_rows(files: list[tuple[str, Path]], progress: Callable[[int], object] | None = None) -> Iterator[str | bytes]:
    """Names and contents in pieces, such that no two lists of files give the same rows; progress gets bytes read."""
    done = 0
    for name, path in files:
        yield os.fsencode(name)
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                done += len(piece)
                if progress is not None:
                    progress(done)
                yield piece
        yield b""
