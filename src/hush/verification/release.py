"""What a run released, against its plan: its certificate, and the files of its model. The rest is named as not checked.

A release is the folder release/ of ``hush train`` or share/ of ``hush run``. Its signature, if it was signed, is over
its certificate, and so over everything that is checked here.
"""

import re
from pathlib import Path

from hush.certificate import Certificate
from hush.plan.files import FILES, SIGNATURE
from hush.signature import RELEASE_SIGNATURE
from hush.storage import folder_digest
from hush.verification.certificates import MODEL, check_run_certificate
from hush.verification.checks import Check, check

CHECKED = {"plan", "model", "certificate.json", "certificate.md", RELEASE_SIGNATURE}
UNCHECKED = re.compile(r"README\.md|report\.html|evaluations\.jsonl|round-\d{6,}")  # that a release may hold besides
OF_A_PLAN = {"plan.json", SIGNATURE, *FILES}


def check_release(folder: Path, planned: Certificate) -> tuple[tuple[Check, ...], Certificate | None]:
    """The checks of a release beside those of its plan, and its certificate. planned: that of its plan, as it is there.

    The plan's words are known, as after ``refuse_unknown_words``.
    """
    fits, certificate = check_run_certificate(planned, folder)
    return (fits, _check_model(folder, certificate), _check_names(folder)), certificate


def unchecked(folder: Path, *, released: bool) -> tuple[str, ...]:
    """Names in the folder of a release, or of a plan, that no check looks at."""
    known = CHECKED if released else OF_A_PLAN
    return tuple(_shown(path, folder) for path in sorted(folder.iterdir()) if path.name not in known)


def model_problem(model: Path, named: str | None) -> str | None:
    """Why a folder is not the model that a certificate names by this fingerprint; None if it is."""
    if not model.is_dir():
        return "there is no folder model/; restore what was released"
    # A fingerprint is blind to these: it enters no links, and a line break in a name could pass for two files.
    odd = [path for path in sorted(model.rglob("*")) if not path.name.isprintable() or not _is_seen(path)]
    if odd:
        return f"{_shown(odd[0], model.parent)} is a link or has an odd name; copy the model as plain files"
    found = folder_digest(model)
    if found != named:
        return f"its files have the fingerprint {found}, which is not what the certificate names; it is another model"
    return None


def _check_model(folder: Path, certificate: Certificate | None) -> Check:
    if certificate is None:
        return Check(name="model", passed=False, detail="no certificate says which model it has to be")
    problem = model_problem(folder / "model", certificate.fingerprints.get(MODEL))
    return check("model", problem is None, problem or "", "its files have the fingerprint that the certificate names")


def _check_names(folder: Path) -> Check:
    """Nothing lies in a release, or in its plan, that no release holds: it would pass for something checked."""
    strange = [path for path in folder.iterdir() if path.name not in CHECKED and not UNCHECKED.fullmatch(path.name)]
    if (folder / "plan").is_dir():
        strange += [path for path in (folder / "plan").iterdir() if path.name not in OF_A_PLAN]
    listed = ", ".join(_shown(path, folder) for path in sorted(strange)[:5])
    problem = f"holds what is no part of a release: {listed}; take it out, or ask whoever put it there"
    return check("folder", not strange, problem, "holds nothing that is no part of a release")


def _is_seen(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and not path.is_symlink())


def _shown(path: Path, folder: Path) -> str:
    """A name below a folder; one that could pass for something else is quoted."""
    name = path.relative_to(folder).as_posix() + ("/" if path.is_dir() else "")
    return name if name.isprintable() else repr(name)
