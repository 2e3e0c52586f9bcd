"""What an audit is given on the command line, turned into what the library takes: data, places of secrets, canaries."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hush.console import counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.audit.audited_run import AuditedRun
    from hush.audit.grid import Continuation
    from hush.audit.work import AuditInputs
    from hush.corpus import Corpus

__all__ = ["audit_inputs", "audited_data", "continuation"]


def audited_data(
    run: "AuditedRun", source: str | None, key: Path | None, column: str | None, unit: str | None
) -> "Corpus | None":
    """The data that the model was trained on."""
    from hush.corpus import read_corpus
    from hush.keyed import DataKey

    if source is None:
        if key is not None:
            raise InvalidInput("--key is about data, but --data is not given; pass --data, or drop --key")
        return None
    corpus = read_corpus(source, column=column, unit=unit)  # pyright: ignore[reportArgumentType]
    if len(corpus) != run.plan.incidence.num_examples:
        raise InvalidInput(
            f"{source} has {counted(len(corpus), 'row')} but the plan "
            f"{counted(run.plan.incidence.num_examples, 'example')}; pass the data that the model was trained on"
        )
    if key is not None and DataKey.load(key).fingerprint_rows(corpus.texts()) != run.plan.data_fingerprint:
        raise InvalidInput(f"{source} is not the plan's data under this key; pass the data that was trained on")
    return corpus


def audit_inputs(
    run: "AuditedRun",
    corpus: "Corpus | None",
    *,
    scan: Path | None,
    spans: Path | None,
    canaries: Path | None,
    add: Sequence[Path],
    reference: str | None,
    held_out: str | None,
    compared: bool,
) -> "AuditInputs":
    from hush.audit.audit_files import read_named_run
    from hush.audit.canary_files import read_canaries
    from hush.audit.places import Places
    from hush.audit.work import AuditInputs
    from hush.corpus import read_corpus
    from hush.scan.result import Scan

    if scan is not None and spans is not None:
        raise InvalidInput("--scan and --spans both say where secrets stand; pass one of them")
    if corpus is None:
        stray = {"--scan": scan, "--spans": spans, "--held-out": held_out, "--reference": reference}
        for option in [name for name, value in stray.items() if value is not None]:
            raise InvalidInput(
                f"{option} is about data, but there is none; pass --data or --canaries, or drop {option}"
            )
    ids = run.plan.secret_ids
    parts: list[Places] = []
    if scan is not None:
        parts.append(Places.of_scan(Scan.load(scan), ids))
    if spans is not None:
        parts.append(Places.read(spans, ids))
    planting = None if canaries is None else read_canaries(canaries)
    if planting is not None:
        parts.append(Places.of_canaries(planting, ids))
    elif add:
        raise InvalidInput("--add counts runs whose canaries were to be named; pass --canaries of this run too")
    places = None
    for part in parts:
        places = part if places is None else places.with_(part)
    return AuditInputs(
        corpus=corpus,
        places=places,
        planting=planting,
        earlier=tuple(read_named_run(folder) for folder in add),
        reference=reference,
        held_out=None if held_out is None else read_corpus(held_out),
        compared=compared,
    )


def continuation(text: str) -> "Continuation":
    """How many tokens to compare with what the model says: a number, or as many as the secret has."""
    if text == "secret":
        return "secret"
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"--continuation={text!r}; pass a number of tokens from 1 on, or the word secret")
    return int(text)
