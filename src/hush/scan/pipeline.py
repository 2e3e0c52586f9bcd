"""The scan itself: surveys, then finders over every shard, then copies, numbers and promises.

    corpus → shards → count (surveys) → find → look again → copies → public order → secrets + incidence + reasons

Shards are read by an engine; everything after them happens here, in their order, so that neither the cut into shards
nor the engine changes anything that comes out.
"""

import secrets as entropy
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

import numpy as np

from hush.corpus.shards import Readable, ShardSource
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.scan.collecting import Collecting
from hush.scan.elsewhere import LookAgain
from hush.scan.engines import Engine
from hush.scan.finder import Finder, Prepared, Survey
from hush.scan.finders.literals import Literals
from hush.scan.numbering import Numbering
from hush.scan.outcome import NearCopies, written_outcome
from hush.scan.owner import temporary_owner
from hush.scan.places import write_examples
from hush.scan.result import Data, Scan
from hush.scan.task import Count, Find, Total

__all__ = ["Progress", "run_scan"]

Result = TypeVar("Result")
Progress = Callable[[int, int], None]


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
    incidence, secrets, num_inherited = written_outcome(found, rules, owner, copies)
    fingerprint = None
    if key is not None:
        leaves = found.column("leaf")
        fingerprint = key.fingerprint_leaves([] if leaves is None else [leaves.tobytes()])
    write_examples(found, owner.folder / "examples.parquet", corpus.source)
    owner.write_counts(skipped=found.skipped, inherited=num_inherited)
    return Scan(
        incidence=incidence,
        secrets=secrets,
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
