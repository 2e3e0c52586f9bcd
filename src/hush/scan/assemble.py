"""Runs a prepared scan over a corpus and assembles the results of all shards into one ``Scan``.

    corpus -> shards -> count (surveys) -> find -> literal pass -> variant pass (rules that hide spans)
           -> chunks of long texts -> copies -> public order -> incidence, secrets, slots, reasons

An engine applies the tasks (shard_tasks.py) to the shards. Everything after that happens here, in the order of the
shards: the collector (collect.py) gathers the hits, copies of an example inherit its secrets, secrets get their public
numbers, and reasons.parquet and examples.parquet are written for the owner. Neither the cut into shards nor the engine
changes the result.
Shapes: N examples, S secrets, P pairs, H hits or inherited pairs, R rules.
"""

import os
import secrets as entropy
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.arrays import Progress
from hush.data.shards import ReadableShard, ShardSource
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.keys import DataKey
from hush.scan.collect import Collector, public_order, secret_table, unordered_secrets
from hush.scan.copy_inheritance import NO_PLACE, CopyReasons, InheritedPairs, inherited_by_copies
from hush.scan.coverage import FoundSpans
from hush.scan.engines import Engine
from hush.scan.finders.literals import Literals
from hush.scan.finders.unicode import caseless
from hush.scan.hits import Finder, PreparedRule, Survey
from hush.scan.identities import IDENTITIES_FILE, Identities, given_ids, identities_of
from hush.scan.long_texts import LongTexts
from hush.scan.long_texts.chunked import cut_documents
from hush.scan.near_copies import Copies
from hush.scan.reasons import (
    REASONS,
    ROW_GROUP,
    SET_ASIDE,
    SET_ASIDE_FILE,
    OwnerFiles,
    OwnerWriter,
    SecretText,
    UnfoundLiterals,
    temporary_owner,
)
from hush.scan.rendered_texts import RENDERED_COLUMNS
from hush.scan.result import Scan, ScannedTexts
from hush.scan.shard_tasks import CountTask, FindTask, LiteralPassTask, MergedCounts, SearchResult, VariantPassTask
from hush.scan.variants import Variants
from hush.secret_table import Secrets
from hush.slots import Spans

__all__ = [
    "Assembled",
    "assemble",
    "run_scan",
    "write_example_index",
]


Result = TypeVar("Result")


def run_scan(
    corpus: ShardSource,
    rules: Sequence[PreparedRule],
    *,
    engine: Engine,
    key: DataKey | None = None,
    id_column: str | None = None,
    skip_bad: bool = False,
    copies: Copies | None = None,
    keep_texts: bool = False,
    in_chunks: bool = False,
    long_texts: LongTexts | None = None,
    known: Identities | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Which examples of a corpus contain which secrets, by these rules, and why.

    key: for the fingerprints of the examples and of the corpus. id_column: the column with the examples' ids; by
    default an id states file and row. skip_bad: count and skip rows that cannot be read. copies: near copies inherit
    each other's secrets; equal texts always do. keep_texts: save the examples' texts with the scan, because examples
    are not rows of the input (if rows were skipped or rendered, texts are always saved). in_chunks: examples are cut
    from files at line ends, so that a span over several lines does not count as one. long_texts: how texts are cut into
    several examples; by default they are not. known: the identities of earlier scans, whose ids secrets keep. progress:
    called with the numbers of finished and of all shard tasks.

    Guarantee: every pair of the incidence has a reason. The result does not depend on the engine.
    """
    _check_names(rules)
    shards = corpus.shards()
    surveys = tuple(rule.finder for rule in rules if isinstance(rule.finder, Survey))
    read_columns = [name for rule in rules for name in rule.finder.columns]
    columns = tuple(dict.fromkeys(read_columns + ([] if id_column is None else [id_column])))
    corpus.check_columns(columns)
    rendering = getattr(corpus, "rendering", None)
    columns += () if rendering is None else RENDERED_COLUMNS
    literal_pass = [index for index, rule in enumerate(rules) if rule.literal_pass is not None]
    hides_spans = [index for index, rule in enumerate(rules) if rule.hides_spans and rule.keys_are_texts]
    passes = 1 + bool(surveys) + bool(literal_pass) + bool(hides_spans)
    report = _ProgressReport(progress, len(shards) * passes)
    count = CountTask(surveys=surveys, columns=columns, skip_bad=skip_bad)
    finders = _finders(rules, count, shards, engine, report)
    owner = temporary_owner()
    collector = Collector(finders, owner.folder / "hits.arrows", searched_again={*literal_pass, *hides_spans})
    find = FindTask(
        finders=finders,
        columns=columns,
        copy_key=entropy.token_bytes(32),
        key=key,
        id_column=id_column,
        copies=copies,
        skip_bad=skip_bad,
        hides_spans=frozenset(hides_spans),
        in_chunks=in_chunks,
    )

    def search(task: Callable[[ReadableShard], SearchResult], searched: Sequence[int]) -> None:
        with closing(_results(engine, task, shards)) as results:
            for shard, result in enumerate(results):
                collector.add_search(shard, searched, result)
                report.task_done()

    with closing(collector):
        with closing(_results(engine, find, shards)) as results:
            for shard, result in zip(shards, results, strict=True):
                collector.add(shard.files, result)
                report.task_done()
        literals = [_found_literals(rules[rule], collector, rule) for rule in literal_pass]
        if any(texts.values for texts in literals):
            widened = frozenset(place for place, rule in enumerate(literal_pass) if rule in hides_spans)
            again = LiteralPassTask(
                literals=literals, columns=columns, skip_bad=skip_bad, hides_spans=widened, in_chunks=in_chunks
            )
            search(again, literal_pass)
        variants = [Variants(keys=_plausible_keys(collector, rule)) for rule in hides_spans]
        if any(texts.keys for texts in variants):
            again = VariantPassTask(variants=variants, columns=columns, skip_bad=skip_bad, in_chunks=in_chunks)
            search(again, hides_spans)
        unfound = _unfound_literals(finders, rules, collector, count, shards, engine)
    texts, num_inherited = _scanned_texts(corpus, find, collector), 0
    chunked = None
    if long_texts is not None:
        chunked = cut_documents(collector, rules, texts, long_texts, owner=owner, find=find, copies=copies)
    if chunked is not None:
        collector, texts, num_inherited = chunked.collector, chunked.texts, chunked.num_inherited
    assembled = assemble(collector, rules, owner, copies, known=known, key=key)
    num_inherited += assembled.num_inherited
    is_kept = keep_texts or bool(collector.skipped) or rendering is not None
    data_fingerprint = None
    if key is not None:
        fingerprint_N = collector.column("fingerprint")
        data_fingerprint = key.fingerprint_leaves([] if fingerprint_N is None else [fingerprint_N.tobytes()])
    write_example_index(collector, owner.folder / "examples.parquet", corpus.source)
    owner.write_counts(
        skipped=collector.skipped,
        inherited=num_inherited,
        unfound=unfound,
        secret_text=assembled.secret_text,
    )
    return Scan(
        incidence=assembled.incidence,
        secrets=assembled.secrets,
        rules=tuple((rule.name, int(collector.is_plausible(index).sum())) for index, rule in enumerate(rules)),
        skipped=sum(collector.skipped.values()),
        inherited=num_inherited,
        unfound=unfound,
        data_fingerprint=data_fingerprint,
        skeleton_fingerprint=_skeleton_fingerprint(assembled, texts, key),
        owner=owner,
        data=texts if chunked is None and is_kept else None,  # chunks are written already
        owner_spans=assembled.spans,
    )


def _check_names(rules: Sequence[PreparedRule]) -> None:
    names = [rule.name for rule in rules]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidInput(f"two rules are called {', '.join(repeated)}; give every rule its own name")


def _finders(
    rules: Sequence[PreparedRule],
    count: CountTask,
    shards: Sequence[ReadableShard],
    engine: Engine,
    report: "_ProgressReport",
) -> tuple[Finder, ...]:
    """The finder of every rule; a survey makes its finder after all shards are counted."""
    totals = [MergedCounts(survey) for survey in count.surveys]
    if count.surveys:
        with closing(_results(engine, count, shards)) as results:
            for shard_counts in results:
                for total, shard_count in zip(totals, shard_counts, strict=True):
                    total.add(shard_count)
                report.task_done()
    surveyed = iter([survey.finder(total.value()) for survey, total in zip(count.surveys, totals, strict=True)])
    return tuple(next(surveyed) if isinstance(rule.finder, Survey) else rule.finder for rule in rules)


def _found_literals(rule: PreparedRule, collector: Collector, index: int) -> Literals:
    """The texts that a rule found and did not set aside, as literals for the second pass."""
    found = _plausible_keys(collector, index)
    return Literals(
        values=found,
        whole_words="ascii" if rule.literal_pass == "ascii words" else rule.literal_pass == "words",
        distinctive=frozenset(() if rule.distinctive is None else filter(rule.distinctive, found)),
    )


def _plausible_keys(collector: Collector, rule: int) -> tuple[str, ...]:
    """The keys of a rule's secrets, without what was set aside. Private: they may be texts."""
    plausible = collector.is_plausible(rule)
    return tuple(key for number, key in enumerate(collector.numberings[rule].keys) if plausible[number])


def _unfound_literals(
    finders: Sequence[Finder],
    rules: Sequence[PreparedRule],
    collector: Collector,
    count: CountTask,
    shards: Sequence[ReadableShard],
    engine: Engine,
) -> tuple[UnfoundLiterals, ...]:
    """How many literals of each list are in no example, and how many of these are there in another case.

    The second number takes another reading of the data, which is spared if all literals are found.
    """
    missing: dict[int, Literals] = {}
    for index, finder in enumerate(finders):
        if isinstance(finder, Literals) and (keys := collector.keys_without_hit(index)):
            missing[index] = Literals(values=keys, ignore_case=True, whole_words=finder.whole_words)
    sensitive = [index for index in missing if not cast(Literals, finders[index]).ignore_case]
    in_another_case: dict[int, set[str]] = {index: set() for index in sensitive}
    if sensitive:
        task = LiteralPassTask(
            literals=[missing[index] for index in sensitive], columns=count.columns, skip_bad=count.skip_bad
        )
        with closing(_results(engine, task, shards)) as results:
            for result in results:
                for index, hits in zip(sensitive, result.hits, strict=True):
                    in_another_case[index].update(hits.keys)
    return tuple(
        UnfoundLiterals(
            rule=rules[index].name,
            listed=len(collector.numberings[index]),
            in_no_example=len(literals.values),
            in_another_case=sum(caseless(value) in in_another_case.get(index, ()) for value in literals.values),
        )
        for index, literals in missing.items()
    )


def _results(
    engine: Engine, task: Callable[[ReadableShard], Result], shards: Sequence[ReadableShard]
) -> Generator[Result, None, None]:
    """The engine's results. Closing this generator stops the engine, even if a traceback still refers to it."""
    yield from engine.map(task, shards)


@final
class _ProgressReport:
    """Counts finished shard tasks and calls the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def task_done(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _scanned_texts(corpus: ShardSource, find: FindTask, collector: Collector) -> ScannedTexts:
    text_hash_N = collector.column("text_hash")
    return ScannedTexts(
        corpus=corpus,
        columns=find.columns,
        copy_key=find.copy_key,
        text_hash_N=np.empty(0, dtype=np.uint64) if text_hash_N is None else text_hash_N,
    )


def _skeleton_fingerprint(assembled: "Assembled", texts: ScannedTexts, key: DataKey | None) -> str | None:
    """The keyed fingerprint of what is public of each example; None without a key or without slots."""
    if key is None or not len(assembled.spans.slots):
        return None
    strings = chain.from_iterable(block.strings for block in texts.blocks())
    return key.fingerprint_rows(assembled.spans.public_rows(assembled.incidence, strings))


# After the last shard: copies, public numbers, reasons


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembled:
    """Incidence, secrets and spans in public order, the number of pairs that only copies add, how much is secret."""

    incidence: Incidence
    secrets: Secrets
    spans: Spans
    num_inherited: int
    secret_text: SecretText


def assemble(
    collector: Collector,
    rules: Sequence[PreparedRule],
    owner: OwnerFiles,
    copies: Copies | None,
    *,
    known: Identities | None = None,
    key: DataKey | None = None,
) -> Assembled:
    """Everything in public order; writes the reasons and, with a key, the identities."""
    offset_R = collector.offsets()
    is_secret_S = collector.are_secrets()
    example_P, secret_P = collector.pairs()
    example_P, secret_P = example_P[is_secret_S[secret_P]], secret_P[is_secret_S[secret_P]]
    num_found = len(example_P)
    inherited = inherited_by_copies(collector, example_P, secret_P, copies)
    example_P = np.concatenate([example_P, *(added.example_H for added, _ in inherited)])
    secret_P = np.concatenate([secret_P, *(added.secret_H for added, _ in inherited)])
    provisional = Incidence.from_pairs(
        example_P, secret_P, num_examples=collector.num_examples, num_secrets=int(offset_R[-1])
    )
    unordered = unordered_secrets(rules, collector.numberings)
    order_S = public_order(unordered, provisional)
    order_S = order_S[is_secret_S[order_S]]
    public_number_S = np.full(len(unordered), -1)  # -1: set aside
    public_number_S[order_S] = np.arange(len(order_S))
    _write_reasons(collector, rules, owner, inherited, public_number_S)
    incidence = provisional.select(secrets=order_S)
    found = FoundSpans.of(collector, public_number_S)
    collector.hits_file.unlink()
    spans = found.spans(rules, incidence)
    ordered = [unordered[number] for number in order_S.tolist()]
    ids = given_ids(ordered, known=known, key=key)
    if key is not None:
        identities_of(ordered, ids, key).save(owner.folder / IDENTITIES_FILE)
    characters_N = collector.column("characters")
    characters_N = np.empty(0, dtype=np.int64) if characters_N is None else characters_N
    return Assembled(
        incidence=incidence,
        secrets=secret_table(ordered, ids),
        spans=spans,
        num_inherited=len(example_P) - num_found,
        secret_text=found.secret_text(rules, incidence, spans, characters_N),
    )


def _write_reasons(
    collector: Collector,
    rules: Sequence[PreparedRule],
    owner: OwnerFiles,
    inherited: Sequence[tuple[InheritedPairs, CopyReasons]],
    public_number_S: NDArray[np.int64],
) -> None:
    """Writes reasons.parquet, the finders' reasons first, then those of inherited pairs; and set_aside.parquet."""
    offset_R = collector.offsets()
    name_R = pa.array([rule.name for rule in rules], pa.string())
    keys = [key for numbering in collector.numberings for key in numbering.keys]
    with (
        OwnerWriter(owner.folder / "reasons.parquet", REASONS, kind="scan reasons") as writer,
        OwnerWriter(owner.folder / SET_ASIDE_FILE, SET_ASIDE, kind="scan set aside") as set_aside,
    ):
        for batch in collector.hits():
            number_H = offset_R[batch.column("rule").to_numpy()] + batch.column("number").to_numpy()
            secret_H = public_number_S[number_H]
            for chosen_H, sink in ((secret_H >= 0, writer), (secret_H < 0, set_aside)):
                if not chosen_H.any():
                    continue
                part = batch.filter(pa.array(chosen_H))
                columns = {name: part.column(name) for name in ("example", "reason", "begin", "end")}
                columns |= {"secret": secret_H[chosen_H], "rule": name_R.take(part.column("rule"))}
                columns |= {} if sink is writer else {"text": [keys[number] for number in number_H[chosen_H].tolist()]}
                sink.write(columns)
        for added, reasons in inherited:
            for part in added.parts(ROW_GROUP):
                rule_H = np.searchsorted(offset_R, part.secret_H, side="right") - 1
                columns = {"example": part.example_H, "secret": public_number_S[part.secret_H]}
                columns |= dict.fromkeys(("begin", "end"), np.full(len(part), -1))
                sentences = [
                    f"{sentence}{NO_PLACE if rules[rule].hides_spans else ''}"
                    for sentence, rule in zip(reasons(part.example_H, part.origin_H), rule_H.tolist(), strict=True)
                ]
                writer.write(columns | {"rule": name_R.take(pa.array(rule_H)), "reason": sentences})


# The example index


def write_example_index(collector: Collector, path: Path, source: str) -> None:
    """Writes examples.parquet: for each example its id, file, row and, with a key, its fingerprint.

    An id is that of the id column, or FILE:ROW, with #NUMBER for a chunk of a text; none reveals anything about what is
    secret.
    """
    file_N, row_N, chunk_N = (collector.column(name) for name in ("file", "row", "chunk"))
    fingerprint_N, ids = collector.column("fingerprint"), collector.ids()
    names = pa.array(map(_utf8, collector.files), pa.string())
    short_names = [_utf8(_short_name(name, source)) for name in collector.files]
    schema = pa.schema({"id": pa.string(), "file": pa.string(), "row": pa.int64()})
    if fingerprint_N is not None:
        schema = schema.append(pa.field("fingerprint", pa.binary(fingerprint_N.shape[1])))
    with OwnerWriter(path, schema, kind="scan examples") as writer:
        for begin in range(0, collector.num_examples, ROW_GROUP):
            part = slice(begin, begin + ROW_GROUP)
            rows = zip(file_N[part].tolist(), row_N[part].tolist(), strict=True)
            file_and_row = [f"{short_names[file]}:{row}" for file, row in rows]
            columns: dict[str, Any] = {"id": file_and_row, "row": row_N[part]}
            columns["file"] = names.take(pa.array(file_N[part]))
            if ids is not None:
                ids_of_column = ids.slice(begin, len(file_and_row)).to_pylist()
                columns["id"] = [
                    default if name is None else name for name, default in zip(ids_of_column, file_and_row, strict=True)
                ]
            if chunk_N is not None:
                numbers = chunk_N[part].tolist()
                columns["id"] = [
                    f"{name}#{number}" if number else name for name, number in zip(columns["id"], numbers, strict=True)
                ]
            if fingerprint_N is not None:
                fingerprints = np.ascontiguousarray(fingerprint_N[part])
                columns["fingerprint"] = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(fingerprints.shape[1]), len(fingerprints), [None, pa.py_buffer(fingerprints)]
                )
            writer.write(columns)


def _utf8(name: str) -> str:
    """A file name as text; bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _short_name(name: str, source: str) -> str:
    """A file's path below the source, or its last part if it is the source itself: the same on every machine."""
    path = Path(name)
    if name == source or not path.is_relative_to(source):
        return path.name
    return path.relative_to(source).as_posix()
