"""The folder of a run as all ranks see it: the first one writes, and what it writes is the whole of all shards."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.checkpoint import check_storable
from hush.train.distributed import Ranks
from hush.train.layout import standing_whole
from hush.train.release import Export, RunFolder
from hush.train.run_log import RoundRecord, RunLog
from hush.train.state import buffers_digest, capture, frozen_digest, refuse_moved_buffers, restore

__all__ = ["Keeper"]


@final
class Keeper:
    """Saves, resumes and releases one training. All ranks call its methods together, but for ``close`` and ``log``."""

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
        keep: int,
    ) -> None:
        self._ranks, self._model, self._trainable = ranks, model, trainable
        self._optimizer, self._scheduler, self._export = optimizer, scheduler, export
        self._folder: RunFolder | None = None
        self._log: RunLog | None = None
        if scheduler is not None:
            check_storable("the scheduler", scheduler.state_dict())
        check_storable("the optimizer", optimizer.state_dict()["param_groups"])
        self._fixed = {"frozen": frozen_digest(model), "buffers": buffers_digest(model)}

        def opened() -> bytes:
            self._folder = RunFolder(
                folder, plan, insecure_seed=insecure_seed, draw_seed=draw_seed, marks=marks, keep=keep
            )
            return self._folder.draw_seed

        self.draw_seed = ranks.by_first(opened)
        try:
            self.saved, self.round = self._resume()
        except BaseException:
            self.close()
            raise

    def save(self, round: int) -> None:
        """Keep the state after this round, to resume from; a state that is saved already is left alone."""
        if round == self.saved:
            return
        refuse_moved_buffers(self._model, self._fixed["buffers"])
        state = capture(self._trainable, self._optimizer, self._scheduler, self._ranks) | {"fixed": self._fixed}
        self._ranks.by_first(lambda: self._open.save(round, state))
        self.saved = round

    def release(self, round: int) -> Path:
        """Release the model of this round, after it is saved."""
        self.save(round)
        with standing_whole(self._model, here=self._ranks.first):
            return self._ranks.by_first(lambda: self._open.release(round, self._export))

    def finish(self, round: int, certificate: Certificate) -> Certificate:
        """Release the final model and its certificate."""
        self.save(round)
        with standing_whole(self._model, here=self._ranks.first):
            return self._ranks.by_first(lambda: self._open.finish(certificate, self._export))

    def log(self, record: RoundRecord) -> None:
        """Add a round to the run log."""
        if self._log is not None:
            self._log.append(record)

    def close(self) -> None:
        """Let another process train here."""
        if self._log is not None:
            self._log.close()
        if self._folder is not None:
            self._folder.close()

    @property
    def _open(self) -> RunFolder:
        if self._folder is None:
            raise InvalidInput("only the first rank writes to the folder of a run")
        return self._folder

    def _resume(self) -> tuple[int, int]:
        """Go on from the folder's checkpoint, if there is one; the round it is of, or -1, and that reached."""
        state = self._ranks.by_first(lambda: self._open.resume())
        reached = 0
        if state is not None:
            differ = [name for name, digest in self._fixed.items() if state["fixed"][name] != digest]
            if differ:
                raise InvalidInput(
                    f"the {differ[0]} tensors of the model, which training leaves alone, are not those that it began "
                    "with; build the model from the same weights as then"
                )
            restore(state, self._trainable, self._optimizer, self._scheduler, self._ranks)
            reached = self.saved = state["round"]
            if self._ranks.by_first(lambda: self._open.is_pending(reached)):
                self.release(reached)
        if self._ranks.first:
            self._log = RunLog(self._open.owner / "rounds.jsonl", resumed_after=reached)
        return (-1 if state is None else reached), reached
