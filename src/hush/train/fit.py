"""Fine-tuning a language model under a plan, from data and model names to a released model: what ``hush train`` does.

The data must be the plan's, row by row: what is trained on is tokenised in the same pass that is fingerprinted. The
rounds are :class:`~hush.train.private_training.PrivateTraining`'s; between them the model is scored on the examples
that the plan holds out, which hold no secret, so that these scores may be shown (:mod:`hush.plan.make` says why).
If several processes train together, each runs all of this file, and they check before the first round that they were
given the same plan, settings and tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import tee
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hush.arrays import Progress
from hush.certificate import Certificate
from hush.data import Corpus
from hush.errors import InvalidInput, Setting
from hush.keys import DataKey, refuse_other_key
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.slots import Spans
from hush.train.cautions import cautions_before, owner_cautions, refuse_unlabelled, release_cautions
from hush.train.checkpoints import plan_identity
from hush.train.distributed import Ranks
from hush.train.evaluation import Evaluation
from hush.train.language_models import DifferenceLoss, TokenizedTexts
from hush.train.pretrained import choose_device, load_for_training, shard_blocks
from hush.train.private_training import PrivateTraining
from hush.train.public.corpus import metric_of_settings
from hush.train.public.down_projections import begun_with, down_projections, store_down_projections
from hush.train.public.first import PublicProgress
from hush.train.public.parts import learn_first, stream_beside
from hush.train.public.process import PublicJob
from hush.train.reading import as_rendered, learnt_texts, tokenised, unlearnt
from hush.train.recipe import check_recipe, make_optimizer, make_schedule, store_lengths, store_recipe
from hush.train.round import LiveNumbers
from hush.train.run_folder import EVALUATIONS, RoundLines, RunLog
from hush.train.scores import LOSS, StageLosses
from hush.train.settings import Recipe, Runtime, Task
from hush.train.slots.batches import Batches, SkeletonBatches
from hush.train.slots.texts import SlotTexts, tokenise_slots
from hush.train.trainable import train_only

__all__ = [
    "Fitted",
    "Stop",
    "Stopped",
    "check_alike",
    "check_key",
    "check_rows",
    "check_spans",
    "fit",
    "is_stopped",
]


MAX_EVALUATION_BATCH = 8  # texts: in an evaluation all their logits exist at once, unlike in training

UNCHECKED = "the data was not checked against the plan, which names none"

Stop = Callable[[], bool]


# ---- checks before the first round ----


def check_rows(plan: Plan, corpus: Corpus) -> None:
    """Refuse data whose number of rows is not the plan's number of examples."""
    if len(corpus) != plan.incidence.num_examples:
        raise InvalidInput(
            f"{corpus.source} has {len(corpus)} rows but the plan has {plan.incidence.num_examples} examples; pass the "
            "data that the plan was made for, or scan and plan again"
        )


def check_key(plan: Plan, key: DataKey | None, *, unchecked_data: bool) -> None:
    """Refuse a plan that does not name its data, and a key that cannot check them."""
    if plan.data_fingerprint is None:
        if not unchecked_data:
            raise InvalidInput(
                "the plan does not say which data it was made for; make it again with hush plan, giving it ",
                Setting("data"),
                " and ",
                Setting("key"),
                ", or pass ",
                Setting("unchecked_data"),
                ", which marks the certificate",
            )
        return
    if unchecked_data:
        raise InvalidInput(
            "the plan says which data it was made for, and the data are checked; drop ",
            Setting("unchecked_data"),
            setting="unchecked_data",
        )
    if key is None:
        raise InvalidInput(
            "the plan names its data by a keyed fingerprint; pass the key that it was made with: ",
            Setting("key"),
            setting="key",
        )
    refuse_other_key(key, plan.data_fingerprint)


def check_spans(plan: Plan, spans: Spans | None) -> None:
    """Refuse spans that are missing or not those of the plan's slots."""
    if plan.slots is None:
        if spans is not None and len(spans.slots):
            raise InvalidInput(
                "the spans say which parts of the texts are secret, but the plan was made without slots, so whole "
                "examples are; make the plan again from the same scan, or leave the spans out"
            )
        return
    if spans is None:
        raise InvalidInput(
            "the plan has slots, and only the folder of its scan says where in the texts they are; pass ",
            Setting("scan"),
            setting="scan",
        )
    if spans.slots != plan.slots:
        raise InvalidInput(
            "the spans are not those of the plan's slots; pass the folder of the scan that the plan was made from: ",
            Setting("scan"),
            setting="scan",
        )


def check_alike(ranks: Ranks, plan: Plan, tokens: TokenizedTexts | SlotTexts, *, settings: Any) -> None:
    """Refuse processes that would not train the same: each reads plan and data itself, maybe on other machines."""
    digest = blake2b(digest_size=32)
    for row in range(len(tokens)):
        for name in ("input_ids", "labels"):
            digest.update(tokens[row].get(name, np.zeros(0)).tobytes() + b"end")
    ranks.check_alike({"plan": plan_identity(plan), "settings": settings, "tokens": digest.hexdigest()})


# ---- between rounds: stopping ----


@runtime_checkable
class _SignalStop(Protocol):
    """A stop that knows which signal asked for it, and can take over the signal of another process."""

    @property
    def asked(self) -> int: ...
    def join(self, number: int) -> None: ...


def is_stopped(stop: Stop | None, ranks: Ranks) -> bool:
    """Whether any process is asked to stop; if a signal did so, all end with that signal's exit code."""
    number = 0
    if stop is not None and stop():
        number = (stop.asked if isinstance(stop, _SignalStop) else 0) or 1
    number = ranks.max(number)
    if number and isinstance(stop, _SignalStop):
        stop.join(number)
    return number > 0


# ---- the run ----


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fitted:
    """A finished run. cut is how many texts were truncated to max_length tokens: for the owner only.

    losses are those on the examples that the plan holds out, before and after each part; they may be passed on.

    cautions are warnings about what was released, and may be passed on with it; owner_cautions are for the owner only.
    """

    certificate: Certificate
    folder: Path
    task: Task
    rounds: int
    resumed_after: int
    trained_parameters: int
    max_length: int
    cut: int
    losses: StageLosses | None = None
    cautions: tuple[str, ...] = ()
    owner_cautions: tuple[str, ...] = ()

    @property
    def release(self) -> Path:
        """The folder that may leave the owner's hands."""
        return self.folder / "release"

    @property
    def owner(self) -> Path:
        """The folder that must stay with the owner."""
        return self.folder / "owner"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A run that was asked to stop, after a round whose state is saved; the same call resumes from there."""

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
    spans: Spans | None = None,
    resume: bool = True,
    unchecked_data: bool = False,
    insecure_seed: int | None = None,
    rehearsed: bool = False,
    private_rounds: bool = True,
    progress: Callable[[LiveNumbers], None] | None = None,
    public_progress: Callable[[PublicProgress], None] | None = None,
    reading: Progress | None = None,
    stop: Stop | None = None,
    notice: Callable[[str], None] | None = None,
) -> Fitted | Stopped:
    """Fine-tune a language model on a corpus under a plan, in a folder; an unfinished run there is resumed.

    progress gets the numbers of each round, reading the number of texts tokenised and their total. stop is called after
    each round; if it returns True, the state is saved and training ends for now. notice gets warnings before the first
    round, such as that noise will drown all signal. If torch's default process group is
    initialised, all its processes call this together, and only the first one writes. If the plan holds examples out,
    the loss on them is released with the model, as evaluations.jsonl. spans, which stay with the owner, say where the
    slots of the plan are in the texts. rehearsed: whether settings were chosen by a rehearsal on public content, which
    the certificate then says. Without private_rounds nothing is learnt but what is public, and the certificate says so:
    for plans that can teach nothing more.

    What is public is learnt first, without clipping or noise, where the recipe asks for it, by default where there are
    enough public examples: in another process, which gets public tokens and the name of the model only
    (:mod:`hush.train.public.process`). public_progress gets its steps. Then the private rounds go on from there, beside
    a public stream.

    Guarantee: the data trained on are, row by row, those whose keyed fingerprint the plan states, and so are their
    skeletons. With unchecked_data, for a plan that states none, the certificate is marked, as it is with an
    insecure_seed.
    """
    runtime = runtime or Runtime()
    folder = Path(output)
    ranks = Ranks.current()
    if runtime.shard and ranks.world == 1:
        raise InvalidInput(
            "a model is sharded over several processes, and there is one; start them with torchrun, or drop ",
            Setting("shard"),
            setting="shard",
        )
    check_rows(plan, corpus)
    check_key(plan, key, unchecked_data=unchecked_data)
    check_spans(plan, spans)
    ranks.run_on_first(lambda: check_recipe(folder, recipe, resume=resume))
    device = choose_device(runtime.device)
    if insecure_seed is not None:
        torch.manual_seed(insecure_seed)  # new adapters and heads begin at random
    rules = () if spans is None else spans.slots.rules
    pretrained = as_rendered(load_for_training(recipe, runtime, device, rules), corpus)
    if spans is None or plan.slots is None:
        holds_N = plan.incidence.secrets_per_example > 0
        tokens, fingerprint = tokenised(corpus, pretrained, key, reading, holds_N=holds_N, learn=recipe.learn)
    else:
        texts, learnt = tee(learnt_texts(corpus, recipe.learn))
        tokens = tokenise_slots(
            (text for text, _ in texts),
            pretrained.tokenizer,
            plan,
            spans,
            max_length=pretrained.max_length,
            part=recipe.part,
            key=key,
            reading=reading,
            learnt=(ranges for _, ranges in learnt),
        )
        fingerprint = tokens.fingerprint
    if plan.data_fingerprint is not None and fingerprint != plan.data_fingerprint:
        raise InvalidInput(
            f"{corpus.source} is not the data that the plan was made for: its fingerprint under your key differs. Pass "
            "the same data (rows, order and column), or scan and plan again"
        )
    refuse_unlabelled(tokens)
    if ranks.world > 1:
        check_alike(ranks, plan, tokens, settings=(recipe, runtime.shard, insecure_seed))
    collator = pretrained.collator(pretrained.max_length)
    batches = Batches(tokens, collator, device)
    skeletons = tokens.skeletons if isinstance(tokens, SlotTexts) else None
    shown = batches if skeletons is None else Batches(skeletons, collator, device)
    stream = batches.of if skeletons is None else SkeletonBatches(skeletons, collator, device)
    public_job = PublicJob(recipe=recipe, runtime=runtime, rules=rules, device=str(device))
    first, ended = learn_first(
        folder,
        public_job,
        plan,
        pretrained.model,
        collate=stream,
        rows=tokens if skeletons is None else skeletons,
        ranks=ranks,
        progress=public_progress,
        stop=stop,
    )
    if ended:
        is_stopped(stop, ranks)
        return Stopped(folder=folder, round=0, rounds=plan.rounds)
    frozen: list[Tensor] = []
    if recipe.trainable is not None:
        train_only(pretrained.model, recipe.trainable)
    if recipe.lora is not None and recipe.lora.down != "trained":
        begun_with(pretrained.model, pretrained.loss, recipe, plan, stream, runtime=runtime, folder=folder, ranks=ranks)
        frozen = down_projections(pretrained.model)
    if runtime.shard:
        ranks.broadcast_model_(pretrained.model)  # each process keeps a part of its copy, so the copies must agree
        shard_blocks(pretrained.model, device)
    metric = None
    if recipe.metric is not None:
        public = partial(batches.of, round=0) if skeletons is None else stream  # the same words masked after a resume
        metric = metric_of_settings(
            recipe.metric, plan, tokens, public, pretrained, micro_batch=runtime.micro_batch, device=device
        )
    trainable = [parameter for parameter in pretrained.model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(recipe, trainable)
    training = PrivateTraining(
        pretrained.model,
        optimizer,
        plan,
        loss=DifferenceLoss(pretrained.loss) if recipe.part == "difference" else pretrained.loss,
        micro_batch=runtime.micro_batch,
        scheduler=make_schedule(recipe, optimizer, plan.rounds),
        folder=folder,
        insecure_seed=insecure_seed,
        compile=runtime.compile,
        autocast=torch.bfloat16 if recipe.bf16 else None,
        public=stream_beside(recipe, plan, stream, learnt_first=first is not None, micro_batch=runtime.micro_batch),
        learnt_first=first,
        metric=metric,
        average=recipe.average,
        rehearsed=rehearsed,
        private_rounds=private_rounds,
        export=pretrained.export,
        save_every=runtime.save_every,
        data_fingerprint=None if plan.data_fingerprint is None else fingerprint,
        marks=() if plan.data_fingerprint is not None else (UNCHECKED,),
    )
    try:
        ranks.run_on_first(lambda: store_recipe(folder, recipe))
        if frozen:
            ranks.run_on_first(lambda: store_down_projections(frozen, folder))
        cut = 0 if tokens.unread is None else tokens.unread.cut
        ranks.run_on_first(lambda: store_lengths(folder, max_length=pretrained.max_length, cut_texts=cut))
        resumed_after = training.round
        if notice is not None:
            still_learning = None if first is None else first.caution(public_job.settings)
            if still_learning is not None:
                notice(still_learning)
            for caution in cautions_before(plan, training.num_trained) if private_rounds else ():
                notice(caution)
            if private_rounds and (untaught := unlearnt(tokens, plan)):
                notice(untaught)
            if tokens.unread is not None and cut:
                notice(tokens.unread.sentence(pretrained.max_length))
        evaluate = Evaluation(
            training,
            pretrained.loss,
            lambda examples: shown.of(examples, round=0),
            held_out_examples(plan),
            size=min(runtime.micro_batch, MAX_EVALUATION_BATCH),
            every=runtime.evaluate_every,
            before=None if first is None else first.before,
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
        cautions = ranks.run_on_first(lambda: _cautions(folder, plan.clip_norm, pretrained.model))
    finally:
        training.close()
    return Fitted(
        certificate=certificate,
        folder=folder,
        task=pretrained.task,
        rounds=training.round,
        resumed_after=resumed_after,
        trained_parameters=sum(parameter.numel() for parameter in trainable),
        max_length=pretrained.max_length,
        cut=cut,
        losses=StageLosses.of(_released_scores(folder)),
        cautions=cautions[0],
        owner_cautions=cautions[1],
    )


def _released_scores(folder: Path) -> list[dict[str, Any]]:
    released = folder / "release" / EVALUATIONS
    return RoundLines.read(released) if released.is_file() else []


def _cautions(folder: Path, clip_norm: float, model: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Warnings about a finished run: those that may be passed on, and those for the owner only."""
    scores, log = _released_scores(folder), folder / "owner" / "rounds.jsonl"
    local = (shard.to_local() if isinstance(shard, DTensor) else shard for shard in model.parameters())
    return (
        tuple(release_cautions(scores, local, name=LOSS)),
        tuple(owner_cautions(RunLog.read(log), clip_norm=clip_norm)),
    )
