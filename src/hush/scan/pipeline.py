"""The scan itself: surveys, then finders over every shard, then copies, numbers and promises.

    corpus → shards → count (surveys) → find → look again → copies → secrets + incidence + reasons

Shards are read by an engine; everything after them happens here, in their order, so that neither the cut into shards
nor the engine changes anything that comes out.
"""

import json
import secrets as entropy
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.corpus.shards import Readable, ShardSource
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.keyed import DataKey
from hush.scan.collecting import Collecting
from hush.scan.elsewhere import LookAgain
from hush.scan.engines import Engine
from hush.scan.finder import Finder, Prepared, Survey
from hush.scan.finders.literals import Literals
from hush.scan.numbering import Numbering, secret_table
from hush.scan.owner import REASONS, ROW_GROUP, OwnerFiles, OwnerWriter, temporary_owner
from hush.scan.places import write_examples
from hush.scan.result import Data, Scan
from hush.scan.spreading import first_equal, inherited
from hush.scan.task import Count, Find, Signer, Total

__all__ = ["NearCopies", "Progress", "run_scan"]

Result = TypeVar("Result")
Progress = Callable[[int, int], None]
Sentences = Callable[[NDArray[np.int64], NDArray[np.int64]], Sequence[str]]  # of examples and where each has it from


class CopyGroups(Protocol):
    """Who is a copy of whom."""

    @property
    def first_N(self) -> NDArray[np.int64]:
        """The first example of each example's group."""
        ...

    def reasons(self, example: Any, origin: Any, /) -> Sequence[str]:
        """Why each example has what the origin, of its group, contains."""
        ...


class NearCopies(Signer, Protocol):
    """The rule of near copies, as ``hush.scan.copies.Copies`` has it."""

    def groups(self, signature_NK: Any, /) -> CopyGroups:
        """The groups, from the signatures of all examples in order."""
        ...


def run_scan(
    corpus: ShardSource,
    rules: Sequence[Prepared],
    *,
    engine: Engine,
    key: DataKey | None = None,
    id_column: str | None = None,
    skip_bad: bool = False,
    copies: NearCopies | None = None,
    keep_texts: bool = False,
    progress: Progress | None = None,
) -> Scan:
    """Who contains what in a corpus, by these rules, and why.

    key: for the fingerprints of the examples and of the corpus. id_column: which column holds the examples' ids; by
    default an id says file and row. skip_bad: rows that cannot be read are counted and passed over. copies: near copies
    inherit each other's secrets; equal texts always do. keep_texts: the examples are not the rows of the input, so
    their texts are saved with the scan (they are too where rows were passed over). progress: called with how many
    pieces of work are done, of how many.

    Guarantee: every pair of the incidence has a reason. The result does not depend on the engine.
    """
    _check_names(rules)
    shards = corpus.shards()
    surveys = tuple(rule.finder for rule in rules if isinstance(rule.finder, Survey))
    asked = [name for rule in rules for name in rule.finder.columns] + ([] if id_column is None else [id_column])
    columns = tuple(dict.fromkeys(asked))
    corpus.check_columns(columns)
    again = [index for index, rule in enumerate(rules) if rule.again is not None]
    tell = _Telling(progress, len(shards) * (1 + bool(surveys) + bool(again)))
    count = Count(surveys=surveys, columns=columns, skip_bad=skip_bad)
    finders = _finders(rules, count, shards, engine, tell)
    owner = temporary_owner()
    found = Collecting(finders, owner.folder / "hits.arrows", again=again)
    find = Find(
        finders=finders,
        columns=columns,
        copy_key=entropy.token_bytes(32),
        key=key,
        id_column=id_column,
        signer=copies,
        skip_bad=skip_bad,
    )
    with closing(found):
        with closing(_results(engine, find, shards)) as results:
            for shard, result in zip(shards, results, strict=True):
                found.add(shard.files, result)
                tell()
        if again:
            literals = [_literals_of(rules[rule], found.numberings[rule]) for rule in again]
            look = LookAgain(literals=literals, columns=columns, skip_bad=skip_bad)
            searched = shards if any(one.values for one in literals) else ()  # else there is nothing to look for
            with closing(_results(engine, look, searched)) as results:
                for result in results:
                    found.add_elsewhere(result)
                    tell()
    incidence, num_inherited = _written(found, rules, owner, copies)
    fingerprint = None
    if key is not None:
        leaves = found.column("leaf")
        fingerprint = key.fingerprint_leaves([] if leaves is None else [leaves.tobytes()])
    write_examples(found, owner.folder / "examples.parquet", corpus.source)
    (owner.folder / "skipped.json").write_text(json.dumps(found.skipped), encoding="utf-8")
    return Scan(
        incidence=incidence,
        secrets=secret_table(rules, found.numberings),
        rules=tuple((rule.name, len(numbering)) for rule, numbering in zip(rules, found.numberings, strict=True)),
        skipped=sum(found.skipped.values()),
        inherited=num_inherited,
        data_fingerprint=fingerprint,
        owner=owner,
        data=_data(corpus, find, found) if keep_texts or found.skipped else None,
    )


def _data(corpus: ShardSource, find: Find, found: Collecting) -> Data:
    same_N = found.column("same")
    return Data(
        corpus=corpus,
        columns=find.columns,
        copy_key=find.copy_key,
        same_N=np.empty(0, dtype=np.uint64) if same_N is None else same_N,
    )


class _Telling:
    """Counts finished work and tells whoever asked."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _check_names(rules: Sequence[Prepared]) -> None:
    names = [rule.name for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"two rules are called {', '.join(twice)}; give every rule a name of its own")


def _finders(
    rules: Sequence[Prepared], count: Count, shards: Sequence[Readable], engine: Engine, tell: Callable[[], None]
) -> tuple[Finder, ...]:
    """Every rule's finder, the surveys' once all shards are counted."""
    totals = [Total(survey) for survey in count.surveys]
    if count.surveys:
        with closing(_results(engine, count, shards)) as results:
            for counted in results:
                for total, one in zip(totals, counted, strict=True):
                    total.add(one)
                tell()
    made = iter([survey.finder(total.value()) for survey, total in zip(count.surveys, totals, strict=True)])
    return tuple(next(made) if isinstance(rule.finder, Survey) else rule.finder for rule in rules)


def _literals_of(rule: Prepared, numbering: Numbering) -> Literals:
    """What a rule found, to be looked for everywhere."""
    return Literals(values=tuple(numbering.keys), whole_words=rule.again == "words")


def _results(
    engine: Engine, task: Callable[[Readable], Result], shards: Sequence[Readable]
) -> Generator[Result, None, None]:
    """What the engine gives; to close this is to stop it, even where somebody keeps the traceback of an error."""
    yield from engine.map(task, shards)


def _written(
    found: Collecting, rules: Sequence[Prepared], owner: OwnerFiles, copies: NearCopies | None
) -> tuple[Incidence, int]:
    """The incidence, its reasons in the owner's file, and how many of its pairs come from copies alone."""
    offset_R = found.offsets()
    num_secrets = int(offset_R[-1])
    name_R = pa.array([rule.name for rule in rules], pa.string())
    example_P, secret_P = found.pairs()
    direct = len(example_P)
    with OwnerWriter(owner.folder / "reasons.parquet", REASONS, kind="scan reasons") as writer:
        for batch in found.hits():
            rule_H = batch.column("rule").to_numpy()
            columns = {name: batch.column(name) for name in ("example", "reason", "begin", "end")}
            secret_H = offset_R[rule_H] + batch.column("number").to_numpy()
            writer.write(columns | {"secret": secret_H, "rule": name_R.take(pa.array(rule_H))})
        for first_N, reasons in _groups(found, copies) if direct else ():
            made = inherited(first_N, example_P, secret_P, num_secrets=num_secrets)
            for part in made.parts(ROW_GROUP):
                rule_H = np.searchsorted(offset_R, part.secret_H, side="right") - 1
                columns = {"example": part.example_H, "secret": part.secret_H, "rule": name_R.take(pa.array(rule_H))}
                nowhere = dict.fromkeys(("begin", "end"), np.full(len(part), -1))
                writer.write(columns | nowhere | {"reason": reasons(part.example_H, part.origin_H)})
            example_P = np.concatenate([example_P, made.example_H])
            secret_P = np.concatenate([secret_P, made.secret_H])
    (owner.folder / "hits.arrows").unlink()
    incidence = Incidence.from_pairs(example_P, secret_P, num_examples=found.num_examples, num_secrets=num_secrets)
    return incidence, len(example_P) - direct


def _groups(found: Collecting, copies: NearCopies | None) -> Iterator[tuple[NDArray[np.int64], Sentences]]:
    """The first member of each example's group of copies, and why members share: equal texts first, then near ones."""
    yield first_equal(found.column("same")), _exact_copies
    if copies is not None:
        groups = copies.groups(found.column("signatures"))
        yield groups.first_N, groups.reasons


def _exact_copies(example_H: NDArray[np.int64], origin_H: NDArray[np.int64]) -> list[str]:
    return [f"exact copy of example {origin}" for origin in origin_H.tolist()]
