"""The folder of a ledger: which trainings of a chain began, under which plans, and which secret had which id.

ledger.json          format, the id of the data key, and which secrets the owner merged
identities.parquet   id, rule and keyed fingerprint of every secret that a scan with this ledger found
data.key             the data key, unless a config names another file
releases/0001/       one folder for each training that began, which appears as a whole before its first round:
  entry.json         number, digest of its plan, where it trains, how far it got
  plan/              a copy of its plan
  rows.parquet       the keyed fingerprint of every example of its data
canaries.json        the planted canaries, which are the same in every release
lock                 held while something is written

Whatever began counts as a release of the chain: somebody has seen, or may have seen, what came of it. So an entry is
never removed, and a plan is made after all that are there. The folder is for the owner alone; it holds no text of a
secret or of an example, but with the key it would confirm guesses.

Guarantees: an entry is in the ledger before the first round of its training, or there is no round. Safe to kill at any
moment. One plan is trained once. Another key is refused.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.errors import InvalidInput, Setting
from hush.keys import FINGERPRINT_BYTES, DataKey
from hush.plan import Plan
from hush.plan.earlier import copy_earlier, earlier_beside
from hush.plan.files import read_record
from hush.plan.plan import are_canaries
from hush.scan.identities import IDENTITIES_FILE, Identities
from hush.storage import (
    FolderLock,
    clear_leftovers,
    flush,
    is_leftover,
    read_json,
    read_table,
    whole_file,
    whole_folder,
    write_table,
)

__all__ = ["Entry", "Ledger", "State", "check_folder", "fingerprints_of", "plan_digest"]


FORMAT = "hush ledger 1"
RECORD, RELEASES, KEY, CANARIES, LOCK = "ledger.json", "releases", "data.key", "canaries.json", "lock"
KNOWN = {RECORD, RELEASES, KEY, CANARIES, LOCK, IDENTITIES_FILE}
ENTRY, PLAN, ROWS = "entry.json", "plan", "rows.parquet"
ROWS_KIND = "ledger rows"
LOCK_SECONDS, LOCK_PAUSE = 60.0, 0.05  # for another process that writes: it holds the lock for moments
TRAINING_RECORD = Path("owner", "run.json")  # of a training, from before its first round

State = Literal["started", "finished", "released"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A training that began. It counts as a release of the chain, whatever became of it.

    number: from 1. plan: the digest of its plan. training: its folder. began: when it was entered. state: how far it
    got; "released" means that its model lies where it may leave the owner's hands. rounds: whether a round of it was
    reported. abandoned: the owner said that it will not be finished.
    """

    number: int
    plan: str
    training: str
    began: str
    state: State = "started"
    rounds: bool = False
    abandoned: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it began, is not finished, and may still be."""
        return self.state == "started" and not self.abandoned

    def is_training(self, folder: Path) -> bool:
        """Whether this is its training: in its folder, or in a new place to which that was moved."""
        known, asked = Path(self.training), folder.resolve()
        return known == asked or (known.name == asked.name and not known.exists())


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ledger:
    """The content of a ledger's folder at one moment; every change is made in the folder and gives a new one.

    ancestors: for an id the earlier ids whose examples count as its own in earlier releases, as the owner stated.
    """

    folder: Path
    key: str
    entries: tuple[Entry, ...] = ()
    ancestors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    # --- opening

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, key: str | None = None) -> Self:
        """The ledger in a folder; key: the id of the data key that it must be under."""
        root = Path(folder).resolve()
        content = _read(root / RECORD)
        if key is not None and content["key"] != key:
            raise InvalidInput(
                f"the ledger {root} is under the key {content['key']}, but this key is {key}: with another key no "
                "secret would be recognised; pass the ledger's key",
                setting="key",
            )
        ancestors = {name: tuple(each) for name, each in content["ancestors"].items()}
        return cls(folder=root, key=content["key"], entries=_read_entries(root / RELEASES), ancestors=ancestors)

    @classmethod
    def load_or_create(cls, folder: str | os.PathLike[str], key: str) -> Self:
        """The ledger in a folder under the key of this id; an empty one where there is none."""
        root = Path(folder).resolve()
        check_folder(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        with _locked(root):
            if not (root / RECORD).exists():
                if (root / RELEASES).exists() or (root / IDENTITIES_FILE).exists():
                    raise InvalidInput(f"{root} holds releases but no {RECORD}; restore the whole ledger from a copy")
                _store(root, key, {})
        return cls.load(root, key=key)

    @classmethod
    def with_key(cls, folder: str | os.PathLike[str], path: Path | None = None) -> tuple[Self, DataKey]:
        """The ledger in a folder and the data key at ``path``, by default in the ledger; created on first use."""
        root = Path(folder)
        check_folder(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = cls.key_path(root) if path is None else path
        clear_leftovers(place.parent, of=place.name)
        key = DataKey.load_or_create(place)
        return cls.load_or_create(root, key.id), key

    @staticmethod
    def is_at(folder: str | os.PathLike[str]) -> bool:
        """Whether there is a ledger in this folder."""
        return (Path(folder) / RECORD).is_file()

    @staticmethod
    def key_path(folder: str | os.PathLike[str]) -> Path:
        """Where the data key lies if no other place is named."""
        return Path(folder) / KEY

    # --- reading

    @cached_property
    def identities(self) -> Identities:
        """Every secret that a scan with this ledger found."""
        path = self.folder / IDENTITIES_FILE
        if not path.is_file():
            return Identities.none(self.key)
        identities = Identities.load(path)
        identities.check_key(self.key)
        return identities

    def predecessors(self, *, before: Entry | None = None) -> tuple[Path, ...]:
        """The folders of the plans of all entries, in order; only of those before an entry, if one is named."""
        entries = self.entries if before is None else self.entries[: before.number - 1]
        return tuple(self.plan_folder(entry) for entry in entries)

    def plan_folder(self, entry: Entry) -> Path:
        """The copy of an entry's plan."""
        return self._place(entry.number) / PLAN

    def plan(self, entry: Entry) -> Plan:
        """An entry's plan, which must be the one that was entered."""
        folder = self.plan_folder(entry)
        if plan_digest(folder) != entry.plan:
            raise InvalidInput(f"{folder} is not the plan that release {entry.number} was entered with; restore it")
        return Plan.load(folder)

    def rows(self, entry: Entry) -> NDArray[np.uint8]:
        """The keyed fingerprints of an entry's examples: a row of bytes each. Canaries, which come last, have none."""
        path = self._place(entry.number) / ROWS
        table, labels = read_table(path, kind=ROWS_KIND, columns=("fingerprint",))
        if labels.get("key") != self.key:
            raise InvalidInput(f"{path} is not under the key of the ledger; restore it")
        content = b"".join(table.column("fingerprint").to_pylist())
        return np.frombuffer(content, dtype=np.uint8).reshape(-1, FINGERPRINT_BYTES)

    def lay_beside(self, entry: Entry, release: Path) -> None:
        """Copy the plans before an entry into ``earlier/`` of its release, so that anybody can verify the chain."""
        places = self.predecessors(before=entry)
        if places and len(earlier_beside(release)) < len(places):
            copy_earlier(places, release)

    def entry_of(self, digest: str) -> Entry | None:
        """The entry of the plan with this digest."""
        return next((entry for entry in self.entries if entry.plan == digest), None)

    def ancestors_of(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """All stated ancestors of these ids, also those of ancestors; nothing for ids without any."""
        return {name: closed for name in ids if (closed := self._closed(name))}

    def _closed(self, name: str) -> tuple[str, ...]:
        reached: dict[str, None] = {}
        waiting = list(self.ancestors.get(name, ()))
        while waiting:
            each = waiting.pop(0)
            if each not in reached and each != name:
                reached[each] = None
                waiting += self.ancestors.get(each, ())
        return tuple(reached)

    # --- writing

    def register(self, identities: Identities) -> "Ledger":
        """Enter the secrets of a scan, which must have been given the identities of this ledger."""

        def change(ledger: Ledger) -> None:
            joined = ledger.identities.joined(identities)
            if len(joined) > len(ledger.identities):
                joined.save(self.folder / IDENTITIES_FILE)
                flush(self.folder)

        return self._changed(change)

    def begin(self, plan: Path, training: Path, rows: NDArray[np.uint8]) -> "Ledger":
        """Enter a training before its first round, or find the entry of one that is resumed.

        plan: the folder of its plan, made after all entries. training: the folder of the training. rows: the keyed
        fingerprints of the examples, (N, 32) bytes, canaries left out.

        Guarantee: once this returns, the entry survives a crash.
        """
        digest, asked = plan_digest(plan), training.resolve()

        def change(ledger: Ledger) -> None:
            entry = ledger.entry_of(digest)
            if entry is None:
                loaded = Plan.load(plan)
                ledger._check_next(loaded, rows)
                entry = Entry(number=len(ledger.entries) + 1, plan=digest, training=str(asked), began=_now())
                with whole_folder(ledger._place(entry.number)) as work:
                    work.chmod(0o700)
                    shutil.copytree(plan, work / PLAN)
                    _write_rows(rows, work / ROWS, self.key)
                    _write_entry(entry, work)
                flush(self.folder / RELEASES)
                return
            ledger._check_resumed(entry, asked)
            if entry.training != str(asked):
                ledger._replace(replace(entry, training=str(asked)))

        return self._changed(change)

    def advance(
        self, digest: str, *, state: State | None = None, rounds: bool = False, abandoned: bool = False
    ) -> "Ledger":
        """Note how far the training under a plan got. It never falls back behind what was noted."""

        def change(ledger: Ledger) -> None:
            entry = ledger.entry_of(digest)
            if entry is None:
                raise InvalidInput(f"{self.folder} has no entry for the plan {digest}; restore the ledger")
            order: tuple[State, ...] = get_args(State)
            reached = entry.state if state is None else max(entry.state, state, key=order.index)
            later = replace(entry, state=reached, rounds=entry.rounds or rounds, abandoned=entry.abandoned or abandoned)
            if later != entry:
                ledger._replace(later)

        return self._changed(change)

    def abandon(self, number: int) -> "Ledger":
        """Note that a training will not be finished. It still counts as a release."""
        if not 1 <= number <= len(self.entries):
            raise InvalidInput(
                f"there are {len(self.entries)} releases; pass the number of one", setting="abandon", value=number
            )
        entry = self.entries[number - 1]
        if entry.state != "started":
            raise InvalidInput(f"release {number} is {entry.state}; only one that is not finished can be abandoned")
        return self.advance(entry.plan, abandoned=True)

    def merge(self, name: str, earlier: Sequence[str]) -> "Ledger":
        """State that the examples of earlier secrets count as those of this one, as after a merge or a split."""

        def change(ledger: Ledger) -> None:
            known = set(ledger.identities.ids) | {each for entry in ledger.entries for each in ledger._ids(entry)}
            for each in (name, *earlier):
                if each not in known:
                    raise InvalidInput(f"no scan with this ledger found a secret {each}; pass ids of its secrets")
            if name in earlier or not earlier:
                raise InvalidInput(f"pass the earlier ids that {name} stands for, other than itself")
            joined = tuple(dict.fromkeys((*ledger.ancestors.get(name, ()), *earlier)))
            _store(self.folder, self.key, {**ledger.ancestors, name: joined})

        return self._changed(change)

    @property
    def canaries(self) -> Path:
        """The file of the canaries that every release of the chain holds; there is none before the first."""
        return self.folder / CANARIES

    def keep_canaries(self, planted: Path) -> None:
        """Keep the canaries of the first release that has any: their file, with which are the true ones."""
        with _locked(self.folder):
            if not self.canaries.is_file():
                with whole_file(self.canaries, owner_only=True) as file:
                    file.write(planted.read_bytes())
                flush(self.folder)

    def _changed(self, change: Callable[["Ledger"], None]) -> "Ledger":
        """Make a change to the ledger as it is now, alone."""
        with _locked(self.folder):
            change(Ledger.load(self.folder, key=self.key))
            return Ledger.load(self.folder, key=self.key)

    def _check_next(self, plan: Plan, rows: NDArray[np.uint8]) -> None:
        """Refuse a plan that is not the next of this chain, and one beside a training that is not finished."""
        chain, digests = plan.chain, tuple(entry.plan for entry in self.entries)
        if chain is None:
            raise InvalidInput(
                "the plan accounts for one release alone, and the ledger is of a chain; make it as one of the chain"
            )
        if chain.predecessors != digests:
            raise InvalidInput(
                f"the plan was made after {len(chain.predecessors)} releases, and the ledger {self.folder} has "
                f"{len(digests)}, or others; plan again"
            )
        self.check_no_other_open()
        stated = {name: tuple(each) for name, each in chain.ancestors.items() if each}
        if any(set(stated.get(name, ())) != set(each) for name, each in self.ancestors_of(plan.secret_ids).items()):
            raise InvalidInput("secrets were merged in the ledger since the plan was made; plan again")
        known, canary_S = set(self.identities.ids), are_canaries(plan).tolist()
        named = zip(plan.secret_ids, canary_S, strict=True)
        unknown = [name for name, is_canary in named if name not in known and not is_canary]
        if unknown:
            raise InvalidInput(
                f"{len(unknown)} secrets of the plan were not found by a scan with this ledger ({unknown[0]}); scan "
                "with the ledger, and plan again"
            )
        if rows.ndim != 2 or rows.shape[1] != FINGERPRINT_BYTES or len(rows) > plan.incidence.num_examples:
            raise InvalidInput(
                f"the rows are of shape {rows.shape}; pass the fingerprint of each of the plan's "
                f"{plan.incidence.num_examples} examples, canaries left out"
            )

    def check_no_other_open(self) -> None:
        """Refuse to begin a training beside one that is not finished."""
        for entry in self.entries:
            if entry.is_open:
                raise InvalidInput(
                    f"release {entry.number} of the ledger {self.folder} began in {entry.training} and is not "
                    "finished: go on with it there; or, if it will never be finished, say so by ",
                    Setting("abandon"),
                    f"={entry.number} (hush ledger). It counts as a release either way",
                )

    def _check_resumed(self, entry: Entry, training: Path) -> None:
        """Refuse to train a plan a second time."""
        if not entry.is_training(training):
            raise InvalidInput(
                f"this plan is that of release {entry.number}, whose training is in {entry.training}: a plan is "
                "trained once; go on there, or make a plan for another release"
            )
        if entry.rounds and not (training / TRAINING_RECORD).is_file():
            raise InvalidInput(
                f"release {entry.number} made rounds in {entry.training}, whose record is gone; restore the folder, or "
                "leave it and make a plan for another release: this one counts, since somebody may have its models"
            )

    def _ids(self, entry: Entry) -> list[str]:
        table, _ = read_table(self.plan_folder(entry) / "secrets.parquet", kind="plan secrets", columns=("id",))
        return table.column("id").to_pylist()

    def _replace(self, entry: Entry) -> None:
        _write_entry(entry, self._place(entry.number))

    def _place(self, number: int) -> Path:
        return self.folder / RELEASES / f"{number:04d}"

    def __repr__(self) -> str:
        return f"Ledger({len(self.entries)} releases, key {self.key})"


def plan_digest(folder: Path) -> str:
    """The digest by which plans of a chain name their predecessors."""
    return str(read_record(folder)["digest"])


def fingerprints_of(texts: Iterable[str], key: DataKey) -> NDArray[np.uint8]:
    """The keyed fingerprint of each example, (N, 32) bytes."""
    leaves = b"".join(key.fingerprint_row(text) for text in texts)
    return np.frombuffer(leaves, dtype=np.uint8).reshape(-1, FINGERPRINT_BYTES)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a ledger."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; name a folder for the ledger")
    foreign = sorted(
        entry.name for entry in folder.iterdir() if entry.name not in KNOWN and not is_leftover(entry.name)
    )
    if foreign:
        raise InvalidInput(f"{folder} holds something other than a ledger ({foreign[0]}); name a new folder")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Be the only one who writes; what a killed process left is cleared."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            lock = FolderLock(folder / LOCK)
            break
        except InvalidInput:
            if time.monotonic() > until:
                raise
            time.sleep(LOCK_PAUSE)
    try:
        for place in (folder, folder / RELEASES, *(folder / RELEASES).glob("*")):
            clear_leftovers(place)
        yield
    finally:
        lock.release()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- files


def _store(folder: Path, key: str, ancestors: Mapping[str, Sequence[str]]) -> None:
    content = {"format": FORMAT, "key": key, "ancestors": {name: list(each) for name, each in ancestors.items()}}
    with whole_file(folder / RECORD, owner_only=True) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
    flush(folder)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InvalidInput(f"{path.parent} is no ledger: it has no {path.name}; name the folder of one")
    try:
        content = read_json(path)
        if content["format"] != FORMAT:
            raise ValueError("another format")
        ancestors = {str(name): [str(each) for each in earlier] for name, earlier in content["ancestors"].items()}
        return {"key": str(content["key"]), "ancestors": ancestors}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(f"{path} is not that of a ledger of this hush ({FORMAT}); restore it") from None


def _read_entries(folder: Path) -> tuple[Entry, ...]:
    """All entries, which must be numbered without a gap: a chain with a hole would hide what was spent."""
    names = sorted(path.name for path in folder.iterdir() if not is_leftover(path.name)) if folder.is_dir() else []
    if names != [f"{number:04d}" for number in range(1, len(names) + 1)]:
        raise InvalidInput(f"{folder} lacks a release, or holds something else; restore the ledger from a copy")
    entries = tuple(_read_entry(folder / name / ENTRY) for name in names)
    if any(entry.number != number for number, entry in enumerate(entries, 1)):
        raise InvalidInput(f"the entries in {folder} are not in order; restore the ledger from a copy")
    return entries


def _read_entry(path: Path) -> Entry:
    try:
        entry = Entry(**read_json(path))
        if entry.state not in get_args(State) or type(entry.number) is not int:
            raise ValueError("no such state")
        return entry
    except (OSError, ValueError, TypeError):
        raise InvalidInput(f"{path} is not an entry of a ledger; restore it") from None


def _write_entry(entry: Entry, folder: Path) -> None:
    with whole_file(folder / ENTRY, owner_only=True) as file:
        file.write(json.dumps(asdict(entry), indent=2).encode() + b"\n")
    flush(folder)


def _write_rows(rows: NDArray[np.uint8], path: Path, key: str) -> None:
    content = np.ascontiguousarray(rows)
    kind = pa.binary(FINGERPRINT_BYTES)
    column = pa.FixedSizeBinaryArray.from_buffers(kind, len(content), [None, pa.py_buffer(content)])
    write_table(pa.table({"fingerprint": column}), path, kind=ROWS_KIND, metadata={"key": key}, owner_only=True)
