"""Extraction as a part of an audit: from secrets, from whole examples, or by filling in; with what came out anyway.

Which tries of an extraction count as hits, should they come out: those that say one secret, and by memory alone.

A try that does not count keeps its place among all tries: whether it counts may depend on the secret.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from hush.audit.exposure import framed
from hush.audit.extraction import Discovery, Extraction
from hush.audit.folders import CANARIES, Places
from hush.audit.models import Subject
from hush.audit.sequences import Cell, Continuation, Sequences, secret_sequences
from hush.audit.session import Work
from hush.audit.statistics import Excess, Success, excess_over_held_out, excess_over_reference
from hush.audit.steps import discovered, extracted, filled, fitting_prompts, whole_sequences
from hush.audit.verdict import first_tries
from hush.errors import InvalidInput
from hush.numbers import counted

__all__ = ["Found", "countable", "examples_found", "hits_that_count", "secrets_found"]


Flags = NDArray[np.bool_]


def countable(work: Work, sequences: Sequences) -> tuple[Sequences, Flags]:
    """The sequences, canaries as their prompts may show them, and which of them can be a hit."""
    moved, framed_N = framed(sequences, work.frames)
    if not framed_N.all():
        work.notices.append(
            f"{counted(int((~framed_N).sum()), 'canary', 'canaries')} cannot count: the tokens around the secret are "
            "not those of other candidates, which its prompt would tell; put a space or a sign around the slot"
        )
    return moved, _sayable(work, moved) & framed_N


def hits_that_count(work: Work, hits: dict[int, bool | None], anyway: dict[int, bool]) -> dict[int, bool | None]:
    """Of each secret, whether it came out; None where that would not count.

    What comes out of a model that never saw it was not learnt; its prior was too small to begin with. A canary that
    could not be tried, since training cut it off, has a place, too: fewer tries would make one hit a larger share.
    """
    if not hits:
        return {}
    classes = {} if work.inputs.places is None else work.inputs.places.classes
    canaries = [secret for secret, name in classes.items() if name == CANARIES]
    if canaries and work.models.reference is not None:
        said = sum(anyway.get(secret, False) and hits[secret] is not None for secret in canaries)
        tried = Success(hits=said, runs=len(canaries))
        prior = work.canary_prior
        work.refuse_reference(tried.p_value(prior), least=tried.at_best().p_value(prior))
    known = sum(bool(hits[secret]) and anyway[secret] for secret in hits)
    if known:
        work.notices.append(
            f"{counted(known, 'secret')} also came out of the reference model, which never saw the data: stated priors "
            "are too small there, whatever training does, and it is not counted against training"
        )
    found = {secret: None if anyway[secret] else hit for secret, hit in hits.items()}
    return {**dict.fromkeys(canaries), **found}


def _sayable(work: Work, sequences: Sequences) -> Flags:
    """Which secrets are made of tokens that say them: the token for unknown text stands for many, and guesses none."""
    unknown = work.models.tokenizer.unk_token_id
    parts = zip(sequences.tokens, sequences.begin_N, sequences.end_N, strict=True)
    sayable_N = np.array([unknown is None or unknown not in row[begin:end] for row, begin, end in parts], dtype=bool)
    if not sayable_N.all():
        work.notices.append(
            f"in {counted(int((~sayable_N).sum()), 'place')} a secret stands that the tokenizer cannot write, only its "
            "token for unknown text: what comes out there is not counted against training"
        )
    return sayable_N


WHOLE = 20  # tokens of a continuation, where there is no secret to end it


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Found:
    """What one extraction showed, and the excess of each cell over a reference model and over held-out texts.

    hit_of: of each secret, whether the one try that counts came out; None where nothing that came out would count
    (:func:`countable`). discovery: how likely samples say each secret after the longest prompt, for causal models.
    """

    what: Literal["secrets", "examples", "fill-in"]
    sequences: Sequences
    cells: tuple[Cell, ...]
    over_reference: tuple[Excess | None, ...]
    over_held_out: tuple[Excess | None, ...]
    hit_of: dict[int, bool | None]
    discovery: Discovery | None = None


def secrets_found(work: Work, places: Places) -> Found | None:
    """Prompt for every secret where it stands, or mask it there."""
    corpus, models = work.inputs.corpus, work.models
    if corpus is None:
        return None
    sequences = secret_sequences(
        corpus.texts(),
        models.tokenizer,
        example=places.example,
        secret=places.secret,
        begin=places.begin,
        end=places.end,
        max_length=models.max_length,
        both_sides=models.masked,
    )
    if not len(sequences):
        left = sequences.left_out
        work.notices.append(
            f"none of the {len(places)} places of secrets can be tried: for {left.unplaced} no characters are known, "
            f"{left.cut} were cut off, and beside {left.repeated} the secret stands again"
        )
        return None
    sequences, counts_N = countable(work, sequences)
    return _filled_in(work, sequences, counts_N) if models.masked else _continued(work, sequences, counts_N)


def _continued(work: Work, sequences: Sequences, counts_N: Flags) -> Found | None:
    models, lengths = work.models, work.settings.continuations
    prompts = fitting_prompts(sequences, models.subject, work.settings.prompts)
    work.say_left_out(prompts)
    if not prompts:
        work.notices.append(
            f"none of the {counted(len(sequences), 'place')} of secrets can be tried: they begin their texts, or leave "
            "the model no room for a prompt"
        )
        return None
    ours = _extracted(work, "secrets", models.subject, sequences, prompts, lengths)
    other = None
    if models.reference is not None:
        other = _extracted(work, "secrets-reference", models.reference, sequences, prompts, lengths)
    tries: dict[int, tuple[int, int]] = {}
    falling = sorted(prompts, reverse=True)
    if "secret" in lengths:
        tries = first_tries(
            sequences.secret_N, _rates(work, sequences), [ours.tried(prompt, "secret") for prompt in falling]
        )
    else:
        work.notices.append("whole secrets were not asked for, so extraction is not judged; add --continuation secret")
    hits = {
        secret: bool(ours.hits(falling[way], "secret")[row]) if counts_N[row] else None
        for secret, (row, way) in tries.items()
    }
    anyway = {
        secret: other is not None and bool(other.hits(falling[way], "secret")[row])
        for secret, (row, way) in tries.items()
    }
    cells = ours.cells()
    return Found(
        what="secrets",
        sequences=sequences,
        cells=tuple(cells),
        over_reference=_over_reference(work, ours, other, cells),
        over_held_out=(None,) * len(cells),
        hit_of=hits_that_count(work, hits, anyway),
        discovery=discovered(
            models.subject,
            sequences,
            work.pieces("discoverable", [falling[0]], _content(sequences)),
            prompt=falling[0],
            batch_size=work.settings.micro_batch,
            progress=work.bar("Weighing samples"),
        ),
    )


def _filled_in(work: Work, sequences: Sequences, counts_N: Flags) -> Found:
    models = work.models
    mask, size, content = models.tokenizer.mask_token_id, work.settings.micro_batch, _content(sequences)

    def on(name: str, subject: Subject, settings: Sequence[object]) -> tuple[Flags, Flags, Cell]:
        pieces = work.pieces(name, settings, content)
        bar = work.bar(f"Filling in ({name})")
        made = filled(subject, sequences, pieces, mask=mask, batch_size=size, progress=bar)
        return (
            made.hits,
            made.tried_N,
            Cell(prompt=0, continuation="secret", success=made.success, short=made.too_long),
        )

    hit_N, tried_N, cell = on("fill-in", models.subject, [])
    anyway_N, excess = np.zeros(len(sequences), dtype=bool), None
    if models.reference is not None:
        anyway_N, also_N, _ = on("fill-in-reference", models.reference, [work.reference_id])
        both_N = tried_N & also_N
        excess = excess_over_reference(hit_N[both_N], anyway_N[both_N], level=work.settings.level)
    tries = first_tries(sequences.secret_N, _rates(work, sequences), [tried_N])
    rows = {secret: row for secret, (row, _) in tries.items()}
    return Found(
        what="fill-in",
        sequences=sequences,
        cells=(cell,),
        over_reference=(excess,),
        over_held_out=(None,),
        hit_of=hits_that_count(
            work,
            {secret: bool(hit_N[row]) if counts_N[row] else None for secret, row in rows.items()},
            {secret: bool(anyway_N[row]) for secret, row in rows.items()},
        ),
    )


def examples_found(work: Work) -> Found | None:
    """Prompt with the beginning of every example that holds a secret, and of held-out texts beside them."""
    corpus, models, level = work.inputs.corpus, work.models, work.settings.level
    lengths = [one for one in work.settings.continuations if one != "secret"] or [WHOLE]
    prompts = [one for one in work.settings.prompts if one + max(lengths) <= models.max_length]
    work.say_left_out(prompts)
    if corpus is None or not prompts:
        return None
    holds_N = work.run.plan.incidence.secrets_per_example > 0
    rows = enumerate(zip(corpus.texts(), holds_N, strict=True))
    texts = ((number, text) for number, (text, holds) in rows if holds)
    ours = _whole(work, "examples", texts, prompts, lengths)
    if ours is None:
        work.notices.append("no example with a secret is long enough for these prompts and continuations")
        return None
    other = held = None
    if models.reference is not None:
        other = _extracted(work, "examples-reference", models.reference, ours.grid.sequences, prompts, lengths)
    if work.inputs.held_out is not None:
        held = _whole(work, "held-out", enumerate(work.inputs.held_out.texts()), prompts, lengths)
        if held is None:
            work.notices.append("no held-out text is long enough for these prompts and continuations")
    cells = ours.cells()
    beside = [None] * len(cells) if held is None else held.cells()
    return Found(
        what="examples",
        sequences=ours.grid.sequences,
        cells=tuple(cells),
        over_reference=_over_reference(work, ours, other, cells),
        over_held_out=tuple(
            None if two is None else excess_over_held_out(one.success, two.success, level=level)
            for one, two in zip(cells, beside, strict=True)
        ),
        hit_of={},
    )


def _whole(
    work: Work, name: str, texts: Iterable[tuple[int, str]], prompts: Sequence[int], lengths: Sequence[int]
) -> Extraction | None:
    sequences = whole_sequences(
        texts,
        work.models.tokenizer,
        prompt=max(prompts),
        longest=max(lengths),
        max_length=work.models.max_length,
        most=work.settings.examples,
    )
    return _extracted(work, name, work.models.subject, sequences, prompts, lengths) if len(sequences) else None


def _extracted(
    work: Work,
    name: str,
    subject: Subject,
    sequences: Sequences,
    prompts: Sequence[int],
    lengths: Sequence[Continuation],
) -> Extraction:
    settings = [list(prompts), list(lengths), work.reference_id if name.endswith("reference") else None]
    return extracted(
        subject,
        sequences,
        work.pieces(name, settings, _content(sequences)),
        prompts=prompts,
        continuations=lengths,
        batch_size=work.settings.micro_batch,
        progress=work.bar(f"Extracting ({name})"),
    )


def _over_reference(
    work: Work, ours: Extraction, other: Extraction | None, cells: Sequence[Cell]
) -> tuple[Excess | None, ...]:
    found: list[Excess | None] = []
    for cell in cells:
        place = (cell.prompt, cell.continuation)
        both_N = ours.tried(*place) & (other is not None and other.tried(*place))
        if other is None or not both_N.any():
            found.append(None)
            continue
        pair = ours.hits(*place)[both_N], other.hits(*place)[both_N]
        found.append(excess_over_reference(*pair, level=work.settings.level))
    return tuple(found)


def _rates(work: Work, sequences: Sequences) -> NDArray[np.float64]:
    """How often training drew the example of each sequence."""
    rate_N, last = work.run.plan.rates, int(sequences.example_N.max())
    if last >= rate_N.size:
        raise InvalidInput(
            f"a secret stands in example {last}, but the plan has {counted(rate_N.size, 'example')}; pass the data "
            "that the model was trained on"
        )
    return rate_N[sequences.example_N]


def _content(sequences: Sequences) -> list[bytes]:
    return [*map(bytes, sequences.tokens), sequences.begin_N.tobytes(), sequences.end_N.tobytes()]
