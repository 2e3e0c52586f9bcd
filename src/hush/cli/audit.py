"""The command that attacks a finished run and holds the result against what was certified."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli.libraries import check_model, needed_for, quiet_libraries
from hush.cli.logged import both
from hush.cli.messages import terminal, working
from hush.cli.options import (
    DATA_IN,
    SPEED,
    ColumnOption,
    DeviceOption,
    JsonOption,
    PlanOfRunOption,
    UnitOption,
)
from hush.console import Heartbeat, WorkBar
from hush.interrupt import GOES_ON, said_when_stopped

__all__ = ["audit"]

KNOWN, EFFORT = "What is known of the secrets, and of other models", "How hard to try"


class AttackChoice(StrEnum):
    """What is tried."""

    mechanism = "mechanism"
    extraction = "extraction"
    exposure = "exposure"


@said_when_stopped(GOES_ON)  # also while it loads: what an earlier command began is kept
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
    from hush.cli.audit_inputs import audit_inputs, audited_data
    from hush.cli.audit_inputs import continuation as parsed
    from hush.cli.results import print_json

    with needed_for("an audit"):
        import torch

        from hush.audit.audited_run import AuditedRun
        from hush.audit.run_audit import audit as audited
        from hush.audit.work import AuditSettings
        from hush.cli.audit_results import show_audit
        from hush.pipeline.inside import training_inside

    if reference is not None:
        check_model(reference, "--reference")
    settings = AuditSettings(
        attacks=tuple(one.value for one in attack),
        prompts=tuple(prompt),
        continuations=tuple(parsed(one) for one in continuation),
        secrets=simulated_secrets,
        trials=trials,
        candidates=ranked_candidates,
        examples=tried_examples,
        level=level,
        max_length=max_length,
        batch_size=micro_batch,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    quiet_libraries(silent=False)
    with working("Reading the run and the data"):
        loaded = AuditedRun.load(training_inside(run), plan=plan)
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
