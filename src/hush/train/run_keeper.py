"""The run folder as all ranks see it: they gather their shards, and the first rank writes, resumes and releases."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.storage import flush
from hush.train.average import IterateAverage
from hush.train.checkpoints import buffers_digest, capture, check_storable, frozen_digest, refuse_moved_buffers, restore
from hush.train.clipping.metric import Metric
from hush.train.distributed import Ranks, full_parameters
from hush.train.run_folder import SCORES, Export, RoundLines, RoundRecord, RunFolder, RunLog

__all__ = ["RunKeeper", "rounded_score"]


# Significant digits of a released score: its sampling error on the at most 1,000 examples that a plan holds out is
# above 1e-3 of it, and what lies below 1e-4 is how a machine rounds, which may follow shapes of private batches.
SCORE_DIGITS = 4


def rounded_score(score: float) -> float:
    """A score as it is released.

    >>> rounded_score(5.4443219), rounded_score(0.00012345678)
    (5.444, 0.0001235)
    """
    return float(f"{score:.{SCORE_DIGITS}g}")


@final
class RunKeeper:
    """Saves, resumes and releases one training. scores are those of the last scored round, with its number.

    All ranks call its methods together, except for ``close``, ``log`` and ``keep_scores``.

    Guarantee: a resumed run repeats its draws and never its noise, since the seed of the draws is in the folder and the
    noise key of a round is nowhere.
    """

    def __init__(
        self,
        folder: str | Path,
        plan: Plan,
        ranks: Ranks,
        *,
        model: nn.Module,
        trainable: Mapping[str, nn.Parameter],
        optimizer: Optimizer,
        scheduler: Any | None,
        export: Export,
        insecure_seed: int | None,
        draw_seed: bytes,
        marks: Iterable[str],
        public_part: Mapping[str, int] | None,
        keep: int,
        metric: Mapping[str, float | str] | None = None,
        average: IterateAverage | None = None,
    ) -> None:
        self._ranks, self._model, self._trainable, self._average = ranks, model, trainable, average
        self._optimizer, self._scheduler, self._export = optimizer, scheduler, export
        self._folder: RunFolder | None = None
        self._log: RunLog | None = None
        self._score_log: RoundLines | None = None
        self.scores: dict[str, Any] = {}
        self.metric: Metric | None = None  # the one in use, which is stored with each state
        self._metric_settings = None if metric is None else dict(metric)
        if scheduler is not None:
            check_storable("the scheduler", scheduler.state_dict())
        check_storable("the optimizer", optimizer.state_dict()["param_groups"])
        self._fixed = {"frozen": frozen_digest(model), "buffers": buffers_digest(model)}

        def open_folder() -> bytes:
            self._folder = RunFolder(
                folder,
                plan,
                insecure_seed=insecure_seed,
                draw_seed=draw_seed,
                marks=marks,
                public_part=public_part,
                keep=keep,
            )
            return self._folder.draw_seed

        self.draw_seed = ranks.run_on_first(open_folder)
        try:
            self.saved, self.round = self._resume()
        except BaseException:
            self.close()
            raise

    def save(self, round: int) -> None:
        """Save the state after this round, to resume from; does nothing if it is saved already."""
        if round == self.saved:
            return
        refuse_moved_buffers(self._model, self._fixed["buffers"])
        state = capture(self._trainable, self._optimizer, self._scheduler, self._ranks, self._average)
        state |= {"fixed": self._fixed}
        if self._metric_settings is not None:
            state["metric"] = self._metric_settings, None if self.metric is None else self.metric.state()
        self._ranks.run_on_first(lambda: self._open.save(round, state))
        self.saved = round

    def release(self, round: int) -> Path:
        """Save the state of this round and release its model."""
        self.save(round)
        with self._released_model():
            return self._ranks.run_on_first(lambda: self._open.release(round, self._export))

    def finish(self, round: int, certificate: Certificate) -> Certificate:
        """Release the final model and its certificate."""
        self.save(round)
        with self._released_model():
            return self._ranks.run_on_first(lambda: self._open.finish(round, certificate, self._export))

    def log(self, record: RoundRecord) -> None:
        """Add a round to the run log."""
        if self._log is not None:
            self._log.append(record)

    def keep_scores(self, round: int, scores: Mapping[str, float]) -> None:
        """Keep scores of this round until they are released with the final model."""
        if self.scores.get("round") == round:
            scores = {**self.scores, **scores}
        self.scores = {"round": round, **scores}
        if not self._ranks.is_first:
            return
        self._open.check_open()  # otherwise these may be scores of a round that another process does again
        if self._score_log is None:
            self._score_log = RoundLines(self._open.owner / SCORES, resumed_after=round, durable=True)
            flush(self._open.owner)
        self._score_log.append(self.scores)

    def close(self) -> None:
        """Close the logs and unlock the folder."""
        for log in (self._log, self._score_log):
            if log is not None:
                log.close()
        if self._folder is not None:
            self._folder.close()

    @contextmanager
    def _released_model(self) -> Iterator[None]:
        """The model with the parameters that are released, gathered on the first rank."""
        shown = nullcontext() if self._average is None else self._average.shown()
        with shown, full_parameters(self._model, here=self._ranks.is_first):
            yield

    @property
    def _open(self) -> RunFolder:
        if self._folder is None:
            raise InvalidInput("only the first rank writes to the folder of a run")
        return self._folder

    def _resume(self) -> tuple[int, int]:
        """Restore the folder's checkpoint, if there is one: (its round, or -1; the number of rounds done)."""
        state = self._ranks.run_on_first(lambda: self._open.resume())
        reached = 0
        if state is not None:
            differ = [name for name, digest in self._fixed.items() if state["fixed"][name] != digest]
            if differ:
                raise InvalidInput(
                    f"the {differ[0]} tensors of the model, which training leaves alone, are not those that it began "
                    "with; build the model from the same weights as before"
                )
            settings, metric = state.get("metric", (None, None))  # version 0.1.0 had none
            if settings != self._metric_settings:
                raise InvalidInput(
                    f"training began with {_described(settings)}, now it has {_described(self._metric_settings)}; "
                    "resume it as it began",
                    setting="metric",
                )
            self.metric = None if metric is None else Metric.from_state(metric)
            restore(state, self._trainable, self._optimizer, self._scheduler, self._ranks, self._average)
            reached = self.saved = state["round"]
            if self._ranks.run_on_first(lambda: self._open.is_pending(reached)):
                self.release(reached)
        if self._ranks.is_first:
            self._log = RunLog(self._open.owner / "rounds.jsonl", resumed_after=reached)
        self.scores = self._ranks.run_on_first(lambda: self._resume_scores(reached))
        return (-1 if state is None else reached), reached

    def _resume_scores(self, reached: int) -> dict[str, Any]:
        """Continue the score log; scores of later rounds, which are done again, are dropped."""
        path = self._open.owner / SCORES
        if not path.exists():
            return {}
        self._score_log = RoundLines(path, resumed_after=reached, durable=True)
        return next(reversed(RoundLines.read(path)), {})


def _described(settings: Mapping[str, float | str] | None) -> str:
    if settings is None:
        return "no metric"
    return f"a metric with {', '.join(f'{name}={value}' for name, value in settings.items())}"
