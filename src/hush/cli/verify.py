"""Commands that check: recompute a plan, and hold what a run released against it; and sign either.

The command that shows: one page about a plan or a run, for people.
"""

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

__all__ = ["report", "sign", "verify"]


def verify(
    plan: Annotated[
        Path,
        typer.Argument(help="A plan's folder, or that of a run: its release/, or all.", metavar="PLAN|RUN"),
    ],
    public_key: Annotated[
        Path | None, typer.Option(help="Also check the signature of the plan, or of the run, against this PEM key.")
    ] = None,
    incidence: Annotated[
        Path | None, typer.Option(help="Also check that the plan is about this graph (Parquet or JSON).")
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="Also check that it promises what this table of secrets asks for.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Does a plan keep its promises, and is this the model that was trained under it?

    Recomputes every posterior from the graph, the weights and the noise in the folder, one secret at a time, and
    compares everything that its files state. Of a run, also its certificate with the plan, and the files of the model
    with the certificate. Exit code 1 if anything does not fit. 100,000 secrets take minutes.

    Example: `hush verify hush-run/release --public-key public.pem`
    """
    from hush.cli.inputs import read_incidence
    from hush.cli.results.accounting import print_json
    from hush.cli.results.verify import show_verification, verification_record
    from hush.plan.verify import verify as verified
    from hush.secret_table import Secrets

    meant = _meant(plan)
    graph = None if incidence is None else read_incidence(incidence)
    table = None if secrets is None else Secrets.from_parquet(secrets)
    with working("Verifying") as progress:
        found = verified(meant, public_key=public_key, incidence=graph, secrets=table, progress=progress)
    record = verification_record(found, meant)
    print_json(record) if json else show_verification(record, Console(), named=meant == plan)
    if not found.passed:
        raise typer.Exit(1)


def sign(
    plan: Annotated[
        Path | None,
        typer.Argument(help="A plan's folder, or that of a run; verify it before.", metavar="PLAN|RUN"),
    ] = None,
    private_key: Annotated[Path | None, typer.Option(help="Your private key, a PEM file.")] = None,
    new_key: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="Instead: create a key pair in these two files, which must not exist.", metavar="PRIVATE PUBLIC"
        ),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Vouch for a plan, or for a model and its certificate, with a detached Ed25519 signature.

    Of a plan it covers every file. Of a run (its release/) it is over the certificate, which names the model
    and all that the plan states by their fingerprints; a report is not covered. Create a key pair once, keep the
    private key to yourself (only its owner can read the file), and give the public one to those who verify.

    Example: `hush sign --new-key private.pem public.pem`, then `hush sign hush-run --private-key private.pem`
    """
    from hush.cli.results.accounting import print_json
    from hush.plan.files import covered, create_keys, signature_of
    from hush.plan.files import sign as signed

    if new_key is not None and plan is None and private_key is None:
        create_keys(*new_key)
        record = {"private_key": str(new_key[0]), "public_key": str(new_key[1])}
        said = f"Keep {new_key[0]} to yourself; give {new_key[1]} to those who verify."
    elif new_key is None and plan is not None and private_key is not None:
        meant = _meant(plan)
        if signature_of(meant).exists() and not force:
            raise InvalidInput(f"{meant} is signed already; pass --force to replace its signature")
        _check_fits(meant)
        record = {"signature": str(signed(meant, private_key))}
        said = f"Signature written to {record['signature']}; {covered(meant)}."
    else:
        raise InvalidInput("pass PLAN|RUN with --private-key PRIVATE.pem, or --new-key PRIVATE.pem PUBLIC.pem alone")
    print_json(record) if json else Console(highlight=False, soft_wrap=True).print(said, markup=False)


def _meant(folder: Path) -> Path:
    """The plan, or the release, that a folder is or has in it."""
    from hush.run.folder import locate_verifiable

    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; pass one that hush plan, hush train or hush run wrote")
    return locate_verifiable(folder)


def _check_fits(folder: Path) -> None:
    """Refuse to sign a release whose certificate is not about its plan and its model."""
    from hush.certificate import Certificate
    from hush.plan.files import is_release, minor_version, read_record
    from hush.plan.verify import check_release, refuse_unknown_words
    from hush.storage import read_json

    if not is_release(folder):
        return
    plan = folder / "plan"
    refuse_unknown_words(minor_version(read_record(plan)))
    with working("Comparing model and certificate"):
        planned = Certificate.from_dict(read_json(plan / "certificate.json"))
        checks, _ = check_release(folder, planned)
    for check in checks:
        if not check.passed:
            raise InvalidInput(f"{folder} is not signed; {check.name}: {check.detail}")


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
    from hush.cli.checks import check_output
    from hush.cli.results.accounting import print_json
    from hush.report.report import TITLE, Report, read_audit, read_frontier, read_source
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
    from hush.report.numbers import MAX_COMPARED_SECRETS as MOST_SECRETS
    from hush.report.numbers import noise_by_method

    wanted = 0 < len(plan.secret_ids) <= MOST_SECRETS if compare is None else compare and bool(plan.secret_ids)
    if not wanted:
        return ()
    with working("Comparing methods") as bar:
        return noise_by_method(plan, progress=lambda _, done, total: bar(done, total))
