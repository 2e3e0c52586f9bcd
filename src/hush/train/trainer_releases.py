"""Checkpoints of ``HushTrainer`` are releases: entered in the ledger first, then moved to where its users look.

A release is written into the owner's folder (``release/round-N``) and appears as ``checkpoint-N`` in output_dir; an
empty folder keeps its old place. What a crash kept from appearing does so when training goes on.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, final

from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.storage import flush, whole_folder
from hush.train.checkpoint import Checkpoints
from hush.train.private import PrivateTraining

__all__ = ["Releases", "move_into_place", "owner_folder"]


@final
class Releases:
    """What has been released of a run, and where.

    entered is the last round that is known to be in the ledger. writing is what an export is to write: a checkpoint, as
    the Trainer makes them, but inside ``enter`` and ``finish``.
    """

    def __init__(self, folder: Path, args: TrainingArguments) -> None:
        self._folder, self._args = folder, args
        self.entered = 0
        self.writing: Literal["checkpoint", "model", "nothing"] = "checkpoint"

    def begun_after(self, *, resuming: bool) -> int:
        """The round after which training goes on, 0 for a new one; refuses a folder that holds the other kind."""
        state, newest = Checkpoints(self._folder / "owner" / "checkpoints").newest(), self._newest()
        reached = 0 if state is None else int(state["round"])
        earlier = self._folder if state is not None else newest
        if resuming and state is None:
            raise InvalidInput(
                f"there is nothing to resume from in {self._folder / 'owner'}: what may be released does not hold what "
                "training needs; restore the owner's folder, or train anew into another output_dir"
            )
        if not resuming and earlier is not None:
            raise InvalidInput(
                f"{earlier} holds an earlier training; go on with it by train(resume_from_checkpoint=True), or train "
                "into another output_dir"
            )
        if newest is not None and int(newest.rpartition("-")[2]) > reached:
            raise InvalidInput(
                f"{newest} was released, but the newest whole state in {self._folder / 'owner'} is of round {reached}: "
                "going on from there would release rounds twice, with other noise. Restore the owner's folder as it "
                "was; if it is gone, the run ends with what was released"
            )
        return reached

    def resumed_from(self, checkpoint: str | bool | None) -> str | None:
        """The Trainer's own record of a run: the newest there is, for the owner's state is never older."""
        newest = self._newest()
        if isinstance(checkpoint, str) and (newest is None or Path(checkpoint).resolve() != Path(newest).resolve()):
            raise InvalidInput(
                f"{checkpoint} is not the newest checkpoint in {self._output}, and going back would release rounds "
                "twice, with other noise; pass resume_from_checkpoint=True"
            )
        return newest

    def target(self, round: int) -> Path:
        """Where the release of a round appears."""
        return self._output / f"checkpoint-{round}"

    def appeared(self, round: int | None) -> str | None:
        """Where the release of a round is; None if it is not there. A release itself does not say where it lies."""
        path = None if not round else self.target(round)
        return str(path) if path is not None and path.is_dir() else None

    def checkpoint(self, private: PrivateTraining) -> Path | None:
        """Release the model as it is now as a checkpoint; None if that has appeared before."""
        staged, target = self._staged(private.round), self.target(private.round)
        if target.exists():
            return None
        if staged.exists():
            staged.rmdir()  # entered for its score
        private.release()
        self.publish(private.round)
        return target

    def enter(self, private: PrivateTraining) -> None:
        """Save the state and enter its round in the ledger, as for a checkpoint, but write no model."""
        if self.entered < private.round:
            with self._writing("nothing"):
                private.release()
            self.entered = private.round

    def finish(self, private: PrivateTraining) -> Certificate:
        """Release the final model and its certificate."""
        with self._writing("model"):
            certificate = private.finish()
        self.entered = private.round
        return certificate

    def publish(self, round: int) -> None:
        """Let the release of a round appear, if there is one that has not."""
        staged = self._staged(round)
        move_into_place(staged, self.target(round))
        if staged.exists():
            self.entered = round

    @contextmanager
    def _writing(self, what: Literal["model", "nothing"]) -> Iterator[None]:
        self.writing = what
        try:
            yield
        finally:
            self.writing = "checkpoint"

    @property
    def _output(self) -> Path:
        return Path(str(self._args.output_dir))

    def _staged(self, round: int) -> Path:
        """Where the release of a round is written."""
        return self._folder / "release" / f"round-{round:06d}"

    def _newest(self) -> str | None:
        return get_last_checkpoint(str(self._output)) if self._output.is_dir() else None


def owner_folder(folder: str | Path | None, output: Path) -> Path:
    """The folder of a run, by default beside what it releases; refuses one that would be released with it."""
    chosen = output.with_name(f"{output.name}-hush") if folder is None else Path(folder).resolve()
    if chosen.is_relative_to(output):
        raise InvalidInput(
            f"folder={chosen} lies in output_dir={output}, which receives what may be released; the owner's "
            "files must stay out of it: choose another folder, or leave it out"
        )
    return chosen


def move_into_place(staged: Path, target: Path) -> None:
    """Move a released checkpoint to where it appears; an empty folder keeps its old place."""
    if not staged.exists() or not any(staged.iterdir()):
        return
    if target.exists():
        shutil.rmtree(staged)  # a crash came after the move and before the empty folder
    else:
        times = (staged / "trainer_state.json").stat()
        try:
            staged.rename(target)
        except OSError:  # another disk
            with whole_folder(target) as work:
                shutil.copytree(staged, work, dirs_exist_ok=True)
            shutil.rmtree(staged)
        os.utime(target, (times.st_atime, times.st_mtime))  # those of its files, which tell nothing
        flush(target.parent)
    staged.mkdir()
