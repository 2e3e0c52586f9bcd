"""The training stage, and the small model of runs without one.

Every training has its own folder, named by a fingerprint of its plan, recipe and model; an unfinished one there resumes
from its last checkpoint. A second training of the same data is started only where the owner asks for it
(:mod:`hush.run.trainings`, and with a ledger :mod:`hush.run.releases`).

The small model is a GPT-2 over bytes with random weights. Its tokenizer knows the 256 bytes and has seen no data: one
that was trained on the owner's texts would carry their words into the release, and no promise covers that.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hush.certificate import Certificate
from hush.console import counted
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.rehearse.outcome import last_outcome, skips_private_rounds
from hush.run.config import Config
from hush.run.estimates import held_out_examples, public_examples, training_seconds
from hush.run.job import Estimate, Known, RunJob, file_rows, files_of
from hush.run.releases import begin_training, check_asked, enter_finished, enter_rounds, is_further
from hush.run.sections import SMALL_SPECIAL_TOKENS, SmallModel
from hush.settings import AUTO
from hush.slots import spans_in
from hush.storage import read_json, whole_folder
from hush.train.scores import StageLosses
from hush.train.settings import DEFAULT_MAX_TOKENS, EVALUATIONS_PER_RUN, Learning, PublicFirst, Recipe, learns_first

if TYPE_CHECKING:
    from hush.scan.long_texts import ModelTokens
    from hush.train.fit import Fitted, Stopped
    from hush.train.round import LiveNumbers

__all__ = [
    "Interrupted",
    "TrainStage",
    "base_model",
    "base_model_path",
    "check_libraries",
    "fit_job",
    "model_fingerprint",
    "model_path",
    "model_size",
    "model_tokens",
    "named_fingerprint",
    "on_gpu",
    "training_folder",
    "trains_privately",
    "why_no_rounds",
]


class Interrupted(Exception):
    """Training was asked to stop, and its state is saved."""

    def __init__(self, round: int, rounds: int) -> None:
        super().__init__(f"stopped after round {round} of {rounds}")
        self.round, self.rounds = round, rounds


@final
class TrainStage:
    """``hush train``."""

    def settings(self, job: RunJob) -> Any:
        learning = job.config.training
        # A setting that 0.1.0 did not know counts only if it is stated: a finished run of 0.1.0 stays finished.
        unstated = {"part", "metric", "public_first", "trainable", "average", "learn"} - learning.model_fields_set
        stated = learning.model_dump(include=set(Learning.model_fields) - unstated)
        return [stated, model_fingerprint(job), *([] if trains_privately(job) else ["no private rounds"])]

    def run(self, job: RunJob) -> dict[str, Any]:
        check_libraries()
        from hush.report.report import read_evaluations
        from hush.train.recipe import read_lengths

        folder = training_folder(job)
        if not _is_finished(folder):
            _train(job, folder)
        enter_finished(job, folder)
        certificate = Certificate.from_dict(read_json(folder / "release" / "certificate.json"))
        losses = StageLosses.of(read_evaluations(folder / "release"))
        return {
            "fingerprint": str(certificate.fingerprints["model"]),
            "training": folder.name,
            "certifies": certificate.is_real,
            "losses": None if losses is None else asdict(losses),
            "private_rounds": certificate.rounds if certificate.private_rounds is None else 0,
            "why_no_rounds": why_no_rounds(job, job.outputs("plan").get("outlook", {})),
            **read_lengths(folder),
        }

    def has_results(self, job: RunJob) -> bool:
        return _is_finished(training_folder(job))

    def estimate(self, known: Known) -> Estimate:
        plan, training = known.config.plan.sizes, known.config.training
        parameters, length = model_size(known.config)
        is_private = training.private_part is not False
        left = plan.rounds - known.rounds_done if is_private else 0
        size = f"{counted(plan.rounds, 'round')} of {plan.batch_size:g}" if is_private else "no private rounds"
        size += f", {known.rounds_done:,} done" if known.rounds_done else ""
        if parameters is None:
            return Estimate(size, None)
        tokens = min(training.max_length or DEFAULT_MAX_TOKENS, length or DEFAULT_MAX_TOKENS)
        passes, public = _public_part(known)
        seconds = training_seconds(
            known.bytes,
            parameters=parameters,
            tokens=tokens,
            rounds=left,
            batch_size=plan.batch_size,
            public=passes * public,
            scored=held_out_examples(known) * _scores(known.config, left),
            on_gpu=on_gpu(known.config),
        )
        joint = ", after " if is_private else "; "
        learnt = counted(public, "public example") if "scan" in known.outputs else "what the scan finds public"
        size += f"{joint}at most {passes:g} passes over {learnt}" if passes else ""
        return Estimate(f"{size}, {parameters / 1e6:,.1f} M parameters", seconds)


def _scores(config: Config, rounds: int) -> int:
    """How many held-out losses there are in so many rounds: one before them, and one at the end."""
    every = config.training.evaluate_every or max(1, config.plan.sizes.rounds // EVALUATIONS_PER_RUN)
    return 1 + -(-rounds // every)


def on_gpu(config: Config) -> bool:
    """Whether the config names a GPU; without a device nobody has looked whether there is one."""
    return (config.training.device or "").startswith("cuda")


def _public_part(known: Known) -> tuple[float, int]:
    """The most passes of ordinary training before the rounds, and over about how many examples."""
    asked, public = known.config.training.public_first, public_examples(known)
    if known.rounds_done or asked is False or (asked is None and not learns_first(None, public)):
        return 0, 0
    return (asked if isinstance(asked, PublicFirst) else PublicFirst()).epochs, public


def why_no_rounds(job: RunJob, outlook: Mapping[str, Any]) -> str | None:
    """Why this run trains no private rounds, in a sentence; None if it trains them. outlook: the record of the plan's.

    Guarantee: it depends on the config, the graph, the promises and what is public, and on no text with a secret.
    """
    asked = job.config.training.private_part
    if asked is False:
        return "No private rounds are trained, as the config says."
    if asked != AUTO:
        return None
    rehearsal = last_outcome(job.paths.rehearsal)
    if rehearsal is not None and rehearsal.is_followed_by(plan=job.config.plan, training=job.config.training):
        if not skips_private_rounds(rehearsal):
            return None
        why = "the rehearsal of these settings found that they gain nothing"
    elif outlook.get("hopeless"):
        why = "the signal is hopeless, and noise would only harm the model"
    else:
        return None
    return (
        f"No private rounds are trained: {why}. The model learns what is public, and nothing of the secrets. "
        "training.private_part: true trains them all the same."
    )


def trains_privately(job: RunJob) -> bool:
    """Whether this run, whose plan exists, trains the private rounds."""
    return why_no_rounds(job, job.outputs("plan").get("outlook", {})) is None


def check_libraries() -> None:
    """Say what to install where torch or transformers are missing."""
    missing = next((name for name in ("torch", "transformers") if find_spec(name) is None), None)
    if missing is not None:
        raise InvalidInput(f'training needs the library {missing}; pip install "hush[hf]"')


def _is_finished(folder: Path) -> bool:
    return (folder / "release" / "certificate.json").is_file()  # the last file that a training writes


def _train(job: RunJob, folder: Path) -> None:
    """Start or resume this training, to its end."""
    from hush.train.fit import Stopped

    if is_further(job, folder):
        check_asked(job)
        job.record.allowed.append(folder.name)  # so that it resumes after a kill
        job.record.store()
    if job.config.training.lora is not None and Path(model_path(job)).is_dir():
        job.watch.notice(
            "release/ holds adapters only, and says of the base model only that it is a local folder: a recipient "
            "needs a copy of it"
        )
    why_not = why_no_rounds(job, job.outputs("plan").get("outlook", {}))
    if why_not is not None:
        job.watch.notice(why_not)
    digest = begin_training(job, folder)
    model_path(job)  # a small model is made before others read it
    with job.watch.stoppable() as stop, job.together(job.config.training.device):
        ended = fit_job(job, folder, stop=stop, live=job.watch.live if digest is None else _entering(job, digest))
    if isinstance(ended, Stopped):
        raise Interrupted(ended.round, ended.rounds)
    for caution in (*ended.cautions, *ended.owner_cautions):
        job.watch.notice(caution)


def fit_job(
    job: RunJob, folder: Path, *, stop: Callable[[], bool], live: "Callable[[LiveNumbers], None] | None" = None
) -> "Fitted | Stopped":
    """Train in this folder as config and plan say, in this process or in one of several."""
    from hush.train.fit import fit

    return fit(
        Plan.load(job.paths.plan),
        _recipe(job),
        job.corpus(),
        key=job.key,
        output=folder,
        spans=spans_in(job.paths.canaries if job.has_canaries else job.paths.scan),
        runtime=job.config.training.runtime,
        rehearsed=_is_rehearsed(job),
        private_rounds=trains_privately(job),
        progress=live,
        public_progress=lambda progress: job.watch.work("Public part", progress.step, progress.most_steps),
        reading=lambda done, total: job.watch.work("Reading the data", done, total),
        stop=stop,
        notice=job.watch.notice,
    )


def _entering(job: RunJob, digest: str) -> "Callable[[LiveNumbers], None]":
    """Shows the numbers of each round; after the first one the ledger knows that there are rounds."""
    entered = False

    def live(numbers: "LiveNumbers") -> None:
        nonlocal entered
        if not entered:
            enter_rounds(job, digest)
            entered = True
        job.watch.live(numbers)

    return live


def _recipe(job: RunJob) -> Recipe:
    """The config's, with paths as they are seen from here."""
    recipe = job.config.training.recipe(model_path(job))
    if recipe.metric is None or recipe.metric.corpus is None:
        return recipe
    located = recipe.metric.model_copy(update={"corpus": job.config.located(recipe.metric.corpus)})
    return recipe.model_copy(update={"metric": located})


def _is_rehearsed(job: RunJob) -> bool:
    """Whether the last rehearsal in the folder of the run chose the settings of the config."""
    outcome = last_outcome(job.paths.rehearsal)
    return outcome is not None and outcome.is_followed_by(plan=job.config.plan, training=job.config.training)


def training_folder(job: RunJob) -> Path:
    """The folder of the training that the config asks for."""
    attempt = job.record.attempts.get("train", 0)
    parts = (job.outputs("plan")["fingerprint"], TrainStage().settings(job), attempt)
    return job.paths.trainings / job.fingerprint(*parts).split(":")[1][:16]


# --- the model to begin with


def model_path(job: RunJob) -> str:
    """The model to begin with, a name or a folder; a small one is created on first use."""
    model = job.config.model
    if model.small is not None:
        return str(base_model(job.paths.owner / "base-model", model.small))
    name = job.config.located(model.name or "")
    return str(Path(name).absolute()) if Path(name).is_dir() else name  # training resumes from any working directory


def model_fingerprint(job: RunJob) -> str:
    """A fingerprint of the model to begin with."""
    model = job.config.model
    if model.small is not None:
        return job.fingerprint(model.small.model_dump())
    return named_fingerprint(job, model.name or "")


def named_fingerprint(job: RunJob, name: str) -> str:
    """A fingerprint of a model: of its content, under the key, if it is a folder; its name if it is on the hub."""
    path = job.config.located(name)
    if not Path(path).is_dir():
        return path
    files = files_of(path, code=True)
    stats = [file.stat() for _, file in files]
    state = tuple((name, stat.st_size, stat.st_mtime_ns) for (name, _), stat in zip(files, stats, strict=True))
    return _content_fingerprint(job.key, path, state)


@lru_cache(maxsize=2)  # the model and a reference
def _content_fingerprint(key: DataKey, folder: str, state: tuple[tuple[str, int, int], ...]) -> str:
    """Cached by names, sizes and times of the files: weights may take a minute to read, and several stages ask."""
    return key.fingerprint_rows(file_rows([(name, Path(folder, name)) for name, _, _ in state]))


def model_tokens(job: RunJob) -> "ModelTokens | None":
    """What the model to begin with reads at once; None if its tokenizer does not tell, and no chunk depends on it."""
    check_libraries()
    from hush.scan.long_texts import ModelTokens
    from hush.train.pretrained import model_metadata

    asked = job.config.training
    metadata = model_metadata(model_path(job), task=asked.task, max_length=asked.max_length)
    chunks = job.config.rules.file.chunks
    is_needed = chunks is not None and chunks.tokens == "auto"
    return ModelTokens(metadata.tokenizer, metadata.max_length) if is_needed or metadata.tokenizer.is_fast else None


def model_size(config: Config) -> tuple[float | None, int | None]:
    """Parameters and length of the model, as far as they are known without loading it."""
    small = config.model.small
    if small is not None:
        return small.layers * 12 * small.width**2 + (258 + small.length) * small.width, small.length
    folder = Path(config.located(config.model.name or ""))
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors")) if folder.is_dir() else 0
    return (weights / 4 or None), None


# --- the small model

SPECIAL_TOKENS = (SMALL_SPECIAL_TOKENS["pad_token"], SMALL_SPECIAL_TOKENS["eos_token"])


def base_model_path(folder: Path, small: SmallModel) -> Path:
    """Where this model lies below ``folder``."""
    return folder / f"gpt2-bytes-{small.layers}x{small.width}-{small.heads}-{small.length}-{small.seed}"


def base_model(folder: Path, small: SmallModel) -> Path:
    """This model, created if it is missing; the same settings give the same weights."""
    path = base_model_path(folder, small)
    if not path.exists():
        with whole_folder(path) as work:
            _create_small_model(work, small)
    return path


def _create_small_model(folder: Path, small: SmallModel) -> None:
    try:
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    except ImportError as error:
        raise InvalidInput(f'a small model needs the library {error.name}; pip install "hush[hf]"') from error

    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    over_bytes = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    over_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    over_bytes.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=over_bytes,
        pad_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[1],
        model_max_length=small.length,
    )
    shape: dict[str, Any] = {
        "vocab_size": len(tokens),
        "n_positions": small.length,
        "n_embd": small.width,
        "n_layer": small.layers,
        "n_head": small.heads,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "pad_token_id": 0,
        # Dropout helps models that see their data many times; here it would only add to the noise.
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(small.seed)
        model: Any = GPT2LMHeadModel(GPT2Config(**shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
