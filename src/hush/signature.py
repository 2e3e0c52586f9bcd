"""Who vouches for a plan: a detached Ed25519 signature over plan.json, which holds the digest of every other file."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hush.errors import InvalidInput
from hush.plan.files import SIGNATURE, changed_files, read_record
from hush.storage import whole_file

__all__ = ["create_keys", "sign", "signature_problem"]


def create_keys(private: Path, public: Path) -> None:
    """A new key pair as two PEM files; the private one is readable by its owner alone. Existing files are kept."""
    if private.resolve() == public.resolve():
        raise InvalidInput(f"{private} cannot hold both keys; name two files")
    for path in (private, public):
        if path.exists():
            raise InvalidInput(f"{path} exists; name a new file, keys are never overwritten")
    key = Ed25519PrivateKey.generate()
    with whole_file(private, owner_only=True) as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    with whole_file(public) as file:
        file.write(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )


def sign(folder: Path, private_key: Path) -> Path:
    """Sign a plan whose files are as they were written; the signature is put beside it. ``verify`` before signing."""
    changed = changed_files(folder, read_record(folder))
    if changed:
        raise InvalidInput(f"{folder}: {', '.join(changed)} changed after the plan was written; make the plan again")
    try:
        key = serialization.load_pem_private_key(private_key.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{private_key} is not an unencrypted PEM private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{private_key} is not an Ed25519 key; make one with hush sign --new-key")
    with whole_file(folder / SIGNATURE) as file:
        file.write(key.sign((folder / "plan.json").read_bytes()))
    return folder / SIGNATURE


def signature_problem(folder: Path, public_key: Path) -> str | None:
    """Why the signature beside a plan is not valid for this key; None if it is."""
    try:
        key = serialization.load_pem_public_key(public_key.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{public_key} is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput(f"{public_key} is not an Ed25519 key")
    if not (folder / SIGNATURE).is_file():
        return f"there is no {SIGNATURE}; sign the plan with hush sign"
    try:
        key.verify((folder / SIGNATURE).read_bytes(), (folder / "plan.json").read_bytes())
    except InvalidSignature:
        return "the signature is not valid for this key and this plan"
    return None
