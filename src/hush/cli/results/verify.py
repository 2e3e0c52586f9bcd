"""What ``hush verify`` says: a line for each check, what was not checked, and the verdict."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from hush.cli.results.accounting import Record
from hush.console import plain
from hush.plan.files import is_release, signature_of
from hush.plan.verify import Verification

__all__ = ["show_verification", "verification_record"]


def verification_record(found: Verification, folder: Path) -> Record:
    """Every check, and whether all passed. folder: a plan's, or that of a release."""
    released, certificate = is_release(folder), found.certificate
    return {
        "plan": str(folder / "plan" if released else folder),
        "release": str(folder) if released else None,
        "passed": found.passed,
        "certifies": found.passed and certificate is not None and certificate.is_real,
        "checks": [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in found.checks],
        "unchecked": list(found.unchecked),
        "signature_checked": any(check.name == "signature" for check in found.checks),
        "signed": signature_of(folder).exists(),
        "fingerprints": None if certificate is None else dict(certificate.fingerprints),
    }


def show_verification(record: Record, console: Console, *, named: bool) -> None:
    """First what was looked at, unless the user named it; then every check, and what it is all about."""
    if not named:
        found = f"The plan of this run: {record['plan']}"
        if record["release"] is not None:
            found = f"What this run released: {record['release']}"
        console.print(plain(found), soft_wrap=True)
    for check in record["checks"]:
        sign, style = ("✓", "green") if check["passed"] else ("✗", "bold red")
        console.print(Text(f"{sign} ", style=style) + plain(f"{check['name']}: {check['detail']}"), soft_wrap=True)
    if record["passed"]:
        for name, value in record["fingerprints"].items():
            console.print(plain(f"  fingerprint of the {name}: {value}"), soft_wrap=True, style="dim")
    for line in _cautions(record):
        console.print(plain(f"  {line}"), soft_wrap=True)
    console.print(_verdict(record), style="bold" if record["certifies"] else "bold red", highlight=False)


def _cautions(record: Record) -> list[str]:
    """What the checks above do not say."""
    lines: list[str] = []
    what = "plan" if record["release"] is None else "release"
    if record["unchecked"]:
        lines.append(f"Not checked: {', '.join(record['unchecked'])}")
    if not record["signature_checked"]:
        if record["signed"]:
            lines.append(f"The {what} is signed; pass --public-key to check by whom.")
        elif record["release"] is not None and record["passed"]:
            lines.append(
                "Not signed: it fits together, but whoever wrote the certificate could have named any model in it. Ask "
                "for a signature (hush sign)."
            )
    return lines


def _verdict(record: Record) -> str:
    if not record["passed"]:
        what = "plan" if record["release"] is None else "release"
        return f"This {what} does not stand: do not rely on its certificate."
    if not record["certifies"]:
        return "Everything fits together, but it is marked: it certifies nothing."
    if record["release"] is None:
        return "Every promise holds."
    return "Every promise holds, and this is the model that the certificate names."
