"""What a run must never forget, in one small owner-only file: its plan, the seed of its draws, the rounds released."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, final

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.files import read_json
from hush.plan.invariants import fingerprint
from hush.train.checkpoint import durable_file

__all__ = ["Ledger"]

_SETTINGS = ("noise_multiplier", "noise_scale", "rounds", "batch_size", "clip_norm", "bound", "data_fingerprint")


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ledger:
    """A run is named at random; ``released`` and ``marks`` only ever grow, and are stored before a release appears."""

    run: str
    plan: dict[str, Any]
    insecure_seed: int | None
    draw_seed: str
    marks: tuple[str, ...] = ()
    released: tuple[int, ...] = ()
    finished: bool = False

    @classmethod
    def begin(cls, plan: Plan, insecure_seed: int | None, draw_seed: bytes) -> Self:
        """The ledger of a new run."""
        run = os.urandom(16).hex()
        return cls(run=run, plan=_identity(plan), insecure_seed=insecure_seed, draw_seed=draw_seed.hex())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``store`` wrote."""
        try:
            content: dict[str, Any] = read_json(path)
            return cls(**{**content, "released": tuple(content["released"]), "marks": tuple(content["marks"])})
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"{path} is not the ledger of a run; restore it, or train in a new folder") from error

    def store(self, path: Path) -> None:
        """Replace the ledger at this path; it survives a crash once this returns."""
        with durable_file(path) as file:
            file.write(json.dumps(asdict(self), indent=2).encode())

    @property
    def last_released(self) -> int:
        """The last round of which somebody may have seen the model; 0 if there is none."""
        return max(self.released, default=0)

    def with_marks(self, marks: Iterable[str]) -> Self:
        """The ledger of a run that, from now on, is marked in these ways too."""
        return replace(self, marks=tuple(dict.fromkeys((*self.marks, *marks))))

    def with_release(self, round: int, *, finished: bool) -> Self:
        """The ledger that knows of one more release."""
        released = tuple(sorted({*self.released, round}))
        return replace(self, released=released, finished=self.finished or finished)

    def check(self, path: Path, plan: Plan, insecure_seed: int | None) -> None:
        """Refuse to resume under another plan, or with other seeding."""
        remedy = "resume it as it began, or train in a new folder"
        given = _identity(plan)
        differ = [
            f"{name} {self.plan.get(name)!r} against {given[name]!r}"
            for name in given
            if self.plan.get(name) != given[name]
        ]
        if differ:
            raise InvalidInput(f"{path} was begun under another plan than the one given: {', '.join(differ)}; {remedy}")
        if self.insecure_seed != insecure_seed:
            raise InvalidInput(
                f"{path} was begun with {_seeding(self.insecure_seed)}, but this training is to have "
                f"{_seeding(insecure_seed)}; {remedy}"
            )


def _identity(plan: Plan) -> dict[str, Any]:
    """What makes two plans the same training: settings, graph, promises and weights."""
    return {
        **{name: getattr(plan, name) for name in _SETTINGS},
        "incidence": plan.incidence.fingerprint,
        "promises": plan.promises_fingerprint,
        "weights": fingerprint(b"hush weights 1\n", plan.weights),
    }


def _seeding(insecure_seed: int | None) -> str:
    return "seeds from the system's entropy" if insecure_seed is None else f"insecure_seed={insecure_seed}"
