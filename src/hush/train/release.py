"""The folder of a run: what stays with the owner, what is released, and the ledger that keeps count between the two.

owner/run.json       which plan, the seed of the draws, the ledger of released rounds
owner/checkpoints/   states to resume from
owner/rounds.jsonl   the run log
owner/scores.jsonl   scores on data without secrets, until they are released
owner/base_model.txt where the base model of adapters lies, if it has no public name
owner/lock           held by the process that trains
release/round-…/     a model released on the way
release/model/       the final model; beside it certificate.json, certificate.md, plan/ (a copy to verify) and, if
                     there are scores, evaluations.jsonl

A release is made from a state that is safe in a checkpoint, and is entered in the ledger before it appears. So a run
that dies goes on from the last released round or a later one: no round is ever released twice with different noise.
Scores appear with the final model, and only those of rounds on the way to it: a round that a crash undid is done again
with other noise, and its first scores are dropped.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, final

from torch import nn

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.storage import flush, folder_digest, readable_like_folder, whole_file, whole_folder
from hush.train.checkpoint import Checkpoints
from hush.train.ledger import Ledger
from hush.train.lock import FolderLock
from hush.train.owner_paths import without_owner_paths
from hush.train.run_log import RoundLines

__all__ = ["EVALUATIONS", "SCORES", "Export", "RunFolder", "local_base_of", "tensors_of"]

SCORES, EVALUATIONS = "scores.jsonl", "evaluations.jsonl"  # before their release, and after it
BASE_MODEL = "base_model.txt"

Export = Callable[[Path], object]
"""Writes the model, as it is now, into a folder."""

_ROUND = re.compile(r"round-(\d{6,})")
_REMAINS = re.compile(r"\..*\.(tmp|old)")
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # safetensors tells of a full disk by an error of its own


@final
class RunFolder:
    """The folder of one run, locked for as long as it is open.

    Guarantee: ``resume`` never goes back before a released round, so the releases of a run, however often it was
    killed, are those of one training of at most the plan's rounds.
    """

    def __init__(
        self,
        folder: str | Path,
        plan: Plan,
        *,
        insecure_seed: int | None,
        draw_seed: bytes,
        marks: Iterable[str] = (),
        keep: int = 2,
    ) -> None:
        self.root = Path(folder).resolve()
        self.owner, self.public = self.root / "owner", self.root / "release"
        self.checkpoints = Checkpoints(self.owner / "checkpoints", keep=keep)
        self._plan = plan
        self.saved = -1  # the round of the last checkpoint
        self.owner.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.owner.chmod(0o700)
        self._lock = FolderLock(self.owner / "lock")
        try:
            for folder in (self.owner, self.checkpoints.folder, self.public):
                _clear_remains(folder)
            self._ledger = self._open_ledger(insecure_seed, draw_seed)
            self._change(self._ledger.with_marks(marks))
            self._check_released()
        except BaseException:
            self.close()
            raise

    @property
    def draw_seed(self) -> bytes:
        """The seed of the draws: the one that this run began with."""
        return bytes.fromhex(self._ledger.draw_seed)

    @property
    def last_released(self) -> int:
        """The last round of which somebody may have seen the model."""
        return self._ledger.last_released

    def resume(self) -> dict[str, Any] | None:
        """The newest whole checkpoint; None to begin with round 0."""
        state = self.checkpoints.newest()
        if state is not None and state.get("run") != self._ledger.run:
            raise InvalidInput(
                f"{self.checkpoints.folder} holds a checkpoint of another run; restore the checkpoints of this one"
            )
        reached = 0 if state is None else state["round"]
        if reached < self.last_released:
            raise InvalidInput(
                f"the model of round {self.last_released} was released, but the newest whole checkpoint in "
                f"{self.checkpoints.folder} is of round {reached}: going on from there would release rounds twice, "
                "with other noise. Restore the lost checkpoints; if they are gone, the run ends with what was released"
            )
        self.saved = -1 if state is None else reached
        return state

    def save(self, round: int, state: dict[str, Any]) -> None:
        """Keep a state to resume from."""
        self._lock.check()
        self.checkpoints.write(round, state | {"run": self._ledger.run})
        self.saved = round

    def release(self, round: int, export: Export) -> Path:
        """Release the model of this round, the one last saved; nothing happens if that was done before."""
        path = self.public / f"round-{round:06d}"
        if not path.exists():
            self._note(round)
            self._write(path, export)
        return path

    def is_pending(self, round: int) -> bool:
        """Whether the ledger says that this round was released, but a crash kept it from appearing."""
        missing = not (self.public / f"round-{round:06d}").exists()
        return missing and round in self._ledger.released and not self._ledger.finished

    def finish(self, certificate: Certificate, export: Export) -> Certificate:
        """Release the final model with its certificate; doing it again after a crash comes to the same."""
        self._note(self._plan.rounds, finished=True)
        self._write(self.public / "model", export)
        certificate = replace(
            certificate,
            marks=(*certificate.marks, *self._ledger.marks),
            fingerprints={**certificate.fingerprints, "model": folder_digest(self.public / "model")},
        )
        if not self._ledger.marks:  # beside the model of a marked run no certificate without the mark may lie
            self._plan.save(self.public / "plan")
        texts = {
            **self._evaluations(),
            "certificate.md": certificate.to_markdown(),
            "certificate.json": json.dumps(certificate.to_dict(), indent=2, allow_nan=False) + "\n",
        }
        for name, text in texts.items():
            with whole_file(self.public / name) as file:
                file.write(text.encode())
        self._hide_times(self.public)
        flush(self.public)
        return certificate

    def check_open(self) -> None:
        """Refuse to write anything once another process may train here."""
        self._lock.check()

    def close(self) -> None:
        """Let another process train here."""
        self._lock.release()

    def _evaluations(self) -> dict[str, str]:
        """The file of scores, if there are any."""
        path = self.owner / SCORES
        lines = [json.dumps(row) + "\n" for row in RoundLines.read(path)] if path.exists() else []
        return {EVALUATIONS: "".join(lines)} if lines else {}

    def _open_ledger(self, insecure_seed: int | None, draw_seed: bytes) -> Ledger:
        path = self.owner / "run.json"
        if path.exists():
            ledger = Ledger.load(path)
            ledger.check(path, self._plan, insecure_seed)
            return ledger
        found = [self.public / name for name in _names(self.public)]
        found += [self.owner / name for name in _names(self.owner) if name != "lock"]
        if found:
            raise InvalidInput(f"{path} is missing, but {found[0]} exists; restore it, or train in a new folder")
        ledger = Ledger.begin(self._plan, insecure_seed, draw_seed)
        ledger.store(path)
        flush(self.root)
        flush(self.root.parent)
        return ledger

    def _note(self, round: int, *, finished: bool = False) -> None:
        """Enter a release in the ledger, before it appears."""
        self._lock.check()
        if round != self.saved:
            raise InvalidInput(
                f"round {round} cannot be released before it is saved; the last one saved is {self.saved}"
            )
        self._change(self._ledger.with_release(round, finished=finished))

    def _change(self, ledger: Ledger) -> None:
        if ledger != self._ledger:
            ledger.store(self.owner / "run.json")
            self._ledger = ledger

    def _write(self, path: Path, export: Export) -> None:
        with whole_folder(path) as work:
            try:
                export(work)
            except Exception as error:
                told = _SYSTEM_ERROR.search(str(error))
                if told is None:
                    raise
                raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from None
            self._hide_paths(work)
            readable_like_folder(work)
            self._hide_times(work)
        self._hide_times(self.public)  # which just got a new entry
        flush(self.root)

    def _hide_paths(self, folder: Path) -> None:
        """Paths of the owner's machine stay here; an audit needs that of the base model again."""
        base = without_owner_paths(folder)
        if base is not None:
            with whole_file(self.owner / BASE_MODEL) as file:
                file.write(str(Path(base).resolve() if Path(base).exists() else base).encode())

    def _hide_times(self, folder: Path) -> None:
        """When files were written says how long the rounds took, and so how large their secret draws were."""
        time = datetime.fromisoformat(self._plan.created).timestamp()
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (time, time))

    def _check_released(self) -> None:
        """Whatever lies in release/ must be in the ledger; otherwise owner/ is older than it."""
        names = _names(self.public)
        unknown = [name for name in names if (m := _ROUND.fullmatch(name)) and int(m[1]) not in self._ledger.released]
        if not self._ledger.finished:
            unknown += [name for name in names if name in ("model", "certificate.json", "certificate.md", EVALUATIONS)]
        if unknown:
            raise InvalidInput(
                f"{self.public / unknown[0]} exists, but {self.owner / 'run.json'} knows nothing of its release: the "
                "owner's files are older than what was released. Restore them, or train in a new folder"
            )


def local_base_of(model: Path) -> str | None:
    """Where the base model lies that a run's released adapters belong to; None where no owner's file says so."""
    path = model.resolve().parent.parent / "owner" / BASE_MODEL
    return path.read_text(encoding="utf-8") if path.is_file() else None


def tensors_of(model: nn.Module) -> Export:
    """Writes a model as a safetensors file."""

    def export(folder: Path) -> None:
        try:
            from safetensors.torch import save_model
        except ImportError as error:
            raise InvalidInput("writing a model needs safetensors; pip install safetensors, or pass export=") from error
        save_model(model, str(folder / "model.safetensors"))

    return export


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _clear_remains(folder: Path) -> None:
    """Remove what a write left behind when its process was killed."""
    for name in filter(_REMAINS.fullmatch, _names(folder)):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
