"""Keys and certificates of somebody who attests releases, and the tools of OpenSSF and in-toto that check them."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def openssf_accepts(release: Path, *options: object, model: str = "model") -> bool:
    """Whether the command line of OpenSSF Model Signing takes the model for signed: `options` say by whom."""
    from model_signing._cli import main

    kind = "key" if "--public_key" in options else "certificate"
    arguments = ["verify", kind, release / model, "--signature", release / "model.sig", *options]
    return CliRunner().invoke(main, [str(argument) for argument in arguments]).exit_code == 0


def envelopes(bundle: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bundle.read_text().splitlines()]


def write_envelopes(bundle: Path, content: list[dict[str, Any]]) -> None:
    bundle.write_text("".join(json.dumps(envelope) + "\n" for envelope in content))


def statement_in(envelope: dict[str, Any]) -> dict[str, Any]:
    return json.loads(base64.b64decode(envelope["payload"]))


def with_statement(envelope: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An envelope whose statement was changed, under the old signature."""
    payload = json.dumps(statement_in(envelope) | changes).encode()
    return envelope | {"payload": base64.b64encode(payload).decode()}


class Authority:
    """A root, a certificate authority under it, and a signer whom the authority vouches for; PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.root, self.chain = folder / "root.pem", folder / "authority.pem"
        self.certificate, self.key = folder / "signer.pem", folder / "signer-key.pem"
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
        names = [f"{role} of {folder.name}" for role in ("root", "authority", "signer")]
        for number, path in enumerate((self.root, self.chain, self.certificate)):
            issuer = max(number - 1, 0)
            made = _certificate(names[number], keys[number].public_key(), names[issuer], keys[issuer], last=number == 2)
            path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pkcs8 = serialization.PrivateFormat.PKCS8
        content = keys[2].private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption())
        self.key.write_bytes(content)


def _certificate(
    name: str, key: ec.EllipticCurvePublicKey, issuer: str, signed_with: ec.EllipticCurvePrivateKey, *, last: bool
) -> x509.Certificate:
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    usage |= {"decipher_only": False, "digital_signature": last, "key_cert_sign": not last, "crl_sign": not last}
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(DAY)
        .not_valid_after(DAY + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=not last, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(signed_with, hashes.SHA256())
    )
