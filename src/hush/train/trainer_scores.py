"""Who may see the scores that ``HushTrainer`` computes between its rounds: everyone, or the owner alone.

A score of data without secrets tells of the model, so its round is entered in the ledger before anybody sees it. Scores
of other data pass all loggers by.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from transformers.trainer_callback import CallbackHandler

from hush.train.private import PrivateTraining
from hush.train.trainer_releases import Releases

__all__ = ["Scoring"]

_PRIVATE = ("loss", "total_flos")  # and what begins with train_
_TIMES = ("_runtime", "_per_second", "_time")


@final
class Scoring:
    """The evaluations of a run. Where a method takes a training, it is the one under way, None between trainings."""

    def __init__(self, folder: Path, releases: Releases) -> None:
        self._folder, self._releases = folder, releases
        self._evaluating = False

    @contextmanager
    def evaluation(self, handler: CallbackHandler, training: PrivateTraining | None, *, public: bool) -> Iterator[None]:
        """Inside, logs are scores, of data that are public or not; the handler calls only who may see them."""
        everyone = handler.callbacks
        if not public:
            handler.callbacks = [one for one in everyone if not _is_logger(one)]
        elif training is not None:
            self._releases.enter(training)
        self._evaluating = True
        try:
            yield
        finally:
            self._evaluating, handler.callbacks = False, everyone

    def shown(
        self, logs: Mapping[str, float], training: PrivateTraining | None, *, round: int, public: bool
    ) -> dict[str, float]:
        """What of these logs loggers may have; scores of a round are kept for its release, or for the owner."""
        if self._evaluating and not public:
            if training is not None:
                _append_line(self._folder / "owner" / "evaluations.jsonl", {"round": round, **logs})
            return {}
        if self._evaluating and training is not None:
            training.record_scores(_scores_in(logs))
        return _loggable(logs)


def _append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Add a line of JSON to an owner-only file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "a") as file:
        file.write(json.dumps(content) + "\n")


def _loggable(logs: Mapping[str, float]) -> dict[str, float]:
    """What any logger may have: no loss, count or time of the secret draw."""
    return {name: logs[name] for name in logs if name not in _PRIVATE and not name.startswith("train_")}


def _scores_in(logs: Mapping[str, Any]) -> dict[str, float]:
    """The scores that an evaluation logs, without what it says of its speed."""
    told = {name: score for name, score in logs.items() if name != "epoch" and not name.endswith(_TIMES)}
    return {name: score for name, score in told.items() if isinstance(score, int | float)}


def _is_logger(callback: object) -> bool:
    """Whether a callback of the Trainer hands numbers on to others."""
    return type(callback).__module__.startswith("transformers.integrations")  # TensorBoard, trackio and the like
