"""Public first in a process of its own, which never opens the data with secrets.

The parent writes the tokens of what is public (examples without a secret, and skeletons) with the settings into a
folder of the run's owner, and starts ``python -m hush.train.public.process FOLDER``. The child gets that folder and the
model's name, and nothing else: it learns by :func:`~hush.train.public.first.train_public` and leaves the weights there.

The child prints a line of JSON now and then. It saves its state and ends when its standard input closes: that is how
the parent asks it to stop, and what happens when the parent is killed.

inputs/job.json     settings; inputs/tokens.npz  tokens of the public examples, by number
training/           checkpoints, and outcome.json once it is finished
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.errors import HushError, InvalidInput
from hush.storage import FolderLock, discard, read_json, whole_folder
from hush.train.checkpoints import Checkpoints
from hush.train.language_models import TokenizedTexts
from hush.train.launch import OF_LAUNCHER
from hush.train.pretrained import load_for_training
from hush.train.public.first import PublicOutcome, PublicProgress, train_public
from hush.train.public.split import PublicSplit
from hush.train.run_folder import PUBLIC_FIRST
from hush.train.settings import PublicFirst, Recipe, Runtime
from hush.train.slots.batches import Batches

__all__ = ["PublicJob", "learn_in_process", "load_public_weights", "was_learnt_first"]


PROGRESS_SECONDS = 0.2  # between two lines of the child
LOCK_SECONDS = 60.0  # for an earlier child to save its state and end
ERROR_LINES = 20  # of what a child that failed printed


Say = Callable[[Mapping[str, Any]], None]


class PublicRows(Protocol):
    """Rows of tokens by example number, such as those of skeletons."""

    def __getitem__(self, example: int, /) -> Mapping[str, Any]: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicJob:
    """What the child is told. rules: names of rules whose placeholders are tokens; device: as torch names it."""

    recipe: Recipe
    runtime: Runtime
    rules: tuple[str, ...]
    device: str
    seed: int = 0

    @property
    def settings(self) -> PublicFirst:
        """What the recipe says of the public part, or its defaults."""
        asked = self.recipe.public_first
        return asked if isinstance(asked, PublicFirst) else PublicFirst()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        dumps = {name: getattr(self, name).model_dump(mode="json") for name in ("recipe", "runtime")}
        return {**dumps, "rules": list(self.rules), "device": self.device, "seed": self.seed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PublicJob":
        """From the result of ``to_json``."""
        return cls(
            recipe=Recipe(**data["recipe"]),
            runtime=Runtime(**data["runtime"]),
            rules=tuple(data["rules"]),
            device=data["device"],
            seed=data["seed"],
        )


def was_learnt_first(run: Path) -> bool:
    """Whether the run in this folder began with a public part, finished or not."""
    return (run / "owner" / PUBLIC_FIRST).is_dir()


# ---- the parent ----


def learn_in_process(
    run: Path,
    job: PublicJob,
    rows: PublicRows,
    split: PublicSplit,
    *,
    progress: Callable[[PublicProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    wait: Callable[[], object] | None = None,
) -> PublicOutcome | None:
    """Learn the examples of the split in another process, for the run in this folder; None if stop asked to end.

    rows holds their tokens, and no other example is asked for. wait is called now and then while the child works. A
    finished part is not repeated; a part that was stopped or killed resumes.

    Guarantee: the child's inputs are the rows of the split, the model and the settings.
    """
    folder = run / "owner" / PUBLIC_FIRST
    (run / "owner").mkdir(mode=0o700, parents=True, exist_ok=True)
    outcome = folder / "training" / "outcome.json"
    if outcome.is_file():
        _forget_inputs(folder)
        return PublicOutcome.load(outcome)
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = _locked(folder / "lock")
    try:
        _write_inputs(folder / "inputs", job, rows, split)
    finally:
        lock.release()  # the child takes it
    child = _Child(folder)
    try:
        for said in child.lines():
            if wait is not None:
                wait()
            if progress is not None and "step" in said:
                progress(PublicProgress(**said))
            if stop is not None and stop():
                child.ask_to_end()
        child.check()
    finally:
        child.end()
    if not outcome.is_file():
        return None
    _forget_inputs(folder)
    return PublicOutcome.load(outcome)


def _forget_inputs(folder: Path) -> None:
    if (folder / "inputs").exists():
        discard(folder / "inputs")


def load_public_weights(run: Path, model: nn.Module) -> None:
    """Give the model the weights that a finished public part left in the folder of the run."""
    state = Checkpoints(run / "owner" / PUBLIC_FIRST / "training" / "checkpoints").newest()
    if state is None:
        raise InvalidInput(f"{run / 'owner' / PUBLIC_FIRST} holds no weights of the public part; restore them")
    weights: dict[str, Tensor] = state["best_weights"]
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if weights.keys() != trainable.keys():
        raise InvalidInput(f"{run / 'owner' / PUBLIC_FIRST} holds weights of another model; train in a new folder")
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(weights[name])


@final
class _Child:
    """The process that learns, and what it prints."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-P", "-m", "hush.train.public.process", str(folder.resolve())]
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)  # it finds the same libraries
        alone = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHER}
        self._process = subprocess.Popen(
            command,
            env=alone | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._last_words: deque[str] = deque(maxlen=ERROR_LINES)
        self._listener = Thread(target=lambda: self._last_words.extend(self._process.stderr or ()), daemon=True)
        self._listener.start()
        self._error: str | None = None

    def lines(self) -> Any:
        """What it prints, as data, until it ends."""
        for line in self._process.stdout or ():
            said: dict[str, Any] = json.loads(line)
            if "error" in said:
                self._error = said["error"]
            else:
                yield said

    def ask_to_end(self) -> None:
        """It saves its state and ends."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def check(self) -> None:
        """Raise its error, if it had one."""
        code = self._process.wait()
        self._listener.join(timeout=5)
        if self._error is not None:
            raise InvalidInput(self._error)
        if code:
            words = "".join(self._last_words).strip()
            raise HushError(f"the process that learns the public part ended with exit code {code}: {words}")

    def end(self) -> None:
        """Wait until it has ended; its state is saved."""
        self.ask_to_end()
        if self._process.stdout is not None:
            self._process.stdout.close()  # otherwise it might wait for somebody to read what it prints
        self._process.wait()
        self._listener.join()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _locked(path: Path) -> FolderLock:
    """The lock of the folder; a child of a parent that was killed needs a moment to save its state and release it."""
    patience = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return FolderLock(path)
        except InvalidInput:
            if time.monotonic() > patience:
                raise
            time.sleep(0.1)


def _write_inputs(folder: Path, job: PublicJob, rows: PublicRows, split: PublicSplit) -> None:
    """The settings, and the tokens of the split, as the only content of the folder."""
    parts = {"train": split.train, "validation": split.validation, "held_out": split.held_out}
    numbers = np.concatenate(list(parts.values()))
    tokens = [rows[number] for number in numbers.tolist()]
    ids = [np.asarray(row["input_ids"], dtype=np.int32) for row in tokens]
    labels = [np.asarray(row.get("labels", row["input_ids"]), dtype=np.int32) for row in tokens]
    with whole_folder(folder) as work:
        work.chmod(0o700)
        (work / "job.json").write_text(json.dumps(job.to_json() | {"skeletons": split.skeletons}), encoding="utf-8")
        arrays: dict[str, Any] = {
            **parts,
            "length": np.array([len(row) for row in ids], dtype=np.int64),
            "input_ids": np.concatenate(ids),
            "labels": np.concatenate(labels),
        }
        np.savez(work / "tokens.npz", **arrays)


def _read_inputs(folder: Path) -> tuple[PublicJob, TokenizedTexts, PublicSplit]:
    """What ``_write_inputs`` wrote; examples that are not public have no tokens."""
    data = read_json(folder / "job.json")
    with np.load(folder / "tokens.npz") as arrays:
        parts: dict[str, NDArray[np.int64]] = {name: arrays[name] for name in ("train", "validation", "held_out")}
        ends = np.cumsum(arrays["length"])[:-1]
        ids, labels = (np.split(arrays[name], ends) for name in ("input_ids", "labels"))
    numbers = np.concatenate(list(parts.values()))
    empty = np.zeros(0, dtype=np.int32)
    by_number: list[list[NDArray[np.int32]]] = [[empty] * (int(numbers.max()) + 1) for _ in range(2)]
    for place, number in enumerate(numbers.tolist()):
        by_number[0][number], by_number[1][number] = ids[place], labels[place]
    split = PublicSplit(**parts, skeletons=data.pop("skeletons"))
    return PublicJob.from_json(data), TokenizedTexts(*by_number), split


# ---- the child ----


def _learn(folder: Path, say: Say, asked_to_end: Event) -> None:
    lock = _locked(folder / "lock")
    try:
        job, texts, split = _read_inputs(folder / "inputs")
        device = torch.device(job.device)
        torch.manual_seed(job.seed)  # new adapters begin at random
        pretrained = load_for_training(job.recipe, job.runtime, device, job.rules)
        batches = Batches(texts, pretrained.collator(pretrained.max_length), device)
        last = [0.0]

        def say_now_and_then(progress: PublicProgress) -> None:
            if time.monotonic() - last[0] >= PROGRESS_SECONDS:
                last[0] = time.monotonic()
                say(asdict(progress))

        train_public(
            pretrained.model,
            pretrained.loss,
            lambda examples, step: batches.of(examples, round=step),
            split,
            settings=job.settings,
            seed=job.seed,
            micro_batch=job.runtime.micro_batch,
            lengths=texts.lengths,
            folder=folder / "training",
            autocast=torch.bfloat16 if job.recipe.bf16 else None,
            compile=job.runtime.compile,
            progress=say_now_and_then,
            stop=asked_to_end.is_set,
        )
    finally:
        lock.release()


def _only_lines_on_standard_output() -> Say:
    """What writes lines for the parent; whatever else a library prints goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(content: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the parent was killed; standard input closes, too
            lines.write(json.dumps(content) + "\n")
            lines.flush()

    return say


def main(folder: str) -> None:
    """Learn what the folder holds, until it is done or standard input closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the parent too, which then asks this process to end
        signal.signal(number, signal.SIG_IGN)
    asked_to_end = Event()

    def wait_for_parent() -> None:
        os.read(0, 1)
        asked_to_end.set()

    Thread(target=wait_for_parent, daemon=True).start()
    say = _only_lines_on_standard_output()
    try:
        _learn(Path(folder), say, asked_to_end)
    except HushError as error:
        say({"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
