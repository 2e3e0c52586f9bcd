"""Canaries: secrets planted into a corpus whose candidates are known, so that a real training can be audited.

A canary is one of M candidates, drawn at random by nobody but the system, and stands in a text that looks like the
others. It is registered like any other secret, with the prior 1 / M that follows from its public format, and gets its
own promise. After training, whoever names it more often than promised has found a mistake, at no real secret's cost.

What a planted secret may be: every text of a public format, or a list. Each is as likely as any other.

Planted canaries on disk: data to plan for and train on, and the key that names the true candidates.

public/  incidence.parquet, secrets.parquet: for ``hush plan``
owner/   data.parquet: the corpus with the canaries after it; canaries.json: what they are. For the owner alone
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import inf, nextafter
from pathlib import Path
from random import Random, SystemRandom
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data import Corpus
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.numbers import counted
from hush.plan.plan import CANARY
from hush.protection import Protection
from hush.scan.reasons import OwnerWriter
from hush.scan.rules.promises import prior_among
from hush.secret_table import Secrets
from hush.storage import read_json, whole_file, whole_folder

__all__ = [
    "ALPHABETS",
    "SLOT",
    "Canary",
    "Candidates",
    "Planted",
    "Planting",
    "Template",
    "check_folder",
    "plant",
    "read_canaries",
    "save_planted",
    "templates_from",
]


MAX_CANDIDATE_LETTERS = 256  # letters

ALPHABETS: Mapping[str, str] = MappingProxyType(
    {
        "digits": string.digits,
        "hex": string.digits + "abcdef",
        "lower": string.ascii_lowercase,
        "upper": string.ascii_uppercase,
        "letters": string.ascii_letters,
        "alphanumeric": string.ascii_letters + string.digits,
    }
)


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Candidates:
    """All texts that a secret may be, numbered from 0. Build one with ``of_format`` or ``of_list``.

    >>> pins = Candidates.of_format("digits", 4)
    >>> pins.size, pins.text(42), pins.prior
    (10000, '0042', 0.0001)
    """

    letters: str = ""
    length: int = 0
    values: tuple[str, ...] = ()

    @classmethod
    def of_format(cls, alphabet: str, length: int) -> Self:
        """Every text of this length over a named alphabet."""
        if alphabet not in ALPHABETS:
            raise InvalidInput(f"alphabet={alphabet!r}; pass one of {', '.join(ALPHABETS)}")
        if not 1 <= length <= MAX_CANDIDATE_LETTERS:
            raise InvalidInput(f"length={length}; pass a whole number of letters from 1 to {MAX_CANDIDATE_LETTERS}")
        return cls(letters=ALPHABETS[alphabet], length=length)

    @classmethod
    def of_list(cls, values: Sequence[str]) -> Self:
        """These texts, at least two, all different."""
        if len(values) < 2 or len(set(values)) < len(values) or not all(values):
            raise InvalidInput(
                f"there are {len(values)} candidates, {len(set(values))} of them different; pass at least two, all "
                "different, none empty"
            )
        return cls(values=tuple(values))

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.values) or len(self.letters) ** self.length

    @property
    def prior(self) -> float:
        """The chance of naming the right one without having seen anything. Guarantee: at least 1 / ``size``."""
        return prior_among(self.size)

    def spoken_prior(self, fold: Callable[[str], str] = str) -> float:
        """The same for whoever says a text that goes on: it names each candidate that it begins with, as Ann in Anna.

        fold: what is left of a text when it is spoken; those that are then equal, such as Bo and bo, are said at once.

        >>> Candidates.of_list(["Ann", "Anna", "Bo", "Cy"]).spoken_prior()
        0.5
        """
        most = max(Counter(map(fold, self.letters)).values(), default=1) ** self.length
        chain: list[str] = []
        for value in sorted(map(fold, self.values)):  # what begins alike stands together, the shorter first
            while chain and not value.startswith(chain[-1]):
                chain.pop()
            chain.append(value)
            most = max(most, len(chain))
        exact = Fraction(most, self.size)
        return max(self.prior, float(exact), nextafter(float(exact), inf) if float(exact) < exact else 0.0)

    def masked_prior(self, fold: Callable[[str], str] = str, *, more: int = 0) -> float:
        """The same for whoever is told how many tokens it has, as a masked model is, and has an answer for each number.

        more: tokens that may be hidden beside its own.

        >>> round(Candidates.of_list(["Bo", "Cy", "Ada", "Eve"]).masked_prior(), 4)  # one to three tokens
        0.75
        """
        texts = self.values or (self.letters[:1] * self.length,)
        widths = more + max(len(fold(text).encode()) for text in texts)  # a token holds at least one byte
        return min(1.0, nextafter(widths * self.spoken_prior(fold), inf))

    def text(self, number: int) -> str:
        """The candidate of this number."""
        if not 0 <= number < self.size:
            raise InvalidInput(f"candidate {number} is outside [0, {self.size}); they count from 0")
        if self.values:
            return self.values[number]
        letters: list[str] = []
        for _ in range(self.length):
            number, place = divmod(number, len(self.letters))
            letters.append(self.letters[place])
        return "".join(reversed(letters))

    def some(self, count: int, rng: Random) -> list[int]:
        """So many different ones, drawn at random; all where there are no more."""
        return list(range(self.size)) if count >= self.size else list(_distinct(self.size, count, rng))

    def others(self, number: int, count: int, rng: Random) -> list[int]:
        """So many different ones besides this one, drawn at random; all others where there are no more."""
        if count >= self.size - 1:
            return [other for other in range(self.size) if other != number]
        return [other + (other >= number) for other in _distinct(self.size - 1, count, rng)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the owner's file."""
        return {"values": list(self.values)} if self.values else {"letters": self.letters, "length": self.length}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From what ``to_dict`` gave."""
        if "values" in data:
            return cls.of_list([str(value) for value in data["values"]])
        names = {letters: name for name, letters in ALPHABETS.items()}
        return cls.of_format(names.get(str(data["letters"]), "unknown"), int(data["length"]))

    def __repr__(self) -> str:
        return f"Candidates({self.size} texts)"


def _distinct(size: int, count: int, rng: Random) -> Iterator[int]:
    """Different numbers below a size that may be too large for ``Random.sample``."""
    seen: set[int] = set()
    while len(seen) < count:
        number = rng.randrange(size)
        if number not in seen:
            seen.add(number)
            yield number


SLOT, NUMBER = "{secret}", "{number}"
FIRST, MAX_TEMPLATE_CHARACTERS = (
    200,
    400,
)  # characters: a slot cut into a text of the data is before the first, which ends at the other
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
        slots = (
            []
            if holds
            else [word for word in _WORD.finditer(text[:MAX_TEMPLATE_CHARACTERS]) if word.end() <= FIRST][1:]
        )
        if not slots:
            continue
        seen += 1  # each of those seen so far is kept with the same chance
        place = len(kept) if len(kept) < count else rng.randrange(seen)
        if place >= count:
            continue
        made = [
            Template(before=text[: word.start()], after=text[word.end() : MAX_TEMPLATE_CHARACTERS]) for word in slots
        ]
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


KIND = "hush canaries 1"
CHUNK = 4096  # rows that are written at once


def check_folder(folder: Path) -> None:
    """Refuse a place that holds anything, before any work: what was planted there may be trained on already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} holds something already; name a new folder for the canaries")


def save_planted(planted: Planted, corpus: Corpus, folder: Path) -> None:
    """Write everything as a folder, which appears whole or not at all."""
    check_folder(folder)
    texts = planted.texts
    if len(corpus) + len(texts) != planted.incidence.num_examples:
        raise InvalidInput(
            f"{corpus.source} has {len(corpus)} rows, but the graph had {planted.incidence.num_examples - len(texts)} "
            "examples; pass the data whose row i is example i"
        )
    with whole_folder(folder) as work:
        public, owner = work / "public", work / "owner"
        public.mkdir()
        owner.mkdir(mode=0o700)
        planted.incidence.to_parquet(public / "incidence.parquet")
        planted.secrets.to_parquet(public / "secrets.parquet")
        schema = pa.schema({corpus.column: pa.large_string()})
        with OwnerWriter(owner / "data.parquet", schema, kind="data") as file:
            for rows in _chunks([corpus.texts(), texts]):
                file.write({corpus.column: rows})
        with whole_file(owner / "canaries.json", owner_only=True) as file:
            file.write(json.dumps(_record(planted), indent=1).encode())


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Planting:
    """Canaries that were planted, and what each may be. id: tells plantings apart."""

    id: str
    canaries: tuple[Canary, ...]
    candidates: Candidates

    def check_data(self, texts: Iterable[str]) -> None:
        """Refuse data in which these canaries do not stand: naming what was never trained on would always fail."""
        owner_of = {example: canary for canary in self.canaries for example in canary.examples}
        found: set[int] = set()
        for number, text in enumerate(texts):
            canary = owner_of.get(number)
            if canary is None:
                continue
            if text != canary.template.filled(self.candidates.text(canary.truth)):
                raise InvalidInput(f"{canary.id} does not stand in example {number}; pass the canaries of these data")
            found.add(number)
        if len(found) < len(owner_of):
            beyond = counted(len(owner_of) - len(found), "example")
            raise InvalidInput(f"beyond the data: {beyond} of canaries; pass the canaries of these data")

    def __repr__(self) -> str:
        return f"Planting({len(self.canaries)} canaries of {self.candidates.size} candidates)"


def read_canaries(folder: str | Path) -> Planting:
    """What was planted, from the folder or from its file canaries.json."""
    path = Path(folder)
    path = path / "owner" / "canaries.json" if path.is_dir() else path
    problem = f"{path} is not a file of canaries; pass the folder that hush canaries wrote"
    try:
        record: dict[str, Any] = read_json(path)
    except ValueError:
        raise InvalidInput(problem) from None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise InvalidInput(problem)
    try:
        canaries = tuple(
            Canary(
                id=str(one["id"]),
                template=Template(before=str(one["before"]), after=str(one["after"])),
                truth=int(one["truth"]),
                examples=tuple(int(example) for example in one["examples"]),
            )
            for one in record["canaries"]
        )
        candidates = Candidates.from_dict(record["candidates"])
        known = all(0 <= canary.truth < candidates.size for canary in canaries)
        planting = Planting(id=str(record["id"]), canaries=canaries, candidates=candidates)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidInput(problem) from None  # what it says instead may be a secret
    if not known or not canaries:
        raise InvalidInput(problem)
    return planting


def _record(planted: Planted) -> dict[str, Any]:
    return {
        "kind": KIND,
        "id": planted.id,
        "candidates": planted.candidates.to_dict(),
        "canaries": [
            {
                "id": canary.id,
                "before": canary.template.before,
                "after": canary.template.after,
                "truth": canary.truth,
                "examples": list(canary.examples),
            }
            for canary in planted.canaries
        ],
    }


def _chunks(parts: list[Iterable[str]]) -> Iterator[list[str]]:
    for part in parts:
        rows = iter(part)
        while chunk := list(islice(rows, CHUNK)):
            yield chunk
