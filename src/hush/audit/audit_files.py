"""The folder of an audit: finished pieces of work, which are never done again, and at the end the report.

audit.json, audit.md   the result: counts and numbers, no text. Readable by its owner alone until the owner shares it
owner/                 pieces of each attack as lines of JSON; details.json: secret by secret; audit.key

A piece belongs to its inputs (model, plan, settings, and for data its tokens), of which a keyed fingerprint is kept.
Each carries a keyed check of itself and its place: from the first that was changed or doubled, work is done again.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

from hush.audit.attempts import NamedRun
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.plan.files import read_json
from hush.storage import whole_file

__all__ = ["AuditFolder", "Pieces", "check_folder", "read_named_run"]

Record = dict[str, Any]
REPORT = ("audit.json", "audit.md")


def check_folder(folder: Path) -> None:
    """Refuse a place that holds anything but an audit."""
    if not folder.exists():
        return
    owner = folder / "owner"
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else {"a file"}
    begun = owner.is_dir() and ((names == {"owner"} and not any(owner.iterdir())) or (owner / "audit.key").is_file())
    if names - {"owner", *REPORT} or (names and not begun):
        raise InvalidInput(f"{folder} holds something other than an audit; name a new folder")


@final
class AuditFolder:
    """Where an audit is kept; a later one with the same inputs goes on from there."""

    def __init__(self, folder: str | Path) -> None:
        self.root = Path(folder)
        check_folder(self.root)
        self.owner = self.root / "owner"
        self.owner.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = DataKey.load_or_create(self.owner / "audit.key")

    def pieces(self, name: str, inputs: Iterable[str | bytes]) -> "Pieces":
        """What is done of an attack with exactly these inputs."""
        return Pieces(self.owner / f"{name}.jsonl", self._key.fingerprint_rows(inputs), self._key)

    def write(self, record: Record, text: str, details: Record) -> None:
        """Write the report, each file whole."""
        contents = {
            self.root / "audit.json": json.dumps(record, indent=2, allow_nan=False) + "\n",
            self.root / "audit.md": text,
            self.owner / "details.json": json.dumps(details, indent=1, allow_nan=False) + "\n",
        }
        for path, content in contents.items():
            with whole_file(path, owner_only=True) as file:
                file.write(content.encode())


def read_named_run(folder: str | Path) -> NamedRun:
    """What naming came to in an audit that is finished, to be counted with other runs."""
    path = Path(folder) / "audit.json"
    try:
        record: Any = read_json(path)
        named = NamedRun(**record["naming"])
        _check_named(named)
    except (ValueError, TypeError, KeyError):
        raise InvalidInput(f"{path} is no audit in which a canary was to be named; audit with --canaries") from None
    return named


def _check_named(named: NamedRun) -> None:
    """A count of an edited report would be no count: every field is what an audit writes."""
    chances = [named.prior] if named.certified is None else [named.prior, named.certified]
    if not all(isinstance(one, str) and one for one in (named.model, named.planting)):
        raise ValueError
    if type(named.hit) is not bool or type(named.told) is not bool or named.hit > named.told:
        raise ValueError
    if not all(isinstance(one, int | float) and 0 < one <= 1 for one in chances) or named.prior > chances[-1]:
        raise ValueError


@final
class Pieces:
    """Lines of JSON after one that names their inputs; those of other inputs are dropped."""

    def __init__(self, path: Path, inputs: str, key: DataKey) -> None:
        self._path, self._inputs, self._key = path, inputs, key
        self.done: list[Record] = []
        for place, record in enumerate(_read(path, inputs)):
            check = record.pop("check", None)
            if check != self._check(place, record):
                break
            self.done.append(record)
        with whole_file(path, owner_only=True) as file:  # without the half line that a kill may have left
            file.write(json.dumps({"inputs": inputs}).encode() + b"\n")
            for place, record in enumerate(self.done):
                file.write(self._line(place, record).encode())

    def add(self, record: Record) -> None:
        """Keep a piece; after a kill it is there, or it was not done."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(len(self.done), record))
        self.done.append(record)

    def _line(self, place: int, record: Record) -> str:
        return json.dumps({**record, "check": self._check(place, record)}) + "\n"

    def _check(self, place: int, record: Record) -> str:
        return self._key.fingerprint_rows([self._inputs, str(place), json.dumps(record)])


def _read(path: Path, inputs: str) -> list[Record]:
    if not path.is_file():
        return []
    found: list[Record] = []
    for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last line break was not finished
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        found.append(record)
    return found[1:] if found and found[0] == {"inputs": inputs} else []
