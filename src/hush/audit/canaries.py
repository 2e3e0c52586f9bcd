"""Canaries: planted secrets with known candidates, so that a real training can be audited.

A canary is one of M candidates (:class:`Candidates`: every text of a public format, or a list), drawn uniformly from
the system's entropy, and stands in a text that looks like the others. It is registered like any other secret, with the
prior 1 / M that follows from its public format, and gets its own promise. An attack on the trained model that names it
more often than promised has found a mistake, at no real secret's cost.

The folder of planted canaries holds the data to plan for and train on, and the true candidates:

public/  incidence.parquet, secrets.parquet: for ``hush plan``
owner/   data.parquet: the corpus with the canaries after it; canaries.json: the canaries. For the owner only
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from hush.data.rendered import ANSWERS, TEXT, stored_ranges
from hush.errors import InvalidInput, Setting
from hush.incidence import Incidence
from hush.numbers import counted
from hush.plan.plan import CANARY
from hush.protection import Protection
from hush.scan.reasons import OwnerWriter
from hush.scan.result import rendered_writer
from hush.scan.rules.promises import prior_among
from hush.secret_table import Secrets
from hush.slots import Spans, save_spans
from hush.storage import read_json, whole_file, whole_folder

__all__ = [
    "ALPHABETS",
    "SLOT",
    "Canary",
    "CanarySet",
    "Candidates",
    "PlantedCanaries",
    "Template",
    "check_folder",
    "check_same",
    "plant",
    "plant_again",
    "read_canaries",
    "save_planted",
    "templates_from",
]


SLOT, NUMBER = "{secret}", "{number}"  # what a template contains for the secret, and for the canary's number
MAX_CANDIDATE_LETTERS = 256  # of a format
MAX_SLOT_END = 200  # characters: a slot cut into a text of the data ends at most here
MAX_TEMPLATE_CHARACTERS = 400  # a text of the data is cut to this as a template
FILE_KIND = "hush canaries 1"  # the field "kind" of canaries.json
WRITE_ROWS = 4096  # rows that are written at once
_WORD = re.compile(r"\S+")

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
    """All texts that a secret may be, numbered from 0 and equally likely. Build with ``of_format`` or ``of_list``.

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
            raise InvalidInput(f"pass one of {', '.join(ALPHABETS)}", setting="alphabet", value=alphabet)
        if not 1 <= length <= MAX_CANDIDATE_LETTERS:
            raise InvalidInput(
                f"pass a whole number of letters from 1 to {MAX_CANDIDATE_LETTERS}",
                setting="length",
                value=length,
            )
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
        """The chance of guessing the right one. Guarantee: at least 1 / ``size``."""
        return prior_among(self.size)

    def prefix_prior(self, fold: Callable[[str], str] = str) -> float:
        """The prior where an answer is a text that names every candidate it begins with, as "Anna" names "Ann" too.

        fold: the text as a tokenizer distinguishes it; candidates that are then equal, such as Bo and bo, are named at
        once.

        >>> Candidates.of_list(["Ann", "Anna", "Bo", "Cy"]).prefix_prior()
        0.5
        """
        most_named = max(Counter(map(fold, self.letters)).values(), default=1) ** self.length
        prefixes: list[str] = []
        for value in sorted(map(fold, self.values)):  # sorted, every text follows its prefixes
            while prefixes and not value.startswith(prefixes[-1]):
                prefixes.pop()
            prefixes.append(value)
            most_named = max(most_named, len(prefixes))
        exact = Fraction(most_named, self.size)
        return max(self.prior, float(exact), nextafter(float(exact), inf) if float(exact) < exact else 0.0)

    def masked_prior(self, fold: Callable[[str], str] = str, *, more: int = 0) -> float:
        """The prior where the answer may depend on the number of masked tokens, as for a masked language model.

        more: tokens that may be masked beside the candidate's own.

        >>> round(Candidates.of_list(["Bo", "Cy", "Ada", "Eve"]).masked_prior(), 4)  # one to three tokens
        0.75
        """
        texts = self.values or (self.letters[:1] * self.length,)
        widths = more + max(len(fold(text).encode()) for text in texts)  # a token holds at least one byte
        return min(1.0, nextafter(widths * self.prefix_prior(fold), inf))

    def text(self, number: int) -> str:
        """The candidate with this number."""
        if not 0 <= number < self.size:
            raise InvalidInput(f"candidate {number} is outside [0, {self.size}); candidates count from 0")
        if self.values:
            return self.values[number]
        letters: list[str] = []
        for _ in range(self.length):
            number, letter = divmod(number, len(self.letters))
            letters.append(self.letters[letter])
        return "".join(reversed(letters))

    def sample(self, count: int, rng: Random) -> list[int]:
        """The numbers of ``count`` different candidates, drawn at random; all of them where there are no more."""
        return list(range(self.size)) if count >= self.size else list(_distinct(self.size, count, rng))

    def sample_others(self, number: int, count: int, rng: Random) -> list[int]:
        """The same without this candidate."""
        if count >= self.size - 1:
            return [other for other in range(self.size) if other != number]
        return [other + (other >= number) for other in _distinct(self.size - 1, count, rng)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for canaries.json."""
        return {"values": list(self.values)} if self.values else {"letters": self.letters, "length": self.length}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From the data of ``to_dict``."""
        if "values" in data:
            return cls.of_list([str(value) for value in data["values"]])
        names = {letters: name for name, letters in ALPHABETS.items()}
        return cls.of_format(names.get(str(data["letters"]), "unknown"), int(data["length"]))

    def __repr__(self) -> str:
        return f"Candidates({self.size} texts)"


def _distinct(size: int, count: int, rng: Random) -> Iterator[int]:
    """Different random numbers below a size that may be too large for ``Random.sample``."""
    seen: set[int] = set()
    while len(seen) < count:
        number = rng.randrange(size)
        if number not in seen:
            seen.add(number)
            yield number


# Planting.


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Template:
    """A text with a slot for a secret: the text before and after the slot."""

    before: str
    after: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a text that contains {secret} once; {number}, anywhere, stands for the number of the canary."""
        before, *rest = text.split(SLOT)
        if len(rest) != 1:
            raise InvalidInput(f"a template contains {SLOT} {len(rest)} times; it must contain it exactly once")
        if not before.strip():
            raise InvalidInput(f"a template begins with {SLOT}; put text before it, to prompt the model with")
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
    """A planted secret: its public id, its template, the number of the true candidate, and the examples with it."""

    id: str
    template: Template
    truth: int
    examples: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Canary({self.id}, {len(self.examples)} examples)"


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlantedCanaries:
    """New canaries, and the graph and promises in which they are registered. Their examples come after all others.

    id: random, to distinguish two plantings. spans: of the slots of all secrets, if the plan is to hide spans.
    """

    canaries: tuple[Canary, ...]
    candidates: Candidates
    incidence: Incidence
    secrets: Secrets
    id: str
    spans: Spans | None = None

    @property
    def texts(self) -> list[str]:
        """The new examples, in order."""
        canary_of = {example: canary for canary in self.canaries for example in canary.examples}
        return [canary.template.filled(self.candidates.text(canary.truth)) for _, canary in sorted(canary_of.items())]

    def __repr__(self) -> str:
        return f"PlantedCanaries({len(self.canaries)} canaries of {self.candidates.size} candidates)"


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
    spans: Spans | None = None,
) -> PlantedCanaries:
    """Plant canaries in ``repeats`` new examples each, after those of the graph, with the ids canary-000000, ….

    rng draws the true candidates, by default from the system's entropy; its state reveals them, so keep it as private
    as they are. Templates are used in turn. With the spans of the graph, a canary is hidden as a span of its examples;
    without, its examples are hidden.
    """
    if count < 1:
        raise InvalidInput("plant at least one canary", setting="count", value=count)
    chosen = [templates[number % len(templates)].numbered(number) for number in range(count if templates else 0)]
    if len({(template.before, template.after) for template in chosen}) < count:
        raise InvalidInput(
            f"{counted(len(templates), 'template')} for {counted(count, 'canary', 'canaries')}: two canaries in the "
            f"same words hide each other; give each its own template, or put {NUMBER} into it, which stands for the "
            "number of the canary"
        )
    source = SystemRandom() if rng is None else rng
    drawn = CanarySet(
        id=token_hex(8),
        canaries=tuple(
            Canary(
                id=f"{CANARY}{number:06d}",
                template=template,
                truth=source.randrange(candidates.size),
                examples=(),
            )
            for number, template in enumerate(chosen)
        ),
        candidates=candidates,
    )
    return plant_again(drawn, incidence, secrets, repeats=repeats, ceiling=ceiling, spans=spans)


def plant_again(
    planting: "CanarySet",
    incidence: Incidence,
    secrets: Secrets,
    *,
    repeats: int,
    ceiling: float,
    spans: Spans | None = None,
) -> PlantedCanaries:
    """Plant the same canaries in the data of another release: the same true candidates, templates, ids and planting id.

    Over a chain of releases the same secret keeps its id (:mod:`hush.plan.chain`), and a canary is such a secret:
    attacked with the models of several releases, it must have been planted in them with the same text.
    """
    if repeats < 1:
        raise InvalidInput("plant each canary in at least one example", setting="repeats", value=repeats)
    if len(secrets) != incidence.num_secrets:
        raise InvalidInput(
            f"the graph has {incidence.num_secrets} secrets, the table {len(secrets)}; pass two that belong together"
        )
    candidates, count = planting.candidates, len(planting.canaries)
    if not candidates.prior <= ceiling < 1:
        raise InvalidInput(
            f"the prior of {candidates.size} candidates is {candidates.prior!r}; pass a ceiling from there to 1, or a "
            "longer format",
            setting="ceiling",
            value=ceiling,
        )
    taken = {canary.id for canary in planting.canaries} & set(secrets.ids)
    if taken:
        raise InvalidInput(
            f"there is already a secret {min(taken)}; plant all canaries at once, into data without canaries"
        )
    begin = incidence.num_examples
    canaries = tuple(
        # Every canary once, then every canary again: a truncated file loses no canary entirely.
        replace(canary, examples=tuple(begin + number + repeat * count for repeat in range(repeats)))
        for number, canary in enumerate(planting.canaries)
    )
    graph = _extended(incidence, [canary.examples for canary in canaries])
    return PlantedCanaries(
        canaries=canaries,
        candidates=candidates,
        incidence=graph,
        secrets=Secrets(
            [*secrets.protections, *[Protection(candidates.prior, ceiling)] * count],
            ids=[*secrets.ids, *(canary.id for canary in canaries)],
        ),
        id=planting.id,
        spans=None if spans is None else _with_canaries(spans, graph, canaries, candidates),
    )


def check_same(planting: "CanarySet", candidates: Candidates, count: int) -> None:
    """Refuse to plant other canaries than those of the earlier releases of a chain."""
    if len(planting.canaries) != count or planting.candidates != candidates:
        raise InvalidInput(
            "the releases of a chain hold the same canaries: "
            f"{counted(len(planting.canaries), 'canary', 'canaries')} of {planting.candidates.size} candidates, and "
            f"{count} of {candidates.size} are asked for; pass the count, alphabet and length of the first release",
            setting="count",
            value=count,
        )


def _with_canaries(spans: Spans, graph: Incidence, canaries: Sequence[Canary], candidates: Candidates) -> Spans:
    """The spans of the graph and of the canaries, each of which is a secret after those of the spans."""
    rows = [
        (example, len(canary.template.before), len(candidates.text(canary.truth)), spans.slots.num_secrets + number)
        for number, canary in enumerate(canaries)
        for example in canary.examples
    ]
    example_H, begin_H, length_H, secret_H = np.array(rows, dtype=np.int64).T
    return spans.with_more(
        graph, CANARY.rstrip("-"), example=example_H, begin=begin_H, end=begin_H + length_H, secret=secret_H
    )


def templates_from(texts: Iterable[str], holds_secret_N: NDArray[np.bool_], count: int, rng: Random) -> list[Template]:
    """Templates from random texts of the corpus itself: one of their words, not the first, becomes the slot.

    Texts that contain a secret are skipped: the canary's example would be a copy of it that the graph does not list.
    """
    chosen: list[Template] = []
    seen = 0
    for has_secret, text in zip(holds_secret_N.tolist(), texts, strict=True):
        words = [] if has_secret else list(_WORD.finditer(text[:MAX_TEMPLATE_CHARACTERS]))
        slots = [word for word in words if word.end() <= MAX_SLOT_END][1:]
        if not slots:
            continue
        seen += 1  # reservoir sampling: each text seen so far is kept with the same probability
        position = len(chosen) if len(chosen) < count else rng.randrange(seen)
        if position >= count:
            continue
        templates = [
            Template(before=text[: word.start()], after=text[word.end() : MAX_TEMPLATE_CHARACTERS]) for word in slots
        ]
        unused = [template for template in templates if template not in chosen]  # equal templates hide each other
        if unused:
            chosen[position : position + 1] = [rng.choice(unused)]
    if len(chosen) < count:
        raise InvalidInput(
            f"{counted(count, 'canary', 'canaries')} requested, but the data hold only {counted(len(chosen), 'text')} "
            "of two words or more without a secret, copies counted once; plant fewer canaries, or pass templates"
        )
    return chosen


def _extended(incidence: Incidence, examples: Sequence[Sequence[int]]) -> Incidence:
    """The graph with one more secret for each list of new examples."""
    added = [example for of_secret in examples for example in of_secret]
    ends = incidence.num_entries + np.cumsum([len(of_secret) for of_secret in examples])
    return Incidence(
        incidence.num_examples + len(added),
        np.concatenate([incidence.offset_S, ends]),
        np.concatenate([incidence.example_of_entry, np.array(added, dtype=np.int64)]),
    )


# Canaries on disk.


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not empty, before any work: a model may already be trained on canaries planted there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} is not empty; pass a new folder for the canaries as ", Setting("output"))


def save_planted(planted: PlantedCanaries, corpus: Corpus, folder: Path) -> None:
    """Write the folder of planted canaries; it appears complete or not at all."""
    check_folder(folder)
    texts = planted.texts
    if len(corpus) + len(texts) != planted.incidence.num_examples:
        raise InvalidInput(
            f"{corpus.source} has {len(corpus)} rows, but the graph has {planted.incidence.num_examples - len(texts)} "
            "examples before the canaries; pass the data whose row i is example i"
        )
    with whole_folder(folder) as temporary:
        public, owner = temporary / "public", temporary / "owner"
        public.mkdir()
        owner.mkdir(mode=0o700)
        planted.incidence.to_parquet(public / "incidence.parquet")
        planted.secrets.to_parquet(public / "secrets.parquet")
        if planted.spans is not None:
            save_spans(planted.spans, temporary)
        _write_data(corpus, texts, owner / "data.parquet")
        with whole_file(owner / "canaries.json", owner_only=True) as file:
            file.write(json.dumps(_record(planted), indent=1).encode())


def _write_data(corpus: Corpus, texts: Sequence[str], path: Path) -> None:
    """The texts of the data and those of canaries, all of which are learnt if they stand among conversations."""
    if corpus.rendering is None:
        schema = pa.schema({corpus.column: pa.large_string()})
        with OwnerWriter(path, schema, kind="data") as file:
            for part in (corpus.texts(), texts):
                rows = iter(part)
                while chunk := list(islice(rows, WRITE_ROWS)):
                    file.write({corpus.column: chunk})
        return
    with rendered_writer(path, corpus.rendering, kind="data") as file:
        whole = ((text, ((0, len(text)),)) for text in texts)
        for part in (corpus.texts_with_answers(), whole):
            rows = iter(part)
            while chunk := list(islice(rows, WRITE_ROWS)):
                answers = [stored_ranges(ranges) for _, ranges in chunk]
                file.write({TEXT: [text for text, _ in chunk], ANSWERS: answers})


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CanarySet:
    """Planted canaries and their candidates. id: random, to distinguish two plantings."""

    id: str
    canaries: tuple[Canary, ...]
    candidates: Candidates

    def check_data(self, texts: Iterable[str]) -> None:
        """Refuse data without these canaries: an attack on canaries that were never trained on would always fail."""
        canary_of = {example: canary for canary in self.canaries for example in canary.examples}
        present = 0
        for number, text in enumerate(texts):
            canary = canary_of.get(number)
            if canary is None:
                continue
            if text != canary.template.filled(self.candidates.text(canary.truth)):
                raise InvalidInput(
                    f"{canary.id} is not in example {number}; pass the canaries of these data as ", Setting("canaries")
                )
            present += 1
        if present < len(canary_of):
            missing = counted(len(canary_of) - present, "example")
            raise InvalidInput(
                f"the data lack {missing} of the canaries; pass the canaries of these data as ", Setting("canaries")
            )

    def __repr__(self) -> str:
        return f"CanarySet({len(self.canaries)} canaries of {self.candidates.size} candidates)"


def read_canaries(folder: str | Path) -> CanarySet:
    """Read planted canaries from their folder, or from its file canaries.json."""
    path = Path(folder)
    path = path / "owner" / "canaries.json" if path.is_dir() else path
    problem = f"{path} is not a file of canaries; pass the folder that hush canaries wrote"
    try:
        record: dict[str, Any] = read_json(path)
    except ValueError:
        raise InvalidInput(problem) from None
    if not isinstance(record, dict) or record.get("kind") != FILE_KIND:
        raise InvalidInput(problem)
    try:
        canaries = tuple(
            Canary(
                id=str(entry["id"]),
                template=Template(before=str(entry["before"]), after=str(entry["after"])),
                truth=int(entry["truth"]),
                examples=tuple(int(example) for example in entry["examples"]),
            )
            for entry in record["canaries"]
        )
        candidates = Candidates.from_dict(record["candidates"])
        known = all(0 <= canary.truth < candidates.size for canary in canaries)
        planting = CanarySet(id=str(record["id"]), canaries=canaries, candidates=candidates)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidInput(problem) from None  # the original error may quote a secret
    if not known or not canaries:
        raise InvalidInput(problem)
    return planting


def _record(planted: PlantedCanaries) -> dict[str, Any]:
    return {
        "kind": FILE_KIND,
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
