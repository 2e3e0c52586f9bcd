"""A language model fine-tuned under a plan, from data and names to a released model: what ``hush train`` does.

Load, check, loop: the data must be the plan's, row by row; what is trained on is tokenised in the very pass that is
fingerprinted; the rest is ``PrivateTraining``, and scores on what the plan holds out. Where several processes train
together, each runs the whole of this file; that they were given the same is checked before the first round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from hush.certificate import Certificate
from hush.corpus import Corpus
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.plan import Plan
from hush.plan.held_out import held_out_examples
from hush.train.distributed import Ranks
from hush.train.evaluation import Evaluation
from hush.train.fit_checks import check_alike, check_key, check_rows, usable_device
from hush.train.fit_data import Batches, Counted, tokenised
from hush.train.pretrained import Pretrained, Task, load_pretrained
from hush.train.private import PrivateTraining
from hush.train.public import PublicStream
from hush.train.recipe import Recipe, Runtime, check_recipe, store_lengths, store_recipe
from hush.train.rounds import LiveNumbers
from hush.train.stopping import Stop, is_stopped

__all__ = ["Fitted", "Stopped", "fit"]

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
    optimizer = recipe.make_optimizer(trainable)
    training = PrivateTraining(
        pretrained.model,
        optimizer,
        plan,
        loss=pretrained.loss,
        micro_batch=runtime.micro_batch,
        scheduler=recipe.make_schedule(optimizer, plan.rounds),
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
    if recipe.public_weight is None or recipe.public_batch is None:
        return None
    return PublicStream(plan, batches.of, batch_size=recipe.public_batch, weight=recipe.public_weight)
