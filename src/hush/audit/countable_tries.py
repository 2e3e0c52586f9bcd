"""Which tries of an extraction count as hits, should they come out: those that say one secret, and by memory alone.

A try that does not count keeps its place among all tries: whether it counts may depend on the secret.
"""

import numpy as np
from numpy.typing import NDArray

from hush.audit.canary_frames import framed
from hush.audit.places import CANARIES
from hush.audit.sequences import Sequences
from hush.audit.statistics import Success
from hush.audit.work import Work
from hush.rounding import counted

__all__ = ["countable", "hits_that_count"]

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
