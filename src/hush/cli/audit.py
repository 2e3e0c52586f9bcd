"""The command ``hush audit``: attack a finished run."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.checks import check_model, missing_library_explained, quiet_libraries
from hush.cli.interrupt import RESUMABLE_MESSAGE, message_when_stopped
from hush.cli.messages import call_both, terminal, working
from hush.cli.options import (
    DATA_PANEL,
    SPEED_PANEL,
    ColumnOption,
    DeviceOption,
    JsonOption,
    PlanOfRunOption,
    UnitOption,
    settings_from,
)
from hush.console import Heartbeat, WorkBar, counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.audit.folders import AuditedRun
    from hush.audit.session import AuditInputs
    from hush.data import Corpus

__all__ = ["audit"]


KNOWN_PANEL = "Known secrets and other models"  # headings of the help
EFFORT_PANEL = "Effort"


class AttackChoice(StrEnum):
    """Which attack is tried."""

    mechanism = "mechanism"
    extraction = "extraction"
    exposure = "exposure"


@message_when_stopped(RESUMABLE_MESSAGE)  # also during imports: the work of an earlier command is kept
def audit(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a finished run, from hush train or hush run; or only its release/.", metavar="RUN"
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder of the audit; an unfinished audit in it resumes.")] = Path(
        "audit"
    ),
    plan: PlanOfRunOption = None,
    attack: Annotated[
        list[AttackChoice],
        typer.Option(
            help="Attack to try; one without its inputs is skipped. Can be repeated.",
            metavar=f"<{'|'.join(AttackChoice)}>",
        ),
    ] = list(AttackChoice),  # noqa: B006 - typer copies it
    data: Annotated[
        str | None,
        typer.Option(
            help="The training data, to be extracted [default: the data of --canaries or --scan].",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    key: Annotated[
        Path | None,
        typer.Option(help="Your data key: check that the plan was made for this data.", rich_help_panel=DATA_PANEL),
    ] = None,
    scan: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a scan, which locates the secrets [default: whole examples].", rich_help_panel=KNOWN_PANEL
        ),
    ] = None,
    spans: Annotated[
        Path | None,
        typer.Option(
            help="Instead: Parquet with columns example, secret (id), begin, end.", rich_help_panel=KNOWN_PANEL
        ),
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="Folder from hush canaries: try to name them.", rich_help_panel=KNOWN_PANEL)
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            help="Also count the audit of another run, with newly planted canaries. Can be repeated.",
            metavar="<path>",
            rich_help_panel=KNOWN_PANEL,
        ),
    ] = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            help="Earlier release of its chain (the run, or its release/): with --canaries its model is attacked too. "
            "Can be repeated.",
            metavar="<path>",
            rich_help_panel=KNOWN_PANEL,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Compare with a model that never saw the data, such as the pretrained one.",
            rich_help_panel=KNOWN_PANEL,
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(help="Compare with similar texts that the model never saw.", rich_help_panel=KNOWN_PANEL),
    ] = None,
    prompt: Annotated[
        list[int],
        typer.Option(
            help="Length of a prompt in tokens. Can be repeated.", metavar="<int>", min=1, rich_help_panel=EFFORT_PANEL
        ),
    ] = [10, 20, 50],  # noqa: B006 - typer copies it
    continuation: Annotated[
        list[str],
        typer.Option(
            help="Length of the continuation in tokens, or secret for the secret's own; 20 for whole examples. Can be "
            "repeated.",
            metavar="<int>|secret",
            rich_help_panel=EFFORT_PANEL,
        ),
    ] = ["secret"],  # noqa: B006 - typer copies it
    trials: Annotated[
        int, typer.Option(help="Simulated runs per secret.", min=1, rich_help_panel=EFFORT_PANEL)
    ] = 20_000,
    simulated_secrets: Annotated[
        int,
        typer.Option(help="Number of secrets to simulate, binding ones first.", min=1, rich_help_panel=EFFORT_PANEL),
    ] = 10,
    ranked_candidates: Annotated[
        int, typer.Option(help="Number of candidates of a canary to rank.", min=2, rich_help_panel=EFFORT_PANEL)
    ] = 1000,
    tried_examples: Annotated[
        int, typer.Option(help="Number of whole examples to try.", min=1, rich_help_panel=EFFORT_PANEL)
    ] = 10_000,
    level: Annotated[
        float, typer.Option(help="Probability of a false alarm, over all rows together.", rich_help_panel=EFFORT_PANEL)
    ] = 0.01,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens to which training truncated each text [default: from the run].",
            min=1,
            rich_help_panel=EFFORT_PANEL,
        ),
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            help="Sequences that the model processes at once [default: what fits].", min=1, rich_help_panel=SPEED_PANEL
        ),
    ] = None,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Attack a trained model, and compare the result with what was certified.

    Simulates the best attack on the worst case that the plan allows. With --data, tries to extract secrets from the
    model; with --canaries, tries to name them. Reports what the attacks achieve, with exact confidence limits, next to
    the certified bounds. Exit code 1 means that an attack did better than certified (do not release the model), or that
    nothing could be compared, which is not a pass. Exit code 0 means no more than the verdict says: if only the plan
    was simulated, the model was not judged. A failed attack does not prove that no attack exists.

    Ctrl-C stops the audit; the same command resumes it. The report holds counts and no text, but it is computed from
    data with secrets: keep it private, since publishing it is a release.

    Example: `hush audit run --data mail.jsonl --key my.key --scan found --reference gpt2 --output audit`
    """
    options = locals()
    from hush.audit.settings import AuditSettings
    from hush.cli.results.accounting import print_json

    with missing_library_explained("an audit"):
        from hush.audit.auditor import audit as attack_run
        from hush.cli.results.audit import show_audit

    if reference is not None:
        check_model(reference, "--reference")
    lengths = tuple(_parsed_length(length) for length in continuation)
    settings = settings_from(AuditSettings, options, continuations=lengths)
    quiet_libraries(silent=False)
    with working("Reading the run and the data"):
        loaded, releases = _run_with_earlier(run, plan, earlier or [])
        folders = [folder / "owner" / "data.parquet" for folder in (canaries, scan) if folder is not None]
        source = data or next((str(path) for path in folders if path.is_file()), None)
        corpus = _training_data(loaded, source, key, column, None if unit is None else unit.value)
        inputs = _audit_inputs(
            loaded,
            corpus,
            scan=scan,
            spans=spans,
            canaries=canaries,
            add=add or [],
            releases=releases,
            reference=reference,
            held_out=held_out,
            compared=corpus is not None and key is not None,
        )
    with WorkBar(terminal(), "Auditing") as bar, working("Attacking"):
        progress = call_both(bar, Heartbeat(terminal()))
        result = attack_run(loaded, inputs, folder=output, settings=settings, progress=progress)
    print_json(result.record) if json else show_audit(result.record, output, Console())
    if result.verdict.status in ("failed", "nothing to compare"):  # without a comparison nothing was passed
        raise typer.Exit(1)


def _run_with_earlier(run: Path, plan: Path | None, earlier: Sequence[Path]) -> "tuple[AuditedRun, list[AuditedRun]]":
    """The run, and the earlier releases of its chain that were passed, each of which needs the plans before it."""
    from hush.audit.folders import AuditedRun
    from hush.run.folder import locate_training

    folders = [locate_training(folder) for folder in earlier]
    return (
        AuditedRun.load(locate_training(run), plan=plan, after=folders),
        [AuditedRun.load(folder, after=folders) for folder in folders],
    )


def _training_data(
    run: "AuditedRun", source: str | None, key: Path | None, column: str | None, unit: str | None
) -> "Corpus | None":
    """The data that the model was trained on."""
    from hush.data import read_corpus
    from hush.keys import DataKey

    if source is None:
        if key is not None:
            raise InvalidInput("--key needs --data; pass --data, or drop --key")
        return None
    corpus = read_corpus(source, column=column, unit=unit)  # pyright: ignore[reportArgumentType]
    if len(corpus) != run.plan.incidence.num_examples:
        raise InvalidInput(
            f"{source} has {counted(len(corpus), 'row')}, but the plan has "
            f"{counted(run.plan.incidence.num_examples, 'example')}; pass the data that the model was trained on"
        )
    if key is not None and DataKey.load(key).fingerprint_rows(corpus.texts()) != run.plan.data_fingerprint:
        raise InvalidInput(
            f"with this key, {source} is not the data of the plan; pass the key and the data of the training"
        )
    return corpus


def _audit_inputs(
    run: "AuditedRun",
    corpus: "Corpus | None",
    *,
    scan: Path | None,
    spans: Path | None,
    canaries: Path | None,
    add: Sequence[Path],
    releases: "Sequence[AuditedRun]",
    reference: str | None,
    held_out: str | None,
    compared: bool,
) -> "AuditInputs":
    """What the attacks use besides the run. compared: whether the data were checked against the plan with a key."""
    from hush.audit.canaries import read_canaries
    from hush.audit.folders import SecretSpans
    from hush.audit.session import AuditInputs, read_named_run
    from hush.data import read_corpus
    from hush.scan.result import Scan

    if scan is not None and spans is not None:
        raise InvalidInput("--scan and --spans both locate the secrets; pass one of them")
    if corpus is None:
        stray = {"--scan": scan, "--spans": spans, "--held-out": held_out, "--reference": reference}
        for option in [name for name, value in stray.items() if value is not None]:
            raise InvalidInput(f"{option} needs the training data; pass --data or --canaries, or drop {option}")
    ids = run.plan.secret_ids
    parts: list[SecretSpans] = []
    if scan is not None:
        parts.append(SecretSpans.of_scan(Scan.load(scan), ids))
    if spans is not None:
        parts.append(SecretSpans.read(spans, ids))
    planting = None if canaries is None else read_canaries(canaries)
    if planting is not None:
        parts.append(SecretSpans.of_canaries(planting, ids))
    elif add:
        raise InvalidInput("--add counts runs with canaries; pass --canaries of this run too, or drop --add")
    places = None
    for part in parts:
        places = part if places is None else places.with_(part)
    return AuditInputs(
        corpus=corpus,
        places=places,
        planting=planting,
        earlier=tuple(read_named_run(folder) for folder in add),
        releases=tuple(releases),
        reference=reference,
        held_out=None if held_out is None else read_corpus(held_out),
        compared=compared,
    )


def _parsed_length(text: str) -> int | str:
    """A number of tokens as an integer; anything else unchanged, for the settings to accept or refuse."""
    return int(text) if text.isdecimal() else text
