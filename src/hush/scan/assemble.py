"""The scan itself: surveys, then finders over every shard, then copies, numbers and promises.

    corpus → shards → count (surveys) → find → look again → copies → public order → secrets + incidence + reasons

Shards are read by an engine; everything after them happens here, in their order, so that neither the cut into shards
nor the engine changes anything that comes out.

After the last shard: copies inherit, secrets get their public numbers, and reasons are written for the owner.

Shapes: N examples, S secrets, P pairs, H hits, R rules.

Copies inherit each other's secrets: the pairs that equal texts add to those that the finders saw.

Finders of text see a secret in every copy by themselves. What a column or a path names is in the text all the same, so
an equal text somewhere else contains it too. Shapes: N examples, P pairs, H inherited pairs.

Which row of which file each example is, for the owner: ids that stay the same and say nothing about the content.
"""

import os
import secrets as entropy
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.shards import Readable, ShardSource
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.keys import DataKey
from hush.scan.collect import Collecting, Numbering, public_order, secret_table, unordered
from hush.scan.engines import Engine
from hush.scan.finders.literals import Literals
from hush.scan.hits import Finder, Prepared, Survey
from hush.scan.reasons import REASONS, ROW_GROUP, OwnerFiles, OwnerWriter, temporary_owner
from hush.scan.result import Data, Scan
from hush.scan.shard_tasks import Count, Find, LookAgain, Signer, Total
from hush.secret_table import Secrets

__all__ = [
    "Inheritance",
    "NearCopies",
    "Progress",
    "first_equal",
    "inherited",
    "run_scan",
    "write_examples",
    "written_outcome",
]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inheritance:
    """example_H contains secret_H because origin_H, of the same group, does; sorted by example, then secret."""

    example_H: NDArray[np.int64]
    secret_H: NDArray[np.int64]
    origin_H: NDArray[np.int64]

    def parts(self, size: int) -> Iterator["Inheritance"]:
        """The same in stretches."""
        for begin in range(0, len(self), size):
            part = slice(begin, begin + size)
            yield Inheritance(
                example_H=self.example_H[part], secret_H=self.secret_H[part], origin_H=self.origin_H[part]
            )

    def __len__(self) -> int:
        return len(self.example_H)


def first_equal(value_N: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each entry, the place of the first entry that is equal to it.

    >>> first_equal(np.array([7, 3, 7, 3, 1], dtype=np.uint64)).tolist()
    [0, 1, 0, 1, 4]
    """
    order_N = np.argsort(value_N, kind="stable")
    sorted_N = value_N[order_N]
    begins_N = np.ones(len(value_N), dtype=bool)
    begins_N[1:] = sorted_N[1:] != sorted_N[:-1]
    first_N = np.empty(len(value_N), dtype=np.int64)
    first_N[order_N] = order_N[begins_N][np.cumsum(begins_N) - 1]
    return first_N


def inherited(
    first_N: NDArray[np.int64], example_P: NDArray[np.int64], secret_P: NDArray[np.int64], *, num_secrets: int
) -> Inheritance:
    """The pairs that are not there yet, if every member of a group has what any member has.

    first_N names each example's group by its first member. The pairs are distinct. The origin is the first member that
    has the secret.
    """
    size_N = np.bincount(first_N, minlength=len(first_N))
    shared_P = size_N[first_N[example_P]] > 1
    example_P, secret_P = example_P[shared_P], secret_P[shared_P]
    # A group and a secret make one number. Most often all members have the secret already, and nothing is to be done.
    held_P = first_N[example_P] * num_secrets + secret_P
    held_R, holders_R = np.unique(held_P, return_counts=True)
    held_R = held_R[holders_R < size_N[held_R // max(num_secrets, 1)]]
    lacking_P = np.isin(held_P, held_R)
    example_P, secret_P, held_P = example_P[lacking_P], secret_P[lacking_P], held_P[lacking_P]
    order_P = np.lexsort((example_P, held_P))
    origin_R = example_P[order_P][np.searchsorted(held_P[order_P], held_R)]
    group_R, secret_R = np.divmod(held_R, max(num_secrets, 1))
    # All members of each group, side by side, once for every secret that the group has.
    member_N = np.argsort(first_N, kind="stable")
    start_N = np.cumsum(size_N) - size_N
    run_H = np.repeat(np.arange(len(group_R)), size_N[group_R])
    within_H = np.arange(len(run_H)) - np.repeat(np.cumsum(size_N[group_R]) - size_N[group_R], size_N[group_R])
    pair_H = member_N[start_N[group_R[run_H]] + within_H] * num_secrets + secret_R[run_H]
    new_H = ~np.isin(pair_H, example_P * num_secrets + secret_P)
    pair_H, origin_H = pair_H[new_H], origin_R[run_H[new_H]]
    order_H = np.argsort(pair_H)
    example_H, secret_H = np.divmod(pair_H[order_H], max(num_secrets, 1))
    return Inheritance(example_H=example_H, secret_H=secret_H, origin_H=origin_H[order_H])


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
    """The rule of near copies, as ``hush.scan.near_copies.Copies`` has it."""

    def groups(self, signature_NK: Any, /) -> CopyGroups:
        """The groups, from the signatures of all examples in order."""
        ...


def written_outcome(
    found: Collecting, rules: Sequence[Prepared], owner: OwnerFiles, copies: NearCopies | None
) -> tuple[Incidence, Secrets, int]:
    """Incidence and secrets in public order, reasons in the owner's file, and how many pairs come from copies alone."""
    offset_R = found.offsets()
    example_P, secret_P = found.pairs()
    direct = len(example_P)
    spread: list[tuple[Inheritance, Sentences]] = []
    for first_N, reasons in _groups(found, copies) if direct else ():
        made = inherited(first_N, example_P, secret_P, num_secrets=int(offset_R[-1]))
        spread.append((made, reasons))
        example_P = np.concatenate([example_P, made.example_H])
        secret_P = np.concatenate([secret_P, made.secret_H])
    numbered = Incidence.from_pairs(example_P, secret_P, num_examples=found.num_examples, num_secrets=int(offset_R[-1]))
    listed = unordered(rules, found.numberings)
    order_S = public_order(listed, numbered)
    place_S = np.empty_like(order_S)
    place_S[order_S] = np.arange(len(order_S))
    _write_reasons(found, rules, owner, spread, place_S)
    secrets = secret_table(listed[number] for number in order_S.tolist())
    return numbered.select(secrets=order_S), secrets, len(example_P) - direct


def _write_reasons(
    found: Collecting,
    rules: Sequence[Prepared],
    owner: OwnerFiles,
    spread: Sequence[tuple[Inheritance, Sentences]],
    place_S: NDArray[np.int64],
) -> None:
    """What finders saw, then what copies add. place_S: the public number of each secret."""
    offset_R = found.offsets()
    name_R = pa.array([rule.name for rule in rules], pa.string())
    with OwnerWriter(owner.folder / "reasons.parquet", REASONS, kind="scan reasons") as writer:
        for batch in found.hits():
            rule_H = batch.column("rule").to_numpy()
            columns = {name: batch.column(name) for name in ("example", "reason", "begin", "end")}
            secret_H = place_S[offset_R[rule_H] + batch.column("number").to_numpy()]
            writer.write(columns | {"secret": secret_H, "rule": name_R.take(pa.array(rule_H))})
        for made, reasons in spread:
            for part in made.parts(ROW_GROUP):
                rule_H = np.searchsorted(offset_R, part.secret_H, side="right") - 1
                columns = {"example": part.example_H, "secret": place_S[part.secret_H]}
                columns |= dict.fromkeys(("begin", "end"), np.full(len(part), -1))
                sentences = reasons(part.example_H, part.origin_H)
                writer.write(columns | {"rule": name_R.take(pa.array(rule_H)), "reason": sentences})
    (owner.folder / "hits.arrows").unlink()


def _groups(found: Collecting, copies: NearCopies | None) -> Iterator[tuple[NDArray[np.int64], Sentences]]:
    """The first member of each example's group of copies, and why members share: equal texts first, then near ones."""
    yield first_equal(found.column("same")), _exact_copies
    if copies is not None:
        groups = copies.groups(found.column("signatures"))
        yield groups.first_N, groups.reasons


def _exact_copies(example_H: NDArray[np.int64], origin_H: NDArray[np.int64]) -> list[str]:
    return [f"exact copy of example {origin}" for origin in origin_H.tolist()]


def write_examples(found: Collecting, path: Path, source: str) -> None:
    """The table of examples: id (of its column, or FILE:ROW), file, row and, if there is a key, fingerprint."""
    file_N, row_N, leaf_N, ids = found.column("file"), found.column("row"), found.column("leaf"), found.ids()
    names = pa.array(map(_utf8, found.files), pa.string())
    short = [_utf8(_short(name, source)) for name in found.files]
    schema = pa.schema({"id": pa.string(), "file": pa.string(), "row": pa.int64()})
    if leaf_N is not None:
        schema = schema.append(pa.field("fingerprint", pa.binary(leaf_N.shape[1])))
    with OwnerWriter(path, schema, kind="scan examples") as writer:
        for begin in range(0, found.num_examples, ROW_GROUP):
            part = slice(begin, begin + ROW_GROUP)
            places = [
                f"{short[file]}:{row}" for file, row in zip(file_N[part].tolist(), row_N[part].tolist(), strict=True)
            ]
            columns: dict[str, Any] = {"id": places, "file": names.take(pa.array(file_N[part])), "row": row_N[part]}
            if ids is not None:
                given = ids.slice(begin, len(places)).to_pylist()
                columns["id"] = [place if name is None else name for name, place in zip(given, places, strict=True)]
            if leaf_N is not None:
                leaves = np.ascontiguousarray(leaf_N[part])
                columns["fingerprint"] = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(leaves.shape[1]), len(leaves), [None, pa.py_buffer(leaves)]
                )
            writer.write(columns)


def _utf8(name: str) -> str:
    """A file's name as text, also where the system has bytes in it that are none."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _short(name: str, source: str) -> str:
    """A file's name below the source, or its last part where it is the source: the same on every machine."""
    path = Path(name)
    if name == source or not path.is_relative_to(source):
        return path.name
    return path.relative_to(source).as_posix()


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
