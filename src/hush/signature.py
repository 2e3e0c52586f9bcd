"""Who vouches for a plan, or for what a run released: a detached Ed25519 signature over what names all the rest.

plan            plan.sig, over plan.json, which holds the digest of every other file of the plan
release, share  certificate.sig, over certificate.json and certificate.md, one after the other; they hold the
                fingerprints of the model and of all that the plan states

Both are over the bytes of the files as they are, so that other programs can check them, too.
"""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hush.errors import InvalidInput
from hush.plan.files import SIGNATURE, changed_files, read_record
from hush.storage import whole_file

__all__ = ["RELEASE_SIGNATURE", "covered", "create_keys", "is_release", "sign", "signature_of", "signature_problem"]

RELEASE_SIGNATURE = "certificate.sig"
CERTIFICATES = ("certificate.json", "certificate.md")  # both forms: people read the second


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


def is_release(folder: Path) -> bool:
    """Whether a folder is what a run released, or what is left of it, rather than a plan.

    A model is never in a plan's folder; so where there is one, what vouches for a plan alone is not enough.
    """
    certified = any((folder / name).exists() for name in CERTIFICATES)
    return (folder / "model").exists() or (certified and (folder / "plan").is_dir())


def signature_of(folder: Path) -> Path:
    """Where the signature of a plan, or of a release, lies."""
    return folder / (RELEASE_SIGNATURE if is_release(folder) else SIGNATURE)


def covered(folder: Path) -> str:
    """What a valid signature of this folder covers, in words."""
    if is_release(folder):
        return "it covers the run's certificate, and through its fingerprints the plan and the model"
    return "it covers the plan, and no model"


def sign(folder: Path, private_key: Path) -> Path:
    """Sign a plan, or what a run released (its release/ or share/), as it is; ``verify`` before signing."""
    plan = folder / "plan" if is_release(folder) else folder
    changed = changed_files(plan, read_record(plan))
    if changed:
        raise InvalidInput(f"{plan}: {', '.join(changed)} changed after the plan was written; make the plan again")
    try:
        key = serialization.load_pem_private_key(private_key.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{private_key} is not an unencrypted PEM private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{private_key} is not an Ed25519 key; make one with hush sign --new-key")
    with whole_file(signature_of(folder)) as file:
        file.write(key.sign(_content(folder)))
    return signature_of(folder)


def signature_problem(folder: Path, public_key: Path) -> str | None:
    """Why the signature of a plan, or of a release, is not valid for this key; None if it is."""
    try:
        key = serialization.load_pem_public_key(public_key.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{public_key} is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput(f"{public_key} is not an Ed25519 key")
    path, signed = signature_of(folder), _signed_files(folder)
    if not path.is_file():
        return _missing(folder)
    gone = [file.name for file in signed if not file.is_file()]
    if gone:
        return f"there is no {gone[0]}, which it would be over; restore the folder"
    try:
        key.verify(path.read_bytes(), _content(folder))
    except InvalidSignature:
        return f"the signature is not valid for this key and this {' and '.join(file.name for file in signed)}"
    return None


def _signed_files(folder: Path) -> list[Path]:
    return [folder / name for name in (CERTIFICATES if is_release(folder) else ("plan.json",))]


def _content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in _signed_files(folder))


def _missing(folder: Path) -> str:
    if is_release(folder) and (folder / "plan" / SIGNATURE).is_file():
        return (
            f"there is no {RELEASE_SIGNATURE}; plan/{SIGNATURE} is about the plan alone and not about this model: sign "
            "the whole folder with hush sign, or verify the folder plan/ by itself"
        )
    what = "folder" if is_release(folder) else "plan"
    return f"there is no {signature_of(folder).name}; sign the {what} with hush sign"
