"""Checkpoints and scores of ``HushTrainer`` as releases: entered in the ledger before anybody can see them.

A release is written into the owner's folder (``release/round-N``), moved to ``checkpoint-N`` in output_dir, and an
empty folder stays in its old place. If a crash prevents the move, it happens when training resumes. A score of data
without secrets depends on the model, so its round is entered in the ledger before the score is shown; scores of other
data go to the owner and not to loggers.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, final

from transformers import TrainingArguments
from transformers.trainer_callback import CallbackHandler
from transformers.trainer_utils import get_last_checkpoint

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.storage import flush, whole_folder
from hush.train.checkpoints import Checkpoints
from hush.train.distributed import Ranks
from hush.train.private_training import PrivateTraining

__all__ = ["Releases", "Scoring", "move_into_place", "owner_folder", "unpack"]


@final
class Releases:
    """The releases of a run, and where they are.

    All processes of a training call its methods together; the first one looks into folders and writes.

    entered is the last round that is known to be in the ledger. writing is what an export must write: a checkpoint as
    the Trainer makes it, except inside ``enter`` and ``finish``.
    """

    def __init__(self, folder: Path, args: TrainingArguments) -> None:
        self._folder, self._args = folder, args
        self.entered = 0
        self.writing: Literal["checkpoint", "model", "nothing"] = "checkpoint"

    def begun_after(self, *, resuming: bool) -> int:
        """The round after which training continues, 0 for a new one; refuses to mix new and resumed training."""
        return Ranks.current().run_on_first(lambda: self._begun_after(resuming))

    def _begun_after(self, resuming: bool) -> int:
        state, newest = Checkpoints(self._folder / "owner" / "checkpoints").newest(), self._newest()
        reached = 0 if state is None else int(state["round"])
        earlier = self._folder if state is not None else newest
        if resuming and state is None:
            raise InvalidInput(
                f"there is nothing to resume from in {self._folder / 'owner'}: releases do not hold what training "
                "needs; restore the owner's folder, or train again into another output_dir"
            )
        if not resuming and earlier is not None:
            raise InvalidInput(
                f"{earlier} holds an earlier training; continue it by train(resume_from_checkpoint=True), or train "
                "into another output_dir"
            )
        if newest is not None and int(newest.rpartition("-")[2]) > reached:
            raise InvalidInput(
                f"{newest} was released, but the newest undamaged state in {self._folder / 'owner'} is of round "
                f"{reached}: resuming from there would release rounds twice, with other noise. Restore the owner's "
                "folder as it was; if it is gone, the run ends with what was released"
            )
        return reached

    def resumed_from(self, checkpoint: str | bool | None) -> str | None:
        """The Trainer's own record of a run: the newest one, since the owner's state is never older."""
        return Ranks.current().run_on_first(lambda: self._resumed_from(checkpoint))

    def _resumed_from(self, checkpoint: str | bool | None) -> str | None:
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
        """The path of the release of a round; None if it is not there. A release does not state its own path."""
        path = None if not round else self.target(round)
        is_there = path is not None and Ranks.current().run_on_first(path.is_dir)
        return str(path) if is_there else None

    def checkpoint(self, private: PrivateTraining) -> Path | None:
        """Release the current model as a checkpoint; None if it has appeared before."""
        staged, target, ranks = self._staged(private.round), self.target(private.round), Ranks.current()
        if ranks.run_on_first(target.exists):
            return None
        ranks.run_on_first(lambda: staged.rmdir() if staged.exists() else None)  # entered for its score
        private.release()
        self.publish(private.round)
        return target

    def enter(self, private: PrivateTraining) -> None:
        """Save the state and enter its round in the ledger, without writing a model."""
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
        """Move the release of a round into place, if that has not happened yet."""
        staged = self._staged(round)

        def move() -> bool:
            move_into_place(staged, self.target(round))
            return staged.exists()

        if Ranks.current().run_on_first(move):
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
    """The folder of a run, by default beside output_dir; refuses one inside output_dir, which may be released."""
    chosen = output.with_name(f"{output.name}-hush") if folder is None else Path(folder).resolve()
    if chosen.is_relative_to(output):
        raise InvalidInput(
            f"folder={chosen} lies in output_dir={output}, which receives what may be released; the owner's "
            "files must stay out of it: choose another folder, or leave it out"
        )
    return chosen


def unpack(folder: Path) -> None:
    """Put what is in a folder into the one around it."""
    for path in folder.iterdir():
        path.rename(folder.parent / path.name)
    folder.rmdir()


def move_into_place(staged: Path, target: Path) -> None:
    """Move a released checkpoint to where it appears; an empty folder stays in its old place."""
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
        os.utime(target, (times.st_atime, times.st_mtime))  # those of its files, which reveal nothing
        flush(target.parent)
    staged.mkdir()


_PRIVATE_LOGS = ("loss", "total_flos")  # and what begins with train_
_TIME_SUFFIXES = ("_runtime", "_per_second", "_time")


@final
class Scoring:
    """The evaluations of a run. The training that methods take is the current one, None between trainings."""

    def __init__(self, folder: Path, releases: Releases) -> None:
        self._folder, self._releases = folder, releases
        self._evaluating = False

    @contextmanager
    def evaluation(self, handler: CallbackHandler, training: PrivateTraining | None, *, public: bool) -> Iterator[None]:
        """Inside, logs are scores of public or other data; the handler calls only callbacks that may see them."""
        all_callbacks = handler.callbacks
        if not public:
            handler.callbacks = [callback for callback in all_callbacks if not _is_logger(callback)]
        elif training is not None:
            self._releases.enter(training)
        self._evaluating = True
        try:
            with nullcontext() if training is None else training.released_model():
                yield
        finally:
            self._evaluating, handler.callbacks = False, all_callbacks

    def shown(
        self, logs: Mapping[str, float], training: PrivateTraining | None, *, round: int, public: bool
    ) -> dict[str, float]:
        """The part of these logs that loggers may have; scores are kept for the release, or for the owner."""
        if self._evaluating and not public:
            if training is not None and Ranks.current().is_first:
                _append_line(self._folder / "owner" / "evaluations.jsonl", {"round": round, **logs})
            return {}
        if self._evaluating and training is not None:
            training.record_scores(_scores_in(logs))
        return _loggable(logs)


def _append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Add a line of JSON to an owner-only file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with os.fdopen(handle, "a") as file:
            file.write(json.dumps(content) + "\n")
    except OSError as error:  # that of a full disk names no file
        raise OSError(error.errno, error.strerror, str(path)) from None


def _loggable(logs: Mapping[str, float]) -> dict[str, float]:
    """The logs without losses, counts and times of the secret draw."""
    return {name: logs[name] for name in logs if name not in _PRIVATE_LOGS and not name.startswith("train_")}


def _scores_in(logs: Mapping[str, Any]) -> dict[str, float]:
    """The scores that an evaluation logs, without those of its speed."""
    scores = {name: score for name, score in logs.items() if name != "epoch" and not name.endswith(_TIME_SUFFIXES)}
    return {name: score for name, score in scores.items() if isinstance(score, int | float)}


def _is_logger(callback: object) -> bool:
    """Whether a callback of the Trainer sends numbers to others."""
    return type(callback).__module__.startswith("transformers.integrations")  # TensorBoard, trackio and the like
