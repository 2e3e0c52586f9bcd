"""The commands ``hush verify`` (recompute a plan, check a release), ``hush sign``, ``hush attest``, ``hush report``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from hush.cli.checks import read_slots
from hush.cli.messages import working
from hush.cli.options import AfterOption, ForceOption, JsonOption, PlanOfRunOption, ShowTextOption, flag, settings_from
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.plan import Plan
    from hush.report import MethodNoise

__all__ = ["attest", "report", "sign", "verify"]

NewKeyOption = Annotated[
    tuple[Path, Path] | None,
    typer.Option(help="Instead: create a key pair in these two new files.", metavar="PRIVATE PUBLIC"),
]


def verify(
    plan: Annotated[
        Path,
        typer.Argument(help="Folder of a plan, or of a run: its release/, or all.", metavar="PLAN|RUN"),
    ],
    public_key: Annotated[
        Path | None,
        typer.Option(
            help="Also check by whom, with this PEM key: the signature of hush sign (Ed25519), or the attestations of "
            "hush attest (P-256, P-384 or P-521)."
        ),
    ] = None,
    certificate_chain: Annotated[
        list[Path] | None,
        typer.Option(help="Check the attestations with these PEM certificates, which vouch for their signer."),
    ] = None,
    attestation: Annotated[
        Path | None,
        typer.Option(
            help="Check this file of attestations, beside which model.sig lies [default: the one in the release]."
        ),
    ] = None,
    incidence: Annotated[
        Path | None,
        typer.Option(help="Also check that the plan was made for this graph (Parquet or JSON), and its scan's slots."),
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="Also check that the plan promises what this table of secrets states.")
    ] = None,
    after: AfterOption = None,
    json: JsonOption = False,
) -> None:
    """Verify that a plan keeps its promises, and that a model is the one that its certificate names.

    Proves every posterior again from the graph, the weights and the noise in the folder, and compares it with
    everything that the files state. For a run it also compares the certificate with the plan, and the files of the
    model with the certificate. Lists whatever the folder carries that no check covers. Exit code 1 means that a check
    failed. For a plan of a chain it needs the plans of all earlier releases, which lie in earlier/ of a release or are
    passed with --after, and says which is missing. 100,000 secrets take less than a minute.

    With the key or the certificates of somebody you trust it also says who vouches for it: by a signature of the whole
    (hush sign), or by attestations, which state model, certificate and the result of this command (hush attest).

    Example: `hush verify hush-run/release --public-key public.pem`
    """
    from hush.cli.inputs import read_incidence
    from hush.cli.results.accounting import print_json
    from hush.cli.results.verify import show_verification, verification_record
    from hush.plan.verify import verify as verify_folder
    from hush.scan.result import is_scanned
    from hush.secret_table import Secrets
    from hush.slots import Slots

    folder = _verifiable_folder(plan)
    graph = None if incidence is None else read_incidence(incidence)
    table = None if secrets is None else Secrets.from_parquet(secrets)
    slots = None
    if incidence is not None and graph is not None:
        slots, _ = read_slots(incidence, graph)
        if slots is None and is_scanned(incidence):
            slots = Slots.none(graph)  # the scan says that the secrets are whole examples
    own = {"incidence": graph, "secrets": table, "slots": slots}
    with working("Verifying") as progress:
        verification = verify_folder(
            folder,
            public_key=public_key,
            **own,
            after=after or None,
            attestation=attestation,
            certificate_chain=certificate_chain or (),
            progress=progress,
        )
    record = verification_record(verification, folder)
    print_json(record) if json else show_verification(record, Console(), named=folder == plan)
    if not verification.passed:
        raise typer.Exit(1)


def sign(
    plan: Annotated[
        Path | None,
        typer.Argument(help="Folder of a plan or of a run; verify it first.", metavar="PLAN|RUN"),
    ] = None,
    private_key: Annotated[Path | None, typer.Option(help="Your private key, a PEM file.")] = None,
    new_key: NewKeyOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Sign a plan, or a model and its certificate, with a detached Ed25519 signature.

    The signature of a plan covers every file. The signature of a run (its release/) covers the certificate,
    which names the model and the plan by their fingerprints; it does not cover a report. Create a key pair once, keep
    the private key private (only its owner can read the file), and give the public key to those who verify. hush attest
    signs a release in formats that the tools of others verify.

    Example: `hush sign --new-key private.pem public.pem`, then `hush sign hush-run --private-key private.pem`
    """
    from hush.cli.results.accounting import print_json
    from hush.plan.files import covered, create_keys, signature_of
    from hush.plan.files import sign as write_signature

    if new_key is not None and plan is None and private_key is None:
        create_keys(*new_key)
        record, message = _new_keys(*new_key)
    elif new_key is None and plan is not None and private_key is not None:
        folder = _verifiable_folder(plan)
        if signature_of(folder).exists() and not force:
            raise InvalidInput(f"{folder} is already signed; pass --force to overwrite its signature")
        _check_release(folder)
        record = {"signature": str(write_signature(folder, private_key))}
        message = f"Signature written to {record['signature']}; {covered(folder)}."
    else:
        raise InvalidInput("pass PLAN|RUN with --private-key PRIVATE.pem, or --new-key PRIVATE.pem PUBLIC.pem alone")
    print_json(record) if json else Console(highlight=False, soft_wrap=True).print(message, markup=False)


def attest(
    release: Annotated[
        Path | None,
        typer.Argument(help="What a run released: its release/, or the folder of the run.", metavar="RELEASE"),
    ] = None,
    private_key: Annotated[
        Path | None, typer.Option(help="Your private key on P-256, P-384 or P-521, a PEM file.")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(help="The certificate of this key, a PEM file, if verifiers trust a root and not your key."),
    ] = None,
    chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates between yours and that root, PEM files; repeat it.")
    ] = None,
    new_key: NewKeyOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Sign a release for tools of others: OpenSSF Model Signing and in-toto.

    Verifies the release, and refuses one that fails or certifies nothing. Then writes two files into it. model.sig is
    the signature of the model by OpenSSF Model Signing: `model_signing verify` checks it. attestations.intoto.jsonl has
    two statements of in-toto about the same model, each in a signed DSSE envelope: its certificate, and the result of
    hush verify with what no check proves. Nothing of the owner's side enters them, and no network is used.

    Whoever receives the release checks all of it with `hush verify RELEASE --public-key PUBLIC.pem`, or with
    --certificate-chain ROOT.pem if you signed with a certificate.

    Example: `hush attest --new-key ec-private.pem ec-public.pem`, then `hush attest hush-run --private-key
    ec-private.pem`
    """
    from hush.cli.results.accounting import print_json
    from hush.plan.attest import attest as write_attestations
    from hush.plan.files import create_keys

    if new_key is not None and release is None and private_key is None:
        create_keys(*new_key, kind="p256")
        record, message = _new_keys(*new_key)
    elif new_key is None and release is not None and private_key is not None:
        folder = _verifiable_folder(release)
        with working("Verifying") as progress:
            written = write_attestations(
                folder,
                private_key=private_key,
                certificate=certificate,
                chain=chain or (),
                force=force,
                progress=progress,
            )
        record = {"model_signature": str(written.model_signature), "attestations": str(written.attestations)}
        message = (
            f"{folder} passed verification. Signature of the model: {written.model_signature}. Attestations of its "
            f"certificate and of this verification: {written.attestations}."
        )
    else:
        raise InvalidInput("pass RELEASE with --private-key PRIVATE.pem, or --new-key PRIVATE.pem PUBLIC.pem alone")
    print_json(record) if json else Console(highlight=False, soft_wrap=True).print(message, markup=False)


def _new_keys(private: Path, public: Path) -> tuple[dict[str, str], str]:
    """What to say of a new pair of keys, to a program and to a person."""
    record = {"private_key": str(private), "public_key": str(public)}
    return record, f"Keep {private} private; give {public} to those who verify."


def _verifiable_folder(folder: Path) -> Path:
    """The plan or the release that this folder is or contains."""

    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; pass one that hush plan, hush train or hush run wrote")
    from hush.run.folder import locate_verifiable

    return locate_verifiable(folder)


def _check_release(folder: Path) -> None:
    """Refuse to sign a release whose certificate does not match its plan and its model."""
    from hush.certificate import Certificate
    from hush.plan import Plan
    from hush.plan.files import is_release, minor_version, read_record
    from hush.plan.verify import check_release, refuse_unknown_words
    from hush.storage import read_json

    if not is_release(folder):
        return
    plan = folder / "plan"
    refuse_unknown_words(minor_version(read_record(plan)))
    with working("Comparing model and certificate"):
        planned = Certificate.from_dict(read_json(plan / "certificate.json"))
        checks, _ = check_release(folder, Plan.load(plan), planned)
    for check in checks:
        if not check.passed:
            raise InvalidInput(f"{folder} was not signed; {check.name}: {check.detail}")


def report(
    source: Annotated[
        Path, typer.Argument(help="Folder of a plan, or of a run of hush train or hush run.", metavar="PLAN|RUN")
    ],
    output: Annotated[Path, typer.Option(help="The .html file to write.")],
    frontier: Annotated[
        Path | None, typer.Option(help="Show this frontier: a file from `hush frontier --output FILE.json`.")
    ] = None,
    scan: Annotated[Path | None, typer.Option(help="Show this scan: a folder from hush scan.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Show this audit: a folder from hush audit.")] = None,
    plan: PlanOfRunOption = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    compare: Annotated[
        bool | None,
        flag("--compare/--no-compare", "Show the noise that other methods would need [default: up to 2,000 secrets]."),
    ] = None,
    force: ForceOption = False,
    show_text: ShowTextOption = False,
    json: JsonOption = False,
) -> None:
    """Write a report: what is promised, what it costs, and whether it holds.

    Writes one HTML file that opens in any browser, without a network: the promise, the frontier, the noise by method, a
    table of all secrets to search and sort, training curves, the bounds for other priors, the audit, and how to
    verify. It contains the text of secrets only with --show-text.

    Example: `hush report run --scan found --frontier frontier.json --audit audit --output report.html`
    """
    options = locals()
    from hush.cli.checks import check_output
    from hush.cli.results.accounting import print_json
    from hush.report.report import Report, read_audit, read_frontier, read_source
    from hush.report.settings import ReportSettings
    from hush.scan.result import Scan

    settings = settings_from(ReportSettings, options, frontier=frontier is not None)
    if show_text and scan is None:
        raise InvalidInput("--show-text reads texts from the owner/ folder of a scan; pass --scan FOLDER")
    check_output(output, source, frontier, audit, forms=("html",), force=force)
    begin = time.perf_counter()
    with working("Reading"):
        loaded = read_source(source, plan=plan)
        shown = {
            "frontier": None if frontier is None else {"rows": list(read_frontier(frontier))},
            "scan": None if scan is None else Scan.load(scan),
            "audit": None if audit is None else read_audit(audit),
        }
    noise = _noise_by_method(loaded.plan, any_size=compare is not None) if settings.methods else ()
    with working("Writing the page"):
        Report(
            plan=loaded.plan,
            certificate=loaded.certificate,
            noise=noise,
            training=loaded.training,
            title=settings.title,
            folder=loaded.folder,
            show_text=settings.show_text,
            **shown,
        ).write(output)
    size, seconds = output.stat().st_size, time.perf_counter() - begin
    if json:
        print_json({"report": str(output), "bytes": size, "secrets": len(loaded.plan.secret_ids), "seconds": seconds})
        return
    out = Console(highlight=False, soft_wrap=True)
    out.print(Text(f"Report: {output} ({size / 1e6:.1f} MB). Open it in any browser; it needs no network."))
    out.print(f"{seconds:.1f} s", style="dim")


def _noise_by_method(plan: "Plan", *, any_size: bool) -> "tuple[MethodNoise, ...]":
    """The noise that other methods would need, with a progress bar; none for a large plan unless any_size."""
    from hush.report.numbers import MAX_COMPARED_SECRETS, noise_by_method

    if not plan.secret_ids or (len(plan.secret_ids) > MAX_COMPARED_SECRETS and not any_size):
        return ()
    with working("Comparing methods") as bar:
        return noise_by_method(plan, progress=lambda _, done, total: bar(done, total))
