"""The commands ``hush audit`` (attack a finished run) and ``hush canaries`` (plant secrets for an audit to find)."""

import shlex
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    flag,
    settings_from,
)
from hush.console import Heartbeat, WorkBar, counted
from hush.errors import InvalidInput
from hush.report.markup import at_least, at_most

if TYPE_CHECKING:
    from hush.audit.canaries import CanarySet, Candidates
    from hush.audit.folders import AuditedRun
    from hush.audit.session import AuditInputs
    from hush.audit.settings import CanarySettings
    from hush.data import Corpus
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

__all__ = ["audit", "canaries"]


KNOWN_PANEL = "Known secrets and other models"  # headings of the help
EFFORT_PANEL = "Effort"
FORMAT_PANEL = "Format of a canary"
SECRETS_PANEL = "Your own secrets"


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


class AlphabetChoice(Enum):
    """Characters of a canary."""

    digits = "digits"
    hex = "hex"
    lower = "lower"
    upper = "upper"
    letters = "letters"
    alphanumeric = "alphanumeric"


def canaries(
    data: Annotated[
        str,
        typer.Argument(help="Your data: Parquet, JSON lines, CSV, text, a folder, or a name.", metavar="DATA"),
    ],
    output: Annotated[Path, typer.Option(help="New folder: public/ for hush plan, owner/ with the data.")],
    ceiling: Annotated[
        float,
        typer.Option(help="Promise of each canary: it is named with at most this probability."),
    ],
    incidence: Annotated[
        Path | None,
        typer.Option(
            help="Your graph, Parquet or JSON; needs --secrets [default: only canaries].", rich_help_panel=SECRETS_PANEL
        ),
    ] = None,
    secrets: Annotated[
        Path | None,
        typer.Option(help="Ids, priors and ceilings of your secrets, Parquet.", rich_help_panel=SECRETS_PANEL),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Text with {secret} in it, and {number} for the number of the canary. Can be repeated.",
            metavar="<str>",
        ),
    ] = None,
    from_data: Annotated[
        bool, flag("--from-data", "Instead: texts of the data without secrets, with one word replaced.")
    ] = False,
    again: Annotated[
        Path | None,
        typer.Option(
            help="Instead: the canaries of an earlier release, from the folder that hush canaries wrote for it.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of canaries.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="Number of new examples that contain each canary.", min=1)] = 1,
    alphabet: Annotated[
        AlphabetChoice | None,
        typer.Option(help="Characters of a canary [default: digits].", rich_help_panel=FORMAT_PANEL),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Number of characters [default: 4].", min=1, rich_help_panel=FORMAT_PANEL)
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(help="Instead: a text file with one candidate per line.", rich_help_panel=FORMAT_PANEL),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    json: JsonOption = False,
) -> None:
    """Plant made-up secrets (canaries) in the data, so that a training can be audited.

    Adds examples with a secret drawn at random from known candidates, and registers each with its own promise; the
    prior follows from the format. Plan and train on the new folder, then `hush audit --canaries` tries to name the
    canaries. owner/canaries.json holds the true candidates: keep it private.

    Choose a ceiling far below the level of the audit, which all its rows share, or the canaries cannot fail it; and far
    above the prior, or they are hardly ever drawn.

    Example: `hush canaries mail.jsonl --template "PIN of user {number}: {secret}" --length 8 --ceiling 1e-4
    --output planted`
    """
    options = locals()
    from random import SystemRandom

    from hush.audit.canaries import Template, check_folder, plant, plant_again, save_planted, templates_from
    from hush.cli.checks import check_outside_data
    from hush.cli.results.accounting import print_json
    from hush.data import read_corpus
    from hush.slots import spans_in

    check_folder(output)
    check_outside_data(output, data)
    if [bool(template), from_data, again is not None].count(True) != 1:
        raise InvalidInput("pass either --template, once or several times, or --from-data, or --again")
    planting = None if again is None else _planted_before(again, options)
    settings, secret_texts = _canary_settings(options, candidates, planting)
    with working("Reading the data"):
        corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
        graph, table = _read_owner_secrets(corpus, incidence, secrets)
    promised: dict[str, Any] = {
        "repeats": settings.repeats,
        "ceiling": settings.ceiling,
        "spans": None if incidence is None else spans_in(incidence.parent.parent),
    }
    if settings.templates is None and planting is None:
        holds_N = graph.secrets_per_example > 0
        templates = templates_from(corpus.texts(), holds_N, settings.count, SystemRandom())
    else:
        templates = [Template.parse(text) for text in settings.templates or ()]
    with working("Planting"):
        if planting is None:
            planted = plant(graph, table, templates, secret_texts, count=settings.count, **promised)
        else:
            planted = plant_again(planting, graph, table, **promised)
        save_planted(planted, corpus, output)
    count = len(planted.canaries)
    public, new_data = output / "public", output / "owner" / "data.parquet"
    files = [shlex.quote(str(path)) for path in (public / "incidence.parquet", public / "secrets.parquet", new_data)]
    next_command = (
        f"hush plan {files[0]} --secrets {files[1]} --data {files[2]} --key my.key --batch-size … --rounds … --output …"
    )
    record = {
        "folder": str(output),
        "data": str(new_data),
        "canaries": count,
        "candidates": str(secret_texts.size),
        "prior": secret_texts.prior,
        "ceiling": settings.ceiling,
        "new_examples": count * settings.repeats,
        "examples": planted.incidence.num_examples,
        "secrets": planted.incidence.num_secrets,
        "next": next_command,
    }
    if json:
        print_json(record)
        return
    console = Console()
    console.print(
        f"Planted {counted(count, 'canary', 'canaries')} of {counted(secret_texts.size, 'candidate')} each "
        f"(prior {at_least(secret_texts.prior)}, ceiling {at_most(settings.ceiling)}) in "
        f"{counted(record['new_examples'], 'new example')}, after your {counted(len(corpus), 'example')}.",
        f"{output / 'owner'} holds the planted secrets: keep it private. Next:",
        f"  {next_command}",
        sep="\n",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _planted_before(folder: Path, options: Mapping[str, Any]) -> "CanarySet":
    """The canaries of an earlier release; their format and number are given."""
    from hush.audit.canaries import read_canaries

    for name in ("alphabet", "length", "candidates"):
        if options[name] is not None:
            raise InvalidInput(f"--again plants the same canaries, whose format is given; drop --{name}")
    return read_canaries(folder)


def _read_owner_secrets(corpus: "Corpus", incidence: Path | None, secrets: Path | None) -> "tuple[Incidence, Secrets]":
    """The owner's graph and promises; empty ones if neither is passed."""
    from hush.cli.inputs import read_incidence
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

    if (incidence is None) != (secrets is None):
        raise InvalidInput("--incidence and --secrets belong together; pass both, or neither for canaries only")
    if incidence is None or secrets is None:
        return Incidence.from_pairs([], [], num_examples=len(corpus), num_secrets=0), Secrets([])
    graph = read_incidence(incidence)
    if graph.num_examples != len(corpus):
        raise InvalidInput(
            f"{corpus.source} has {counted(len(corpus), 'row')}, but {incidence} has "
            f"{counted(graph.num_examples, 'example')}; pass the data whose row i is example i"
        )
    return graph, Secrets.from_parquet(secrets)


def _canary_settings(
    options: Mapping[str, Any], path: Path | None, planting: "CanarySet | None"
) -> "tuple[CanarySettings, Candidates]":
    """The settings, and what a canary may be: every text of a format, the lines of a file, or as before."""
    from hush.audit.canaries import MAX_CANDIDATE_LETTERS, Candidates
    from hush.audit.settings import CanarySettings

    if planting is not None:
        return settings_from(CanarySettings, options, length=MAX_CANDIDATE_LETTERS), planting.candidates
    if path is None:
        settings = settings_from(CanarySettings, options)
        return settings, Candidates.of_format(settings.alphabet, settings.length)
    if options["alphabet"] is not None or options["length"] is not None:
        raise InvalidInput("--candidates replaces --alphabet and --length; drop --candidates, or the other two")
    # A list has a prior of its own, which plant() compares with the ceiling: the longest format allows every ceiling.
    settings = settings_from(CanarySettings, options, length=MAX_CANDIDATE_LETTERS)
    try:
        return settings, Candidates.of_list(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text; write one candidate per line, in UTF-8") from None
