"""A language model fine-tuned under a plan, from data and names to a released model: what ``hush train`` does.

Load, check, loop: the data must be the plan's, row by row; what is trained on is tokenised in the very pass that is
fingerprinted; the rest is ``PrivateTraining``, and scores on what the plan holds out. Where several processes train
together, each runs the whole of this file; that they were given the same is checked before the first round.

The data of ``fit``: a corpus as tokens, read and fingerprinted in one pass, and batches of it by example number.

Refusals of ``fit``: another corpus than the plan's, a key that cannot tell, processes that were given different.

And those of a model or a device that does not fit, which are asked for before anything long begins.

Whether training stops after a round: as soon as one of its processes is asked to, and then all of them alike.

How good the model is on the way: its loss on the examples that the plan holds out, which bear no secret.

Such scores may be shown (:mod:`hush.plan.make` says why); losses of private examples may not.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.certificate import Certificate
from hush.data import Corpus
from hush.errors import InvalidInput
from hush.keys import DataKey, key_id_of
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.plan.plan import fingerprint
from hush.train.distributed import Ranks, cut_again
from hush.train.language_models import Collator, Loss
from hush.train.language_models import Corpus as Tokens
from hush.train.pretrained import Pretrained, load_pretrained, unloaded
from hush.train.private_training import PrivateTraining
from hush.train.public_stream import PublicStream
from hush.train.recipe import check_recipe, make_optimizer, make_schedule, store_lengths, store_recipe
from hush.train.round import LiveNumbers
from hush.train.settings import Recipe, Runtime, Task

__all__ = [
    "LOSS",
    "TIMES",
    "Batches",
    "Counted",
    "Evaluation",
    "Fitted",
    "Stop",
    "Stopped",
    "check_alike",
    "check_fits",
    "check_key",
    "check_rows",
    "fit",
    "is_stopped",
    "tokenised",
    "usable_device",
]


SHORTEST = 32  # tokens: below it, shapes of their own cost more than padding
CHUNK = 1000  # texts that a tokenizer gets at once

Counted = Callable[[int, int], None]
"""Is told how many of how many are read."""


@final
class Batches:
    """Batches on the device by example number, each of one of a few lengths; ``round`` is the one that is under way."""

    def __init__(self, tokens: Tokens, collator: Collator, device: torch.device) -> None:
        self._tokens, self._collator, self._device = tokens, collator, device
        self.round = 0
        longest = int(tokens.lengths.max(initial=1))
        doubled = [SHORTEST * 2**power for power in range(20)]
        self.buckets = [length for length in doubled if length < longest] + [max(1, longest)]

    def of(
        self, examples: NDArray[np.int64], length: int | None = None, *, round: int | None = None
    ) -> dict[str, Tensor]:
        """These examples, padded to this length, or to the least that holds them all; as in another round, if asked."""
        if length is None:
            longest = int(self._tokens.lengths[examples].max(initial=0))
            length = next(bucket for bucket in self.buckets if bucket >= longest)
        rows = [self._tokens[example] for example in examples.tolist()]
        now = self.round if round is None else round
        batch = self._collator(rows, examples=examples, round=now, length=length)
        return {name: tensor.to(self._device) for name, tensor in batch.items()}


def tokenised(
    corpus: Corpus, pretrained: Pretrained, key: DataKey | None, reading: Counted | None = None
) -> tuple[Tokens, str | None]:
    """Every example as tokens, and the fingerprint of the very texts they were made from: the data is read once."""
    tokens: list[NDArray[np.int32]] = []

    def passing() -> Iterator[str]:
        for texts in _chunks(corpus.texts()):
            rows = pretrained.tokenizer(texts, truncation=True, max_length=pretrained.max_length)["input_ids"]
            tokens.extend(np.asarray(row, dtype=np.int32) for row in rows)
            if reading is not None:
                reading(len(tokens), len(corpus))
            yield from texts

    fingerprint = None
    if key is not None:
        fingerprint = key.fingerprint_rows(passing())
    else:
        for _ in passing():
            pass
    return Tokens(tokens), fingerprint  # pyright: ignore[reportArgumentType]


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def check_rows(plan: Plan, corpus: Corpus) -> None:
    """Whether the data have as many rows as the plan has examples."""
    if len(corpus) != plan.incidence.num_examples:
        raise InvalidInput(
            f"{corpus.source} has {len(corpus)} rows but the plan {plan.incidence.num_examples} examples; pass the "
            "data that the plan was made for, or scan and plan again"
        )


def check_key(plan: Plan, key: DataKey | None, *, unchecked_data: bool) -> None:
    """Whether the plan says which data it is for, and whether this key can tell."""
    if plan.data_fingerprint is None:
        if not unchecked_data:
            raise InvalidInput(
                "the plan does not say which data it was made for; make it again with hush plan --data --key, or pass "
                "--unchecked-data, and the certificate will be marked"
            )
        return
    if unchecked_data:
        raise InvalidInput("the plan says which data it was made for, and it will be checked; drop --unchecked-data")
    if key is None:
        raise InvalidInput("the plan names its data by a keyed fingerprint; pass the key that it was made with: --key")
    if key.id != key_id_of(plan.data_fingerprint):
        raise InvalidInput(
            f"this key is {key.id}, but the plan's fingerprint was made with {key_id_of(plan.data_fingerprint)}; pass "
            "that key, or plan again with this one"
        )


def check_fits(recipe: Recipe) -> None:
    """Whether the recipe fits its model: all that can be told from files that are small."""
    pretrained = unloaded(recipe.model, task=recipe.task, max_length=recipe.max_length)
    if recipe.lora is not None:
        pretrained.with_lora(recipe.lora)


def usable_device(name: str | None) -> torch.device:
    """The device of this name; by default a GPU, if there is one."""
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(chosen)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = f"it cannot be used here ({str(error).splitlines()[0]})"
        raise InvalidInput(reason, setting="device", value=chosen) from error
    return device


def check_alike(ranks: Ranks, plan: Plan, tokens: Tokens, *, settings: Any) -> None:
    """Refuse processes that would not train the same: each reads plan and data for itself, maybe on other machines."""
    digest = blake2b(digest_size=32)
    for row in range(len(tokens)):
        digest.update(tokens[row]["input_ids"].tobytes() + b"end")
    numbers = (plan.rounds, plan.batch_size, plan.clip_norm, plan.training_noise_multiplier, plan.data_fingerprint)
    mine = {
        "plan": (*numbers, plan.incidence.fingerprint, fingerprint(b"hush rates 1\n", plan.rates)),
        "settings": settings,
        "tokens": digest.hexdigest(),
    }
    found = ranks.gather(mine)
    for rank, theirs in enumerate(found):
        differ = [name for name in mine if theirs[name] != found[0][name]]
        if differ:
            raise InvalidInput(
                f"process {rank} has other {differ[0]} than the first one; give all of them the same plan, options, "
                "data and model"
            )


Stop = Callable[[], bool]


@runtime_checkable
class _BySignal(Protocol):
    """What knows the number of the signal that asked it to stop, and can take over that of another process."""

    @property
    def asked(self) -> int: ...
    def join(self, number: int) -> None: ...


def is_stopped(stop: Stop | None, ranks: Ranks) -> bool:
    """Whether any process is asked to stop; where a signal did it, all end with that signal's exit code."""
    number = 0
    if stop is not None and stop():
        number = (stop.asked if isinstance(stop, _BySignal) else 0) or 1
    number = ranks.most(number)
    if number and isinstance(stop, _BySignal):
        stop.join(number)
    return number > 0


LOSS = "held-out loss"  # the mean over examples
TIMES = 20  # how often a run is evaluated, unless it is told


@final
class Evaluation:
    """Scores a training before its first round, every few rounds, and after its last.

    batch_of makes a batch from example numbers, the same one whenever it is asked: what masked models have to guess
    must not change from round to round. size: how many examples the model sees at once.
    """

    def __init__(
        self,
        training: PrivateTraining,
        loss: Loss,
        batch_of: Callable[[NDArray[np.int64]], Mapping[str, Tensor]],
        examples: NDArray[np.int64],
        *,
        size: int,
        every: int | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._training, self._loss, self._batch_of, self._autocast = training, loss, batch_of, autocast
        self._parts = [examples[begin : begin + size] for begin in range(0, examples.size, size)]
        self._every = every or max(1, training.plan.rounds // TIMES)

    def __call__(self) -> None:
        """Score the model if it is due and not done; after a resume that is what a crash kept from being written."""
        round = self._training.round
        due = round % self._every == 0 or round == self._training.plan.rounds
        if self._parts and due and not self._training.is_scored:
            self._training.record_scores({LOSS: self.loss()})

    def loss(self) -> float:
        """Of the model as it is now. With several ranks all compute it: the model may be cut over them."""
        model = self._training.model
        device = next(model.parameters()).device
        with _at_rest(model), torch.autocast(device.type, dtype=self._autocast, enabled=self._autocast is not None):
            losses = [self._loss(model, self._batch_of(part)).double().cpu() for part in self._parts]
        return float(torch.cat(losses).mean())


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Without dropout and gradients; afterwards every module is in the mode that it was in, and cut as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        cut_again(model)


UNCHECKED = "the data was not checked against the plan, which names none"
AT_REST = 8  # texts that are evaluated at once: their logits exist whole, unlike in training

Told = Callable[[LiveNumbers], None]


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fitted:
    """A finished run. cut is how many texts were cut to max_length tokens: for the owner's eyes only."""

    certificate: Certificate
    folder: Path
    task: Task
    rounds: int
    resumed_after: int
    trained_parameters: int
    max_length: int
    cut: int

    @property
    def release(self) -> Path:
        """What may leave the owner's hands."""
        return self.folder / "release"

    @property
    def owner(self) -> Path:
        """What may not."""
        return self.folder / "owner"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A run that was asked to stop, after a round whose state is saved; the same call goes on from there."""

    folder: Path
    round: int
    rounds: int


def fit(
    plan: Plan,
    recipe: Recipe,
    corpus: Corpus,
    *,
    key: DataKey | None,
    output: str | Path,
    runtime: Runtime | None = None,
    resume: bool = True,
    unchecked_data: bool = False,
    insecure_seed: int | None = None,
    progress: Told | None = None,
    reading: Counted | None = None,
    stop: Stop | None = None,
) -> Fitted | Stopped:
    """Fine-tune a language model on a corpus under a plan, in a folder; an unfinished run there goes on.

    progress gets the numbers of each round, reading how many texts of how many are tokenised. If stop, asked after each
    round, says so, the state is saved and that is all for now. Where torch's default process group is initialised, all
    its processes call this together, and only the first one writes. If the plan holds examples out, the loss on them is
    released with the model, as evaluations.jsonl.

    Guarantee: what is trained on is, row by row, the data whose keyed fingerprint the plan states. With unchecked_data,
    for a plan that states none, the certificate is marked, as it is with an insecure_seed.
    """
    runtime = runtime or Runtime()
    folder = Path(output)
    ranks = Ranks.current()
    if runtime.shard and ranks.world == 1:
        raise InvalidInput("--shard cuts the model over several processes; start them with torchrun, or drop --shard")
    check_rows(plan, corpus)
    check_key(plan, key, unchecked_data=unchecked_data)
    ranks.by_first(lambda: check_recipe(folder, recipe, resume=resume))
    device = usable_device(runtime.device)
    if insecure_seed is not None:
        torch.manual_seed(insecure_seed)  # new adapters and heads begin at random
    pretrained = _built(recipe, runtime, device)
    tokens, fingerprint = tokenised(corpus, pretrained, key, reading)
    if plan.data_fingerprint is not None and fingerprint != plan.data_fingerprint:
        raise InvalidInput(
            f"{corpus.source} is not the data that the plan was made for: its fingerprint under your key differs. Pass "
            "that very data (rows, order and column), or scan and plan again"
        )
    if ranks.world > 1:
        check_alike(ranks, plan, tokens, settings=(recipe, runtime.shard, insecure_seed))
    if runtime.shard:
        ranks.align(pretrained.model)  # each process keeps a part of its own copy
        pretrained.shard(device)
    batches = Batches(tokens, pretrained.collator(pretrained.max_length), device)
    trainable = [parameter for parameter in pretrained.model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(recipe, trainable)
    training = PrivateTraining(
        pretrained.model,
        optimizer,
        plan,
        loss=pretrained.loss,
        micro_batch=runtime.micro_batch,
        scheduler=make_schedule(recipe, optimizer, plan.rounds),
        folder=folder,
        insecure_seed=insecure_seed,
        compile=runtime.compile,
        autocast=torch.bfloat16 if recipe.bf16 else None,
        public=_public(recipe, plan, batches),
        export=pretrained.export,
        save_every=runtime.save_every,
        data_fingerprint=None if plan.data_fingerprint is None else fingerprint,
        marks=() if plan.data_fingerprint is not None else (UNCHECKED,),
    )
    try:
        ranks.by_first(lambda: store_recipe(folder, recipe))
        cut = int((tokens.lengths == pretrained.max_length).sum())
        ranks.by_first(lambda: store_lengths(folder, max_length=pretrained.max_length, cut_texts=cut))
        resumed_after = training.round
        evaluate = Evaluation(
            training,
            pretrained.loss,
            lambda examples: batches.of(examples, round=0),
            held_out_examples(plan),
            size=min(runtime.micro_batch, AT_REST),
            every=runtime.evaluate_every,
            autocast=torch.bfloat16 if recipe.bf16 else None,
        )
        evaluate()
        for round in training.rounds():
            batches.round = round.index
            for part in round.micro_batches(lengths=tokens.lengths, buckets=batches.buckets):
                training.accumulate(batches.of(part.examples, part.length), part.real)
            training.step()
            evaluate()
            if progress is not None and training.live is not None:
                progress(training.live)
            if training.round < plan.rounds and is_stopped(stop, ranks):
                training.save()
                return Stopped(folder=folder, round=training.round, rounds=plan.rounds)
        certificate = training.finish()
    finally:
        training.close()
    return Fitted(
        certificate=certificate,
        folder=folder,
        task=pretrained.task,
        rounds=plan.rounds,
        resumed_after=resumed_after,
        trained_parameters=sum(parameter.numel() for parameter in trainable),
        max_length=pretrained.max_length,
        cut=cut,
    )


def _built(recipe: Recipe, runtime: Runtime, device: torch.device) -> Pretrained:
    # Frozen weights may be kept in half precision; what is trained stays float32, as noise and small steps need.
    dtype = torch.bfloat16 if recipe.bf16 and recipe.lora else torch.float32
    pretrained = load_pretrained(recipe.model, task=recipe.task, max_length=recipe.max_length, dtype=dtype)
    if runtime.gradient_checkpointing:
        model: Any = pretrained.model
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if recipe.lora is not None:
        pretrained = pretrained.with_lora(recipe.lora)
    if not runtime.shard:  # shards go to the device one by one
        pretrained.model.to(device)
    return pretrained


def _public(recipe: Recipe, plan: Plan, batches: Batches) -> PublicStream | None:
    if recipe.public is None:
        return None
    return PublicStream(plan, batches.of, batch_size=recipe.public.batch, weight=recipe.public.weight)
