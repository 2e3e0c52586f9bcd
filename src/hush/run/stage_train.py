"""Training under the plan, and the rule that guards it: one plan and one recipe are trained once.

Every training has a folder of its own, named by a fingerprint of its plan, recipe and model; what is unfinished in it
goes on from its last state. A certificate accounts for one training: whoever gets two models of the same data can use
both. So a second one is begun only if the owner asks for it, by name.

A small language model over bytes with random weights, for runs that name none.

Its tokenizer knows the 256 bytes and has seen no data: a tokenizer that was trained on the owner's texts would carry
their words into the release, and no promise covers that.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, final

from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.run.folder import Record, RunPaths, StageName
from hush.run.job import Job, file_rows, files_of
from hush.run.sections import SmallModel
from hush.storage import read_json, whole_folder
from hush.train.settings import Learning

__all__ = [
    "Interrupted",
    "TrainStage",
    "base_model",
    "base_model_path",
    "check_further",
    "check_libraries",
    "earlier_trainings",
    "is_further",
    "model_fingerprint",
    "model_path",
    "named_fingerprint",
    "training_folder",
]


def check_libraries() -> None:
    """Say what to install where torch or transformers are missing."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise InvalidInput(f'training needs the library {error.name}; pip install "hush[hf]"') from error


SPECIAL = ("<pad>", "<end>")


def base_model_path(folder: Path, small: SmallModel) -> Path:
    """Where this model lies below ``folder``."""
    return folder / f"gpt2-bytes-{small.layers}x{small.width}-{small.heads}-{small.length}-{small.seed}"


def base_model(folder: Path, small: SmallModel) -> Path:
    """This model, made unless it is there; the same settings give the same weights."""
    path = base_model_path(folder, small)
    if not path.exists():
        with whole_folder(path) as work:
            _make(work, small)
    return path


def _make(folder: Path, small: SmallModel) -> None:
    try:
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    except ImportError as error:
        raise InvalidInput(f'a small model needs the library {error.name}; pip install "hush[hf]"') from error

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    over_bytes = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    over_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    over_bytes.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=over_bytes, pad_token=SPECIAL[0], eos_token=SPECIAL[1], model_max_length=small.length
    )
    shape: dict[str, Any] = {
        "vocab_size": len(words),
        "n_positions": small.length,
        "n_embd": small.width,
        "n_layer": small.layers,
        "n_head": small.heads,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "pad_token_id": 0,
        # Dropout is for models that see their data many times; here it would only add to the noise.
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(small.seed)
        model: Any = GPT2LMHeadModel(GPT2Config(**shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Interrupted(Exception):
    """Training was asked to stop, and its state is saved."""

    def __init__(self, round: int, rounds: int) -> None:
        super().__init__(f"stopped after round {round} of {rounds}")
        self.round, self.rounds = round, rounds


@final
class TrainStage:
    """``hush train``."""

    name: StageName = "train"
    needs: tuple[StageName, ...] = ("plan",)

    def settings(self, job: Job) -> Any:
        return [job.config.training.model_dump(include=set(Learning.model_fields)), model_fingerprint(job)]

    def run(self, job: Job) -> dict[str, Any]:
        check_libraries()
        from hush.train.recipe import read_lengths

        folder = training_folder(job)
        if not _is_finished(folder):
            _train(job, folder)
        certificate = Certificate.from_dict(read_json(folder / "release" / "certificate.json"))
        return {
            "fingerprint": str(certificate.fingerprints["model"]),
            "training": folder.name,
            "certifies": certificate.is_real,
            **read_lengths(folder),
        }

    def is_there(self, job: Job) -> bool:
        return _is_finished(training_folder(job))


def _is_finished(folder: Path) -> bool:
    return (folder / "release" / "certificate.json").is_file()  # the last that a training writes


def _train(job: Job, folder: Path) -> None:
    """Begin this training or go on with it, to its end."""
    from hush.train.fit import Stopped, fit

    if is_further(job, folder):
        check_further(earlier_trainings(job.paths, job.record), job.new_release)
        job.record.allowed.append(folder.name)  # so that it goes on after a kill
        job.record.store()
    if job.config.training.lora is not None and Path(model_path(job)).is_dir():
        job.watch.notice(
            "share/ holds adapters only, and of the model beneath no more than that it is local: whoever gets them "
            "needs a copy of it"
        )
    with job.watch.stoppable() as stop:
        ended = fit(
            Plan.load(job.paths.plan),
            job.config.training.recipe(model_path(job)),
            job.corpus(),
            key=job.key,
            output=folder,
            runtime=job.config.training.runtime,
            progress=job.watch.live,
            reading=lambda done, total: job.watch.work("Reading the data", done, total),
            stop=stop,
        )
    if isinstance(ended, Stopped):
        raise Interrupted(ended.round, ended.rounds)


def training_folder(job: Job) -> Path:
    """The folder of the training that the config asks for."""
    number = job.record.attempts.get("train", 0)
    parts = (job.outputs("plan")["fingerprint"], TrainStage().settings(job), number)
    return job.paths.trainings / job.fingerprint(*parts).split(":")[1][:16]


def earlier_trainings(paths: RunPaths, record: Record | None) -> list[Path]:
    """Trainings of which somebody may have seen a model: those whose ledger has a release, and one that was removed."""
    ledgers = sorted(paths.trainings.glob("*/owner/run.json"))
    lost = None if record is None else _lost(paths, record)
    return [path.parents[1] for path in ledgers if _has_released(path)] + ([] if lost is None else [lost])


def _lost(paths: RunPaths, record: Record) -> Path | None:
    """The training that was finished last, if its folder is gone: its model may be out all the same."""
    done = record.stages.get("train")
    folder = None if done is None else paths.trainings / str(done.outputs["training"])
    return None if folder is None or (folder / "owner" / "run.json").is_file() else folder


def _has_released(path: Path) -> bool:
    try:
        ledger: dict[str, Any] = read_json(path)
        return bool(ledger["finished"] or ledger["released"])
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} is not the ledger of a training; restore it, or name a new folder") from None


def is_further(job: Job, folder: Path) -> bool:
    """Whether this training would be another release of the same data, which nobody has asked for yet."""
    if folder == _lost(job.paths, job.record):
        return True
    others = earlier_trainings(job.paths, job.record)
    return bool(others) and folder not in others and folder.name not in job.record.allowed


def check_further(others: list[Path], asked: bool) -> None:
    """Refuse another training of the same data, unless it was asked for."""
    if others and not asked:
        raise InvalidInput(
            f"this would train on the same data once more ({len(others)} finished already, in {others[0].parent}): "
            "data, rules, plan, model or training changed, the folder of a training was removed, or it was asked for "
            "again. A certificate accounts for one training, and whoever gets both models can use both. Undo the "
            "change to keep what is there; or, if the earlier model never left your hands and never will, pass "
            "--new-release"
        )


def model_path(job: Job) -> str:
    """The model to begin with: a name, or a folder; a small one is made."""
    model = job.config.model
    if model.small is not None:
        return str(base_model(job.paths.owner / "base-model", model.small))
    name = job.config.located(model.name or "")
    return str(Path(name).absolute()) if Path(name).is_dir() else name  # training goes on from any working directory


def model_fingerprint(job: Job) -> str:
    """Of the model to begin with."""
    model = job.config.model
    if model.small is not None:
        return job.fingerprint(model.small.model_dump())
    return named_fingerprint(job, model.name or "")


def named_fingerprint(job: Job, name: str) -> str:
    """Of a model in a folder its content, under the key; of one on the hub its name."""
    path = job.config.located(name)
    if not Path(path).is_dir():
        return path
    files = files_of(path, code=True)
    stats = [file.stat() for _, file in files]
    seen = tuple((name, stat.st_size, stat.st_mtime_ns) for (name, _), stat in zip(files, stats, strict=True))
    return _of_files(job.key, path, seen)


@lru_cache(maxsize=2)  # the model and a reference
def _of_files(key: DataKey, folder: str, seen: tuple[tuple[str, int, int], ...]) -> str:
    """Weights may take a minute to read, and several stages ask for them: files that look the same are read once."""
    return key.fingerprint_rows(file_rows([(name, Path(folder, name)) for name, _, _ in seen]))
