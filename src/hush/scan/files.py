"""A scan as a folder: what may be shown, and what stays with the owner.

public/incidence.parquet, secrets.parquet   the graph and the promises, for hush plan
public/summary.json                         counts of what is in them, and their SHA-256
owner/reasons.parquet, examples.parquet, counts.json, texts.parquet, and data.parquet where the examples are not the
rows of the input (rows were passed over, or files were cut into chunks); readable by the owner alone

Guarantee: apart from the keyed fingerprint of the data, the public side is a function of the graph, the promises and
the rules' and secrets' public names. How the graph came about (copies, rows passed over) is not in it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.scan.owner import OwnerFiles, OwnerWriter
from hush.scan.task import keyed_hashes
from hush.secret_table import Secrets
from hush.storage import file_digest, record_digest, whole_folder

if TYPE_CHECKING:
    from hush.scan.result import Data, Scan

__all__ = ["load_scan", "save_scan"]

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
