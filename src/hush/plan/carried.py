"""What a plan or a release carries and no check of ``verify`` proves: files that are not read, and statements.

Both lists are what is left over: everything in the folder, and every field and column of its files, is either claimed
by a check, or listed. A field that somebody adds is listed until a check claims it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.certificate import Certificate
from hush.numbers import counted
from hush.plan.files import SLOTS_COLUMNS, SLOTS_FILE, files_of, has_chain, has_slots, signature_of, tables_of

__all__ = [
    "OPTIONAL_FILES",
    "RELEASE_FILES",
    "RELEASE_FOLDERS",
    "UNCOMPARED",
    "shown",
    "unchecked",
    "unproven",
]

RELEASE_FILES = {"certificate.json", "certificate.md"}
RELEASE_FOLDERS = {"plan", "model", "earlier"}
# Of a release; the last two are added by the Hugging Face hub and by its client.
OPTIONAL_FILES = re.compile(
    r"README\.md|report\.html|evaluations\.jsonl|round-\d{6,}|model\.sig|attestations\.intoto\.jsonl|"
    r"\.gitattributes|\.cache"
)
UNCOMPARED = ("versions",)  # fields of a certificate of which only the form is checked
REWRITTEN = "holds more than hush writes for this plan, or another version wrote it"

# Parts of a plan's files that checks prove: from each other, or by recomputing.
PROVEN = {
    "plan.json": {
        "format", "noise_multiplier", "rounds", "batch_size", "bound", "noise_scale", "slots", "chain", "binding",
        "digests", "digest",
    },
    "examples.parquet": {"weight", "rate"},
    "secrets.parquet": {"posterior"},
    "incidence.parquet": set[str](),
    "slots.parquet": set[str](),
    "chain.parquet": {"limit", "conceded", "before", "after", "granted", "allowed"},
}  # fmt: skip
# Why the others are not proven: they say something about the world outside the folder.
NOT_THE_OWNERS = "not compared with the owner's"
# Whoever writes every file again can leave the slots out: what was trained on slots then claims more than it keeps.
NO_SLOTS = f"plan.json: no slots, so every promise is about whole examples, {NOT_THE_OWNERS} slots"
REASONS = {
    "plan.json": {
        "clip_norm": "whether training clips to it",
        "capacity": "how the weights were chosen",
        "weights_gap": "whether other weights would keep more data",
        "created": "by the clock of the author",
        "data_fingerprint": "only the owner's key can tell whose data these are",
        "skeleton_fingerprint": "only the owner's key can tell whose skeletons these are",
        "held_out": "whether training leaves them out",
    },
    "secrets.parquet": dict.fromkeys(("id", "prior", "ceiling"), f"{NOT_THE_OWNERS} table of secrets"),
    "incidence.parquet": dict.fromkeys(("example", "secret"), f"{NOT_THE_OWNERS} graph"),
    "slots.parquet": dict.fromkeys(SLOTS_COLUMNS, f"{NOT_THE_OWNERS} slots"),
    "chain.parquet": {"order": "whether the orders of new secrets were chosen by the rule"},
}
UNKNOWN = "no check knows it"
CHAIN_REASONS = {
    "series": (
        "whether it names every release about these secrets",
        "whether equal ids stand for equal secrets",
        "whether it names every secret that an earlier release did not protect in all of its examples",
        "whether the series was announced before its first release",
    ),
    "filter": (
        "whether it names every release about these secrets",
        "whether equal ids stand for equal secrets",
        "whether it names every secret that an earlier release did not protect in all of its examples",
    ),
}


def unchecked(
    root: Path,
    record: Mapping[str, Any],
    *,
    released: bool,
    key_given: bool,
    attested: Sequence[Path],
    earlier_read: bool,
    rewritten: list[str],
) -> tuple[str, ...]:
    """Names in the folder of a release, or of a plan, that no check reads, or of which no check reads everything.

    record: of plan.json. key_given: the signature was checked. attested: the files of attestations that were checked.
    earlier_read: the earlier releases in the folder were read, and no others were passed. rewritten: files of the plan
    that are not byte for byte what hush writes.
    """
    plan = root / "plan" if released else root
    claimed = {plan / name for name in ("plan.json", *files_of(record))}
    claimed |= {root / name for name in RELEASE_FILES} if released else set()
    claimed |= {signature_of(root)} if key_given else set()
    claimed |= set(attested)
    read = RELEASE_FOLDERS if earlier_read else RELEASE_FOLDERS - {"earlier"}
    folders = {root / name for name in read} if released else set[Path]()
    paths = {*root.iterdir(), *plan.iterdir()}
    unread = [path for path in sorted(paths) if not (path in claimed and path.is_file()) and path not in folders]
    partly = [f"{shown(plan / name, root)} ({REWRITTEN})" for name in rewritten]
    return (*(shown(path, root) for path in unread), *partly)


def unproven(
    record: Mapping[str, Any],
    certificate: Certificate | None,
    *,
    released: bool,
    graph_given: bool,
    secrets_given: bool,
    slots_given: bool,
) -> tuple[str, ...]:
    """What the files state and no check can prove, one line each. record: of plan.json."""
    compared = {"incidence.parquet"} if graph_given else set[str]()
    compared |= {"secrets.parquet"} if secrets_given else set()
    compared |= {SLOTS_FILE} if slots_given else set()
    lines: list[str] = []
    for name, value in record.items():
        nothing = value is None or (name == "capacity" and value == "none")  # which a check proves
        if name not in PROVEN["plan.json"] and not nothing:
            stated = counted(len(value), "example") if isinstance(value, list) else repr(value)  # held_out
            lines.append(f"plan.json: {name} {stated}, {REASONS['plan.json'].get(name, UNKNOWN)}")
    if not (slots_given or has_slots(record)):
        lines.append(NO_SLOTS)
    if has_chain(record):
        lines += [f"plan.json: chain, {reason}" for reason in CHAIN_REASONS[record["chain"]["kind"]]]
        ancestors = len(record["chain"]["ancestors"])
        if ancestors:
            lines.append(f"plan.json: chain, ancestors of {counted(ancestors, 'secret')}, {NOT_THE_OWNERS} identities")
    for file, columns in tables_of(record).items():
        left = [] if file in compared else [name for name in columns if name not in PROVEN[file]]
        lines += [f"{file}: {name}, {REASONS.get(file, {}).get(name, UNKNOWN)}" for name in left]
    stated = {} if certificate is None else certificate.versions
    lines += [f"certificate: version of {name} {version}, as the author says" for name, version in stated.items()]
    if released:
        if certificate is not None and certificate.trained_parameters is not None:
            trained = certificate.trained_parameters
            lines.append(f"certificate: trained_parameters {trained}, whether the run trained no more")
        if certificate is not None and certificate.public_part is not None:
            part = " and ".join(counted(number, name[:-1]) for name, number in certificate.public_part.items())
            lines.append(f"certificate: public_part, {part}, whether the run learnt no others without noise")
        if certificate is not None and certificate.private_rounds is not None:
            lines.append("certificate: private_rounds 0, whether the run trained none")
        if certificate is not None and certificate.rehearsed:
            lines.append("certificate: rehearsed, whether its settings were chosen without the data with secrets")
        lines.append("certificate: marks, whether the run left one out")
        lines.append("model/: whether it was trained under this plan")
    return tuple(lines)


def shown(path: Path, folder: Path) -> str:
    """A path relative to a folder; one with characters that cannot be printed is quoted."""
    name = path.relative_to(folder).as_posix() + ("/" if path.is_dir() else "")
    return name if name.isprintable() else repr(name)
