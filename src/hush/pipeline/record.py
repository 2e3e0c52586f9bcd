"""stages.json: which stage is done, under which inputs, with what outcome. Replaced whole after every stage.

Everything in it that comes from private content is a fingerprint under the owner's key: a plain hash of data would let
whoever reads the file test guesses.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, final, get_args

from hush.errors import InvalidInput
from hush.plan.files import read_json
from hush.storage import flush, whole_file

__all__ = ["STAGES", "Done", "Record", "StageName"]

FORMAT = "hush run 1"
StageName = Literal["data", "scan", "canaries", "plan", "train", "audit", "report"]
STAGES: tuple[StageName, ...] = get_args(StageName)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished stage. outputs["fingerprint"] is what later stages depend on."""

    inputs: str
    outputs: dict[str, Any]


@final
@dataclass(slots=True, kw_only=True)
class Record:
    """What a run knows of its stages. attempts: how often a stage was asked for again. allowed: further trainings that
    the owner asked for by name."""

    path: Path
    key: str
    stages: dict[str, Done] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, key: str) -> Self:
        """What is recorded there under the key of this id; nothing if there is no file."""
        if not path.exists():
            return cls(path=path, key=key)
        found = cls.read(path)
        if found.key != key:
            raise InvalidInput(
                f"{path} was written under the key {found.key}, but this one is {key}; pass that key as data.key, or "
                "name a new folder"
            )
        return found

    @classmethod
    def read(cls, path: Path) -> Self:
        """What is recorded there, under whichever key: enough to find things, not to go on."""
        try:
            content = read_json(path)
            if content["format"] != FORMAT:
                raise ValueError("another format")
            return cls(
                path=path,
                key=str(content["key"]),
                stages={name: Done(**content["stages"][name]) for name in STAGES if name in content["stages"]},
                attempts={name: int(content["attempts"][name]) for name in content["attempts"]},
                allowed=[str(one) for one in content["allowed"]],
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidInput(f"{path} is not the record of a run; restore it, or name a new folder") from None

    def finish(self, stage: StageName, inputs: str, outputs: dict[str, Any]) -> None:
        """Enter a stage, once its results lie where they belong."""
        self.stages[stage] = Done(inputs=inputs, outputs=outputs)
        self.store()

    def again(self, since: StageName) -> None:
        """Have this stage and all later ones done once more."""
        for name in STAGES[STAGES.index(since) :]:
            self.attempts[name] = self.attempts.get(name, 0) + 1
        self.store()

    def store(self) -> None:
        """Replace the file; it survives a crash once this returns."""
        content = {
            "format": FORMAT,
            "key": self.key,
            "attempts": self.attempts,
            "allowed": self.allowed,
            "stages": {name: asdict(done) for name, done in self.stages.items()},
        }
        with whole_file(self.path, owner_only=True) as file:
            file.write(json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")
        flush(self.path.parent)
