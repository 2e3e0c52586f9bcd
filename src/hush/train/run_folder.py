"""The folder of a run: owner-only files and run log, releases, and the ledger that connects the two.

owner/run.json       which plan, the seed of the draws, the ledger of released rounds
owner/checkpoints/   states to resume from
owner/rounds.jsonl   the run log
owner/scores.jsonl   scores on data without secrets, until they are released
owner/public-first/  what was learnt before the first round, if something was
owner/base_model.txt where the base model of adapters lies, if it has no public name
owner/lock           held by the process that trains
release/round-…/     a model released on the way
release/model/       the final model; beside it certificate.json, certificate.md, plan/ (a copy to verify), a model
                     card (README.md) if it is one of transformers or PEFT, and evaluations.jsonl if there are scores

A release is made from a state that is safe in a checkpoint, and is entered in the ledger before it appears. So a run
that dies resumes from the last released round or a later one: no round is ever released twice with different noise.
Scores appear with the final model, and only those of rounds that lead to it: a round that a crash undid is done again
with other noise, and its first scores are dropped. Batch sizes and losses of the draw would reveal it, and stay with
the owner for good.

Released files are cleaned of paths of the owner's machine, which libraries write down: PEFT names the folder of the
base model, in its configuration and in an empty model card; earlier versions of transformers and its tokenizers name
theirs; the Trainer pickles its arguments, with folders and the token for the hub, and its state names the folder of the
best checkpoint. None of it is needed to use a release.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self, final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.storage import (
    FolderLock,
    clear_leftovers,
    flush,
    folder_digest,
    readable_like_folder,
    whole_file,
    whole_folder,
)
from hush.train.checkpoints import Checkpoints, Ledger
from hush.train.model_card import CARD, model_card

__all__ = [
    "EVALUATIONS",
    "LOCAL_BASE",
    "PUBLIC_FIRST",
    "SCORES",
    "Export",
    "RoundLines",
    "RoundRecord",
    "RunFolder",
    "RunLog",
    "local_base_of",
    "tensors_of",
    "without_owner_paths",
]


LOCAL_BASE = "a local base model; load your copy and pass it to PeftModel.from_pretrained"
"""Stands in a release for the path of a base model that has no public name."""

BASE, CARD_BASE = "base_model_name_or_path", "local-base-model"
PATHS = ("special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file")  # and what ends in name_or_path
ARGUMENTS = "training_args.bin"
STATE, BEST = "trainer_state.json", "best_model_checkpoint"  # its round stands there, too
EMPTY_CARD = ("# Model Card for Model ID", "[More Information Needed]")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)  # a name, or an owner's name and a name


def without_owner_paths(folder: Path) -> str | None:
    """Remove paths of this machine from an exported model, in place; returns the base model's path, if it had one.

    Names of the hub stay. A base model given by its path is only called local: the origin that its own configuration
    states may be that of earlier weights.
    """
    base: str | None = None
    for path in sorted(folder.rglob("*config.json")):
        config = _read_mapping(path)
        cleaned = _without_paths(config)
        if _is_path(config.get(BASE)):
            base, cleaned[BASE] = config[BASE], LOCAL_BASE
        _replace(path, config, cleaned)
    for path in sorted(folder.rglob(STATE)):
        state = _read_mapping(path)
        _replace(path, state, {**state, BEST: None} if state.get(BEST) else state)
    for path in [*folder.rglob(ARGUMENTS), *filter(_is_empty_card, folder.rglob("README.md"))]:
        path.unlink()
    if base is not None:
        for path in folder.rglob("*.md"):  # a model card with further text
            text = path.read_text(encoding="utf-8", errors="replace")
            path.write_text(
                text.replace(str(Path(base).resolve()), CARD_BASE).replace(base, CARD_BASE), encoding="utf-8"
            )
    return base


def _without_paths(config: Any) -> Any:
    """A configuration without paths, at any depth: composite models hold the configurations of their parts."""
    if isinstance(config, list):
        return [_without_paths(part) for part in config]
    if not isinstance(config, dict):
        return config
    paths = {key for key, value in config.items() if (key in PATHS or key.endswith("name_or_path")) and _is_path(value)}
    return {key: _without_paths(value) for key, value in config.items() if key not in paths}


def _replace(path: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    if after != before:
        path.write_text(json.dumps(after, indent=2) + "\n", encoding="utf-8")


def _read_mapping(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is none, since an export may write files of any kind."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_path(value: object) -> bool:
    """Whether this names something on this machine; an existing folder takes precedence over a name of the hub."""
    if not isinstance(value, str) or value in ("", LOCAL_BASE):
        return False
    return _HUB.fullmatch(value) is None or Path(value).exists()


def _is_empty_card(path: Path) -> bool:
    """Whether this is the model card template that PEFT writes, unchanged."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return all(mark in text for mark in EMPTY_CARD)


QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoundRecord:
    """One round, for the owner only; None where an empty draw leaves nothing to average.

    round counts from 1. not_finite is how many examples were left out because their gradient was not finite;
    norm_quantiles are those of the other gradients before clipping, at 0, 10, 25, 50, 75, 90 and 100 %.
    signal_to_noise is the norm of the clipped sum divided by the expected norm of its noise.
    """

    round: int
    examples: int
    loss: float | None
    clipped_share: float | None
    norm_quantiles: tuple[float, ...] | None
    not_finite: int
    signal_to_noise: float | None
    seconds: float = field(compare=False)

    @classmethod
    def of(
        cls,
        round: int,
        losses: NDArray[np.floating],
        norms: NDArray[np.floating],
        *,
        clip_norm: float,
        signal_to_noise: float | None,
        seconds: float,
    ) -> Self:
        """From the losses and norms of the examples that were drawn."""
        finite, losses = norms[np.isfinite(norms)], losses[np.isfinite(losses)]
        return cls(
            round=round,
            examples=len(norms),
            loss=float(losses.mean()) if losses.size else None,
            clipped_share=float(np.mean(finite > clip_norm)) if finite.size else None,
            norm_quantiles=tuple(np.quantile(finite, QUANTILES).tolist()) if finite.size else None,
            not_finite=len(norms) - len(finite),
            signal_to_noise=signal_to_noise,
            seconds=seconds,
        )


@final
class RoundLines:
    """An owner-only file with a line of JSON for each round, whose ``round`` is its number.

    A killed process loses at most the line it was writing; if durable, a crash of the machine loses nothing once
    ``append`` returned. After a resume, new lines replace those of rounds that are done again.
    """

    def __init__(self, path: Path, *, resumed_after: int, durable: bool = False) -> None:
        self._path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._closed = finalize(self, os.close, self._handle)
        self._durable = durable
        end = path.read_bytes().rfind(b"\n") + 1  # what follows is an incomplete line
        os.ftruncate(self._handle, end)
        if end:
            self.append({"resumed_after": resumed_after})

    def append(self, content: Mapping[str, Any]) -> None:
        """Add a line."""
        if not self._closed.alive:  # another file may have the closed one's descriptor by now
            raise InvalidInput("this training was closed; open it again to resume")
        line = json.dumps(dict(content)).encode() + b"\n"
        try:
            written = os.write(self._handle, line)  # one write, so that a kill damages one line at most
            if self._durable:
                os.fsync(self._handle)
        except OSError as error:  # it names no file
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        if written < len(line):
            raise InvalidInput(
                f"only a part of a line was written to {self._path}, as on a full disk; free some space and start again"
            )

    def close(self) -> None:
        """Close the file."""
        self._closed()

    @staticmethod
    def read(path: str | Path) -> list[dict[str, Any]]:
        """The lines of a file, each round once, as it was last done."""
        rounds: list[dict[str, Any]] = []
        for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], start=1):
            try:
                content: dict[str, Any] = json.loads(line)
                reached = content["resumed_after"] if "resumed_after" in content else content["round"] - 1
                while rounds and rounds[-1]["round"] > reached:
                    rounds.pop()
                if "round" in content:
                    rounds.append(content)
            except (ValueError, TypeError, KeyError) as error:
                raise InvalidInput(f"line {number} of {path} is not a line of a run log; restore the file") from error
        return rounds


@final
class RunLog:
    """The log of a run's rounds, for its owner only."""

    def __init__(self, path: Path, *, resumed_after: int) -> None:
        self._lines = RoundLines(path, resumed_after=resumed_after)

    def append(self, record: RoundRecord) -> None:
        """Add a round."""
        self._lines.append(asdict(record))

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    @staticmethod
    def read(path: str | Path) -> list[RoundRecord]:
        """The rounds of a log, each once, as it was last done."""
        records: list[RoundRecord] = []
        for content in RoundLines.read(path):
            try:
                quantiles = content["norm_quantiles"] and tuple(content["norm_quantiles"])
                records.append(RoundRecord(**{**content, "norm_quantiles": quantiles}))
            except (TypeError, KeyError) as error:
                raise InvalidInput(f"round {content['round']} of {path} is not complete; restore the file") from error
        return records


SCORES, EVALUATIONS = "scores.jsonl", "evaluations.jsonl"  # before their release, and after it
BASE_MODEL = "base_model.txt"
PUBLIC_FIRST = "public-first"  # of the public part, which ends before the first round

Export = Callable[[Path], object]
"""Writes the model, as it is now, into a folder."""

_ROUND = re.compile(r"round-(\d{6,})")
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # safetensors reports a full disk by an error of its own


@final
class RunFolder:
    """The folder of one run, locked for as long as it is open.

    Guarantee: ``resume`` never returns to a state before a released round, so the releases of a run, however often it
    was killed, are those of one training of at most the plan's rounds.
    """

    def __init__(
        self,
        folder: str | Path,
        plan: Plan,
        *,
        insecure_seed: int | None,
        draw_seed: bytes,
        marks: Iterable[str] = (),
        public_part: Mapping[str, int] | None = None,
        keep: int = 2,
    ) -> None:
        self._public_part = public_part
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
                clear_leftovers(folder)
            self._ledger = self._open_ledger(insecure_seed, draw_seed)
            self._update_ledger(self._ledger.with_marks(marks))
            self._check_released()
        except BaseException:
            self.close()
            raise

    @property
    def draw_seed(self) -> bytes:
        """The seed of the draws, as this run began with it."""
        return bytes.fromhex(self._ledger.draw_seed)

    @property
    def last_released(self) -> int:
        """The last round whose model may have been seen by others."""
        return self._ledger.last_released

    def resume(self) -> dict[str, Any] | None:
        """The newest undamaged checkpoint; None to begin with round 0."""
        state = self.checkpoints.newest()
        if state is not None and state.get("run") != self._ledger.run:
            raise InvalidInput(
                f"{self.checkpoints.folder} holds a checkpoint of another run; restore the checkpoints of this one"
            )
        reached = 0 if state is None else state["round"]
        if reached < self.last_released:
            raise InvalidInput(
                f"the model of round {self.last_released} was released, but the newest undamaged checkpoint in "
                f"{self.checkpoints.folder} is of round {reached}: resuming from there would release rounds "
                "twice, with other noise. Restore the lost checkpoints; if they are gone, the run ends with what was "
                "released"
            )
        self.saved = -1 if state is None else reached
        return state

    def save(self, round: int, state: dict[str, Any]) -> None:
        """Store a checkpoint."""
        self._lock.check()
        self.checkpoints.write(round, state | {"run": self._ledger.run})
        self.saved = round

    def release(self, round: int, export: Export) -> Path:
        """Release the model of this round, which was saved last; does nothing if it was released before."""
        path = self.public / f"round-{round:06d}"
        if not path.exists():
            self._enter_release(round)
            self._write(path, export)
        return path

    def is_pending(self, round: int) -> bool:
        """Whether the ledger lists this round as released, but a crash prevented it from appearing."""
        missing = not (self.public / f"round-{round:06d}").exists()
        return missing and round in self._ledger.released and not self._ledger.finished

    def finish(self, round: int, certificate: Certificate, export: Export) -> Certificate:
        """Release the final model, of this round, with its certificate; after a crash this can be repeated."""
        self._enter_release(round, finished=True)
        self._write(self.public / "model", export)
        certificate = replace(
            certificate,
            marks=(*certificate.marks, *self._ledger.marks),
            fingerprints={**certificate.fingerprints, "model": folder_digest(self.public / "model")},
        )
        if not self._ledger.marks:  # no certificate without marks may lie beside the model of a marked run
            self._plan.save(self.public / "plan")
        scores = self._scores()
        card = model_card(self.public / "model", certificate, scores)
        texts = {
            **({EVALUATIONS: "".join(json.dumps(row) + "\n" for row in scores)} if scores else {}),
            **({} if card is None else {CARD: card}),
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
        """Unlock the folder."""
        self._lock.release()

    def _scores(self) -> list[dict[str, Any]]:
        """The scores to release."""
        path = self.owner / SCORES
        return RoundLines.read(path) if path.exists() else []

    def _open_ledger(self, insecure_seed: int | None, draw_seed: bytes) -> Ledger:
        path = self.owner / "run.json"
        if path.exists():
            ledger = Ledger.load(path)
            ledger.check(path, self._plan, insecure_seed, public_part=self._public_part)
            return ledger
        others = [self.public / name for name in _names(self.public)]
        others += [self.owner / name for name in _names(self.owner) if name not in ("lock", PUBLIC_FIRST)]
        if others:
            raise InvalidInput(f"{path} is missing, but {others[0]} exists; restore it, or train in a new folder")
        ledger = Ledger.begin(self._plan, insecure_seed, draw_seed, public_part=self._public_part)
        ledger.store(path)
        flush(self.root)
        flush(self.root.parent)
        return ledger

    def _enter_release(self, round: int, *, finished: bool = False) -> None:
        """Enter a release in the ledger, before it appears."""
        self._lock.check()
        if round != self.saved:
            raise InvalidInput(
                f"round {round} cannot be released before it is saved; the last one saved is {self.saved}"
            )
        self._update_ledger(self._ledger.with_release(round, finished=finished))

    def _update_ledger(self, ledger: Ledger) -> None:
        if ledger != self._ledger:
            ledger.store(self.owner / "run.json")
            self._ledger = ledger

    def _write(self, path: Path, export: Export) -> None:
        with whole_folder(path) as work:
            try:
                export(work)
            except Exception as error:
                system_error = _SYSTEM_ERROR.search(str(error))
                if system_error is None:
                    raise
                number = int(system_error[1])
                raise OSError(number, os.strerror(number), str(path)) from None
            self._hide_paths(work)
            readable_like_folder(work)
            self._hide_times(work)
        self._hide_times(self.public)  # which just got a new entry
        flush(self.root)

    def _hide_paths(self, folder: Path) -> None:
        """Remove paths of the owner's machine; that of the base model is kept with the owner, for audits."""
        base = without_owner_paths(folder)
        if base is not None:
            with whole_file(self.owner / BASE_MODEL) as file:
                file.write(str(Path(base).resolve() if Path(base).exists() else base).encode())

    def _hide_times(self, folder: Path) -> None:
        """Reset file times: they would tell how long the rounds took, and so how large their secret draws were."""
        time = datetime.fromisoformat(self._plan.created).timestamp()
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (time, time))

    def _check_released(self) -> None:
        """Refuse an owner/ that is older than release/: everything in release/ must be in the ledger."""
        names = _names(self.public)
        unknown = [name for name in names if (m := _ROUND.fullmatch(name)) and int(m[1]) not in self._ledger.released]
        if not self._ledger.finished:
            final = ("model", "certificate.json", "certificate.md", CARD, EVALUATIONS)
            unknown += [name for name in names if name in final]
        if unknown:
            raise InvalidInput(
                f"{self.public / unknown[0]} exists, but {self.owner / 'run.json'} does not list its release: the "
                "owner's files are older than what was released. Restore them, or train in a new folder"
            )


def local_base_of(model: Path) -> str | None:
    """The path of the base model of a run's released adapters; None if no owner-only file states it."""
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
