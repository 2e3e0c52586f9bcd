"""Attesting a release: its owner signs, in formats that other programs verify, what model it is and what it promises.

Nothing is signed that ``verify`` does not find sound: the release is verified first, and the result is attested, too.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from hush.arrays import Progress
from hush.errors import InvalidInput, Setting
from hush.plan.attestations import ATTESTATIONS, MODEL_SIGNATURE, Signer, sign_model, sign_statements
from hush.plan.files import is_release
from hush.plan.verify import attested_result, verify
from hush.storage import read_json, whole_file

__all__ = ["Attested", "attest"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attested:
    """What ``attest`` wrote: the signature of the model, and the attestations of its certificate."""

    model_signature: Path
    attestations: Path


def attest(
    release: str | Path,
    *,
    private_key: str | Path,
    certificate: str | Path | None = None,
    chain: Sequence[str | Path] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Attested:
    """Sign a release for others: its model by OpenSSF Model Signing, its certificate by an attestation of in-toto.

    Verifies the release first, and refuses one that fails or certifies nothing. Writes model.sig and
    attestations.intoto.jsonl into it, offline; ``verify`` and the tools of OpenSSF and in-toto check them.

    private_key: a PEM file with a key on P-256, P-384 or P-521. certificate: that of the key, if verifiers trust a root
    and not the key; chain: the certificates between the two. force: replace earlier attestations.
    """
    root = Path(release)
    if not is_release(root):
        raise InvalidInput(f"{root} is not a release, and attestations are about a model; pass what training released")
    signer = Signer(
        private_key=Path(private_key),
        certificate=None if certificate is None else Path(certificate),
        chain=tuple(map(Path, chain)),
    )
    written = Attested(model_signature=root / MODEL_SIGNATURE, attestations=root / ATTESTATIONS)
    for path in (written.model_signature, written.attestations):
        if path.exists() and not force:
            raise InvalidInput(f"{path} exists, so the release is attested; to do it again, pass ", Setting("force"))
    verification = verify(root, progress=progress)
    for check in verification.checks:
        if not check.passed:
            raise InvalidInput(f"{root} was not attested; {check.name}: {check.detail}")
    if verification.certificate is None or not verification.certificate.is_real:
        raise InvalidInput(f"{root} was not attested: its certificate carries a mark and certifies nothing")
    result = attested_result(root, verification.checks, verification.certificate).predicate(root)
    with tempfile.TemporaryDirectory() as folder:
        signature = Path(folder) / MODEL_SIGNATURE
        sign_model(root / "model", signer, signature)
        lines = sign_statements(signature, read_json(root / "certificate.json"), result, signer)
        content = {written.model_signature: signature.read_bytes(), written.attestations: lines.encode()}
    for path, signed in content.items():
        with whole_file(path) as file:
            file.write(signed)
    return written
