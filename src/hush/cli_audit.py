"""The command that attacks a finished run and holds the result against what was certified."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli_data import ColumnOption, UnitOption
from hush.cli_options import JsonOption
from hush.errors import InvalidInput
from hush.interrupt import INTERRUPTED

if TYPE_CHECKING:
    from hush.audit.audited_run import AuditedRun
    from hush.audit.grid import Continuation
    from hush.audit.work import AuditInputs
    from hush.corpus import Corpus

__all__ = ["audit"]

DATA, EFFORT = "Attacks on the data: extraction and exposure", "How hard to try"


def audit(
    run: Annotated[Path, typer.Argument(help="A finished run's folder, from hush train; or its release/ alone.")],
    output: Annotated[Path, typer.Option(help="Folder of the audit; an unfinished one in it goes on.")] = Path("audit"),
    plan: Annotated[
        Path | None, typer.Option(help="The run's plan, where the run releases none (it certifies nothing).")
    ] = None,
    json: JsonOption = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="What it was trained on: try to extract it [what --canaries or --scan wrote].", rich_help_panel=DATA
        ),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    key: Annotated[
        Path | None, typer.Option(help="Your data key: check that the data is the plan's.", rich_help_panel=DATA)
    ] = None,
    scan: Annotated[
        Path | None,
        typer.Option(help="A scan's folder, which says where secrets stand [whole examples].", rich_help_panel=DATA),
    ] = None,
    spans: Annotated[
        Path | None,
        typer.Option(help="Instead: Parquet with example, secret (id), begin, end.", rich_help_panel=DATA),
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="The folder of hush canaries: try to name them.", rich_help_panel=DATA)
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            help="Audits of other runs, each trained on canaries planted anew: count them too. Repeat for several.",
            rich_help_panel=DATA,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="A model that never saw the data, such as the one you began with: what comes out anyway.",
            rich_help_panel=DATA,
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(help="Texts of the same kind that the model never saw, as a comparison.", rich_help_panel=DATA),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help="Which attacks, with commas; those without their inputs are left out.", rich_help_panel=EFFORT
        ),
    ] = "mechanism,extraction,exposure",
    k: Annotated[str, typer.Option("--k", help="Tokens of prompts, with commas.", rich_help_panel=EFFORT)] = "10,20,50",
    m: Annotated[
        str,
        typer.Option(
            "--m", help="Tokens of continuations; secret: its own length. Whole examples: 20.", rich_help_panel=EFFORT
        ),
    ] = "secret",
    trials: Annotated[
        int, typer.Option(help="Simulated runs for each secret.", min=1, rich_help_panel=EFFORT)
    ] = 20_000,
    secrets: Annotated[
        int, typer.Option(help="How many secrets to simulate, binding ones first.", min=1, rich_help_panel=EFFORT)
    ] = 10,
    candidates: Annotated[
        int, typer.Option(help="Candidates of a canary that are ranked.", min=2, rich_help_panel=EFFORT)
    ] = 1000,
    level: Annotated[
        float, typer.Option(help="Probability of a false alarm, over all rows together.", rich_help_panel=EFFORT)
    ] = 0.01,
    max_length: Annotated[
        int | None,
        typer.Option(help="Tokens to which training cut texts [as the run says].", min=1, rich_help_panel=EFFORT),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Sequences at once [as memory allows].", min=1, rich_help_panel=EFFORT)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, … [cuda if any].", rich_help_panel=EFFORT)
    ] = None,
) -> None:
    """Does the model keep its promise? Attack it.

    Plays the best attack on the plan's own worst case; with --data tries to make the model say its secrets; with
    --canaries tries to name them. What the attacks reach, with exact limits, is laid beside what was certified. Exit
    code 1 means that an attack did better: do not release the model. No attack found is no proof that there is none.

    Ctrl-C stops, and the same command goes on. The report holds counts and no text, but it comes from data with
    secrets: it is for your eyes, and publishing it is a release.

    Example: `hush audit run --data tickets.jsonl --scan found --reference gpt2 --output audit`
    """
    from hush.cli_results import print_json

    attacks = tuple(name.strip() for name in attack.split(","))
    with _libraries():
        import torch

        from hush.audit.audited_run import AuditedRun
        from hush.audit.run_audit import audit as audited
        from hush.audit.work import AuditSettings
        from hush.cli_audit_results import AuditBar, show_audit
        from hush.cli_train_results import quiet_libraries

    settings = AuditSettings(
        attacks=attacks,  # pyright: ignore[reportArgumentType]
        prompts=tuple(_tokens("--k", one) for one in k.split(",")),
        continuations=_continuations(m),
        secrets=secrets,
        trials=trials,
        candidates=candidates,
        level=level,
        max_length=max_length,
        batch_size=batch,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    loaded = AuditedRun.load(run, plan=plan)
    quiet_libraries(silent=False)
    folders = [folder / "owner" / "data.parquet" for folder in (canaries, scan) if folder is not None]
    source = data or next((str(path) for path in folders if path.is_file()), None)
    corpus = _corpus(loaded, source, key, column, None if unit is None else unit.value)
    inputs = _inputs(
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
    terminal = Console(stderr=True)
    try:
        with AuditBar(terminal) as bar:
            made = audited(loaded, inputs, folder=output, settings=settings, progress=bar)
    except KeyboardInterrupt:
        terminal.print("Stopped. What is finished is kept; the same command goes on.", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    print_json(made.record) if json else show_audit(made.record, output, Console())
    if made.verdict.failed:
        raise typer.Exit(1)


def _corpus(
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
            f"{source} has {len(corpus)} rows but the plan {run.plan.incidence.num_examples} examples; pass the data "
            "that the model was trained on"
        )
    if key is not None and DataKey.load(key).fingerprint_rows(corpus.texts()) != run.plan.data_fingerprint:
        raise InvalidInput(f"{source} is not the plan's data under this key; pass the data that was trained on")
    return corpus


def _inputs(
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


def _continuations(text: str) -> "tuple[Continuation, ...]":
    found: list[Continuation] = []
    for one in text.split(","):
        found.append("secret" if one.strip() == "secret" else _tokens("--m", one))
    return tuple(found)


def _tokens(option: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidInput(f"{option} holds {text!r}; pass numbers of tokens with commas, such as 10,20,50")
    return int(text)


@contextmanager
def _libraries() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidInput(f'an audit needs the library {error.name}; pip install "hush[hf]"') from error
