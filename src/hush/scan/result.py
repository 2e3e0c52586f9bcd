"""What a scan found: the public graph and promises, and for their owner the reasons. Frozen; saved as a folder.

A scan as a folder: what may be shown, and what stays with the owner.

public/incidence.parquet, secrets.parquet   the graph and the promises, for hush plan
public/summary.json                         counts of what is in them, and their SHA-256
owner/reasons.parquet, examples.parquet, counts.json, texts.parquet, and data.parquet where the examples are not the
rows of the input (rows were passed over, or files were cut into chunks); readable by the owner alone

Guarantee: apart from the keyed fingerprint of the data, the public side is a function of the graph, the promises and
the rules' and secrets' public names. How the graph came about (copies, rows passed over) is not in it.

How counts are spread, for people: in bins that double.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.shards import ShardSource
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.scan.reasons import OwnerFiles, OwnerWriter
from hush.scan.shard_tasks import keyed_hashes
from hush.secret_table import Secrets
from hush.storage import file_digest, record_digest, whole_folder

__all__ = ["Data", "Histogram", "Reason", "Scan", "histogram_of", "load_scan", "save_scan"]


SHOWN = 10  # secrets and examples in a summary
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why an example contains a secret. begin, end: which characters of its text, -1 where nobody can say."""

    example: int
    secret: int
    secret_id: str
    rule: str
    reason: str
    begin: int
    end: int

    @property
    def has_span(self) -> bool:
        return self.begin >= 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the texts of the examples can be read again, with the columns that the scan read: the same rows then.

    same_N: a hash of each text under a key that was drawn for the scan; tells whether the texts are what was scanned.
    """

    corpus: ShardSource
    columns: tuple[str, ...]
    copy_key: bytes = field(repr=False)
    same_N: NDArray[np.uint64] = field(repr=False)


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Scan:
    """Which examples contain which secrets, what each secret is promised, and why each pair is there.

    rules: name and number of secrets of each rule, in the order of the secrets. skipped: rows that were passed over;
    inherited: pairs that are there only because of copies; both are for the owner to know, and 0 without his side.
    data_fingerprint: of the examples' texts, under the owner's key. owner: the owner's side; None where only the public
    one is at hand. data: where the texts can be read again, if they have to be saved with the scan.
    """

    incidence: Incidence
    secrets: Secrets
    rules: tuple[tuple[str, int], ...]
    skipped: int = 0
    inherited: int = 0
    data_fingerprint: str | None = None
    owner: OwnerFiles | None = None
    data: Data | None = None

    def __post_init__(self) -> None:
        sizes = (self.incidence.num_secrets, len(self.secrets), sum(count for _, count in self.rules))
        if len(set(sizes)) > 1:
            raise InvalidInput(
                f"the graph has {sizes[0]} secrets, the table {sizes[1]} and the rules {sizes[2]}; pass what belongs "
                "together"
            )

    def why(self, *, example: int | str | None = None, secret: int | str | None = None) -> Iterator[Reason]:
        """Why this example contains what it does, or who contains this secret and why; or both; each reason in turn.

        Examples and secrets are named by number or id. No reason holds the text of a secret.
        """
        chosen = self._examples(example)
        number = None if secret is None else self._secret(secret)
        if number is not None:
            holders = self.incidence.examples_of(number)
            chosen = holders if chosen is None else np.intersect1d(chosen, holders)
        for batch in self._owner().reasons(examples=chosen, secret=number):
            for row in batch.to_pylist():
                yield Reason(secret_id=self.secrets.ids[row["secret"]], **row)

    def spans(self, example: int | str) -> list[Reason]:
        """Where in the example's text secrets stand, by place; only what finders can point at."""
        found = (reason for reason in self.why(example=example) if reason.has_span)
        return sorted(found, key=lambda reason: (reason.begin, reason.end, reason.secret))

    def summary(self) -> dict[str, Any]:
        """Sizes, how they are distributed, who has most; with the owner's side also how they came about. No text."""
        by_secret, by_example = self.incidence.examples_per_secret, self.incidence.secrets_per_example
        own: dict[str, Any] = {}
        if self.owner is not None:
            by_file = self.owner.skipped() if self.skipped else {}
            own = {"pairs_from_copies": self.inherited, "skipped": self.skipped, "skipped_by_file": by_file}
        return {
            "examples": self.incidence.num_examples,
            "examples_with_secrets": int(np.count_nonzero(by_example)),
            "secrets": self.incidence.num_secrets,
            "pairs": self.incidence.num_entries,
            "examples_per_secret": _quantiles(by_secret),
            "secrets_per_example": _quantiles(by_example),
            "most_widespread": [
                {"secret": self.secrets.ids[index], "examples": int(by_secret[index])} for index in _largest(by_secret)
            ],
            "most_secrets": [
                {"example": int(index), "secrets": int(by_example[index])} for index in _largest(by_example)
            ],
            "rules": [
                {
                    "rule": name,
                    "secrets": end - begin,
                    "secrets_found": int(np.count_nonzero(by_secret[begin:end])),
                    "pairs": int(by_secret[begin:end].sum()),
                }
                for name, begin, end in self._ranges()
            ],
            "data_fingerprint": self.data_fingerprint,
            **own,
        }

    def save(self, folder: str | os.PathLike[str], *, also: Callable[[Path], None] | None = None) -> None:
        """Write the scan as a folder, which appears whole or not at all; an older scan there is replaced.

        public/ may be shown to anyone; owner/ is readable by its owner alone. also: writes more into owner/ (it is
        given that folder).
        """

        save_scan(self, Path(folder), also)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what ``save`` wrote, or its public side alone. Guarantee: the public files are as they were written."""

        return cls(**load_scan(Path(folder)))

    def _ranges(self) -> Iterator[tuple[str, int, int]]:
        """Each rule with its first secret and the one after its last."""
        begin = 0
        for name, count in self.rules:
            yield name, begin, begin + count
            begin += count

    def _owner(self) -> OwnerFiles:
        if self.owner is None:
            raise InvalidInput("reasons stay on the owner's side of a scan, which is not here; load the whole folder")
        return self.owner

    def _examples(self, example: int | str | None) -> NDArray[np.integer] | None:
        if isinstance(example, str):
            found = self._owner().numbers_of(example)
            if not found:
                raise InvalidInput("no example of this scan has that id; pass one of owner/examples.parquet")
            return np.array(found)
        if example is not None and not 0 <= example < self.incidence.num_examples:
            raise InvalidInput(f"example {example} is outside [0, {self.incidence.num_examples}); they count from 0")
        return None if example is None else np.array([example])

    def _secret(self, secret: int | str) -> int:
        if isinstance(secret, str):
            if secret not in self.secrets.ids:  # it may be a text by mistake, so it is not repeated
                raise InvalidInput("no secret of this scan has that id; pass one of public/secrets.parquet")
            return self.secrets.ids.index(secret)
        if not 0 <= secret < self.incidence.num_secrets:
            raise InvalidInput(f"secret {secret} is outside [0, {self.incidence.num_secrets}); they count from 0")
        return secret

    def __repr__(self) -> str:
        sizes = f"{self.incidence.num_examples} examples, {self.incidence.num_secrets} secrets"
        return f"Scan({sizes}, {self.incidence.num_entries} pairs)"


def _quantiles(counts: NDArray[np.int64]) -> dict[str, int]:
    """Observed counts at these shares of all; empty for no counts."""
    if not len(counts):
        return {}
    values = np.quantile(counts, QUANTILES, method="inverted_cdf").tolist()
    return {f"{share:g}": int(value) for share, value in zip(QUANTILES, values, strict=True)}


def _largest(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the largest counts are, zeros left out, largest first, then by number."""
    order = np.argsort(-counts, kind="stable")[:SHOWN]
    return order[counts[order] > 0]


FORMAT = "hush scan 2"
PUBLIC = ("incidence.parquet", "secrets.parquet")
OWNER = ("reasons.parquet", "examples.parquet", "counts.json")
UNSAID = ("pairs_from_copies", "skipped", "skipped_by_file")  # of a summary, in public
DATA, TEXTS = "data.parquet", "texts.parquet"
EARLIER = "skipped.json"  # of the first format
WRITTEN = {"public": {*PUBLIC, "summary.json"}, "owner": {*OWNER, DATA, TEXTS, "review.html", EARLIER}}


def check_folder(folder: Path) -> None:
    """Refuse a place that holds anything but a scan, before it is replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; name a folder for the scan")
    names = {entry.name for entry in folder.iterdir()}
    if names and (names - WRITTEN.keys() or not _is_summary(folder / "public" / "summary.json")):
        raise InvalidInput(f"{folder} holds something other than a scan; name a new folder")
    for side in sorted(names):
        strange = sorted({entry.name for entry in (folder / side).iterdir()} - WRITTEN[side])
        if strange:  # a key, perhaps, that was put beside what it belongs to
            raise InvalidInput(
                f"{folder / side} holds {strange[0]}, which no scan wrote; move it elsewhere, or name a new folder"
            )


def save_scan(scan: "Scan", folder: Path, also: Callable[[Path], None] | None) -> None:
    """Replace what is at `folder`, an older scan at most, in one step."""
    check_folder(folder)
    with whole_folder(folder) as work:
        public, owner = work / "public", work / "owner"
        public.mkdir()
        scan.incidence.to_parquet(public / "incidence.parquet")
        if scan.owner is None:
            scan.secrets.to_parquet(public / "secrets.parquet")
        else:
            owner.mkdir(mode=0o700)
            _save_owner(scan, scan.owner, public, owner)
            if also is not None:
                also(owner)
            for path in owner.iterdir():
                path.chmod(0o600)
        summary = {name: value for name, value in scan.summary().items() if name not in UNSAID}
        digests = {name: file_digest(public / name) for name in PUBLIC}
        record = {"format": FORMAT, **summary, "digests": digests}
        record |= {"digest": record_digest(record)}
        (public / "summary.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _save_owner(scan: "Scan", files: OwnerFiles, public: Path, owner: Path) -> None:
    for name in OWNER:
        shutil.copyfile(files.folder / name, owner / name)
    texts = None if scan.secrets.texts is None else owner / TEXTS
    scan.secrets.to_parquet(public / "secrets.parquet", texts_path=texts)
    if scan.data is not None:
        _write_data(scan.data, owner / DATA, scan.incidence.num_examples)
    elif (files.folder / DATA).is_file():
        shutil.copyfile(files.folder / DATA, owner / DATA)


def _write_data(data: "Data", path: Path, num_examples: int) -> None:
    """The texts of the examples, read again: row i is example i, and is what was scanned."""
    count, is_same = 0, True
    with OwnerWriter(path, pa.schema({"text": pa.large_string()}), kind="scan data") as writer:
        for shard in data.corpus.shards():
            for block in shard.blocks(data.columns, skip_bad=True):
                if not len(block):
                    continue  # broken rows alone
                writer.write({"text": block.texts})
                scanned = data.same_N[count : count + len(block)]
                is_same = is_same and np.array_equal(keyed_hashes(block.texts, data.copy_key), scanned)
                count += len(block)
    if count != num_examples:
        raise InvalidInput(
            f"{data.corpus.source} had {num_examples} readable rows when it was scanned and has {count} now; scan again"
        )
    if not is_same:
        raise InvalidInput(f"{data.corpus.source} changed while it was scanned; scan again")


def load_scan(folder: Path) -> dict[str, Any]:
    """The fields of a Scan; without its owner's side where that is not there."""
    public, owner = folder / "public", folder / "owner"
    record = _record(public)
    changed = [name for name in PUBLIC if _digest_at(public / name) != record["digests"].get(name)]
    if changed:
        raise InvalidInput(f"{public}: {', '.join(changed)} changed after the scan was written; scan again")
    has_texts = (owner / TEXTS).is_file()
    files = OwnerFiles(owner) if owner.is_dir() else None
    return {
        "incidence": Incidence.from_parquet(public / "incidence.parquet"),
        "secrets": Secrets.from_parquet(public / "secrets.parquet", texts_path=owner / TEXTS if has_texts else None),
        "rules": tuple((rule["rule"], rule["secrets"]) for rule in record["rules"]),
        "skipped": 0 if files is None else sum(files.skipped().values()),
        "inherited": 0 if files is None else files.inherited(),
        "data_fingerprint": record["data_fingerprint"],
        "owner": files,
    }


def scanned_fingerprint(incidence: Path) -> str | None:
    """The keyed fingerprint of the data that an incidence was scanned from; None where no scan lies beside it."""
    if incidence.name != "incidence.parquet" or not (incidence.parent / "summary.json").is_file():
        return None
    return _record(incidence.parent)["data_fingerprint"]


def _record(public: Path) -> dict[str, Any]:
    """summary.json, as it was written."""
    path = public / "summary.json"
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        stated, expected = record["digest"], record_digest(record)
    except FileNotFoundError:
        raise InvalidInput(f"{path} does not exist; pass a folder that hush scan wrote") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidInput(f"{path} is not the summary of a scan; pass a folder that hush scan wrote") from None
    if record.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} is not of the format {FORMAT!r}; read it with the hush that wrote it, or scan again"
        )
    if stated != expected:
        raise InvalidInput(f"{path} was changed after it was written; scan again")
    return record


def _is_summary(path: Path) -> bool:
    """Whether a scan wrote this, of whatever version; damaged ones count, since they may be replaced."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["format"]).startswith(FORMAT.rstrip("0123456789"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _digest_at(path: Path) -> str | None:
    return file_digest(path) if path.is_file() else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How often counts were from ``least`` to ``most``, bin by bin: 0, 1, 2 to 3, 4 to 7, …"""

    least: tuple[int, ...]
    most: tuple[int, ...]
    count: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """The bins in words."""
        pairs = zip(self.least, self.most, strict=True)
        return [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in pairs]


def histogram_of(count_K: NDArray[np.integer]) -> Histogram:
    """The bins of these counts, from the first to the last that is not empty.

    >>> histogram_of(np.array([0, 1, 5, 6, 7, 1]))
    Histogram(least=(0, 1, 2, 4), most=(0, 1, 3, 7), count=(1, 2, 0, 3))
    """
    if not count_K.size:
        return Histogram(least=(), most=(), count=())
    bin_K = np.frexp(count_K.astype(np.float64))[1]  # the number of binary digits: 0 for 0, 1 for 1, 2 for 2 and 3
    filled = np.bincount(bin_K)
    bins = range(int(bin_K.min()), len(filled))
    return Histogram(
        least=tuple(2 ** (each - 1) if each else 0 for each in bins),
        most=tuple(2**each - 1 for each in bins),
        count=tuple(int(filled[each]) for each in bins),
    )
