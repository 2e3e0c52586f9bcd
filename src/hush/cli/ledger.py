"""The command ``hush ledger``: the releases of a chain, and what is left of what was promised."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import ForceOption, JsonOption, TopOption
from hush.errors import InvalidInput

__all__ = ["ledger"]


def ledger(
    folder: Annotated[Path, typer.Argument(help="Folder of a ledger (releases.ledger in a config).", metavar="LEDGER")],
    plot: Annotated[Path | None, typer.Option(help="Write a page with pictures: an .html file.")] = None,
    abandon: Annotated[
        int | None,
        typer.Option(help="State that this release will not be finished. It still counts.", metavar="NUMBER", min=1),
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(
            help="State that a secret stands for earlier ones: NEW=OLD or NEW=OLD,OLD. Can be repeated.",
            metavar="NEW=OLD",
        ),
    ] = None,
    force: ForceOption = False,
    top: TopOption = 10,
    json: JsonOption = False,
) -> None:
    """Show the releases of a chain, and what each secret has left of its promise.

    A ledger holds every training that began under one promise: monthly ones, failed ones, those that nobody chose. Each
    counts, since somebody saw what came of it. For each secret the table says what was promised (its ceiling), what the
    releases so far may have shown (a proven bound on the posterior), and which share of the promise is left.

    After a merge or a split of secrets (a customer changed its name, say) the new id has spent nothing yet, although
    its text was in earlier releases under another id. Say so with --merge before the next release is planned.

    The ledger is yours alone: it holds no text of a secret, but with the data key it would confirm guesses.

    Example: `hush ledger releases --top 20 --plot ledger.html`
    """
    from hush.cli.checks import check_output
    from hush.cli.results.accounting import print_json
    from hush.cli.results.ledger import ledger_record, show_ledger
    from hush.ledger import Ledger
    from hush.ledger.spending import spending_of

    check_output(plot, option="--plot", forms=("html",), force=force)
    opened = Ledger.load(folder)
    for statement in merge or ():
        new, _, old = statement.partition("=")
        earlier = [name for name in old.split(",") if name]
        if not new or not earlier:
            raise InvalidInput(f"--merge={statement} is not NEW=OLD; pass an id, =, and the ids that it stands for")
        opened = opened.merge(new, earlier)
    if abandon is not None:
        opened = opened.abandon(abandon)
    with working("Reading the plans") as progress:
        spending = spending_of(opened, progress=progress)
    if plot is not None:
        from hush.report.releases import write_ledger_page

        write_ledger_page(spending, plot)
    record = ledger_record(opened, spending)
    print_json(record) if json else show_ledger(record, Console(), top=top)
