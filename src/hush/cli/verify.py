"""Commands that check: recompute a plan, and hold what a run released against it; and sign either."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import ForceOption, JsonOption
from hush.errors import InvalidInput

__all__ = ["sign", "verify"]


def verify(
    plan: Annotated[
        Path,
        typer.Argument(help="A plan's folder, or that of a run: its share/, its release/, or all.", metavar="PLAN|RUN"),
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

    Example: `hush verify hush-run/share --public-key public.pem`
    """
    from hush.cli.inputs import read_incidence
    from hush.cli.results import print_json
    from hush.cli.verify_results import show_verification, verification_record
    from hush.secret_table import Secrets
    from hush.verification import verify as verified

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

    Of a plan it covers every file. Of a run (its share/ or release/) it is over the certificate, which names the model
    and all that the plan states by their fingerprints; a report is not covered. Create a key pair once, keep the
    private key to yourself (only its owner can read the file), and give the public one to those who verify.

    Example: `hush sign --new-key private.pem public.pem`, then `hush sign hush-run --private-key private.pem`
    """
    from hush.cli.results import print_json
    from hush.signature import covered, create_keys, signature_of
    from hush.signature import sign as signed

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
    from hush.pipeline.inside import verifiable_inside

    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; pass one that hush plan, hush train or hush run wrote")
    return verifiable_inside(folder)


def _check_fits(folder: Path) -> None:
    """Refuse to sign a release whose certificate is not about its plan and its model."""
    from hush.certificate import Certificate
    from hush.plan.files import minor_version, read_json, read_record
    from hush.signature import is_release
    from hush.verification.certificates import refuse_unknown_words
    from hush.verification.release import check_release

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
