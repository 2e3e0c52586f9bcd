"""Output of ``hush verify``: a line for each check, what was not checked, and the verdict."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from hush.cli.results.accounting import Record
from hush.console import plain
from hush.plan.attestations import ATTESTATIONS
from hush.plan.files import is_release, signature_of
from hush.plan.verify import Verification

__all__ = ["show_verification", "verification_record"]


def verification_record(verification: Verification, folder: Path) -> Record:
    """Every check, and whether all passed. folder: of a plan, or of a release."""
    released, certificate = is_release(folder), verification.certificate
    return {
        "plan": str(folder / "plan" if released else folder),
        "release": str(folder) if released else None,
        "passed": verification.passed,
        "certifies": verification.passed and certificate is not None and certificate.is_real,
        "checks": [
            {"name": check.name, "passed": check.passed, "detail": check.detail} for check in verification.checks
        ],
        "unchecked": list(verification.unchecked),
        "unproven": list(verification.unproven),
        "signature_checked": any(check.name == "signature" for check in verification.checks),
        "signed": signature_of(folder).exists(),
        "attestations_checked": any(check.name == "attestations" for check in verification.checks),
        "attested": (folder / ATTESTATIONS).exists(),
        "fingerprints": None if certificate is None else dict(certificate.fingerprints),
    }


def show_verification(record: Record, console: Console, *, named: bool) -> None:
    """Print which folder was verified, unless the user named it, every check, and the verdict."""
    if not named:
        verified = f"The plan of this run: {record['plan']}"
        if record["release"] is not None:
            verified = f"The release of this run: {record['release']}"
        console.print(plain(verified), soft_wrap=True)
    for check in record["checks"]:
        sign, style = ("✓", "green") if check["passed"] else ("✗", "bold red")
        console.print(Text(f"{sign} ", style=style) + plain(f"{check['name']}: {check['detail']}"), soft_wrap=True)
    if record["passed"]:
        for name, value in record["fingerprints"].items():
            console.print(plain(f"  fingerprint of the {name}: {value}"), soft_wrap=True, style="dim")
    for line in _notes(record):
        console.print(plain(f"  {line}"), soft_wrap=True)
    console.print(_verdict(record), style="bold" if record["certifies"] else "bold red", highlight=False)


def _notes(record: Record) -> list[str]:
    """What the checks do not cover."""
    lines: list[str] = []
    what = "plan" if record["release"] is None else "release"
    lines += [f"Not checked: {name}" for name in record["unchecked"]]
    lines += [f"Not proven: {statement}" for statement in record["unproven"]]
    if not (record["signature_checked"] or record["attestations_checked"]):
        if record["signed"]:
            lines.append(f"The {what} is signed; pass --public-key to check by whom.")
        if record["attested"]:
            lines.append("The release is attested; pass --public-key or --certificate-chain to check by whom.")
        if record["release"] is not None and record["passed"] and not (record["signed"] or record["attested"]):
            lines.append(
                "Not signed: the files are consistent, but the author of the certificate could have named any model. "
                "Ask for a signature (hush sign) or an attestation (hush attest)."
            )
    return lines


def _verdict(record: Record) -> str:
    if not record["passed"]:
        what = "plan" if record["release"] is None else "release"
        return f"This {what} failed verification: do not rely on its certificate."
    if not record["certifies"]:
        return "All checks passed, but the certificate carries a mark: it certifies nothing."
    if record["release"] is None:
        return "Every promise holds."
    return "Every promise holds, and this is the model that the certificate names."
