"""From documents to chunks: a scan reads whole documents, and afterwards long ones become several examples.

Rules see a document as a whole, so nothing is missed at a border, and words are counted by document. Then every
document is cut as its skeleton (long_texts.py), and what was found is divided among its chunks: an occurrence of a
secret belongs to every chunk that holds it. A secret whose place is not known (a column names it, or only a copy has
it) belongs to all chunks of its document. The chunks are written to data.parquet among the owner's files.

Copies inherit twice: copies of a document before it is cut, in all their chunks, and copies of a chunk afterwards.
Shapes: D documents, N chunks, H hits, P pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.corpus import read_corpus
from hush.data.parts import Block
from hush.data.rendered import ANSWERS, TEXT
from hush.scan.collect import HITS_SCHEMA, Collector
from hush.scan.copy_inheritance import NO_PLACE, inherited_by_copies
from hush.scan.hits import PreparedRule
from hush.scan.long_texts import LongTexts, Range, stand_in
from hush.scan.near_copies import Copies
from hush.scan.reasons import ROW_GROUP, OwnerFiles, OwnerWriter
from hush.scan.rendered_texts import answers_of_chunks
from hush.scan.result import DATA_FILE, ScannedTexts, rendered_writer
from hush.scan.shard_tasks import FindTask, ShardResult

__all__ = ["Chunked", "cut_documents"]


TYPICAL_CHARACTERS = 24  # most names, codes, addresses and numbers are no longer


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Chunked:
    """The hits of chunks instead of documents, the pairs among them that only copies added, and the chunks' texts."""

    collector: Collector
    num_inherited: int
    texts: ScannedTexts


def cut_documents(
    collector: Collector,
    rules: Sequence[PreparedRule],
    texts: ScannedTexts,
    long_texts: LongTexts,
    *,
    owner: OwnerFiles,
    find: FindTask,
    copies: Copies | None,
) -> Chunked | None:
    """The same hits, of the chunks of the documents; None if every document fits into one chunk.

    collector: of the documents, closed. find: the task that read the documents, for hashes and fingerprints of chunks.
    """
    whole = any(not rule.hides_spans for rule in rules)
    instead = stand_in((rule.name for rule in rules), least=TYPICAL_CHARACTERS if whole else 0) if rules else ""
    ranges = _Ranges.of(collector, texts, long_texts, instead)
    if ranges.num_chunks == collector.num_examples:
        return None
    described = replace(find, finders=(), columns=(), id_column=None, hides_spans=frozenset())
    result = described(_ChunkShard(texts, ranges, owner.folder / DATA_FILE))
    example_P, secret_P = collector.pairs()
    is_secret_S = collector.are_secrets()
    example_P, secret_P = example_P[is_secret_S[secret_P]], secret_P[is_secret_S[secret_P]]
    batches = [_inherited(collector, rules, ranges, example_P, secret_P, copies)] if len(example_P) else []
    num_inherited = sum(len(batch) for batch in batches)
    chunked = collector.with_examples(
        _columns(collector, ranges, result),
        owner.folder / "chunk_hits.arrows",
        chain((_divided(batch, ranges) for batch in collector.hits()), batches),
    )
    collector.hits_file.unlink()
    read_again = ScannedTexts(
        corpus=read_corpus(owner.folder / DATA_FILE),
        columns=(),
        copy_key=find.copy_key,
        text_hash_N=result.text_hash_N,
    )
    return Chunked(collector=chunked, num_inherited=num_inherited, texts=read_again)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Ranges:
    """The chunks of all documents: those of document d are ``offset_D[d]`` to ``offset_D[d + 1]``."""

    offset_D: NDArray[np.int64]
    begin_N: NDArray[np.int64]
    end_N: NDArray[np.int64]

    @classmethod
    def of(cls, collector: Collector, texts: ScannedTexts, long_texts: LongTexts, instead: str) -> "_Ranges":
        """Every document is cut with a stand-in for each span in which a secret was found."""
        hidden = _HiddenSpans.of(collector)
        counts: list[int] = []
        parts = [np.empty((0, 2), dtype=np.int64)]
        for block in texts.blocks():
            spans = [hidden.of_document(len(counts) + row) for row in range(len(block))]
            found = long_texts.ranges(block.strings, spans, stand_in=instead)
            counts += map(len, found)
            parts.append(np.array([*chain.from_iterable(found)], dtype=np.int64))
        begin_N, end_N = np.concatenate(parts).T
        return cls(offset_D=np.append(0, np.cumsum(counts, dtype=np.int64)), begin_N=begin_N, end_N=end_N)

    @property
    def num_chunks(self) -> int:
        return len(self.begin_N)

    @property
    def document_N(self) -> NDArray[np.int64]:
        """The document of each chunk."""
        return np.repeat(np.arange(len(self.offset_D) - 1), np.diff(self.offset_D))

    def of_document(self, document: int) -> list[Range]:
        part = slice(int(self.offset_D[document]), int(self.offset_D[document + 1]))
        return list(zip(self.begin_N[part].tolist(), self.end_N[part].tolist(), strict=True))

    def holding(
        self, document_H: NDArray[np.int64], begin_H: NDArray[np.int64], end_H: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first chunk that holds a part of each span, and the one after the last; all of a document's without one.

        Within a document both the begins and the ends of chunks ascend, also if chunks overlap.
        """
        stride = int(max(self.end_N.max(initial=0), end_H.max(initial=0))) + 1
        of_N = self.document_N * stride
        first_H = np.searchsorted(of_N + self.end_N, document_H * stride + begin_H, side="right")
        after_H = np.searchsorted(of_N + self.begin_N, document_H * stride + end_H, side="left")
        bare_H = begin_H < 0
        first_H = np.where(bare_H, self.offset_D[document_H], first_H)
        return first_H, np.where(bare_H, self.offset_D[document_H + 1], after_H)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _HiddenSpans:
    """The spans of all secrets, by document. Texts that were set aside have none: they are public."""

    offset_D: NDArray[np.int64]
    begin_H: NDArray[np.int64]
    end_H: NDArray[np.int64]

    @classmethod
    def of(cls, collector: Collector) -> "_HiddenSpans":
        is_secret_S, offset_R = collector.are_secrets(), collector.offsets()
        parts = [np.empty((3, 0), dtype=np.int64)]
        for batch in collector.hits():
            example_H, rule_H, number_H, begin_H, end_H = (
                batch.column(name).to_numpy().astype(np.int64) for name in ("example", "rule", "number", "begin", "end")
            )
            chosen_H = is_secret_S[offset_R[rule_H] + number_H] & (begin_H >= 0)
            parts.append(np.stack([example_H, begin_H, end_H])[:, chosen_H])
        example_H, begin_H, end_H = np.concatenate(parts, axis=1)
        order_H = np.argsort(example_H, kind="stable")
        offset_D = np.searchsorted(example_H[order_H], np.arange(collector.num_examples + 1))
        return cls(offset_D=offset_D, begin_H=begin_H[order_H], end_H=end_H[order_H])

    def of_document(self, document: int) -> list[Range]:
        part = slice(int(self.offset_D[document]), int(self.offset_D[document + 1]))
        return list(zip(self.begin_H[part].tolist(), self.end_H[part].tolist(), strict=True))


@final
@dataclass(frozen=True, slots=True)
class _ChunkShard:
    """All chunks as one shard, for hashes and fingerprints; reading it writes their texts to a file."""

    texts: ScannedTexts
    ranges: _Ranges
    path: Path

    @property
    def files(self) -> tuple[str, ...]:
        return (str(self.path),)

    def _writer(self) -> OwnerWriter:
        if self.texts.rendering is not None:
            return rendered_writer(self.path, self.texts.rendering, kind="scan data")
        return OwnerWriter(self.path, pa.schema({TEXT: pa.large_string()}), kind="scan data")

    def blocks(self, columns: Sequence[str] = (), *, skip_bad: bool = False) -> Iterator[Block]:
        """The chunks of each block of documents."""
        document = number = 0
        more = () if self.texts.rendering is None else (ANSWERS,)
        with self._writer() as writer:
            for block in self.texts.blocks(*more):
                ranges = [self.ranges.of_document(document + row) for row in range(len(block))]
                document += len(block)
                pairs = zip(block.strings, ranges, strict=True)
                chunks = [text[begin:end] for text, of_text in pairs for begin, end in of_text]
                texts = pa.array(chunks, pa.large_string())
                stored = [list(answers_of_chunks(block.columns[name].to_pylist(), ranges)) for name in more]
                writer.write({TEXT: texts, **dict(zip(more, stored, strict=True))})
                yield Block(texts=texts, columns={}, rows=np.arange(number, number + len(chunks)))
                number += len(chunks)


def _columns(collector: Collector, ranges: _Ranges, result: ShardResult) -> dict[str, list[object]]:
    """The columns of the examples: file and row are those of the document, ``chunk`` counts its chunks from 1."""
    document_N = ranges.document_N
    chunk_N = np.arange(ranges.num_chunks) - ranges.offset_D[document_N] + 1
    chunk_N[np.diff(ranges.offset_D)[document_N] == 1] = 0  # a whole document
    ids = collector.ids()
    optional = {
        "fingerprint": result.fingerprint_N,
        "signatures": result.signatures,
        "ids": None if ids is None else ids.combine_chunks().take(pa.array(document_N)),
    }
    return {
        "file": [collector.column("file")[document_N]],
        "row": [collector.column("row")[document_N]],
        "chunk": [chunk_N],
        "text_hash": [result.text_hash_N],
        "characters": [result.characters_N],
    } | {name: [] if values is None else [values] for name, values in optional.items()}


def _divided(batch: pa.RecordBatch, ranges: _Ranges) -> pa.RecordBatch:
    """The hits of documents as hits of the chunks that hold them, with their places in these."""
    example_H, begin_H, end_H = (batch.column(name).to_numpy() for name in ("example", "begin", "end"))
    first_H, after_H = ranges.holding(example_H, begin_H, end_H)
    source_K, chunk_K = _expanded(first_H, after_H)
    from_K, upto_K = ranges.begin_N[chunk_K], ranges.end_N[chunk_K]
    bare_K = begin_H[source_K] < 0
    # Only what was set aside may reach over a border: secrets are never cut.
    begin_K = np.where(bare_K, -1, np.maximum(begin_H[source_K], from_K) - from_K)
    end_K = np.where(bare_K, -1, np.minimum(end_H[source_K], upto_K) - from_K)
    rule_K, number_K = (batch.column(name).to_numpy()[source_K] for name in ("rule", "number"))
    order_K = np.lexsort((number_K, end_K, begin_K, rule_K, chunk_K))
    reasons = batch.column("reason").take(pa.array(source_K[order_K]))
    return _batch(chunk_K[order_K], rule_K[order_K], number_K[order_K], reasons, begin_K[order_K], end_K[order_K])


def _expanded(first_H: NDArray[np.int64], after_H: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For ranges of chunks, one entry for each chunk: the number of its range, and the chunk."""
    count_H = after_H - first_H
    source_K = np.repeat(np.arange(len(count_H)), count_H)
    within_K = np.arange(len(source_K)) - np.repeat(np.cumsum(count_H) - count_H, count_H)
    return source_K, first_H[source_K] + within_K


def _inherited(
    collector: Collector,
    rules: Sequence[PreparedRule],
    ranges: _Ranges,
    example_P: NDArray[np.int64],
    secret_P: NDArray[np.int64],
    copies: Copies | None,
) -> pa.RecordBatch:
    """What documents inherit as copies of other documents: no place is known, so all their chunks contain it."""
    offset_R = collector.offsets()
    parts = [np.empty((2, 0), dtype=np.int64)]  # chunks and secrets
    sentences: list[str] = []
    for added, reasons in inherited_by_copies(collector, example_P, secret_P, copies):
        for part in added.parts(ROW_GROUP):
            source_K, chunk_K = _expanded(ranges.offset_D[part.example_H], ranges.offset_D[part.example_H + 1])
            rule_H = np.searchsorted(offset_R, part.secret_H, side="right") - 1
            told: list[str] = []
            for sentence, rule, origin in zip(
                reasons(part.example_H, part.origin_H), rule_H.tolist(), part.origin_H.tolist(), strict=True
            ):  # the reasons number documents, and their readers number chunks
                first = f"the text that begins with example {ranges.offset_D[origin]}"
                suffix = NO_PLACE if rules[rule].hides_spans else ""
                told.append(sentence.replace(f"example {origin}", first, 1) + suffix)
            sentences += [told[source] for source in source_K.tolist()]
            parts.append(np.stack([chunk_K, part.secret_H[source_K]]))
    chunk_K, secret_K = np.concatenate(parts, axis=1)
    rule_K = np.searchsorted(offset_R, secret_K, side="right") - 1
    nowhere_K = np.full(len(chunk_K), -1)
    reasons = pa.array(sentences, pa.large_string())
    return _batch(chunk_K, rule_K, secret_K - offset_R[rule_K], reasons, nowhere_K, nowhere_K)


def _batch(
    example_K: NDArray[np.int64],
    rule_K: NDArray[np.integer],
    number_K: NDArray[np.int64],
    reasons: pa.Array,
    begin_K: NDArray[np.int64],
    end_K: NDArray[np.int64],
) -> pa.RecordBatch:
    """Hits of chunks, in the form of the collector's file."""
    arrays = [pa.array(values) for values in (example_K, rule_K.astype(np.int32), number_K)]
    arrays += [reasons, pa.array(begin_K), pa.array(end_K)]
    return pa.record_batch(arrays, schema=HITS_SCHEMA)
