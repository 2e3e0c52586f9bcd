"""The command that shows: one page about a plan or a run, for people."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from hush.cli.messages import working
from hush.cli.options import ForceOption, JsonOption, PlanOfRunOption, ShowTextOption, flag
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.plan import Plan
    from hush.report import MethodNoise

__all__ = ["report"]


def report(
    source: Annotated[
        Path, typer.Argument(help="A plan's folder, or that of a run of hush train or hush run.", metavar="PLAN|RUN")
    ],
    output: Annotated[Path, typer.Option(help="The page to write, an .html file.")],
    frontier: Annotated[
        Path | None, typer.Option(help="Show this frontier: what `hush frontier --output FILE.json` wrote.")
    ] = None,
    scan: Annotated[Path | None, typer.Option(help="Show what this scan found: a folder of hush scan.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Show this audit: a folder of hush audit.")] = None,
    plan: PlanOfRunOption = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    compare: Annotated[
        bool | None,
        flag("--compare/--no-compare", "Compute the noise that other methods would need [up to 2,000 secrets]."),
    ] = None,
    force: ForceOption = False,
    show_text: ShowTextOption = False,
    json: JsonOption = False,
) -> None:
    """What is promised, what did it cost, and does it hold?

    Writes one HTML file to open in any browser, without a network: the promise, the frontier, noise by method, every
    secret in a table to search and sort, training curves, what other priors would rise to, the audit, and how to
    verify. It holds no text of a secret unless you ask for it.

    Example: `hush report run --scan found --frontier frontier.json --audit audit --output report.html`
    """
    from hush.cli.inputs import check_output
    from hush.cli.results import print_json
    from hush.report.inputs import read_audit, read_frontier, read_source
    from hush.report.report import TITLE, Report
    from hush.scan.result import Scan

    if show_text and scan is None:
        raise InvalidInput("--show-text reads the texts from the owner's side of a scan; pass --scan FOLDER")
    check_output(output, source, frontier, audit, forms=("html",), force=force)
    begin = time.perf_counter()
    with working("Reading"):
        read = read_source(source, plan=plan)
        given = {
            "frontier": None if frontier is None else {"rows": list(read_frontier(frontier))},
            "scan": None if scan is None else Scan.load(scan),
            "audit": None if audit is None else read_audit(audit),
        }
    noise = _noise(read.plan, compare)
    with working("Writing the page"):
        Report(
            plan=read.plan,
            certificate=read.certificate,
            noise=noise,
            training=read.training,
            title=TITLE if title is None else title,
            folder=read.folder,
            show_text=show_text,
            **given,
        ).write(output)
    size, seconds = output.stat().st_size, time.perf_counter() - begin
    if json:
        print_json({"report": str(output), "bytes": size, "secrets": len(read.plan.secret_ids), "seconds": seconds})
        return
    out = Console(highlight=False, soft_wrap=True)
    out.print(Text(f"Report: {output} ({size / 1e6:.1f} MB). Open it in any browser; it needs no network."))
    out.print(f"{seconds:.1f} s", style="dim")


def _noise(plan: "Plan", compare: bool | None) -> "tuple[MethodNoise, ...]":
    """The noise of other methods, with a bar for each while it is computed."""
    from hush.report.methods import MOST_SECRETS, noise_by_method

    wanted = 0 < len(plan.secret_ids) <= MOST_SECRETS if compare is None else compare and bool(plan.secret_ids)
    if not wanted:
        return ()
    with working("Comparing methods") as bar:
        return noise_by_method(plan, progress=lambda _, done, total: bar(done, total))
