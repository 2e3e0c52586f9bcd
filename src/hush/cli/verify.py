"""Commands that check: recompute a plan, and sign one."""

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
        Path, typer.Argument(help="A plan's folder, from hush plan; or a run's, that has one in it.", metavar="PLAN")
    ],
    public_key: Annotated[
        Path | None, typer.Option(help="Also check the signature beside the plan against this PEM key.")
    ] = None,
    incidence: Annotated[
        Path | None, typer.Option(help="Also check that the plan is about this graph (Parquet or JSON).")
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="Also check that it promises what this table of secrets asks for.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Does a plan keep its promises?

    Recomputes every posterior from the graph, the weights and the noise in the folder, one secret at a time, and
    compares everything that its files state. Exit code 1 if anything does not fit. 100,000 secrets take minutes.

    Example: `hush verify my-plan --public-key public.pem`
    """
    from hush.cli.inputs import read_incidence
    from hush.cli.plan_results import show_verification, verification_record
    from hush.cli.results import print_json
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
        typer.Argument(help="A plan's folder, or a run's that has one in it; verify it before.", metavar="PLAN"),
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
    """Vouch for a plan with a detached Ed25519 signature.

    Create a key pair once, keep the private key to yourself (only its owner can read the file), and give the public
    one to those who verify.

    Example: `hush sign --new-key private.pem public.pem`, then `hush sign my-plan --private-key private.pem`
    """
    from hush.cli.results import print_json
    from hush.plan.files import SIGNATURE
    from hush.signature import create_keys
    from hush.signature import sign as signed

    if new_key is not None and plan is None and private_key is None:
        create_keys(*new_key)
        record = {"private_key": str(new_key[0]), "public_key": str(new_key[1])}
        said = f"Keep {new_key[0]} to yourself; give {new_key[1]} to those who verify."
    elif new_key is None and plan is not None and private_key is not None:
        meant = _meant(plan)
        if (meant / SIGNATURE).exists() and not force:
            raise InvalidInput(f"{meant} is signed already; pass --force to replace its signature")
        record = {"signature": str(signed(meant, private_key))}
        said = f"Signature written to {record['signature']}."
    else:
        raise InvalidInput("pass PLAN with --private-key PRIVATE.pem, or --new-key PRIVATE.pem PUBLIC.pem alone")
    print_json(record) if json else Console(highlight=False, soft_wrap=True).print(said, markup=False)


def _meant(folder: Path) -> Path:
    """The plan that a folder is, or has in it."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; pass one that hush plan wrote")
    if (folder / "plan.json").is_file():
        return folder
    from hush.pipeline.inside import plan_inside

    return plan_inside(folder)
