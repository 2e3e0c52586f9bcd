"""A plan as a folder, and detached signatures of plans and releases.

plan.json            settings, format version, SHA-256 of every other file
examples.parquet     weight and rate of each example
secrets.parquet      id, priors, ceilings and posteriors of each secret
incidence.parquet    the public graph
slots.parquet        where the secrets stand, if the plan has slots
chain.parquet        limits or log-moments of each secret, if the plan is one of a chain (``hush.plan.chain_files``)
certificate.json / certificate.md
plan.sig             a detached signature, if the plan was signed

An Ed25519 signature covers the file that names all others, byte for byte, so that other programs can check it too:

plan            plan.sig, over plan.json, which holds the digest of every other file of the plan
release         certificate.sig, over certificate.json and certificate.md, concatenated; they hold the fingerprints of
                the model and of everything that the plan states
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.plan.chain_files import (
    CHAIN_FILE,
    chain_digest,
    chain_record,
    check_chain_record,
    columns_of,
    fields_of_chain,
    read_chain,
    rows_of,
    write_chain,
)
from hush.slots import Slots
from hush.storage import (
    file_digest,
    parquet_file,
    read_json,
    read_table,
    record_digest,
    table_digest,
    whole_file,
    whole_folder,
    write_table,
)

if TYPE_CHECKING:
    from hush.plan.plan import Plan

__all__ = [
    "RELEASES",
    "RELEASE_SIGNATURE",
    "covered",
    "create_keys",
    "is_release",
    "load_private_key",
    "load_public_key",
    "sign",
    "signature_of",
    "signature_problem",
]


MAJOR, MINOR = 1, 6  # a newer minor version adds fields or rewords; a newer major one changes the meaning of a field
FORMAT = re.compile(r"(\d{1,3})\.(\d{1,3})", re.ASCII)
SETTINGS = (
    "noise_multiplier",
    "rounds",
    "batch_size",
    "clip_norm",
    "bound",
    "capacity",
    "weights_gap",
    "noise_scale",
    "created",
)
OPTIONAL_SETTINGS = ("data_fingerprint",)  # plans of an older minor version lack them; they count as None
# Of plans with slots; slots: their fingerprint. The last one also of plans without that draw only secrets.
SLOT_FIELDS = ("slots", "skeleton_fingerprint", "held_out")
CHAIN_FIELD = "chain"  # of plans that are one of a chain
_FIELDS = (
    "format", *SETTINGS, *OPTIONAL_SETTINGS, *SLOT_FIELDS, CHAIN_FIELD, "binding", "digests", "digest",
)  # in order  # fmt: skip
TABLES = {
    "examples.parquet": ("weight", "rate"),
    "secrets.parquet": ("id", "prior", "ceiling", "posterior"),
    "incidence.parquet": ("example", "secret"),
}
FILES = (*TABLES, "certificate.json", "certificate.md")
SLOTS_FILE, SLOTS_COLUMNS = "slots.parquet", ("example", "place", "rule", "secrets")  # of plans with slots
SIGNATURE = "plan.sig"
RELEASE_SIGNATURE = "certificate.sig"
CERTIFICATES = ("certificate.json", "certificate.md")  # for programs, and for people


def check_folder(folder: Path) -> None:
    """Refuse to replace a folder that holds anything other than a plan."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; name a folder for the plan")
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(names - {"plan.json", SIGNATURE, *FILES, SLOTS_FILE, CHAIN_FILE})
    if foreign or (names and "plan.json" not in names):
        listed = ", ".join(foreign[:3] or sorted(names)[:3])
        raise InvalidInput(f"{folder} holds something other than a plan ({listed}); name a new folder")
    if names:
        _parsed_record(folder)  # a plan.json of another program is not replaced


def save_plan(plan: "Plan", folder: Path) -> None:
    """Write a plan to `folder` in one step; an older plan there is replaced."""
    check_folder(folder)
    with whole_folder(folder) as work:
        _write(plan, work)


def _write(plan: "Plan", folder: Path) -> None:
    for name, (table, kind) in _tables(plan).items():
        write_table(table, folder / name, kind=kind)
    plan.incidence.to_parquet(folder / "incidence.parquet")
    if plan.slots is not None:
        plan.slots.to_parquet(folder / SLOTS_FILE)
    if plan.chain is not None:
        write_chain(plan.chain, folder / CHAIN_FILE)
    _write_json(plan.certificate.to_dict(), folder / "certificate.json")
    (folder / "certificate.md").write_text(plan.certificate.to_markdown(), encoding="utf-8")
    record = {
        "format": f"{MAJOR}.{MINOR}",
        **{name: getattr(plan, name) for name in (*SETTINGS, *OPTIONAL_SETTINGS)},
        **_slot_fields(plan),
        **({} if plan.chain is None else {CHAIN_FIELD: chain_record(plan.chain)}),
        "binding": plan.binding.tolist(),
    }
    record["digests"] = {name: file_digest(folder / name) for name in files_of(record)}
    _write_json(record | {"digest": record_digest(record)}, folder / "plan.json")


def _slot_fields(plan: "Plan") -> dict[str, Any]:
    if plan.held_out is None:
        return {}
    if plan.slots is None:
        return {"held_out": plan.held_out.tolist()}
    values = (plan.slots.fingerprint, plan.skeleton_fingerprint, plan.held_out.tolist())
    return dict(zip(SLOT_FIELDS, values, strict=True))


def has_slots(record: Mapping[str, Any]) -> bool:
    """Whether plan.json is that of a plan with slots."""
    return record.get("slots") is not None


def has_chain(record: Mapping[str, Any]) -> bool:
    """Whether plan.json is that of a plan of a chain."""
    return record.get(CHAIN_FIELD) is not None


def files_of(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The files of a plan beside its plan.json."""
    slots, chain = (SLOTS_FILE,) * has_slots(record), (CHAIN_FILE,) * has_chain(record)
    return (*FILES, *slots, *chain)


def tables_of(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The tables among them, and their columns."""
    slots = {SLOTS_FILE: SLOTS_COLUMNS} if has_slots(record) else {}
    chain = {CHAIN_FILE: columns_of(record[CHAIN_FIELD])} if has_chain(record) else {}
    return TABLES | slots | chain


def _tables(plan: "Plan") -> dict[str, tuple[pa.Table, str]]:
    """The tables of examples and of secrets, each with its kind."""
    examples = pa.table({"weight": plan.weights, "rate": plan.rates})
    points = {"prior": plan.prior, "ceiling": plan.ceiling, "posterior": plan.posterior}
    columns = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        for name, array in points.items()
    }
    secrets = pa.table({"id": pa.array(plan.secret_ids, pa.string()), **columns})
    return {"examples.parquet": (examples, "plan examples"), "secrets.parquet": (secrets, "plan secrets")}


def rewritten_files(plan: "Plan", folder: Path, record: dict[str, Any]) -> list[str]:
    """The files of this plan, apart from its certificate, that are not byte for byte what hush writes for it.

    They hold something besides (labels, free space, an order), or another version of Arrow wrote them.
    """
    digests = {name: table_digest(table, kind=kind) for name, (table, kind) in _tables(plan).items()}
    digests["incidence.parquet"] = plan.incidence.parquet_digest
    if plan.slots is not None:
        digests[SLOTS_FILE] = plan.slots.parquet_digest
    if plan.chain is not None:
        digests[CHAIN_FILE] = chain_digest(plan.chain)
    different = [name for name, digest in digests.items() if file_digest(folder / name) != digest]
    ordered = {name: record[name] for name in _FIELDS if name in record}
    written = (folder / "plan.json").read_bytes() == _json(ordered).encode()
    return different if written else ["plan.json", *different]


def load_plan(folder: Path) -> dict[str, Any]:
    """The fields of a Plan. Guarantee: every file has the digest that was written with the plan."""
    record = read_record(folder)
    changed = changed_files(folder, record)
    if changed:
        raise InvalidInput(f"{folder}: {', '.join(changed)} changed after the plan was written; make the plan again")
    return read_fields(folder, record)


def changed_files(folder: Path, record: dict[str, Any]) -> list[str]:
    """Names of the files whose digest is not the one in plan.json."""
    return [name for name, digest in record["digests"].items() if file_digest(folder / name) != digest]


def read_record(folder: Path) -> dict[str, Any]:
    """plan.json, with its version, its fields and its own digest checked; unknown fields are ignored."""
    path = folder / "plan.json"
    record = _parsed_record(folder)
    missing = [name for name in (*SETTINGS, "binding", "digests", "digest") if name not in record]
    if missing:
        raise InvalidInput(f"{path} lacks {missing}; make the plan again")
    if record["digest"] != record_digest(record):
        raise InvalidInput(f"{path} was changed after it was written; make the plan again")
    digests = record["digests"]
    if not _are_numbers(record["binding"]):
        raise InvalidInput(f"{path}: binding does not list secrets by their numbers; make the plan again")
    if not _are_numbers(record.get("held_out") or []):
        raise InvalidInput(f"{path}: held_out does not list examples by their numbers; make the plan again")
    if not isinstance(digests, dict) or any(Path(name).name != name or not name.isprintable() for name in digests):
        raise InvalidInput(f"{path}: digests must name the files beside it; make the plan again")
    if has_chain(record):
        check_chain_record(record[CHAIN_FIELD], path)
    needed = {*files_of(record), *digests}
    absent = [name for name in needed if name not in digests or not (folder / name).is_file()]
    if absent:
        raise InvalidInput(f"{folder} lacks {sorted(absent)}; make the plan again")
    if SLOTS_FILE in digests and not has_slots(record):
        raise InvalidInput(f"{path} names {SLOTS_FILE} but no slots; make the plan again")
    if CHAIN_FILE in digests and not has_chain(record):
        raise InvalidInput(f"{path} names {CHAIN_FILE} but no chain; make the plan again")
    return record


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int and each.bit_length() <= 63 for each in value)


def additions(folder: Path, record: dict[str, Any]) -> list[str]:
    """Which files of a plan of exactly this format hold fields or columns that hush does not write, and so not read."""
    slots, chain = has_slots(record), has_chain(record)
    known = record.keys() <= set(_FIELDS) - set(() if slots else SLOT_FIELDS[:2]) - set(() if chain else (CHAIN_FIELD,))
    known = known and (not chain or record[CHAIN_FIELD].keys() == set(fields_of_chain(record[CHAIN_FIELD])))
    names = [] if known and record["digests"].keys() == set(files_of(record)) else ["plan.json"]
    for name, columns in tables_of(record).items():
        with parquet_file(folder / name) as file:
            names += [name] if set(file.schema_arrow.names) - set(columns) else []
    return names


def minor_version(record: dict[str, Any]) -> int:
    """The minor version of the format of this record."""
    return int(record["format"].split(".")[1])


def _parsed_record(folder: Path) -> dict[str, Any]:
    path = folder / "plan.json"
    try:
        record: Any = read_json(path)
        known: Any = FORMAT.fullmatch(record["format"])
        major, minor = (int(part) for part in known.groups())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidInput(f"{folder} holds no plan.json; pass a folder that hush plan or Plan.save wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a plan's JSON; pass a folder that hush plan or Plan.save wrote") from error
    if major != MAJOR:
        raise InvalidInput(
            f"{path} has format {major}.{minor}, this hush reads {MAJOR}.x; load it with the hush that wrote it, "
            "or make the plan again"
        )
    return record


def read_fields(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Plan from a record and the tables beside it."""
    examples, _ = read_table(folder / "examples.parquet", kind="plan examples", columns=TABLES["examples.parquet"])
    secrets, _ = read_table(folder / "secrets.parquet", kind="plan secrets", columns=TABLES["secrets.parquet"])
    names = ("prior", "ceiling", "posterior")
    return {
        "incidence": Incidence.from_parquet(folder / "incidence.parquet"),
        "secret_ids": tuple(secrets.column("id").to_pylist()),
        **{name: rows_of(secrets.column(name), folder / "secrets.parquet") for name in names},
        "binding": np.array(record["binding"], dtype=np.int64),
        "weights": _numbers(examples.column("weight"), folder / "examples.parquet"),
        **{name: record[name] for name in SETTINGS},
        **{name: record.get(name) for name in OPTIONAL_SETTINGS},
        **_read_slots(folder, record),
        "chain": read_chain(record[CHAIN_FIELD], folder / CHAIN_FILE) if has_chain(record) else None,
    }


def _read_slots(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan with slots; none for a plan without, such as those of older formats."""
    held_out = record.get("held_out")
    fields: dict[str, Any] = {
        "slots": None,
        "skeleton_fingerprint": record.get("skeleton_fingerprint"),
        "held_out": None if held_out is None else np.array(held_out, dtype=np.int64),
    }
    if not has_slots(record):
        return fields
    slots = Slots.from_parquet(folder / SLOTS_FILE)
    if slots.fingerprint != record["slots"]:
        raise InvalidInput(f"{folder / SLOTS_FILE} holds other slots than plan.json names; make the plan again")
    return fields | {"slots": slots}


def stored_rates(folder: Path) -> np.ndarray:
    """The rates that the plan's table states."""
    table, _ = read_table(folder / "examples.parquet", kind="plan examples", columns=("rate",))
    return _numbers(table.column("rate"), folder / "examples.parquet")


def _write_json(content: dict[str, Any], path: Path) -> None:
    path.write_text(_json(content), encoding="utf-8")


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _numbers(column: pa.ChunkedArray, path: Path) -> np.ndarray:
    """A column of numbers."""
    if not pa.types.is_float64(column.type) or column.null_count:
        raise InvalidInput(
            f"{path} has a column of type {column.type}; pass a folder that hush plan or Plan.save wrote"
        )
    return column.to_numpy()


RELEASES = ("release", "share")  # folders of what a run released; the second is that of hush run in 0.1.0

# Signatures.


def create_keys(private: Path, public: Path, *, kind: Literal["ed25519", "p256"] = "ed25519") -> None:
    """A new key pair as two PEM files; only the owner can read the private one. No file is overwritten.

    kind: Ed25519 for ``sign``, the elliptic curve P-256 for ``attest``.
    """
    if private.resolve() == public.resolve():
        raise InvalidInput(f"{private} cannot hold both keys; name two files")
    for path in (private, public):
        if path.exists():
            raise InvalidInput(f"{path} exists; name a new file, keys are never overwritten")
    key = Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    with whole_file(private, owner_only=True) as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    with whole_file(public) as file:
        file.write(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )


def load_private_key(path: Path) -> PrivateKeyTypes:
    """The private key in a PEM file that is not encrypted."""
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{path} is not an unencrypted PEM private key") from error


def load_public_key(path: Path) -> PublicKeyTypes:
    """The public key in a PEM file."""
    try:
        return serialization.load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{path} is not a PEM public key") from error


def is_release(folder: Path) -> bool:
    """Whether a folder is a release, or the remains of one, rather than a plan.

    The folder of a plan never holds a model; so where there is one, a signature of the plan alone is not enough.
    """
    certified = any((folder / name).exists() for name in CERTIFICATES)
    return (folder / "model").exists() or (certified and (folder / "plan").is_dir())


def signature_of(folder: Path) -> Path:
    """The path of the signature of a plan, or of a release."""
    return folder / (RELEASE_SIGNATURE if is_release(folder) else SIGNATURE)


def covered(folder: Path) -> str:
    """A sentence about what a valid signature of this folder covers."""
    if is_release(folder):
        return "it covers the run's certificate, and through its fingerprints the plan and the model"
    return "it covers the plan, and no model"


def sign(folder: Path, private_key: Path) -> Path:
    """Sign a plan, or a release (release/ of a run), as it is; ``verify`` it before."""
    plan = folder / "plan" if is_release(folder) else folder
    changed = changed_files(plan, read_record(plan))
    if changed:
        raise InvalidInput(f"{plan}: {', '.join(changed)} changed after the plan was written; make the plan again")
    key = load_private_key(private_key)
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{private_key} is not an Ed25519 key; create one with hush sign")
    with whole_file(signature_of(folder)) as file:
        file.write(key.sign(_signed_content(folder)))
    return signature_of(folder)


def signature_problem(folder: Path, public_key: Path) -> str | None:
    """Why the signature of a plan, or of a release, is not valid for this key; None if it is."""
    key = load_public_key(public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput(f"{public_key} is not an Ed25519 key")
    path, signed = signature_of(folder), _signed_files(folder)
    if not path.is_file():
        return _no_signature(folder)
    missing = [file.name for file in signed if not file.is_file()]
    if missing:
        return f"there is no {missing[0]}, which it must cover; restore the folder"
    try:
        key.verify(path.read_bytes(), _signed_content(folder))
    except InvalidSignature:
        return f"the signature is not valid for this key and this {' and '.join(file.name for file in signed)}"
    return None


def _signed_files(folder: Path) -> list[Path]:
    return [folder / name for name in (CERTIFICATES if is_release(folder) else ("plan.json",))]


def _signed_content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in _signed_files(folder))


def _no_signature(folder: Path) -> str:
    if is_release(folder) and (folder / "plan" / SIGNATURE).is_file():
        return (
            f"there is no {RELEASE_SIGNATURE}; plan/{SIGNATURE} covers only the plan and not this model: sign "
            "the whole folder with hush sign, or verify the folder plan/ separately"
        )
    what = "folder" if is_release(folder) else "plan"
    return f"there is no {signature_of(folder).name}; sign the {what} with hush sign"
