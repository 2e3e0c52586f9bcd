"""Collects the hits of all shards, in order, and puts the secrets into their public order.

``Collector`` takes the result of one shard after the other: hits go to a file on disk; in memory stay the secrets'
keys, the pairs of example and secret, and a few numbers per example. Meanwhile secrets have provisional numbers: the
declared secrets of a rule first, then the found ones in the order of their first occurrence in the data. Texts with
doubtful hits only have such a number too; they are set aside at the end.

That order would leak: an alphabetical list shows which secret is which, and an order of occurrence shows what comes
before what in a text. So ``public_order`` sorts the secrets of each rule by their examples, then by their protection,
then by their public name, all of which is public anyway. Secrets that are still equal are indistinguishable to
everybody but the owner; they are ordered by their text, so that the order of the owner's list does not matter.
Shapes: N examples, P pairs, R rules, H hits, K keys, F files of a shard.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.protection import Protection
from hush.scan.hits import DeclaredSecret, Finder, Hits, PreparedRule
from hush.scan.shard_tasks import SearchResult, ShardResult
from hush.secret_table import Secrets
from hush.storage import arrow_file

__all__ = [
    "HITS_SCHEMA",
    "Collector",
    "Numbering",
    "UnorderedSecret",
    "public_order",
    "secret_table",
    "unordered_secrets",
]


HITS_SCHEMA = pa.schema(
    {
        "example": pa.int64(),
        "rule": pa.int32(),
        "number": pa.int64(),
        "reason": pa.large_string(),
        "begin": pa.int64(),
        "end": pa.int64(),
    }
)
EXAMPLE_COLUMNS = ("file", "row", "chunk", "text_hash", "characters", "fingerprint", "ids", "signatures")


@final
class Numbering:
    """The provisional numbers of one rule's secrets. The repr shows how many there are, and no key."""

    def __init__(self, declared: Sequence[DeclaredSecret]) -> None:
        self.declared = tuple(declared)
        self._number: dict[str, int] = {secret.key: index for index, secret in enumerate(self.declared)}
        if len(self._number) != len(self.declared):
            raise InvalidInput(f"{len(self.declared) - len(self._number)} secrets are declared twice; name each once")

    def numbers(self, hits: Hits) -> NDArray[np.int64]:
        """The number of each hit's secret; new secrets get the next numbers, in the order of the (sorted) hits."""
        used_keys, first_K = np.unique(hits.key_H, return_index=True)
        for key in used_keys[np.argsort(first_K)].tolist():
            self._number.setdefault(hits.keys[key], len(self._number))
        number_K = np.array([self._number.get(key, -1) for key in hits.keys], dtype=np.int64)
        return number_K[hits.key_H]

    @property
    def keys(self) -> Iterable[str]:
        """Private: they may be the secrets' text."""
        return self._number.keys()

    def __len__(self) -> int:
        return len(self._number)

    def __repr__(self) -> str:
        return f"Numbering({len(self)} secrets)"


@final
class Collector:
    """Takes the results of the shards in order. Numbers of examples are final, numbers of secrets provisional.

    searched_again: the indices of the rules whose secrets a later pass searches for.
    """

    def __init__(self, finders: Sequence[Finder], hits_file: Path, *, searched_again: Iterable[int] = ()) -> None:
        self.numberings = [Numbering(finder.declared) for finder in finders]
        self.num_examples = 0
        self.files: list[str] = []
        self.skipped: dict[str, int] = {}
        self._searched_again = frozenset(searched_again)
        self._rows_of_last_file = 0  # rows read so far of the last file
        self.hits_file = hits_file
        self._pairs: list[list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = [[] for _ in finders]
        # For later passes, per shard: examples before it, its examples, and the known spans of each rule.
        self._known: list[tuple[int, int, dict[int, NDArray[np.int64]]]] = []
        self._plausible = [np.ones(len(numbering), dtype=np.bool_) for numbering in self.numberings]
        self._columns: dict[str, list[Any]] = {name: [] for name in EXAMPLE_COLUMNS}
        self._sink = hits_file.open("wb")
        self._writer = pa.ipc.new_stream(self._sink, HITS_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def add(self, files: Sequence[str], result: ShardResult) -> None:
        """Adds the next shard, which reads these files."""
        self._add_examples(files, result)
        self._add_hits(result.hits, range(len(result.hits)), self.num_examples)
        if self._searched_again:
            known_spans = {rule: self._spans(rule, result.hits[rule]) for rule in self._searched_again}
            self._known.append((self.num_examples, result.num_examples, known_spans))
        self.num_examples += result.num_examples

    def add_search(self, shard: int, rules: Sequence[int], result: SearchResult) -> None:
        """Adds what a later pass found in a shard for these rules, without what lies in a span that is known already.

        Shards are added in order.
        """
        examples_before, num_examples, known_spans = self._known[shard]
        if result.num_examples != num_examples:
            raise InvalidInput(
                f"a part of the data had {num_examples} examples in the first pass and {result.num_examples} in a "
                "later one: it changed during the scan; scan again while nothing writes to it"
            )
        added: list[Hits] = []
        for rule, hits in zip(rules, result.hits, strict=True):
            new = hits.select(~_lie_in(self._spans(rule, hits), known_spans[rule]))
            known_spans[rule] = np.concatenate([known_spans[rule], self._spans(rule, new)])
            added.append(new)
        self._add_hits(added, rules, examples_before)

    def close(self) -> None:
        """Ends the file of hits; nothing can be added afterwards."""
        self._writer.close()
        self._sink.close()

    def with_examples(
        self, columns: dict[str, list[Any]], hits_file: Path, batches: Iterable[pa.RecordBatch]
    ) -> "Collector":
        """A closed collector of the same secrets in other examples. batches: all hits, in the form of the file."""
        other = Collector((), hits_file)
        other.numberings, other._plausible = self.numberings, self._plausible
        other.files, other.skipped = self.files, self.skipped
        other.num_examples, other._columns = len(columns["row"][0]), columns
        other._pairs = [[] for _ in self.numberings]
        with closing(other):
            for batch in batches:
                rule_H = batch.column("rule").to_numpy()
                pairs = np.stack([batch.column(name).to_numpy() for name in ("example", "number")])
                for rule in np.unique(rule_H).tolist():
                    other._pairs[rule].append(tuple(np.unique(pairs[:, rule_H == rule], axis=1)))
                other._writer.write_batch(batch)
        return other

    def hits(self) -> Iterator[pa.RecordBatch]:
        """All hits, read from the file: by example, rule and span; those of later passes last."""
        options = pa.ipc.IpcReadOptions(use_threads=False)  # see arrow_file
        with arrow_file(self.hits_file) as file, pa.ipc.open_stream(file, options=options) as stream:
            yield from stream

    def offsets(self) -> NDArray[np.int64]:
        """The number of each rule's first secret among the secrets of all rules; the last entry is their total."""
        return np.cumsum([0, *map(len, self.numberings)])

    def is_plausible(self, rule: int) -> NDArray[np.bool_]:
        """Which secrets of a rule, by their provisional numbers, have a hit without doubt or are declared."""
        return self._plausible[rule]

    def are_secrets(self) -> NDArray[np.bool_]:
        """The same for the secrets of all rules together."""
        plausible = (self.is_plausible(rule) for rule in range(len(self.numberings)))
        return np.concatenate([np.empty(0, np.bool_), *plausible])

    def keys_without_hit(self, rule: int) -> list[str]:
        """The keys of a rule's declared secrets that no example contains so far. Private: they may be texts."""
        has_hit = np.zeros(len(self.numberings[rule]), dtype=np.bool_)
        for _, number_P in self._pairs[rule]:
            has_hit[number_P] = True
        return [key for key, hit in zip(self.numberings[rule].keys, has_hit.tolist(), strict=True) if not hit]

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The examples and secrets of all distinct pairs that a finder reported."""
        num_secrets = max(int(self.offsets()[-1]), 1)
        pairs = [
            example_P * num_secrets + number_P + offset
            for offset, pairs_of_rule in zip(self.offsets(), self._pairs, strict=False)
            for example_P, number_P in pairs_of_rule
        ]
        example_P, secret_P = np.divmod(np.unique(np.concatenate([np.empty(0, dtype=np.int64), *pairs])), num_secrets)
        return example_P, secret_P

    def column(self, name: str) -> Any:
        """file, row, chunk, text_hash, characters, fingerprint or signatures of every example; None if not known.

        chunk: its number in its document, from 1; 0 if it is a whole document.
        """
        arrays = self._columns[name]
        return np.concatenate(arrays) if arrays else None

    def ids(self) -> pa.ChunkedArray | None:
        """The examples' ids, if a column holds them."""
        return pa.chunked_array(self._columns["ids"]) if self._columns["ids"] else None

    def _add_examples(self, files: Sequence[str], result: ShardResult) -> None:
        rows_before_F = np.zeros(len(files), dtype=np.int64)  # rows of each file in earlier shards
        number_F = np.empty(len(files), dtype=np.int64)
        for index, name in enumerate(files):
            if self.files and self.files[-1] == name:
                rows_before_F[index] = self._rows_of_last_file
            else:
                self.files.append(name)
            self._rows_of_last_file = int(rows_before_F[index] + result.rows_F[index])
            number_F[index] = len(self.files) - 1
            if result.skipped_F[index]:
                self.skipped[name] = self.skipped.get(name, 0) + int(result.skipped_F[index])
        self._columns["file"].append(number_F[result.file_N].astype(np.int32))
        self._columns["row"].append(rows_before_F[result.file_N] + result.row_N)
        self._columns["text_hash"].append(result.text_hash_N)
        self._columns["characters"].append(result.characters_N)
        optional = {"fingerprint": result.fingerprint_N, "ids": result.ids, "signatures": result.signatures}
        for name, values in optional.items():
            if values is not None:
                self._columns[name].append(values)

    def _add_hits(self, hits_of_rules: Sequence[Hits], rules_added: Sequence[int], examples_before: int) -> None:
        rules, examples, numbers, begins, ends, reasons = [], [], [], [], [], []
        for rule, hits in zip(rules_added, hits_of_rules, strict=True):
            numbering = self.numberings[rule]
            number_H = numbering.numbers(hits)
            example_H = hits.example_H + examples_before
            rules.append(np.full(len(hits), rule, dtype=np.int32))
            examples.append(example_H)
            numbers.append(number_H)
            begins.append(hits.begin_H)
            ends.append(hits.end_H)
            reasons.append(pa.array(hits.reasons, pa.large_string()).take(pa.array(hits.reason_H)))
            plausible = self._plausible[rule]
            plausible = np.concatenate([plausible, np.zeros(len(numbering) - len(plausible), dtype=np.bool_)])
            plausible[number_H[~hits.is_doubtful_H]] = True
            self._plausible[rule] = plausible
            if len(hits):
                pair_P = np.unique(example_H * len(numbering) + number_H)
                self._pairs[rule].append((pair_P // len(numbering), pair_P % len(numbering)))
        if not any(map(len, examples)):
            return
        columns = [np.concatenate(arrays) for arrays in (examples, rules, begins, ends, numbers)]
        order_H = np.lexsort(columns[::-1])  # by the secrets' numbers, which do not depend on the cut into shards
        example_H, rule_H, begin_H, end_H, number_H = (column[order_H] for column in columns)
        reason_H = pa.concat_arrays(reasons).take(pa.array(order_H))
        arrays = [example_H, rule_H, number_H, reason_H, begin_H, end_H]
        self._writer.write_batch(pa.record_batch([pa.array(array) for array in arrays], schema=HITS_SCHEMA))

    def _spans(self, rule: int, hits: Hits) -> NDArray[np.int64]:
        """One row per hit of a shard: example, secret, first character and end."""
        number_H = self.numberings[rule].numbers(hits)
        return np.stack([hits.example_H, number_H, hits.begin_H, hits.end_H], axis=1)


def _lie_in(rows: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which spans (example, secret, begin, end) lie in one known span of the same example and secret."""
    num_secrets = max(int(rows[:, 1].max(initial=0)), int(known[:, 1].max(initial=0))) + 1
    stride = max(int(rows[:, 3].max(initial=0)), int(known[:, 3].max(initial=0))) + 2
    # One number for example, secret and place, so that a running maximum never reaches into the next pair.
    pair_H, pair_K = ((each[:, 0] * num_secrets + each[:, 1]) * stride + 1 for each in (rows, known))
    begin_H, end_H = pair_H + rows[:, 2], pair_H + rows[:, 3]
    begin_K, end_K = pair_K + known[:, 2], pair_K + known[:, 3]
    order_K = np.argsort(begin_K, kind="stable")
    reach_K = np.append(-1, np.maximum.accumulate(end_K[order_K]))
    return reach_K[np.searchsorted(begin_K[order_K], begin_H, side="right")] >= end_H


# The public order of the secrets


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnorderedSecret:
    """A secret before it has its public number. rule: the rule's name. name: for the public id. key: private.

    kind, identity: what identifies it from one scan to the next (identities.py); the identity is private, and the key
    unless something else is stated.
    """

    rule: str
    name: str | None
    protection: Protection
    key: str = field(repr=False)
    kind: Literal["text", "name", "pattern"] = "text"
    identity: str | None = field(default=None, repr=False)


def unordered_secrets(rules: Sequence[PreparedRule], numberings: Sequence[Numbering]) -> list[UnorderedSecret]:
    """The secrets of all rules, by their provisional numbers."""
    secrets: list[UnorderedSecret] = []
    for rule, numbering in zip(rules, numberings, strict=True):
        for number, key in enumerate(numbering.keys):
            declared = numbering.declared[number] if number < len(numbering.declared) else None
            name = declared.name if declared is not None else key if rule.public_names else None
            protection = (None if declared is None else declared.protection) or rule.protection
            identity = None if declared is None else declared.identity
            secrets.append(
                UnorderedSecret(
                    rule=rule.name,
                    name=name,
                    protection=protection,
                    key=key,
                    kind="pattern" if identity is not None else "text" if rule.keys_are_texts else "name",
                    identity=identity,
                )
            )
    return secrets


def public_order(secrets: Sequence[UnorderedSecret], incidence: Incidence) -> NDArray[np.int64]:
    """The secrets' numbers in public order: by rule, list of examples (empty ones last), protection and name.

    Guarantee: the order reveals nothing beyond the other public data, since anybody who has that data, in any order,
    can compute it. It does not depend on the order in which the secrets of a rule are given.
    """
    rule_rank = {rule: rank for rank, rule in enumerate(dict.fromkeys(secret.rule for secret in secrets))}

    def sort_key(number: int) -> tuple[object, ...]:
        secret = secrets[number]
        examples = incidence.examples_of(number).astype(">i8").tobytes()  # big-endian bytes compare like the lists
        return rule_rank[secret.rule], not examples, examples, secret.protection.points, secret.name or "", secret.key

    return np.array(sorted(range(len(secrets)), key=sort_key), dtype=np.int64)


def secret_table(secrets: Sequence[UnorderedSecret], ids: Sequence[str]) -> Secrets:
    """The table of secrets, given in public order: public ids, protections, and the keys as texts for the owner."""
    return Secrets(
        [secret.protection for secret in secrets],
        ids=ids,
        texts=[secret.key for secret in secrets],
    )
