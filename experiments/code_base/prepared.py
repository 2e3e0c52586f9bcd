"""What travels to the machine that trains: one folder of tokens, plans and canaries, and nothing that needs a planner.

data.npz.xz      blocks of tokens, the graph, every plan's arrays
study.json       scale, counts, the plans' numbers, the canaries
tokenizer.json   trained on public code alone

The folder holds the code base and the true canaries: it is the owner's, and no part of any result.
"""

import io
import json
import lzma
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from experiments.code_base.scales import Scale, Setting
from hush.audit.canaries import Canary, Candidates, Template
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.plan import Plan

__all__ = ["Blocks", "Prepared"]

ARRAYS = ("prior", "ceiling", "posterior", "binding", "weights")
BLOCKS = ("trained", "public", "valid_free", "valid_projects", "test_free", "test_projects")


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Blocks:
    """Examples of at most L tokens: tokens [N, L], padded with 0 after the length of each."""

    tokens: NDArray[np.uint16]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, rows: list[list[int]], length: int) -> Self:
        tokens = np.zeros((len(rows), length), dtype=np.uint16)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = row
        return cls(tokens, np.array([len(row) for row in rows], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, number: int) -> NDArray[np.int32]:
        return self.tokens[number, : self.lengths[number]].astype(np.int32)

    def __repr__(self) -> str:
        return f"Blocks({len(self)} examples)"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Prepared:
    """Everything of a study that is not trained. spans: examples that are secret projects' own and of full length.

    facts: public counts, for tables.
    """

    scale: Scale
    trained: Blocks
    public: Blocks
    valid_free: Blocks
    valid_projects: Blocks
    test_free: Blocks
    test_projects: Blocks
    spans: NDArray[np.int64]
    incidence: Incidence
    plans: Mapping[str, Plan]
    canaries: tuple[Canary, ...]
    candidates: Candidates
    tokenizer: str
    facts: Mapping[str, Any]

    def save(self, folder: Path) -> None:
        """Tokens compress best as one stream."""
        arrays: dict[str, NDArray[Any]] = {
            "spans": self.spans,
            "offset": self.incidence.offset_S,
            "example": self.incidence.example_of_entry,
        }
        for name in BLOCKS:
            blocks: Blocks = getattr(self, name)
            arrays |= {f"{name}.tokens": blocks.tokens, f"{name}.lengths": blocks.lengths}
        for name, plan in self.plans.items():
            arrays |= {f"plan.{name}.{array}": getattr(plan, array) for array in ARRAYS}
        plain = io.BytesIO()
        save: Any = np.savez  # its types take any name for the flag allow_pickle
        save(plain, **arrays)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "data.npz.xz").write_bytes(lzma.compress(plain.getbuffer(), preset=9))
        (folder / "tokenizer.json").write_text(self.tokenizer)
        numbers = [field.name for field in fields(Plan) if field.name not in (*ARRAYS, "incidence", "secret_ids")]
        record = {
            "scale": asdict(self.scale),
            "facts": dict(self.facts),
            "plans": {name: {number: getattr(plan, number) for number in numbers} for name, plan in self.plans.items()},
            "secret_ids": list(next(iter(self.plans.values())).secret_ids),
            "candidates": [self.candidates.letters, self.candidates.length],
            "canaries": [
                [canary.id, canary.template.before, canary.template.after, canary.truth, list(canary.examples)]
                for canary in self.canaries
            ],
        }
        (folder / "study.json").write_text(json.dumps(record, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        if not (folder / "study.json").is_file():
            raise InvalidInput(f"{folder} holds no prepared study; run the part prepare first")
        record = json.loads((folder / "study.json").read_text())
        arrays = np.load(io.BytesIO(lzma.decompress((folder / "data.npz.xz").read_bytes())))
        scale = record["scale"]
        tried = tuple(Setting(**one) for one in scale.pop("tried"))
        incidence = Incidence(len(arrays["trained.lengths"]), arrays["offset"], arrays["example"])
        ids = tuple(record["secret_ids"])
        letters, length = record["candidates"]
        return cls(
            scale=Scale(**scale, tried=tried),
            **{name: Blocks(arrays[f"{name}.tokens"], arrays[f"{name}.lengths"]) for name in BLOCKS},
            spans=arrays["spans"],
            incidence=incidence,
            plans={
                name: Plan(
                    incidence=incidence,
                    secret_ids=ids,
                    **{array: arrays[f"plan.{name}.{array}"] for array in ARRAYS},
                    **numbers,
                )
                for name, numbers in record["plans"].items()
            },
            canaries=tuple(
                Canary(id=id, template=Template(before=before, after=after), truth=truth, examples=tuple(examples))
                for id, before, after, truth, examples in record["canaries"]
            ),
            candidates=Candidates(letters=letters, length=length),
            tokenizer=(folder / "tokenizer.json").read_text(),
            facts=record["facts"],
        )

    @property
    def free_N(self) -> NDArray[np.int64]:
        """Examples without any secret."""
        return np.flatnonzero(self.incidence.secrets_per_example == 0)

    def __repr__(self) -> str:
        return f"Prepared({self.scale.name}, {len(self.trained)} examples, {len(self.plans)} plans)"
