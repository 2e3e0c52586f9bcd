"""The extraction attack of an audit: prompt for secrets or whole examples, or mask secrets, and count what comes out.

Causal models are prompted with the text before each secret, or with the beginning of whole examples; masked models fill
in secrets that are masked. Beside it stands what a reference model, or held-out texts, give anyway.

A hit counts only if it is eligible: the model produced one secret, and only memory explains it. A try that is not
eligible keeps its place among all tries, because whether it is eligible may depend on the secret.

Every step reads its finished batches from a journal, does the rest, and gives what an uninterrupted run gives.

Shapes: N sequences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from hush.arrays import Array, Progress
from hush.audit.exposure import aligned_to_frames
from hush.audit.extraction import (
    Discovery,
    DiscoveryBatch,
    Extraction,
    ExtractionBatch,
    Sampling,
    discover_batches,
    extract_batches,
)
from hush.audit.fill_in import FillIn, FillInBatch, fill_in_batches
from hush.audit.folders import CANARY_CLASS, SecretSpans
from hush.audit.models import Subject
from hush.audit.sequences import TOKENIZER_BATCH_TEXTS, Cell, Grid, LeftOut, Sequences, secret_sequences
from hush.audit.session import AuditSession, Journal
from hush.audit.settings import Continuation
from hush.audit.statistics import Excess, Success, excess_over_held_out, excess_over_reference
from hush.audit.verdict import counted_tries
from hush.errors import InvalidInput
from hush.numbers import counted

__all__ = [
    "ExtractionResult",
    "eligible_hits",
    "example_sequences",
    "extract_examples",
    "extract_secrets",
    "hit_eligibility",
    "usable_prompts",
]


Flags = NDArray[np.bool_]
EXAMPLE_CONTINUATION_TOKENS = 20  # for whole examples where no length is asked for: there is no secret to end it


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ExtractionResult:
    """What one extraction found, and the excess of each cell over a reference model and over held-out texts.

    hit_by_secret: whether the one try of each secret that counts came out; None where it is not eligible as a hit
    (:func:`hit_eligibility`). discovery: for causal models, how likely a sample contains each secret after the longest
    prompt.
    """

    what: Literal["secrets", "examples", "fill-in"]
    sequences: Sequences
    cells: tuple[Cell, ...]
    over_reference: tuple[Excess | None, ...]
    over_held_out: tuple[Excess | None, ...]
    hit_by_secret: dict[int, bool | None]
    discovery: Discovery | None = None


def extract_secrets(session: AuditSession, spans: SecretSpans) -> ExtractionResult | None:
    """Prompt a causal model for every secret where it stands, or mask it there for a masked model."""
    corpus, models = session.inputs.corpus, session.models
    if corpus is None:
        return None
    sequences = secret_sequences(
        corpus.texts(),
        models.tokenizer,
        example=spans.example,
        secret=spans.secret,
        begin=spans.begin,
        end=spans.end,
        max_length=models.max_length,
        both_sides=models.masked,
    )
    if not len(sequences):
        left = sequences.left_out
        session.notices.append(
            f"none of the {len(spans)} spans of secrets can be tried: {left.unplaced} have no known characters, "
            f"{left.cut} were truncated, and {left.repeated} stand beside a copy of their secret"
        )
        return None
    sequences, eligible_N = hit_eligibility(session, sequences)
    if models.masked:
        return _fill_in_secrets(session, sequences, eligible_N)
    return _continue_prompts(session, sequences, eligible_N)


def _continue_prompts(session: AuditSession, sequences: Sequences, eligible_N: Flags) -> ExtractionResult | None:
    models, continuations = session.models, session.settings.continuations
    prompts = usable_prompts(sequences, models.subject, session.settings.prompts)
    session.note_skipped_prompts(prompts)
    if not prompts:
        session.notices.append(
            f"none of the {counted(len(sequences), 'span')} of secrets can be tried: they begin their texts, or leave "
            "no room for a prompt in the model's context"
        )
        return None
    extraction = _extract(session, "secrets", models.subject, sequences, prompts, continuations)
    reference = None
    if models.reference is not None:
        reference = _extract(session, "secrets-reference", models.reference, sequences, prompts, continuations)
    longest_first = sorted(prompts, reverse=True)
    tries: dict[int, tuple[int, int]] = {}
    if "secret" in continuations:
        fits = [extraction.tried(prompt, "secret") for prompt in longest_first]
        tries = counted_tries(sequences.secret_N, _rates(session, sequences), fits)
    else:
        session.notices.append(
            'extraction is not judged, because the continuations do not include whole secrets; add "secret" to them'
        )
    hits = {
        secret: bool(extraction.hits(longest_first[column], "secret")[row]) if eligible_N[row] else None
        for secret, (row, column) in tries.items()
    }
    reference_hits = {
        secret: reference is not None and bool(reference.hits(longest_first[column], "secret")[row])
        for secret, (row, column) in tries.items()
    }
    cells = extraction.cells()
    return ExtractionResult(
        what="secrets",
        sequences=sequences,
        cells=tuple(cells),
        over_reference=_over_reference(session, extraction, reference, cells),
        over_held_out=(None,) * len(cells),
        hit_by_secret=eligible_hits(session, hits, reference_hits),
        discovery=_resumed_discovery(
            models.subject,
            sequences,
            session.journal("discoverable", [longest_first[0]], _content(sequences)),
            prompt=longest_first[0],
            batch_size=session.settings.micro_batch,
            progress=session.step_progress("Computing sample probabilities"),
        ),
    )


def _fill_in_secrets(session: AuditSession, sequences: Sequences, eligible_N: Flags) -> ExtractionResult:
    models, content = session.models, _content(sequences)

    def fill_in_with(name: str, subject: Subject, settings: Sequence[object]) -> FillIn:
        return _resumed_fill_in(
            subject,
            sequences,
            session.journal(name, settings, content),
            mask=models.tokenizer.mask_token_id,
            batch_size=session.settings.micro_batch,
            progress=session.step_progress(f"Filling in ({name})"),
        )

    filled = fill_in_with("fill-in", models.subject, [])
    reference_hit_N, excess = np.zeros(len(sequences), dtype=bool), None
    if models.reference is not None:
        reference = fill_in_with("fill-in-reference", models.reference, [session.reference_id])
        reference_hit_N = reference.hits
        both_N = filled.tried_N & reference.tried_N
        excess = excess_over_reference(filled.hits[both_N], reference_hit_N[both_N], level=session.settings.level)
    tries = counted_tries(sequences.secret_N, _rates(session, sequences), [filled.tried_N])
    row_of = {secret: row for secret, (row, _) in tries.items()}
    return ExtractionResult(
        what="fill-in",
        sequences=sequences,
        cells=(Cell(prompt=0, continuation="secret", success=filled.success, short=filled.too_long),),
        over_reference=(excess,),
        over_held_out=(None,),
        hit_by_secret=eligible_hits(
            session,
            {secret: bool(filled.hits[row]) if eligible_N[row] else None for secret, row in row_of.items()},
            {secret: bool(reference_hit_N[row]) for secret, row in row_of.items()},
        ),
    )


def extract_examples(session: AuditSession) -> ExtractionResult | None:
    """Prompt with the beginning of every example that contains a secret, and of held-out texts for comparison."""
    corpus, models, level = session.inputs.corpus, session.models, session.settings.level
    continuations = [length for length in session.settings.continuations if length != "secret"]
    continuations = continuations or [EXAMPLE_CONTINUATION_TOKENS]
    prompts = [length for length in session.settings.prompts if length + max(continuations) <= models.max_length]
    session.note_skipped_prompts(prompts)
    if corpus is None or not prompts:
        return None
    has_secret_N = session.run.plan.incidence.secrets_per_example > 0
    rows = enumerate(zip(corpus.texts(), has_secret_N, strict=True))
    texts = ((example, text) for example, (text, has_secret) in rows if has_secret)
    extraction = _extract_texts(session, "examples", texts, prompts, continuations)
    if extraction is None:
        session.notices.append("no example with a secret is long enough for these prompts and continuations")
        return None
    sequences = extraction.grid.sequences
    reference = held_out = None
    if models.reference is not None:
        reference = _extract(session, "examples-reference", models.reference, sequences, prompts, continuations)
    if session.inputs.held_out is not None:
        unseen = enumerate(session.inputs.held_out.texts())
        held_out = _extract_texts(session, "held-out", unseen, prompts, continuations)
        if held_out is None:
            session.notices.append("no held-out text is long enough for these prompts and continuations")
    cells = extraction.cells()
    held_out_cells = [None] * len(cells) if held_out is None else held_out.cells()
    return ExtractionResult(
        what="examples",
        sequences=sequences,
        cells=tuple(cells),
        over_reference=_over_reference(session, extraction, reference, cells),
        over_held_out=tuple(
            None if other is None else excess_over_held_out(cell.success, other.success, level=level)
            for cell, other in zip(cells, held_out_cells, strict=True)
        ),
        hit_by_secret={},
    )


# Which tries are eligible as hits.


def hit_eligibility(session: AuditSession, sequences: Sequences) -> tuple[Sequences, Flags]:
    """The sequences, the targets of canaries aligned with their frames, and which of them are eligible as hits."""
    aligned, in_frame_N = aligned_to_frames(sequences, session.frames)
    if not in_frame_N.all():
        session.notices.append(
            f"{counted(int((~in_frame_N).sum()), 'canary', 'canaries')} cannot count: the tokens around the secret "
            "differ from those around other candidates, so the prompt would give it away; put a space or a punctuation "
            "mark around the slot of the template"
        )
    return aligned, _is_writable(session, aligned) & in_frame_N


def eligible_hits(
    session: AuditSession, hits: Mapping[int, bool | None], reference_hits: Mapping[int, bool]
) -> dict[int, bool | None]:
    """Whether each secret came out; None where that would not count.

    A secret that a model produces without having seen it was not memorised; its stated prior was too small. A canary
    that training truncated could not be tried, but keeps its place: with fewer tries one hit would be a larger share.
    """
    if not hits:
        return {}
    classes = {} if session.inputs.places is None else session.inputs.places.classes
    canaries = [secret for secret, name in classes.items() if name == CANARY_CLASS]
    if canaries and session.models.reference is not None:
        known = sum(reference_hits.get(secret, False) and hits[secret] is not None for secret in canaries)
        success, prior = Success(hits=known, runs=len(canaries)), session.canary_prior
        session.check_reference(success.p_value(prior), smallest=success.at_best().p_value(prior))
    known_anyway = sum(bool(hit) and reference_hits[secret] for secret, hit in hits.items())
    if known_anyway:
        session.notices.append(
            f"{counted(known_anyway, 'secret')} also came out of the reference model, which never saw the data: their "
            "stated priors are too small, whatever training does, so they do not count against training"
        )
    eligible = {secret: None if reference_hits[secret] else hit for secret, hit in hits.items()}
    return {**dict.fromkeys(canaries), **eligible}


def _is_writable(session: AuditSession, sequences: Sequences) -> Flags:
    """Which targets the tokenizer can write: its token for unknown text stands for many texts, and names none."""
    unknown = session.models.tokenizer.unk_token_id
    targets = zip(sequences.tokens, sequences.begin_N, sequences.end_N, strict=True)
    writable_N = np.array([unknown is None or unknown not in row[begin:end] for row, begin, end in targets], dtype=bool)
    if not writable_N.all():
        session.notices.append(
            f"{counted(int((~writable_N).sum()), 'span')} of secrets contain text that the tokenizer maps to its token "
            "for unknown text: what comes out there does not count against training"
        )
    return writable_N


# What is tried.


def usable_prompts(sequences: Sequences, subject: Subject, prompts: Sequence[int]) -> list[int]:
    """The prompt lengths that at least one sequence has room for; else the longest that half of the sequences have.

    Sequences without room for a single token before the secret are not considered; if all are so, there is no prompt.
    """
    room_N = np.minimum(sequences.begin_N, subject.context_length - (sequences.end_N - sequences.begin_N))
    usable = [length for length in prompts if (room_N >= length).any()]
    sorted_room = np.sort(room_N[room_N >= 1])
    return usable or [int(length) for length in sorted_room[(sorted_room.size - 1) // 2 :][:1]]


def example_sequences(
    texts: Iterable[tuple[int, str]],
    tokenizer: Any,
    *,
    prompt: int,
    continuation: int,
    max_length: int,
    max_sequences: int,
) -> Sequences:
    """Numbered texts as sequences whose target begins after a prompt; texts that are too short are left out.

    Of texts with the same tokens only the first is taken: the others would give the same result, and would count as
    tries that are not independent of it.
    """
    example_of: dict[tuple[int, ...], int] = {}
    copies = 0
    for batch in _text_batches(texts):
        options = {"truncation": True, "max_length": max_length, "verbose": False}
        token_rows: list[list[int]] = tokenizer([text for _, text in batch], **options)["input_ids"]
        for (example, _), row in zip(batch, token_rows, strict=True):
            if len(row) >= prompt + continuation and len(example_of) < max_sequences:
                copies += tuple(row) in example_of
                example_of.setdefault(tuple(row), example)
        if len(example_of) == max_sequences:
            break
    return Sequences.of(
        list(example_of),
        begin=np.full(len(example_of), prompt),
        example=np.array(list(example_of.values()), dtype=np.int64),
        left_out=LeftOut(copies=copies),
    )


def _text_batches(texts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    rows = iter(texts)
    while batch := list(islice(rows, TOKENIZER_BATCH_TEXTS)):
        yield batch


def _rates(session: AuditSession, sequences: Sequences) -> Array:
    """The sampling rate of the example of each sequence."""
    rate_N, last = session.run.plan.rates, int(sequences.example_N.max())
    if last >= rate_N.size:
        raise InvalidInput(
            f"a secret stands in example {last}, but the plan has {counted(rate_N.size, 'example')}; pass the data "
            "that the model was trained on"
        )
    return rate_N[sequences.example_N]


# The steps, each resumed from its journal.


def _extract_texts(
    session: AuditSession,
    name: str,
    texts: Iterable[tuple[int, str]],
    prompts: Sequence[int],
    continuations: Sequence[int],
) -> Extraction | None:
    sequences = example_sequences(
        texts,
        session.models.tokenizer,
        prompt=max(prompts),
        continuation=max(continuations),
        max_length=session.models.max_length,
        max_sequences=session.settings.examples,
    )
    if not len(sequences):
        return None
    return _extract(session, name, session.models.subject, sequences, prompts, continuations)


def _extract(
    session: AuditSession,
    name: str,
    subject: Subject,
    sequences: Sequences,
    prompts: Sequence[int],
    continuations: Sequence[Continuation],
) -> Extraction:
    reference_id = session.reference_id if name.endswith("reference") else None
    return _resumed_extraction(
        subject,
        sequences,
        session.journal(name, [list(prompts), list(continuations), reference_id], _content(sequences)),
        prompts=prompts,
        continuations=continuations,
        batch_size=session.settings.micro_batch,
        progress=session.step_progress(f"Extracting ({name})"),
    )


def _resumed_extraction(
    subject: Subject,
    sequences: Sequences,
    journal: Journal,
    *,
    prompts: Sequence[int],
    continuations: Sequence[Continuation],
    batch_size: int | None,
    progress: Progress,
) -> Extraction:
    """Extraction from a causal language model, batch by batch."""
    grid = Grid.of(sequences, subject, prompts=prompts, continuations=continuations)
    batches = [
        ExtractionBatch(
            prompt=record["prompt"],
            rows=np.array(record["rows"]),
            matched_B=np.array(record["matched"]),
            distance_BM=None,
        )
        for record in journal.records
    ]
    for batch in extract_batches(subject, grid, done=list(batches), batch_size=batch_size, progress=progress):
        journal.append({"prompt": batch.prompt, "rows": batch.rows.tolist(), "matched": batch.matched_B.tolist()})
        batches.append(batch)
    return Extraction.gather(grid, batches)


def _resumed_discovery(
    subject: Subject,
    sequences: Sequences,
    journal: Journal,
    *,
    prompt: int,
    batch_size: int | None,
    progress: Progress,
) -> Discovery:
    """How likely one sample contains each secret after a prompt of this length, batch by batch."""
    grid, sampling = Grid.of(sequences, subject, prompts=[prompt], continuations=["secret"]), Sampling()
    batches = [
        DiscoveryBatch(prompt=prompt, rows=np.array(record["rows"]), log_q_BM=np.array(record["log_q"])[:, None])
        for record in journal.records
    ]
    for batch in discover_batches(
        subject, grid, sampling=sampling, done=list(batches), batch_size=batch_size, progress=progress
    ):
        journal.append({"rows": batch.rows.tolist(), "log_q": batch.log_q_BM[:, 0].tolist()})
        batches.append(batch)
    return Discovery.gather(grid, sampling, batches)


def _resumed_fill_in(
    subject: Subject,
    sequences: Sequences,
    journal: Journal,
    *,
    mask: int,
    batch_size: int | None,
    progress: Progress,
) -> FillIn:
    """The fill-in test of a masked language model, batch by batch."""
    batches = [
        FillInBatch(rows=np.array(record["rows"]), right_B=np.array(record["right"])) for record in journal.records
    ]
    for batch in fill_in_batches(
        subject, sequences, mask=mask, done=list(batches), batch_size=batch_size, progress=progress
    ):
        journal.append({"rows": batch.rows.tolist(), "right": batch.right_B.tolist()})
        batches.append(batch)
    return FillIn.gather(sequences, subject, "in_turn", batches)


def _over_reference(
    session: AuditSession, extraction: Extraction, reference: Extraction | None, cells: Sequence[Cell]
) -> tuple[Excess | None, ...]:
    excesses: list[Excess | None] = []
    for cell in cells:
        lengths = (cell.prompt, cell.continuation)
        both_N = extraction.tried(*lengths) & (reference is not None and reference.tried(*lengths))
        if reference is None or not both_N.any():
            excesses.append(None)
            continue
        pair = extraction.hits(*lengths)[both_N], reference.hits(*lengths)[both_N]
        excesses.append(excess_over_reference(*pair, level=session.settings.level))
    return tuple(excesses)


def _content(sequences: Sequences) -> list[bytes]:
    """What identifies sequences in the inputs of a journal."""
    return [*map(bytes, sequences.tokens), sequences.begin_N.tobytes(), sequences.end_N.tobytes()]
