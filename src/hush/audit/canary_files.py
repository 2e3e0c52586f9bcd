"""Planted canaries on disk: data to plan for and train on, and the key that names the true candidates.

public/  incidence.parquet, secrets.parquet: for ``hush plan``
owner/   data.parquet: the corpus with the canaries after it; canaries.json: what they are. For the owner alone
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from hush.audit.canaries import Canary, Planted, Template
from hush.audit.candidates import Candidates
from hush.corpus import Corpus
from hush.errors import InvalidInput
from hush.plan.files import read_json
from hush.rounding import counted
from hush.scan.owner import OwnerWriter
from hush.storage import whole_file, whole_folder

__all__ = ["Planting", "check_folder", "read_canaries", "save_planted"]

KIND = "hush canaries 1"
CHUNK = 4096  # rows that are written at once


def check_folder(folder: Path) -> None:
    """Refuse a place that holds anything, before any work: what was planted there may be trained on already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} holds something already; name a new folder for the canaries")


def save_planted(planted: Planted, corpus: Corpus, folder: Path) -> None:
    """Write everything as a folder, which appears whole or not at all."""
    check_folder(folder)
    texts = planted.texts
    if len(corpus) + len(texts) != planted.incidence.num_examples:
        raise InvalidInput(
            f"{corpus.source} has {len(corpus)} rows, but the graph had {planted.incidence.num_examples - len(texts)} "
            "examples; pass the data whose row i is example i"
        )
    with whole_folder(folder) as work:
        public, owner = work / "public", work / "owner"
        public.mkdir()
        owner.mkdir(mode=0o700)
        planted.incidence.to_parquet(public / "incidence.parquet")
        planted.secrets.to_parquet(public / "secrets.parquet")
        schema = pa.schema({corpus.column: pa.large_string()})
        with OwnerWriter(owner / "data.parquet", schema, kind="data") as file:
            for rows in _chunks([corpus.texts(), texts]):
                file.write({corpus.column: rows})
        with whole_file(owner / "canaries.json", owner_only=True) as file:
            file.write(json.dumps(_record(planted), indent=1).encode())


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Planting:
    """Canaries that were planted, and what each may be. id: tells plantings apart."""

    id: str
    canaries: tuple[Canary, ...]
    candidates: Candidates

    def check_data(self, texts: Iterable[str]) -> None:
        """Refuse data in which these canaries do not stand: naming what was never trained on would always fail."""
        owner_of = {example: canary for canary in self.canaries for example in canary.examples}
        found: set[int] = set()
        for number, text in enumerate(texts):
            canary = owner_of.get(number)
            if canary is None:
                continue
            if text != canary.template.filled(self.candidates.text(canary.truth)):
                raise InvalidInput(f"{canary.id} does not stand in example {number}; pass the canaries of these data")
            found.add(number)
        if len(found) < len(owner_of):
            beyond = counted(len(owner_of) - len(found), "example")
            raise InvalidInput(f"beyond the data: {beyond} of canaries; pass the canaries of these data")

    def __repr__(self) -> str:
        return f"Planting({len(self.canaries)} canaries of {self.candidates.size} candidates)"


def read_canaries(folder: str | Path) -> Planting:
    """What was planted, from the folder or from its file canaries.json."""
    path = Path(folder)
    path = path / "owner" / "canaries.json" if path.is_dir() else path
    problem = f"{path} is not a file of canaries; pass the folder that hush canaries wrote"
    try:
        record: dict[str, Any] = read_json(path)
    except ValueError:
        raise InvalidInput(problem) from None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise InvalidInput(problem)
    try:
        canaries = tuple(
            Canary(
                id=str(one["id"]),
                template=Template(before=str(one["before"]), after=str(one["after"])),
                truth=int(one["truth"]),
                examples=tuple(int(example) for example in one["examples"]),
            )
            for one in record["canaries"]
        )
        candidates = Candidates.from_dict(record["candidates"])
        known = all(0 <= canary.truth < candidates.size for canary in canaries)
        planting = Planting(id=str(record["id"]), canaries=canaries, candidates=candidates)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidInput(problem) from None  # what it says instead may be a secret
    if not known or not canaries:
        raise InvalidInput(problem)
    return planting


def _record(planted: Planted) -> dict[str, Any]:
    return {
        "kind": KIND,
        "id": planted.id,
        "candidates": planted.candidates.to_dict(),
        "canaries": [
            {
                "id": canary.id,
                "before": canary.template.before,
                "after": canary.template.after,
                "truth": canary.truth,
                "examples": list(canary.examples),
            }
            for canary in planted.canaries
        ],
    }


def _chunks(parts: list[Iterable[str]]) -> Iterator[list[str]]:
    for part in parts:
        rows = iter(part)
        while chunk := list(islice(rows, CHUNK)):
            yield chunk
