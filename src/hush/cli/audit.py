"""The command that attacks a finished run and holds the result against what was certified.

What an audit is given on the command line, turned into what the library takes: data, places of secrets, canaries.

The command that plants canaries: a corpus with its graph and promises in, the same with canaries out.
"""

import shlex
from collections.abc import Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.checks import check_model, needed_for, quiet_libraries
from hush.cli.interrupt import GOES_ON, stop_message
from hush.cli.messages import both, terminal, working
from hush.cli.options import (
    DATA_IN,
    SPEED,
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
    from hush.audit.canaries import Candidates
    from hush.audit.folders import AuditedRun
    from hush.audit.session import AuditInputs
    from hush.data import Corpus
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

__all__ = ["audit", "audit_inputs", "audited_data", "canaries", "parsed_length"]


KNOWN, EFFORT = "What is known of the secrets, and of other models", "How hard to try"


class AttackChoice(StrEnum):
    """What is tried."""

    mechanism = "mechanism"
    extraction = "extraction"
    exposure = "exposure"


@stop_message(GOES_ON)  # also while it loads: what an earlier command began is kept
def audit(
    run: Annotated[
        Path,
        typer.Argument(
            help="A finished run's folder, from hush train or hush run; or its release/ alone.", metavar="RUN"
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder of the audit; an unfinished one in it goes on.")] = Path("audit"),
    plan: PlanOfRunOption = None,
    attack: Annotated[
        list[AttackChoice],
        typer.Option(
            help="What to try; what lacks its inputs is left out. Repeat for several.",
            metavar=f"<{'|'.join(AttackChoice)}>",
        ),
    ] = list(AttackChoice),  # noqa: B006 - typer copies it
    data: Annotated[
        str | None,
        typer.Option(
            help="What it was trained on: try to extract it [what --canaries or --scan wrote].", rich_help_panel=DATA_IN
        ),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    key: Annotated[
        Path | None, typer.Option(help="Your data key: check that the data is the plan's.", rich_help_panel=DATA_IN)
    ] = None,
    scan: Annotated[
        Path | None,
        typer.Option(help="A scan's folder, which says where secrets stand [whole examples].", rich_help_panel=KNOWN),
    ] = None,
    spans: Annotated[
        Path | None,
        typer.Option(help="Instead: Parquet with example, secret (id), begin, end.", rich_help_panel=KNOWN),
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="The folder of hush canaries: try to name them.", rich_help_panel=KNOWN)
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            help="An audit of another run, trained on canaries planted anew: count it too. Repeat for several.",
            metavar="<path>",
            rich_help_panel=KNOWN,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="A model that never saw the data, such as the one you began with: what comes out anyway.",
            rich_help_panel=KNOWN,
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(help="Texts of the same kind that the model never saw, as a comparison.", rich_help_panel=KNOWN),
    ] = None,
    prompt: Annotated[
        list[int],
        typer.Option(help="Tokens of a prompt. Repeat for several.", metavar="<int>", min=1, rich_help_panel=EFFORT),
    ] = [10, 20, 50],  # noqa: B006 - typer copies it
    continuation: Annotated[
        list[str],
        typer.Option(
            help="Tokens of what follows; secret: its own length. Whole examples: 20. Repeat for several.",
            metavar="<int>|secret",
            rich_help_panel=EFFORT,
        ),
    ] = ["secret"],  # noqa: B006 - typer copies it
    trials: Annotated[
        int, typer.Option(help="Simulated runs for each secret.", min=1, rich_help_panel=EFFORT)
    ] = 20_000,
    simulated_secrets: Annotated[
        int, typer.Option(help="How many secrets to simulate, binding ones first.", min=1, rich_help_panel=EFFORT)
    ] = 10,
    ranked_candidates: Annotated[
        int, typer.Option(help="How many candidates of a canary to rank.", min=2, rich_help_panel=EFFORT)
    ] = 1000,
    tried_examples: Annotated[
        int, typer.Option(help="How many whole examples to try.", min=1, rich_help_panel=EFFORT)
    ] = 10_000,
    level: Annotated[
        float, typer.Option(help="Probability of a false alarm, over all rows together.", rich_help_panel=EFFORT)
    ] = 0.01,
    max_length: Annotated[
        int | None,
        typer.Option(help="Tokens to which training cut each text [as the run says].", min=1, rich_help_panel=EFFORT),
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Sequences that the model sees at once [as memory allows].", min=1, rich_help_panel=SPEED),
    ] = None,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Does the model keep its promise? Attack it.

    Plays the best attack on the plan's own worst case; with --data tries to make the model say its secrets; with
    --canaries tries to name them. What the attacks reach, with exact limits, is laid beside what was certified. Exit
    code 1 means that an attack did better: do not release the model; or that nothing could be compared, which is no
    pass. Exit code 0 is no more than the verdict says: if only the plan was simulated, it says that the model was not
    judged. No attack found is no proof that there is none.

    Ctrl-C stops, and the same command goes on. The report holds counts and no text, but it comes from data with
    secrets: it is for your eyes, and publishing it is a release.

    Example: `hush audit run --data mail.jsonl --key my.key --scan found --reference gpt2 --output audit`
    """
    options = locals()
    from hush.audit.settings import AuditSettings
    from hush.cli.results.accounting import print_json

    with needed_for("an audit"):
        from hush.audit.auditor import audit as audited
        from hush.audit.folders import AuditedRun
        from hush.cli.results.audit import show_audit
        from hush.run.folder import locate_training

    if reference is not None:
        check_model(reference, "--reference")
    lengths = tuple(parsed_length(length) for length in continuation)
    settings = settings_from(AuditSettings, options, continuations=lengths)
    quiet_libraries(silent=False)
    with working("Reading the run and the data"):
        loaded = AuditedRun.load(locate_training(run), plan=plan)
        folders = [folder / "owner" / "data.parquet" for folder in (canaries, scan) if folder is not None]
        source = data or next((str(path) for path in folders if path.is_file()), None)
        corpus = audited_data(loaded, source, key, column, None if unit is None else unit.value)
        inputs = audit_inputs(
            loaded,
            corpus,
            scan=scan,
            spans=spans,
            canaries=canaries,
            add=add or [],
            reference=reference,
            held_out=held_out,
            compared=corpus is not None and key is not None,
        )
    with WorkBar(terminal(), "Auditing") as bar, working("Attacking"):
        told = both(bar, Heartbeat(terminal()))
        made = audited(loaded, inputs, folder=output, settings=settings, progress=told)
    print_json(made.record) if json else show_audit(made.record, output, Console())
    if made.verdict.status in ("failed", "nothing to compare"):  # what could compare nothing has not been passed
        raise typer.Exit(1)


def audited_data(
    run: "AuditedRun", source: str | None, key: Path | None, column: str | None, unit: str | None
) -> "Corpus | None":
    """The data that the model was trained on."""
    from hush.data import read_corpus
    from hush.keys import DataKey

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
    from hush.audit.canaries import read_canaries
    from hush.audit.folders import SecretSpans as Places
    from hush.audit.session import AuditInputs, read_named_run
    from hush.data import read_corpus
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


def parsed_length(text: str) -> int | str:
    """A number of tokens as such; anything else as it is, for the settings to accept or refuse."""
    return int(text) if text.isdecimal() else text


WHAT, YOURS = "What a canary may be", "Your own secrets, beside them"


class AlphabetChoice(Enum):
    """Letters that a canary is made of."""

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
        typer.Option(help="What each canary is promised: named with at most this chance."),
    ],
    incidence: Annotated[
        Path | None,
        typer.Option(help="Your graph, Parquet or JSON; with --secrets [canaries only].", rich_help_panel=YOURS),
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="Your ids, priors and ceilings, Parquet.", rich_help_panel=YOURS)
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Text with {secret} in it, and {number} for the canary's number. Repeat for several.",
            metavar="<str>",
        ),
    ] = None,
    from_data: Annotated[
        bool, flag("--from-data", "Instead: texts of the data without secrets, a word of each replaced.")
    ] = False,
    count: Annotated[int, typer.Option(help="How many canaries.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="In how many new examples each stands.", min=1)] = 1,
    alphabet: Annotated[
        AlphabetChoice | None, typer.Option(help="Letters it is made of [digits].", rich_help_panel=WHAT)
    ] = None,
    length: Annotated[int | None, typer.Option(help="How many of them [4].", min=1, rich_help_panel=WHAT)] = None,
    candidates: Annotated[
        Path | None, typer.Option(help="Instead: a text file with a candidate on each line.", rich_help_panel=WHAT)
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    json: JsonOption = False,
) -> None:
    """Plant secrets that are yours to lose, so that a training can be audited.

    Adds examples whose secret is drawn at random from known candidates, and registers them with a promise of their own:
    the prior follows from the format. Plan and train on the new folder, then let `hush audit --canaries` try to name
    them. owner/canaries.json says which candidates are true: keep it to yourself.

    Promise them far less than the audit's level, which all its rows share, or they cannot fail it; and far more than
    the prior, or they are hardly ever drawn.

    Example: `hush canaries mail.jsonl --template "PIN of user {number}: {secret}" --length 8 --ceiling 1e-4
    --output planted`
    """
    from random import SystemRandom

    from hush.audit.canaries import Template, check_folder, plant, save_planted, templates_from
    from hush.cli.checks import check_apart
    from hush.cli.results.accounting import print_json
    from hush.data import read_corpus

    check_folder(output)
    check_apart(output, data)
    if bool(template) == from_data:
        raise InvalidInput("pass either --template, once or several times, or --from-data")
    with working("Reading the data"):
        corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
        graph, table = _registered(corpus, incidence, secrets)
    if from_data:
        holds_N = graph.secrets_per_example > 0
        templates = templates_from(corpus.texts(), holds_N, count, SystemRandom())
    else:
        templates = [Template.parse(text) for text in template or ()]
    what = _candidates(None if alphabet is None else alphabet.value, length, candidates)
    with working("Planting"):
        planted = plant(graph, table, templates, what, count=count, repeats=repeats, ceiling=ceiling)
        save_planted(planted, corpus, output)
    public, own = output / "public", output / "owner" / "data.parquet"
    files = [shlex.quote(str(path)) for path in (public / "incidence.parquet", public / "secrets.parquet", own)]
    step = (
        f"hush plan {files[0]} --secrets {files[1]} --data {files[2]} --key my.key --batch-size … --rounds … --output …"
    )
    record = {
        "folder": str(output),
        "data": str(own),
        "canaries": count,
        "candidates": str(what.size),
        "prior": what.prior,
        "ceiling": ceiling,
        "new_examples": count * repeats,
        "examples": planted.incidence.num_examples,
        "secrets": planted.incidence.num_secrets,
        "next": step,
    }
    if json:
        print_json(record)
        return
    console = Console()
    console.print(
        f"{counted(count, 'canary', 'canaries')} of {counted(what.size, 'candidate')} each "
        f"(prior {at_least(what.prior)}, ceiling {at_most(ceiling)}) in {counted(count * repeats, 'new example')}, "
        f"after {len(corpus):,} of yours.",
        f"{output / 'owner'} says what they are: it is for your eyes alone. Next:",
        f"  {step}",
        sep="\n",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _registered(corpus: "Corpus", incidence: Path | None, secrets: Path | None) -> "tuple[Incidence, Secrets]":
    """The owner's graph and promises; none where none are given."""
    from hush.cli.inputs import read_incidence
    from hush.incidence import Incidence
    from hush.secret_table import Secrets

    if (incidence is None) != (secrets is None):
        raise InvalidInput("--incidence and --secrets belong together; pass both, or neither to plant canaries only")
    if incidence is None or secrets is None:
        return Incidence.from_pairs([], [], num_examples=len(corpus), num_secrets=0), Secrets([])
    graph = read_incidence(incidence)
    if graph.num_examples != len(corpus):
        raise InvalidInput(
            f"{corpus.source} has {counted(len(corpus), 'row')} but {incidence} "
            f"{counted(graph.num_examples, 'example')}; pass the data whose row i is example i"
        )
    return graph, Secrets.from_parquet(secrets)


def _candidates(alphabet: str | None, length: int | None, path: Path | None) -> "Candidates":
    from hush.audit.canaries import Candidates

    if path is None:
        return Candidates.of_format(alphabet or "digits", length or 4)
    if alphabet is not None or length is not None:
        raise InvalidInput("--candidates lists them already; drop it, or --alphabet and --length")
    try:
        return Candidates.of_list(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8; write one candidate on each line") from None
