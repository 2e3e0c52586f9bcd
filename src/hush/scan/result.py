"""The result of a scan: incidence, secrets and reasons, and the folder in which they are saved.

public/incidence.parquet, secrets.parquet   the graph and the protections, input of hush plan
public/slots.parquet                        where secrets stand, if rules hide spans
public/summary.json                         counts of what is in them, and their SHA-256
owner/reasons.parquet, examples.parquet, set_aside.parquet, counts.json, texts.parquet; identities.parquet with a key;
spans.parquet if there are slots; data.parquet if the examples are not the rows of the input (rows were skipped, or
files or texts were cut); readable by the owner alone

Guarantee: apart from the keyed fingerprints, the public side is a function of the graph, the slots, the protections and
the public names of rules and secrets. How the graph came about (copies, skipped rows) is not in it.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.data.chat import Rendering
from hush.data.parts import Block
from hush.data.rendered import ANSWERS, TEXT, metadata_of
from hush.data.shards import ShardSource
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.scan.identities import IDENTITIES_FILE, Identities
from hush.scan.reasons import SET_ASIDE_FILE, OwnerFiles, OwnerWriter, SetAside, UnfoundLiterals
from hush.scan.shard_tasks import keyed_hashes
from hush.secret_table import Secrets
from hush.slots import SLOTS_FILE, SPANS_FILE, Slots, Spans, save_spans, spans_in
from hush.storage import file_digest, record_digest, whole_folder

__all__ = ["Reason", "Scan", "ScannedTexts", "load_scan", "save_scan"]


FORMAT = "hush scan 2"
PUBLIC_FILES = ("incidence.parquet", "secrets.parquet")
OWNER_FILES = ("reasons.parquet", "examples.parquet", "counts.json")
DATA_FILE, TEXTS_FILE = "data.parquet", "texts.parquet"
PRIOR_FILE = "prior.json"  # the owner's, written by hush prior
FORMAT_1_COUNTS = "skipped.json"  # written by the format "hush scan 1"
KNOWN_FILES = {
    "public": {*PUBLIC_FILES, SLOTS_FILE.name, "summary.json"},
    "owner": {
        *OWNER_FILES,
        SPANS_FILE.name,
        SET_ASIDE_FILE,
        IDENTITIES_FILE,
        DATA_FILE,
        TEXTS_FILE,
        PRIOR_FILE,
        "review.html",
        FORMAT_1_COUNTS,
    },
}
OWNER_ONLY_FIELDS = (  # of a summary
    "pairs_from_copies",
    "skipped",
    "skipped_by_file",
    "set_aside",
    "unfound_literals",
    "secret_text",
)
NUM_LISTED = 10  # secrets and examples listed in a summary
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why an example contains a secret. begin, end: the span of characters in its text, -1 if unknown."""

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
class ScannedTexts:
    """Where to read the texts of the examples again. Reading the same columns as the scan gives the same rows.

    text_hash_N: a hash of each text under a key drawn for the scan, to check that the texts did not change.
    """

    corpus: ShardSource
    columns: tuple[str, ...]
    copy_key: bytes = field(repr=False)
    text_hash_N: NDArray[np.uint64] = field(repr=False)

    @property
    def rendering(self) -> Rendering | None:
        """How the texts were made of rows, if they were."""
        return getattr(self.corpus, "rendering", None)

    def blocks(self, *more: str) -> Iterator[Block]:
        """The examples, read again, with more columns. Guarantee: they are the scanned texts, or an error ends it."""
        count, num_examples = 0, len(self.text_hash_N)
        is_same = True
        for shard in self.corpus.shards():
            for block in shard.blocks((*self.columns, *more), skip_bad=True):
                if not len(block):
                    continue  # only broken rows
                scanned = self.text_hash_N[count : count + len(block)]
                is_same = is_same and np.array_equal(keyed_hashes(block.texts, self.copy_key), scanned)
                count += len(block)
                if is_same:
                    yield block
        if count != num_examples:
            raise InvalidInput(
                f"{self.corpus.source} had {num_examples} readable rows when it was scanned and has {count} now; scan "
                "again"
            )
        if not is_same:
            raise InvalidInput(f"{self.corpus.source} changed while it was scanned; scan again")


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Scan:
    """Which examples contain which secrets, the protection of each secret, and the reason for each pair.

    rules: name and number of secrets of each rule, in the order of the secrets. skipped: rows that could not be read;
    inherited: pairs that only copies add; unfound: literals in no example, by rule; all three are known to the owner
    only, and 0 or empty without the owner's files.
    data_fingerprint: of the examples' texts, under the owner's key; skeleton_fingerprint: of what is public of each
    (``Spans.public_rows``), None without a key or without slots. owner: the owner's files; None if only the public side
    is present. data: where to read the texts again, if they must be saved with the scan. public_slots, owner_spans: the
    slots, and where they are in the texts; None for either means that there are none, or that the other says it.
    """

    incidence: Incidence
    secrets: Secrets
    rules: tuple[tuple[str, int], ...]
    skipped: int = 0
    inherited: int = 0
    unfound: tuple[UnfoundLiterals, ...] = ()
    data_fingerprint: str | None = None
    skeleton_fingerprint: str | None = None
    owner: OwnerFiles | None = None
    data: ScannedTexts | None = None
    public_slots: Slots | None = None
    owner_spans: Spans | None = None

    def __post_init__(self) -> None:
        sizes = (self.incidence.num_secrets, len(self.secrets), sum(count for _, count in self.rules))
        if len(set(sizes)) > 1:
            raise InvalidInput(
                f"the incidence has {sizes[0]} secrets, the table {sizes[1]} and the rules {sizes[2]}; pass parts of "
                "the same scan"
            )
        self.slots.check_against(self.incidence)

    @cached_property
    def slots(self) -> Slots:
        """Where secrets stand in the texts of their examples; public."""
        if self.owner_spans is not None:
            return self.owner_spans.slots
        return Slots.none(self.incidence) if self.public_slots is None else self.public_slots

    @cached_property
    def spans(self) -> Spans:
        """Where each slot begins and ends; for the owner alone."""
        if self.owner_spans is not None:
            return self.owner_spans
        if len(self.slots):
            raise InvalidInput(
                "where the slots are in the texts is in owner/ of a scan, which is missing here; load the whole folder"
            )
        return Spans.none(self.incidence)

    def why(self, *, example: int | str | None = None, secret: int | str | None = None) -> Iterator[Reason]:
        """The reasons of all pairs, of an example's pairs, of a secret's pairs, or of one pair.

        Examples and secrets are named by number or id. No reason contains the text of a secret.
        """
        chosen = self._examples(example)
        number = None if secret is None else self._secret(secret)
        if number is not None:
            holders = self.incidence.examples_of(number)
            chosen = holders if chosen is None else np.intersect1d(chosen, holders)
        for batch in self._owner().reasons(examples=chosen, secret=number):
            for row in batch.to_pylist():
                yield Reason(secret_id=self.secrets.ids[row["secret"]], **row)

    def spans_of(self, example: int | str) -> list[Reason]:
        """The found spans of secrets in the example's text, in order; without secrets whose span is unknown."""
        with_span = (reason for reason in self.why(example=example) if reason.has_span)
        return sorted(with_span, key=lambda reason: (reason.begin, reason.end, reason.secret))

    def set_aside(self) -> list[SetAside]:
        """What rules found and doubt, so that it is not protected; the texts in most examples first."""
        return self._owner().set_aside()

    @property
    def identities(self) -> Identities | None:
        """Which secrets have which ids; for the owner alone. None without a key, or without the owner's files."""
        path = None if self.owner is None else self.owner.folder / IDENTITIES_FILE
        return Identities.load(path) if path is not None and path.is_file() else None

    def summary(self) -> dict[str, Any]:
        """Sizes, their distribution and the largest; with the owner's files also copies and skipped rows. No text."""
        by_secret, by_example = self.incidence.examples_per_secret, self.incidence.secrets_per_example
        owner_only: dict[str, Any] = {}
        if self.owner is not None:
            by_file = self.owner.skipped() if self.skipped else {}
            owner_only = {"pairs_from_copies": self.inherited, "skipped": self.skipped, "skipped_by_file": by_file}
            owner_only |= {"set_aside": self._set_aside_by_reason(), "unfound_literals": [*map(asdict, self.unfound)]}
            owner_only |= {"secret_text": self._secret_text()}
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
                | ({"examples_with_slots": self._examples_with_slots(begin, end)} if len(self.slots) else {})
                for name, begin, end in self._ranges()
            ],
            "data_fingerprint": self.data_fingerprint,
            "skeleton_fingerprint": self.skeleton_fingerprint,
            **owner_only,
        }

    def _set_aside_by_reason(self) -> list[dict[str, Any]]:
        """How many texts each rule sets aside for each reason, and in how many examples; most examples first."""
        groups: dict[tuple[str, str], list[SetAside]] = {}
        for entry in self.set_aside():
            groups.setdefault((entry.rule, entry.why), []).append(entry)
        rows = [
            {
                "rule": rule,
                "why": why,
                "texts": len(entries),
                "examples": len(set().union(*(entry.examples for entry in entries))),
            }
            for (rule, why), entries in groups.items()
        ]
        return sorted(rows, key=lambda row: (-row["examples"], -row["texts"], row["rule"], row["why"]))

    def _examples_with_slots(self, begin: int, end: int) -> int:
        """How many examples have slots of the secrets from ``begin`` to ``end``."""
        slots = self.slots
        example_P = np.repeat(slots.example_L, np.diff(slots.offset_L))
        return len(np.unique(example_P[(slots.secret_P >= begin) & (slots.secret_P < end)]))

    def _secret_text(self) -> dict[str, Any] | None:
        """Which share of all characters is secret, in all and by rule: if it hides examples, and if it hides spans."""
        stored = None if self.owner is None else self.owner.secret_text()
        if stored is None:
            return None
        total = max(stored.characters, 1)
        shares = [
            {"rule": row.rule, "hides": row.hides, "example": row.example / total, "span": row.span / total}
            for row in stored.rules
        ]
        return {"characters": stored.characters, "share": stored.secret / total, "rules": shares}

    def save(self, folder: str | os.PathLike[str], *, also: Callable[[Path], None] | None = None) -> None:
        """Writes the scan as a folder, atomically; an older scan there is replaced.

        public/ may be shown to anyone; owner/ is readable by its owner alone. also: called with the folder owner/, to
        write more files into it.
        """
        save_scan(self, Path(folder), also)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Reads what ``save`` wrote, or its public side alone. Guarantee: the public files are unchanged."""
        return cls(**load_scan(Path(folder)))

    def _ranges(self) -> Iterator[tuple[str, int, int]]:
        """Each rule's name, its first secret, and the secret after its last."""
        begin = 0
        for name, count in self.rules:
            yield name, begin, begin + count
            begin += count

    def _owner(self) -> OwnerFiles:
        if self.owner is None:
            raise InvalidInput("the reasons are in owner/ of a scan, which is missing here; load the whole folder")
        return self.owner

    def _examples(self, example: int | str | None) -> NDArray[np.integer] | None:
        if isinstance(example, str):
            numbers = self._owner().numbers_of(example)
            if not numbers:
                raise InvalidInput("no example of this scan has that id; pass one of owner/examples.parquet")
            return np.array(numbers)
        if example is not None and not 0 <= example < self.incidence.num_examples:
            raise InvalidInput(
                f"example {example} is outside [0, {self.incidence.num_examples}); pass a number that counts from 0"
            )
        return None if example is None else np.array([example])

    def _secret(self, secret: int | str) -> int:
        if isinstance(secret, str):
            if secret not in self.secrets.ids:  # it may be secret text by mistake, so the message does not repeat it
                raise InvalidInput("no secret of this scan has that id; pass one of public/secrets.parquet")
            return self.secrets.ids.index(secret)
        if not 0 <= secret < self.incidence.num_secrets:
            raise InvalidInput(
                f"secret {secret} is outside [0, {self.incidence.num_secrets}); pass a number that counts from 0"
            )
        return secret

    def __repr__(self) -> str:
        sizes = f"{self.incidence.num_examples} examples, {self.incidence.num_secrets} secrets"
        return f"Scan({sizes}, {self.incidence.num_entries} pairs)"


def _quantiles(counts: NDArray[np.int64]) -> dict[str, int]:
    """The quantiles of the counts, each an observed count; empty without counts."""
    if not len(counts):
        return {}
    values = np.quantile(counts, QUANTILES, method="inverted_cdf").tolist()
    return {f"{share:g}": int(value) for share, value in zip(QUANTILES, values, strict=True)}


def _largest(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of the largest counts above 0, largest first, ties by index."""
    order = np.argsort(-counts, kind="stable")[:NUM_LISTED]
    return order[counts[order] > 0]


# The folder of a scan


def check_folder(folder: Path) -> None:
    """Refuses a folder that holds anything but a scan, which saving would replace."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; name a folder for the scan")
    names = {entry.name for entry in folder.iterdir()}
    if names and (names - KNOWN_FILES.keys() or not _is_summary(folder / "public" / "summary.json")):
        raise InvalidInput(f"{folder} holds something other than a scan; name a new folder")
    for side in sorted(names):
        unknown = sorted({entry.name for entry in (folder / side).iterdir()} - KNOWN_FILES[side])
        if unknown:  # perhaps a key that the owner keeps there
            raise InvalidInput(
                f"{folder / side} holds {unknown[0]}, which no scan wrote; move it elsewhere, or name a new folder"
            )


def save_scan(scan: Scan, folder: Path, also: Callable[[Path], None] | None) -> None:
    """Writes the folder of a scan atomically; replaces an older scan and nothing else."""
    check_folder(folder)
    with whole_folder(folder) as work:
        public, owner = work / "public", work / "owner"
        public.mkdir()
        scan.incidence.to_parquet(public / "incidence.parquet")
        if scan.owner is None:
            scan.secrets.to_parquet(public / "secrets.parquet")
            if len(scan.slots):
                scan.slots.to_parquet(public / SLOTS_FILE.name)
        else:
            owner.mkdir(mode=0o700)
            _save_owner(scan, scan.owner, public, owner)
            if also is not None:
                also(owner)
            if len(scan.slots):
                save_spans(scan.spans, work)
            for path in owner.iterdir():
                path.chmod(0o600)
        summary = {name: value for name, value in scan.summary().items() if name not in OWNER_ONLY_FIELDS}
        digests = {name: file_digest(public / name) for name in _public_files(public)}
        record = {"format": FORMAT, **summary, "digests": digests}
        record |= {"digest": record_digest(record)}
        (public / "summary.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _public_files(public: Path) -> tuple[str, ...]:
    """The files of the public side that its summary states the SHA-256 of."""
    has_slots = (public / SLOTS_FILE.name).is_file()
    return (*PUBLIC_FILES, SLOTS_FILE.name) if has_slots else PUBLIC_FILES


def _save_owner(scan: Scan, files: OwnerFiles, public: Path, owner: Path) -> None:
    for name in (*OWNER_FILES, SET_ASIDE_FILE, IDENTITIES_FILE):
        # A scan by an earlier version set nothing aside, and one without a key has no identities.
        if name in OWNER_FILES or (files.folder / name).is_file():
            shutil.copyfile(files.folder / name, owner / name)
    texts = None if scan.secrets.texts is None else owner / TEXTS_FILE
    scan.secrets.to_parquet(public / "secrets.parquet", texts_path=texts)
    if scan.data is not None:
        _write_data(scan.data, owner / DATA_FILE)
    elif (files.folder / DATA_FILE).is_file():
        shutil.copyfile(files.folder / DATA_FILE, owner / DATA_FILE)


def _write_data(data: ScannedTexts, path: Path) -> None:
    """Writes the texts of the examples, read again: row i is example i. Guarantee: they are the scanned texts."""
    if data.rendering is None:
        with OwnerWriter(path, pa.schema({"text": pa.large_string()}), kind="scan data") as writer:
            for block in data.blocks():
                writer.write({"text": block.texts})
        return
    with rendered_writer(path, data.rendering, kind="scan data") as writer:
        for block in data.blocks(ANSWERS):
            writer.write({TEXT: block.texts, ANSWERS: block.columns[ANSWERS]})


def rendered_writer(path: Path, rendering: Rendering, *, kind: str) -> OwnerWriter:
    """A file for texts that were rendered, and for where the answers in them are."""
    schema = pa.schema({TEXT: pa.large_string(), ANSWERS: pa.large_string()})
    return OwnerWriter(path, schema, kind=kind, metadata=metadata_of(rendering))


def load_scan(folder: Path) -> dict[str, Any]:
    """The fields of a Scan; owner is None if the folder owner/ is missing."""
    public, owner = folder / "public", folder / "owner"
    record = _record(public)
    names = dict.fromkeys((*_public_files(public), *record["digests"]))
    changed = [name for name in names if _digest_at(public / name) != record["digests"].get(name)]
    if changed:
        raise InvalidInput(f"{public}: {', '.join(changed)} changed after the scan was written; scan again")
    has_texts = (owner / TEXTS_FILE).is_file()
    files = OwnerFiles(owner) if owner.is_dir() else None
    slots = Slots.from_parquet(folder / SLOTS_FILE) if (folder / SLOTS_FILE).is_file() else None
    return {
        "incidence": Incidence.from_parquet(public / "incidence.parquet"),
        "secrets": Secrets.from_parquet(
            public / "secrets.parquet", texts_path=owner / TEXTS_FILE if has_texts else None
        ),
        "rules": tuple((rule["rule"], rule["secrets"]) for rule in record["rules"]),
        "skipped": 0 if files is None else sum(files.skipped().values()),
        "inherited": 0 if files is None else files.inherited(),
        "unfound": () if files is None else files.unfound(),
        "data_fingerprint": record["data_fingerprint"],
        "skeleton_fingerprint": record.get("skeleton_fingerprint"),
        "owner": files,
        "public_slots": slots,
        "owner_spans": spans_in(folder) if files is not None else None,
    }


def scanned_fingerprint(incidence: Path) -> str | None:
    """The data fingerprint of the scan that an incidence file belongs to; None if it belongs to none."""
    return _record(incidence.parent)["data_fingerprint"] if is_scanned(incidence) else None


def is_scanned(incidence: Path) -> bool:
    """Whether an incidence file belongs to a scan."""
    return incidence.name == "incidence.parquet" and (incidence.parent / "summary.json").is_file()


def scanned_slots(incidence: Path) -> tuple[Slots | None, str | None]:
    """The slots beside an incidence file of a scan, or of canaries planted after one; and the skeletons' fingerprint.

    None for either where nothing states it.
    """
    path = incidence.with_name(SLOTS_FILE.name)
    if not is_scanned(incidence):  # canaries have no summary
        beside = incidence.name == "incidence.parquet" and path.is_file()
        return (Slots.from_parquet(path) if beside else None), None
    record = _record(incidence.parent)
    if _digest_at(path) != record["digests"].get(path.name):
        raise InvalidInput(f"{path} changed after the scan was written, or is missing; scan again")
    return (Slots.from_parquet(path) if path.is_file() else None), record.get("skeleton_fingerprint")


def _record(public: Path) -> dict[str, Any]:
    """The content of summary.json, checked to be unchanged."""
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
    """Whether any version of hush scan wrote this; a damaged summary counts, since it may be replaced."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["format"]).startswith(FORMAT.rstrip("0123456789"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _digest_at(path: Path) -> str | None:
    return file_digest(path) if path.is_file() else None
