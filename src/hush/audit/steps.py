"""The attacks of an audit one by one, each in pieces that are kept as soon as they are finished.

Every step takes what is done already from its pieces, does the rest, and gives what a single run would have given.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from random import Random, SystemRandom
from typing import Any

import numpy as np

from hush.audit.canaries import Canary, Candidates
from hush.audit.exposure import Ranked, rank_canary
from hush.audit.extraction import (
    Discovered,
    Discovery,
    Extracted,
    Extraction,
    Sampling,
    discover_batches,
    extract_batches,
)
from hush.audit.fill_in import Filled, FillIn, fill_in_batches
from hush.audit.folders import AuditedRun
from hush.audit.mechanism import MechanismAttack, attack_mechanism
from hush.audit.models import Subject
from hush.audit.sequences import Continuation, Grid, LeftOut, Sequences
from hush.audit.session import Pieces
from hush.audit.statistics import Success

__all__ = [
    "closest_secrets",
    "discovered",
    "exposed",
    "extracted",
    "filled",
    "fitting_prompts",
    "simulated",
    "whole_sequences",
]


Counted = Callable[[int, int], None]
CHUNK = 256  # texts that a tokenizer gets at once


def closest_secrets(run: AuditedRun, most: int) -> list[tuple[int, int]]:
    """Binding secrets, or else those closest to their ceilings, each with the point that is closest.

    Of secrets with the same rates and prior the first stands for all.
    """
    plan = run.plan
    share_SQ = plan.posterior / plan.ceiling
    chosen = plan.binding if plan.binding.size else np.argsort(-share_SQ.max(axis=1), kind="stable")
    found: dict[tuple[bytes, float], tuple[int, int]] = {}
    for secret in chosen.tolist():
        if len(found) == most:
            break
        point = int(share_SQ[secret].argmax())
        rates = np.sort(plan.rates[plan.incidence.examples_of(secret)])
        found.setdefault((rates.tobytes(), float(plan.prior[secret, point])), (secret, point))
    return list(found.values())


def simulated(
    run: AuditedRun,
    chosen: Sequence[tuple[int, int]],
    pieces: Pieces,
    *,
    trials: int,
    seed: int | None,
    progress: Counted,
) -> list[MechanismAttack | None]:
    """The best attack on the worst case of each secret, at the noise that training added; None without noise."""
    plan = run.plan
    if plan.training_noise_multiplier == 0:
        return [None] * len(chosen)
    for done, (secret, point) in enumerate(chosen):
        progress(done, len(chosen))
        if done < len(pieces.done):
            continue
        found = attack_mechanism(
            plan.rates[plan.incidence.examples_of(secret)],
            noise_multiplier=plan.training_noise_multiplier,
            rounds=plan.rounds,
            prior=float(plan.prior[secret, point]),
            trials=trials,
            rng=np.random.default_rng(None if seed is None else [seed, secret]),
        )
        pieces.add(
            {
                "prior": found.prior,
                "log_threshold": found.log_threshold,
                "detected": [found.detected.hits, found.detected.runs],
                "alarms": [found.alarms.hits, found.alarms.runs],
            }
        )
    progress(len(chosen), len(chosen))
    return [
        MechanismAttack(
            prior=one["prior"],
            log_threshold=one["log_threshold"],
            detected=Success(hits=one["detected"][0], runs=one["detected"][1]),
            alarms=Success(hits=one["alarms"][0], runs=one["alarms"][1]),
        )
        for one in pieces.done
    ]


def fitting_prompts(sequences: Sequences, subject: Subject, prompts: Sequence[int]) -> list[int]:
    """Those for which at least one sequence has room; if none has, the longest for which half of them have.

    A sequence without room for a single token before its secret does not count. None where all are so.
    """
    room_N = np.minimum(sequences.begin_N, subject.room - (sequences.end_N - sequences.begin_N))
    fitting = [prompt for prompt in prompts if (room_N >= prompt).any()]
    some = np.sort(room_N[room_N >= 1])
    return fitting or [int(one) for one in some[(some.size - 1) // 2 :][:1]]


def extracted(
    subject: Subject,
    sequences: Sequences,
    pieces: Pieces,
    *,
    prompts: Sequence[int],
    continuations: Sequence[Continuation],
    batch_size: int | None,
    progress: Counted,
) -> Extraction:
    """Extraction from a causal language model, batch by batch."""
    grid = Grid.of(sequences, subject, prompts=prompts, continuations=continuations)
    done = [
        Extracted(
            prompt=one["prompt"], rows=np.array(one["rows"]), matched_B=np.array(one["matched"]), distance_BM=None
        )
        for one in pieces.done
    ]
    found: list[Extracted] = []
    for one in extract_batches(subject, grid, done=done, batch_size=batch_size, progress=progress):
        pieces.add({"prompt": one.prompt, "rows": one.rows.tolist(), "matched": one.matched_B.tolist()})
        found.append(one)
    return Extraction.gather(grid, [*done, *found])


def discovered(
    subject: Subject, sequences: Sequences, pieces: Pieces, *, prompt: int, batch_size: int | None, progress: Counted
) -> Discovery:
    """How likely one sample says each secret after a prompt of this length, batch by batch."""
    grid, sampling = Grid.of(sequences, subject, prompts=[prompt], continuations=["secret"]), Sampling()
    done = [
        Discovered(prompt=prompt, rows=np.array(one["rows"]), log_q_BM=np.array(one["log_q"])[:, None])
        for one in pieces.done
    ]
    found: list[Discovered] = []
    batches = discover_batches(subject, grid, sampling=sampling, done=done, batch_size=batch_size, progress=progress)
    for one in batches:
        pieces.add({"rows": one.rows.tolist(), "log_q": one.log_q_BM[:, 0].tolist()})
        found.append(one)
    return Discovery.gather(grid, sampling, [*done, *found])


def filled(
    subject: Subject, sequences: Sequences, pieces: Pieces, *, mask: int, batch_size: int | None, progress: Counted
) -> FillIn:
    """The fill-in test of a masked language model, batch by batch."""
    done = [Filled(rows=np.array(one["rows"]), right_B=np.array(one["right"])) for one in pieces.done]
    found: list[Filled] = []
    for one in fill_in_batches(subject, sequences, mask=mask, done=done, batch_size=batch_size, progress=progress):
        pieces.add({"rows": one.rows.tolist(), "right": one.right_B.tolist()})
        found.append(one)
    return FillIn.gather(sequences, subject, "in_turn", [*done, *found])


def exposed(
    subject: Subject,
    tokenizer: Any,
    canaries: Sequence[Canary],
    candidates: Candidates,
    pieces: Pieces,
    *,
    max_length: int,
    most: int,
    reference: Subject | None,
    batch_size: int | None,
    seed: int | None,
    progress: Counted,
) -> list[Ranked]:
    """The rank of every canary, one by one."""
    found = [Ranked(**one) for one in pieces.done]
    for canary in canaries[len(found) :]:
        progress(len(found), len(canaries))
        one = rank_canary(
            subject,
            tokenizer,
            canary,
            candidates,
            max_length=max_length,
            most=most,
            reference=None if reference is None else (reference, tokenizer),
            batch_size=batch_size,
            rng=SystemRandom() if seed is None else Random(f"{seed} {canary.id}"),
        )
        pieces.add(asdict(one))
        found.append(one)
    progress(len(canaries), len(canaries))
    return found


def whole_sequences(
    texts: Iterable[tuple[int, str]], tokenizer: Any, *, prompt: int, longest: int, max_length: int, most: int
) -> Sequences:
    """Numbered texts as sequences whose target begins after a prompt; those too short for the longest are left out.

    Of texts with the same tokens the first is taken: the others would give the same, and count as tries that are none.
    """
    number_of: dict[tuple[int, ...], int] = {}
    copies = 0
    for chunk in _chunks(texts):
        options = {"truncation": True, "max_length": max_length, "verbose": False}
        made: list[list[int]] = tokenizer([text for _, text in chunk], **options)["input_ids"]
        for (number, _), row in zip(chunk, made, strict=True):
            if len(row) >= prompt + longest and len(number_of) < most:
                copies += tuple(row) in number_of
                number_of.setdefault(tuple(row), number)
        if len(number_of) == most:
            break
    return Sequences.of(
        list(number_of),
        begin=np.full(len(number_of), prompt),
        example=np.array(list(number_of.values()), dtype=np.int64),
        left_out=LeftOut(copies=copies),
    )


def _chunks(texts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    rows = iter(texts)
    while held := list(islice(rows, CHUNK)):
        yield held
