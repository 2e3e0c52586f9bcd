"""Canaries: secrets planted into a corpus whose candidates are known, so that a real training can be audited.

A canary is one of M candidates, drawn at random by nobody but the system, and stands in a text that looks like the
others. It is registered like any other secret, with the prior 1 / M that follows from its public format, and gets its
own promise. After training, whoever names it more often than promised has found a mistake, at no real secret's cost.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from secrets import token_hex
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from hush.audit.candidates import Candidates
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.plan.remarks import CANARY
from hush.protection import Protection
from hush.rounding import counted
from hush.secret_table import Secrets

__all__ = ["SLOT", "Canary", "Planted", "Template", "plant", "templates_from"]

SLOT, NUMBER = "{secret}", "{number}"
FIRST, LONGEST = 200, 400  # characters: a slot cut into a text of the data is before the first, which ends at the other
_WORD = re.compile(r"\S+")


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Template:
    """A text with a slot for a secret: what comes before and after it."""

    before: str
    after: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a text that holds {secret} once; {number} may stand anywhere, for the number of the canary."""
        before, *rest = text.split(SLOT)
        if len(rest) != 1:
            raise InvalidInput(f"a template holds {SLOT} {len(rest)} times; let it stand there exactly once")
        if not before.strip():
            raise InvalidInput(f"a template begins with {SLOT}; put text before it, which prompts the model")
        return cls(before=before, after=rest[0])

    def numbered(self, number: int) -> "Template":
        """The template of one canary."""
        shown = f"{number:03d}"
        return Template(before=self.before.replace(NUMBER, shown), after=self.after.replace(NUMBER, shown))

    def filled(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"

    def __repr__(self) -> str:
        return "Template()"


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Canary:
    """A planted secret: its public id, its text around it, the true candidate, and the examples that hold it."""

    id: str
    template: Template
    truth: int
    examples: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Canary({self.id}, {len(self.examples)} examples)"


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Planted:
    """Canaries, and the graph and promises in which they are registered. Their examples come after all others.

    id: at random, so that two plantings can be told apart.
    """

    canaries: tuple[Canary, ...]
    candidates: Candidates
    incidence: Incidence
    secrets: Secrets
    id: str

    @property
    def texts(self) -> list[str]:
        """The new examples, in order."""
        rows = [(example, canary) for canary in self.canaries for example in canary.examples]
        return [canary.template.filled(self.candidates.text(canary.truth)) for _, canary in sorted(rows, key=_first)]

    def __repr__(self) -> str:
        return f"Planted({len(self.canaries)} canaries of {self.candidates.size} candidates)"


def plant(
    incidence: Incidence,
    secrets: Secrets,
    templates: Sequence[Template],
    candidates: Candidates,
    *,
    count: int,
    repeats: int,
    ceiling: float,
    rng: Random | None = None,
) -> Planted:
    """Canaries in so many new examples each, after those of the graph; ids count on: canary-000000, ….

    rng draws the true candidates, by default from the system's entropy. Whoever knows its state knows them: it is as
    private as they are. Templates are used in turn.
    """
    if count < 1 or repeats < 1:
        raise InvalidInput(f"count={count}, repeats={repeats}; plant at least one canary in at least one example")
    if len(secrets) != incidence.num_secrets:
        raise InvalidInput(f"the graph has {incidence.num_secrets} secrets, the table {len(secrets)}; pass a pair")
    made = [templates[number % len(templates)].numbered(number) for number in range(count if templates else 0)]
    if len({(one.before, one.after) for one in made}) < count:
        raise InvalidInput(
            f"{counted(len(templates), 'template')} for {counted(count, 'canary', 'canaries')}: two in the same words "
            f"hide each other; give each its own, or put {NUMBER} into them, which every canary fills with its number"
        )
    if not candidates.prior <= ceiling < 1:
        raise InvalidInput(
            f"ceiling={ceiling!r}, but the prior of {candidates.size} candidates is {candidates.prior!r}; pass a "
            "ceiling from there to 1, or a longer format"
        )
    source = SystemRandom() if rng is None else rng
    begin = incidence.num_examples
    canaries = tuple(
        Canary(
            id=f"{CANARY}{number:06d}",
            template=made[number],
            truth=source.randrange(candidates.size),
            # One of each, then the next of each: a cut of the file loses no canary whole.
            examples=tuple(begin + number + turn * count for turn in range(repeats)),
        )
        for number in range(count)
    )
    taken = {canary.id for canary in canaries} & set(secrets.ids)
    if taken:
        raise InvalidInput(f"there is a secret {min(taken)} already; plant all canaries at once, into data without any")
    return Planted(
        canaries=canaries,
        candidates=candidates,
        incidence=_extended(incidence, [canary.examples for canary in canaries]),
        secrets=Secrets(
            [*secrets.protections, *[Protection(candidates.prior, ceiling)] * count],
            ids=[*secrets.ids, *(canary.id for canary in canaries)],
        ),
        id=token_hex(8),
    )


def templates_from(texts: Iterable[str], holds_secret_N: NDArray[np.bool_], count: int, rng: Random) -> list[Template]:
    """Templates from texts of the corpus itself, drawn at random: one of their words, not the first, makes the slot.

    Texts that hold a secret are passed over: a canary would be a copy of it that no graph lists.
    """
    kept: list[Template] = []
    seen = 0
    for holds, text in zip(holds_secret_N.tolist(), texts, strict=True):
        slots = [] if holds else [word for word in _WORD.finditer(text[:LONGEST]) if word.end() <= FIRST][1:]
        if not slots:
            continue
        seen += 1  # each of those seen so far is kept with the same chance
        place = len(kept) if len(kept) < count else rng.randrange(seen)
        if place >= count:
            continue
        made = [Template(before=text[: word.start()], after=text[word.end() : LONGEST]) for word in slots]
        fresh = [template for template in made if template not in kept]  # copies of a text would hide each other
        if fresh:
            kept[place : place + 1] = [rng.choice(fresh)]
    if len(kept) < count:
        raise InvalidInput(
            f"{counted(count, 'canary', 'canaries')} asked for, but the data hold {counted(len(kept), 'text')} of two "
            "words or more without a secret, copies counted once; plant fewer canaries, or pass templates"
        )
    return kept


def _extended(incidence: Incidence, examples: Sequence[Sequence[int]]) -> Incidence:
    """The graph with a further secret for each list of examples, which are new."""
    added = [example for one in examples for example in one]
    ends = incidence.num_entries + np.cumsum([len(one) for one in examples])
    return Incidence(
        incidence.num_examples + len(added),
        np.concatenate([incidence.offset_S, ends]),
        np.concatenate([incidence.example_of_entry, np.array(added, dtype=np.int64)]),
    )


def _first(row: tuple[int, Canary]) -> int:
    return row[0]
