"""Attestations of a release: who says that this model has this certificate, in formats that other programs verify.

model.sig                    the files of model/, signed by OpenSSF Model Signing (a Sigstore bundle)
attestations.intoto.jsonl    two statements of in-toto (v1), each in a signed DSSE envelope on a line of its own:
                             the certificate, and the result of ``verify``

The subject of both statements is that of model.sig: model/ alone, by the digest that OpenSSF Model Signing gives it.
That digest covers the contents of the files, in the order of their names; the names themselves are covered by model.sig
and by the fingerprint of the model in the certificate. The rest of a release is covered as far as the certificate names
it by its fingerprints. Nothing of the owner's side enters a statement.

The predicate of the first statement is certificate.json, field by field (``CERTIFICATE_TYPE``). The second is a test
result of in-toto (``RESULT_TYPE``) with one more field (``VERIFICATION_FIELD``): the version of hush, the format of the
plan, and what no check proves.

Everything is done by the libraries that the outside uses: model-signing hashes and signs the model, in-toto-attestation
validates statements, and securesystemslib signs and verifies envelopes. None of them needs a network.
"""

import base64
import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from hush import __version__
from hush.errors import InvalidInput
from hush.plan.files import MAJOR, MINOR, load_private_key, load_public_key
from hush.storage import file_digest, strict_json

if TYPE_CHECKING:
    from securesystemslib.signer._key import SSlibKey

__all__ = [
    "ATTESTATIONS",
    "CERTIFICATE_TYPE",
    "MODEL_SIGNATURE",
    "RESULT_TYPE",
    "VERIFICATION_FIELD",
    "Result",
    "Signer",
    "Trust",
    "attestations_problem",
    "check_signing",
    "model_signature_problem",
    "sign_model",
    "sign_statements",
]


MODEL_SIGNATURE = "model.sig"
ATTESTATIONS = "attestations.intoto.jsonl"  # the name that in-toto gives to a bundle of attestations
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
CERTIFICATE_TYPE = "https://hush/certificate/v1"  # a new number when a field of certificate.json changes its meaning
RESULT_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
VERIFICATION_FIELD = "https://hush/verification/v1"
BUNDLE = {"mediaType", "verificationMaterial", "dsseEnvelope"}  # of Sigstore
MATERIALS = ({"publicKey", "tlogEntries"}, {"x509CertificateChain", "tlogEntries"})
ENVELOPE = {"payload", "payloadType", "signatures"}
STATEMENT = {"_type", "subject", "predicateType", "predicate"}
KINDS = {CERTIFICATE_TYPE: "certificate", RESULT_TYPE: "result of the verification"}
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)  # those of OpenSSF Model Signing
NAMED = ("certificate.json", "plan/plan.json")  # files of a release that the result names by their digests
MISSING = 'attestations need the library {name}; pip install "hush[attest]"'
ASK = "ask for the attestations that hush attest wrote"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Who signs: the owner of a private key on an elliptic curve, vouched for by a certificate if there is one.

    chain: certificates between this one and a root that verifiers trust.
    """

    private_key: Path
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        key = load_private_key(self.private_key)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, CURVES):
            raise InvalidInput(
                f"{self.private_key} is not an elliptic-curve key on P-256, P-384 or P-521, which OpenSSF Model "
                "Signing needs; create one with hush attest"
            )
        if self.certificate is None and self.chain:
            raise InvalidInput("a chain leads from a certificate to its root; pass the certificate of the signer, too")
        for path in (self.certificate, *self.chain):
            certificate = None if path is None else _certificate_in(path)
            if certificate is not None and path == self.certificate and certificate.public_key() != key.public_key():
                raise InvalidInput(f"{path} is not the certificate of the key in {self.private_key}; pass that one")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """By whom attestations must be signed: by the owner of a key, or by whom these certificates vouch for.

    Certificates are checked as of the day on which that of the signer became valid: nothing says when it signed, nor
    whether a certificate was revoked since.
    """

    public_key: Path | None = None
    chain: tuple[Path, ...] = ()

    @classmethod
    def of(cls, public_key: Path | None, chain: Sequence[Path]) -> Self | None:
        """None if neither can check an attestation: an Ed25519 key checks a detached signature."""
        key = None if public_key is None else load_public_key(public_key)
        if isinstance(key, ec.EllipticCurvePublicKey) and not isinstance(key.curve, CURVES):
            raise InvalidInput(f"{public_key} is not a key on P-256, P-384 or P-521, as attestations need it")
        attests = isinstance(key, ec.EllipticCurvePublicKey)
        if attests and chain:
            raise InvalidInput("attestations have one signer; pass a key or certificates", setting="certificate_chain")
        for path in chain:
            _certificate_in(path)
        return cls(public_key=public_key if attests else None, chain=tuple(chain)) if attests or chain else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What ``verify`` found: the names of the checks that passed and failed, and what no check proves, line by line."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    unproven: tuple[str, ...]

    def predicate(self, release: Path) -> dict[str, Any]:
        """The test result of in-toto for this release."""
        return {
            "result": "FAILED" if self.failed else "PASSED",
            "configuration": [{"name": name, "digest": {"sha256": file_digest(release / name)}} for name in NAMED],
            "passedTests": list(self.passed),
            "failedTests": list(self.failed),
            VERIFICATION_FIELD: {
                "hush": __version__,
                "format": f"{MAJOR}.{MINOR}",
                "unproven": list(self.unproven),
            },
        }


def statements(subject: list[Any], certificate: Mapping[str, Any], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The two statements about this subject; certificate: the content of certificate.json."""
    predicates = {CERTIFICATE_TYPE: dict(certificate), RESULT_TYPE: dict(result)}
    return [
        {"_type": STATEMENT_TYPE, "subject": subject, "predicateType": kind, "predicate": predicate}
        for kind, predicate in predicates.items()
    ]


# Writing.


def check_signing() -> None:
    """Refuse to begin what would end with a signature if a library for it is missing."""
    _model_signing()
    _securesystemslib()


def sign_model(model: Path, signer: Signer, signature: Path) -> None:
    """Sign the files of a model as OpenSSF Model Signing does; no file in the folder is left out."""
    hashing, signing, _ = _model_signing()
    config = signing.Config().set_hashing_config(hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=False))
    if signer.certificate is None:
        config.use_elliptic_key_signer(private_key=signer.private_key)
    else:
        config.use_certificate_signer(
            private_key=signer.private_key, signing_certificate=signer.certificate, certificate_chain=signer.chain
        )
    try:
        config.sign(model, signature)
    except ValueError as error:  # a link
        raise InvalidInput(f"OpenSSF Model Signing cannot sign {model}: {error}") from None


def sign_statements(signature: Path, certificate: Mapping[str, Any], result: Mapping[str, Any], signer: Signer) -> str:
    """The content of attestations.intoto.jsonl, about the subject of the model's signature."""
    dsse, signers = _securesystemslib()
    key = signers.CryptoSigner(load_private_key(signer.private_key))
    signed = _parts_of(signature)
    if signed is None:
        raise InvalidInput(
            f"{signature.name} has fields that hush does not know; use the version of model-signing "
            "that hush was installed with"
        )
    lines: list[str] = []
    for statement in statements(signed.subject, certificate, result):
        _check_statement(statement)
        envelope = dsse.Envelope(json.dumps(statement, indent=1, allow_nan=False).encode(), PAYLOAD_TYPE, {})
        envelope.sign(key)
        lines.append(json.dumps(envelope.to_dict()) + "\n")
    return "".join(lines)


# Reading.


def model_signature_problem(model: Path, signature: Path, trust: Trust) -> str | None:
    """Why these are not the files that somebody trusted signed, by OpenSSF Model Signing; None if they are."""
    if not signature.is_file():
        return f"there is no {signature.name}; {ASK}"
    if _parts_of(signature) is None:
        return "it is no bundle of OpenSSF Model Signing, or holds more than one"
    _, _, verifying = _model_signing()
    config = verifying.Config()
    if trust.public_key is not None:
        config.use_elliptic_key_verifier(public_key=trust.public_key)
    else:
        config.use_certificate_verifier(certificate_chain=trust.chain)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints warnings, also where a program reads the output
            config.verify(model, signature)
    except InvalidSignature:
        return "it is not signed by this signer, or its content was changed"
    except (AttributeError, KeyError, TypeError, IndexError):
        by = "a key" if trust.public_key is not None else "certificates"
        return f"it is no signature that {by} can check"
    except Exception as error:  # whatever an untrusted file leads to there: what is not verified is refused
        return f"OpenSSF Model Signing refuses it: {error or type(error).__name__}"
    return None


def attestations_problem(
    bundle: Path, signature: Path, trust: Trust, release: Path, certificate: Mapping[str, Any], result: Result
) -> str | None:
    """Why the statements are not about this model and this certificate, by its signer; None if they are.

    signature: that of the model, which ``model_signature_problem`` must have found sound. Each statement must equal the
    one that this release leads to. The result of another version of hush may list other checks.
    """
    if not bundle.is_file():
        return f"there is no {bundle.name}; {ASK}"
    found = _parts_of(signature)
    if found is None:
        return f"there is no sound {signature.name} that they could be about"
    try:
        stated = _verified(bundle, _key_of(found, trust))
    except _Untrusted as untrusted:
        return str(untrusted)
    kinds = [statement["predicateType"] for statement in stated]
    if sorted(kinds) != sorted(KINDS):
        return f"it must state {' and '.join(KINDS)}, each once; it states {', '.join(map(repr, kinds)) or 'nothing'}"
    by_kind = dict(zip(kinds, stated, strict=True))
    for expected in statements(found.subject, certificate, result.predicate(release)):
        kind = expected["predicateType"]
        problem = _difference(by_kind[kind], expected)
        if problem is not None:
            return f"the statement about the {KINDS[kind]} {problem}"
    return None


class _Untrusted(Exception):
    """Why a bundle of attestations is not taken for what it says."""


def _verified(bundle: Path, key: "SSlibKey") -> list[dict[str, Any]]:
    """The statements in a bundle, each of which must be signed by this key; nothing unsigned may stand beside them."""
    dsse, _ = _securesystemslib()
    _in_toto_attestation()  # so that one that is missing is no verdict about a line
    from securesystemslib.exceptions import Error

    found: list[dict[str, Any]] = []
    for number, line in enumerate(bundle.read_bytes().splitlines(), start=1):
        try:
            content = strict_json(line.decode())
            fields = [set(content), *(set(signature) for signature in content["signatures"])]
            envelope = dsse.Envelope.from_dict(content)
        except (ValueError, KeyError, TypeError, AttributeError, Error):
            raise _Untrusted(f"line {number} is not a DSSE envelope") from None
        if fields != [ENVELOPE, {"keyid", "sig"}]:
            raise _Untrusted(f"line {number} must be an envelope with one signature and nothing unsigned beside it")
        if envelope.payload_type != PAYLOAD_TYPE:
            raise _Untrusted(f"line {number} holds {envelope.payload_type!r}, not a statement of in-toto")
        try:
            envelope.verify([key], 1)
        except (Error, ValueError):
            raise _Untrusted(f"line {number} is not signed by the signer of the model, or was changed") from None
        try:
            statement = strict_json(envelope.payload.decode())
            if set(statement) != STATEMENT:
                raise ValueError("other fields")
            _check_statement(statement)
        except (ValueError, TypeError):
            raise _Untrusted(f"line {number} is signed, but holds no statement of in-toto v1") from None
        found.append(statement)
    return found


def _check_statement(statement: Any) -> None:
    """Whether in-toto takes this for a statement; a ValueError or TypeError if not."""
    json_format, statement_pb2, in_toto = _in_toto_attestation()
    try:
        parsed = json_format.ParseDict(statement, statement_pb2.Statement())
    except (json_format.ParseError, AttributeError) as error:
        raise ValueError(str(error)) from None
    in_toto.Statement.copy_from_pb(parsed).validate()


def _difference(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """How a signed statement differs from the one that the release leads to."""
    if stated["subject"] != expected["subject"]:
        return "is about another model"
    there, here = stated["predicate"], expected["predicate"]
    names = sorted(there.keys() | here.keys())
    if _version_of(there) not in (None, _version_of(here)):  # another version may make other checks
        names = [name for name in names if name not in ("passedTests", VERIFICATION_FIELD)]
    different = [name for name in names if not _same(there.get(name), here.get(name))]
    return f"does not fit this release in {', '.join(different)}" if different else None


def _version_of(predicate: Mapping[str, Any]) -> str | None:
    """The version of hush that made a test result; None if it does not say."""
    made_by = predicate.get(VERIFICATION_FIELD)
    version = made_by.get("hush") if isinstance(made_by, dict) else None
    return version if isinstance(version, str) else None


def _same(first: Any, second: Any) -> bool:
    """Whether two values are the same in JSON, where 1, 1.0 and true differ."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What the signature of a model says: its subject, and the signer's certificate (DER) if it was signed with one."""

    subject: list[Any]
    certificate: bytes | None


def _parts_of(signature: Path) -> _Parts | None:
    """The parts of a model's signature; None if the file has any other fields than OpenSSF Model Signing writes.

    The library of OpenSSF also takes other spellings of fields. It must not verify one of two, and hush read the other.
    """
    try:
        content = strict_json(signature.read_text(encoding="utf-8"))
        material, envelope = content["verificationMaterial"], content["dsseEnvelope"]
        chain = material["x509CertificateChain"]["certificates"] if "x509CertificateChain" in material else []
        expected = set(content) == BUNDLE and set(material) in MATERIALS and set(envelope) == ENVELOPE
        expected = expected and all(set(certificate) == {"rawBytes"} for certificate in chain)
        expected = expected and set(material.get("x509CertificateChain", {})) <= {"certificates"}
        if not expected or len(envelope["signatures"]) != 1:
            return None
        statement = strict_json(base64.b64decode(envelope["payload"], validate=True).decode())
        certificate = base64.b64decode(chain[0]["rawBytes"], validate=True) if chain else None
        return _Parts(subject=list(statement["subject"]), certificate=certificate)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _key_of(found: _Parts, trust: Trust) -> "SSlibKey":
    """The signer's key: the one that was given, or that of the certificate for which the chain vouches."""
    _, signers = _securesystemslib()
    if trust.public_key is not None:
        return signers.SSlibKey.from_crypto(load_public_key(trust.public_key))
    if found.certificate is None:
        raise _Untrusted("the model is signed by a key, and not by a certificate")
    return signers.SSlibKey.from_crypto(x509.load_der_x509_certificate(found.certificate).public_key())


def _certificate_in(path: Path) -> x509.Certificate:
    """The first certificate in a PEM file."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except ValueError as error:
        raise InvalidInput(f"{path} is not a PEM certificate") from error


# The libraries, loaded on first use.


def _model_signing() -> tuple[Any, Any, Any]:
    """hashing, signing and verifying of OpenSSF Model Signing."""
    try:
        from model_signing import hashing, signing, verifying
    except ImportError as error:
        raise InvalidInput(MISSING.format(name=error.name)) from error
    return hashing, signing, verifying


def _securesystemslib() -> tuple[Any, Any]:
    """dsse and signer of securesystemslib."""
    try:
        from securesystemslib import dsse, signer
    except ImportError as error:
        raise InvalidInput(MISSING.format(name=error.name)) from error
    return dsse, signer


def _in_toto_attestation() -> tuple[Any, Any, Any]:
    """What reads JSON into messages, the message of a statement, and the module that validates it."""
    try:
        from google.protobuf import json_format
        from in_toto_attestation.v1 import statement, statement_pb2
    except ImportError as error:
        raise InvalidInput(MISSING.format(name=error.name)) from error
    return json_format, statement_pb2, statement
