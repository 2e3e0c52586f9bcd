"""An attested release: the tools of OpenSSF and in-toto take it for what it is, and no change goes unnoticed."""

import base64
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import json_format
from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
from in_toto_attestation.v1 import statement as in_toto
from in_toto_attestation.v1 import statement_pb2
from model_signing import hashing
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer._key import Key, SSlibKey

import hush
from attesting import Authority, envelopes, openssf_accepts, statement_in, with_statement, write_envelopes
from hush.plan.attestations import ATTESTATIONS, CERTIFICATE_TYPE, RESULT_TYPE, VERIFICATION_FIELD
from hush.plan.files import create_keys, sign
from releases import WEIGHTS, certify, make_release

PAYLOAD_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Two people who attest, each with a key and a certificate of an authority of their own."""

    private: Path
    public: Path
    authority: Authority
    other_private: Path
    other_public: Path
    other_authority: Authority


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    root = tmp_path_factory.mktemp("keys")
    paths = [root / f"{name}.pem" for name in ("private", "public", "other-private", "other-public")]
    create_keys(*paths[:2], kind="p256")
    create_keys(*paths[2:], kind="p256")
    return Keys(
        private=paths[0],
        public=paths[1],
        authority=Authority(root / "ours"),
        other_private=paths[2],
        other_public=paths[3],
        other_authority=Authority(root / "theirs"),
    )


@pytest.fixture(scope="module")
def original(plan: hush.Plan, keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attested release; beside it others by the same signer: of another model, and of this model again."""
    root = tmp_path_factory.mktemp("attested")
    make_release(root / "release", plan)
    other = make_release(root / "other", plan)
    (other / "model" / "model.safetensors").write_bytes(WEIGHTS[::-1])
    certify(other, plan)
    later = replace(plan, created="2030-01-01T00:00:00+00:00")
    make_release(root / "again", later)
    for name in ("release", "other", "again"):
        hush.attest(root / name, private_key=keys.private)
    shutil.copytree(root / "release", root / "certified")
    owner = keys.authority
    hush.attest(
        root / "certified", private_key=owner.key, certificate=owner.certificate, chain=[owner.chain], force=True
    )
    return root / "release"


@pytest.fixture
def release(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "release")
    return tmp_path / "release"


def failed(folder: Path, **options: Any) -> set[str]:
    return {check.name for check in hush.verify(folder, **options).checks if not check.passed}


def detail(folder: Path, name: str, **options: Any) -> str:
    (found,) = (check for check in hush.verify(folder, **options).checks if check.name == name)
    assert not found.passed
    return found.detail


def in_toto_key(public: Path) -> Key:
    key = serialization.load_pem_public_key(public.read_bytes())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return SSlibKey.from_crypto(key)


# What it is.


def test_an_attested_release_verifies_and_nothing_of_it_is_left_unread(original: Path, keys: Keys) -> None:
    found = hush.verify(original, public_key=keys.public)
    assert found.passed
    assert {"model.sig", "attestations"} <= {check.name for check in found.checks}
    assert not {"model.sig", ATTESTATIONS} & set(found.unchecked)
    assert {"model.sig", ATTESTATIONS} <= set(hush.verify(original).unchecked)  # without a key they are not checked
    vouched = original.with_name("certified")
    assert hush.verify(vouched, certificate_chain=[keys.authority.root]).passed


def test_openssf_model_signing_accepts_the_model_for_its_signer_alone(original: Path, keys: Keys) -> None:
    assert openssf_accepts(original, "--public_key", keys.public)
    assert not openssf_accepts(original, "--public_key", keys.other_public)
    vouched = original.with_name("certified")
    assert openssf_accepts(vouched, "--certificate_chain", keys.authority.root)
    assert not openssf_accepts(vouched, "--certificate_chain", keys.other_authority.root)


def test_the_tools_of_in_toto_accept_both_statements_for_their_signer_alone(original: Path, keys: Keys) -> None:
    certificate, result = envelopes(original / ATTESTATIONS)
    for content in (certificate, result):
        envelope = Envelope.from_dict(json.loads(json.dumps(content)))
        assert envelope.payload_type == PAYLOAD_TYPE
        assert len(envelope.verify([in_toto_key(keys.public)], 1)) == 1
        with pytest.raises(VerificationError):
            envelope.verify([in_toto_key(keys.other_public)], 1)
        parsed = json_format.Parse(envelope.payload.decode(), statement_pb2.Statement())  # pyright: ignore
        in_toto.Statement.copy_from_pb(parsed).validate()
    judged = test_result_pb2.TestResult()  # pyright: ignore[reportAttributeAccessIssue]
    json_format.ParseDict(statement_in(result)["predicate"], judged, ignore_unknown_fields=True)
    assert judged.result == "PASSED"
    assert "posteriors" in judged.passed_tests
    assert not judged.failed_tests


def test_an_envelope_is_signed_as_its_specification_says(original: Path, keys: Keys) -> None:
    """By hand: ECDSA with SHA-256 over the pre-authentication encoding of DSSE v1."""
    key: Any = serialization.load_pem_public_key(keys.public.read_bytes())
    for content in envelopes(original / ATTESTATIONS):
        payload = base64.b64decode(content["payload"])
        encoded = f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload
        (signature,) = content["signatures"]
        key.verify(base64.b64decode(signature["sig"]), encoded, ec.ECDSA(hashes.SHA256()))


def test_the_subject_is_the_model_alone_by_the_digest_of_openssf(original: Path) -> None:
    """Of model/ and nothing beside it: the SHA-256 of the SHA-256 digests of its files, in the order of their names."""
    by_hand = b"".join(
        hashlib.sha256(path.read_bytes()).digest() for path in sorted(original.joinpath("model").iterdir())
    )
    manifest = hashing.hash(original / "model")
    by_openssf = b"".join(item.digest.digest_value for item in manifest.resource_descriptors())
    assert by_hand == by_openssf
    subject = [{"name": "model", "digest": {"sha256": hashlib.sha256(by_hand).hexdigest()}}]
    signed = statement_in(json.loads((original / "model.sig").read_text())["dsseEnvelope"])
    for statement in (signed, *map(statement_in, envelopes(original / ATTESTATIONS))):
        assert statement["subject"] == subject
    assert {item["name"] for item in signed["predicate"]["resources"]} == {"model.safetensors", "config.json"}


def test_the_statements_say_what_the_certificate_and_the_verification_say(original: Path) -> None:
    certificate, result = map(statement_in, envelopes(original / ATTESTATIONS))
    assert certificate["predicateType"] == CERTIFICATE_TYPE
    assert certificate["predicate"] == json.loads((original / "certificate.json").read_text())
    plain = hush.verify(original)
    assert result["predicateType"] == RESULT_TYPE
    predicate = result["predicate"]
    assert predicate["passedTests"] == [check.name for check in plain.checks]
    assert predicate[VERIFICATION_FIELD]["unproven"] == list(plain.unproven)
    assert predicate[VERIFICATION_FIELD]["hush"] == hush.__version__
    for named in predicate["configuration"]:
        content = (original / named["name"]).read_bytes()
        assert named["digest"] == {"sha256": hashlib.sha256(content).hexdigest()}


def test_what_the_verifier_knows_besides_does_not_contradict_the_attested_result(
    original: Path, keys: Keys, plan: hush.Plan
) -> None:
    points = zip(plan.prior, plan.ceiling, strict=True)
    secrets = hush.Secrets([hush.Protection.of(*zip(*row, strict=True)) for row in points], ids=plan.secret_ids)
    found = hush.verify(original, public_key=keys.public, incidence=plan.incidence, secrets=secrets)
    assert found.passed
    assert {"graph", "promises", "attestations"} <= {check.name for check in found.checks}


def test_attestations_may_come_another_way_than_the_release(release: Path, keys: Keys, tmp_path: Path) -> None:
    elsewhere = tmp_path / "mail"
    elsewhere.mkdir()
    for name in ("model.sig", ATTESTATIONS):
        shutil.move(release / name, elsewhere / name)
    assert failed(release, public_key=keys.public) == {"model.sig", "attestations"}
    assert hush.verify(release, public_key=keys.public, attestation=elsewhere / ATTESTATIONS).passed


def test_detached_signatures_and_attestations_stand_beside_each_other(
    release: Path, keys: Keys, tmp_path: Path
) -> None:
    create_keys(tmp_path / "private.pem", tmp_path / "public.pem")
    sign(release, tmp_path / "private.pem")
    signed = hush.verify(release, public_key=tmp_path / "public.pem")
    assert signed.passed
    assert "signature" in {check.name for check in signed.checks}
    assert set(signed.unchecked) >= {"model.sig", ATTESTATIONS}
    assert "certificate.sig" in hush.verify(release, public_key=keys.public).unchecked


def test_what_the_hub_and_its_client_add_to_a_download_is_named_as_not_checked(release: Path, keys: Keys) -> None:
    (release / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (release / ".cache" / "huggingface").mkdir(parents=True)
    found = hush.verify(release, public_key=keys.public)
    assert found.passed
    assert {".gitattributes", ".cache/"} <= set(found.unchecked)
    (release / "model" / ".gitattributes").write_text("*")  # OpenSSF Model Signing does not look at this name
    assert failed(release, public_key=keys.public) == {"model", "attestations"}


# No change goes unnoticed.


def change_model(release: Path, _: Keys) -> None:
    content = bytearray((release / "model" / "model.safetensors").read_bytes())
    content[7] ^= 1
    (release / "model" / "model.safetensors").write_bytes(content)


def add_file(release: Path, _: Keys) -> None:
    (release / "model" / "modeling_extra.py").write_text("print('hello')")


def remove_file(release: Path, _: Keys) -> None:
    (release / "model" / "config.json").unlink()


def rename_file(release: Path, _: Keys) -> None:
    """The order of names stays, and with it the digest that is the subject: the names alone tell."""
    (release / "model" / "model.safetensors").rename(release / "model" / "model2.safetensors")


def swap_certificates(release: Path, _: Keys) -> None:
    for name in ("certificate.json", "certificate.md"):
        shutil.copyfile(release.parent / "other" / name, release / name)


def replay_both(release: Path, _: Keys) -> None:
    for name in ("model.sig", ATTESTATIONS):
        shutil.copyfile(release.parent / "other" / name, release / name)


def replay_statements(release: Path, _: Keys) -> None:
    shutil.copyfile(release.parent / "other" / ATTESTATIONS, release / ATTESTATIONS)


def replay_of_the_same_model(release: Path, _: Keys) -> None:
    """The signer attested the same files under another plan."""
    for name in ("model.sig", ATTESTATIONS):
        shutil.copyfile(release.parent / "again" / name, release / name)


def replay_one_statement(release: Path, _: Keys) -> None:
    mine, others = (envelopes(folder / ATTESTATIONS) for folder in (release, release.parent / "again"))
    write_envelopes(release / ATTESTATIONS, [mine[0], others[1]])


def edited(**changes: Any) -> Callable[[Path, Keys], None]:
    """Changes the first statement, under its old signature."""

    def change(release: Path, _: Keys) -> None:
        first, second = envelopes(release / ATTESTATIONS)
        write_envelopes(release / ATTESTATIONS, [with_statement(first, **changes), second])

    return change


def change_predicate(release: Path, keys: Keys) -> None:
    predicate = statement_in(envelopes(release / ATTESTATIONS)[0])["predicate"]
    edited(predicate=predicate | {"noise_multiplier": 100.0})(release, keys)


def swap_predicates(release: Path, _: Keys) -> None:
    first, second = envelopes(release / ATTESTATIONS)
    payloads = {"payload": second["payload"]}, {"payload": first["payload"]}
    write_envelopes(release / ATTESTATIONS, [first | payloads[0], second | payloads[1]])


def sign_with_another_key(release: Path, keys: Keys) -> None:
    hush.attest(release, private_key=keys.other_private, force=True)


def mix_signers(release: Path, keys: Keys) -> None:
    """The model by the one who is trusted, the statements by another."""
    mine = (release / "model.sig").read_bytes()
    sign_with_another_key(release, keys)
    (release / "model.sig").write_bytes(mine)


def sign_a_lie(release: Path, keys: Keys) -> None:
    """Somebody who holds another key states another certificate, and names the key that is trusted."""
    first, second = envelopes(release / ATTESTATIONS)
    forged = with_statement(first, predicate=statement_in(first)["predicate"] | {"rounds": 1})
    payload = base64.b64decode(forged["payload"])
    key: Any = serialization.load_pem_private_key(keys.other_private.read_bytes(), None)
    encoded = f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload
    signature = base64.b64encode(key.sign(encoded, ec.ECDSA(hashes.SHA256()))).decode()
    forged["signatures"][0]["sig"] = signature
    write_envelopes(release / ATTESTATIONS, [forged, second])


def in_envelope(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Keys], None]:
    """Changes the first envelope around its statement."""

    def changed(release: Path, _: Keys) -> None:
        first, second = envelopes(release / ATTESTATIONS)
        change(first)
        write_envelopes(release / ATTESTATIONS, [first, second])

    return changed


def drop_statement(release: Path, _: Keys) -> None:
    write_envelopes(release / ATTESTATIONS, envelopes(release / ATTESTATIONS)[:1])


def repeat_statement(release: Path, _: Keys) -> None:
    first, second = envelopes(release / ATTESTATIONS)
    write_envelopes(release / ATTESTATIONS, [first, second, first])


def add_unsigned_statement(release: Path, _: Keys) -> None:
    first, second = envelopes(release / ATTESTATIONS)
    write_envelopes(release / ATTESTATIONS, [first, second, with_statement(first, predicateType="https://audit/v1")])


def drop_attestations(release: Path, _: Keys) -> None:
    (release / ATTESTATIONS).unlink()


def drop_model_signature(release: Path, _: Keys) -> None:
    (release / "model.sig").unlink()


def unname_model_key(release: Path, _: Keys) -> None:
    """Without the name of its key OpenSSF prints a warning, and checks the signature all the same."""
    content = json.loads((release.parent / "other" / "model.sig").read_text())
    content["verificationMaterial"]["publicKey"].pop("hint")
    (release / "model.sig").write_text(json.dumps(content))


def garbage(release: Path, _: Keys) -> None:
    (release / ATTESTATIONS).write_bytes(b"\xff\xfe[[[\n{}\n")


def garbage_for_the_model(release: Path, _: Keys) -> None:
    (release / "model.sig").write_bytes(b"[1, 2]")


def edit_model_signature(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Keys], None]:
    """Changes what is around the signed statement in model.sig."""

    def changed(release: Path, _: Keys) -> None:
        content = json.loads((release / "model.sig").read_text())
        change(content)
        (release / "model.sig").write_text(json.dumps(content))

    return changed


def unsign(content: dict[str, Any]) -> None:
    content["dsseEnvelope"]["signatures"] = []


def spell_twice(content: dict[str, Any]) -> None:
    """The library of OpenSSF takes both spellings: which of the two it verifies must not matter."""
    content["dsse_envelope"] = content["dsseEnvelope"]


OTHER_SUBJECT = [{"name": "model", "digest": {"sha256": "ab" * 32}}]
# The change, which of our checks notices it, and whether OpenSSF Model Signing does, whose subject is the model alone.
TAMPERINGS: dict[str, tuple[Callable[[Path, Keys], None], str, bool]] = {
    "a byte of the model": (change_model, "model.sig", True),
    "a file added to the model": (add_file, "model.sig", True),
    "a file removed from the model": (remove_file, "model.sig", True),
    "a file of the model renamed": (rename_file, "model.sig", True),
    "the certificates of another release": (swap_certificates, "model", False),
    "the attestations of another release": (replay_both, "model.sig", True),
    "the statements of another release": (replay_statements, "attestations", False),
    "the attestations of the same model under another plan": (replay_of_the_same_model, "attestations", False),
    "one statement of another plan": (replay_one_statement, "attestations", False),
    "another predicate": (change_predicate, "attestations", False),
    "two predicates exchanged": (swap_predicates, "attestations", False),
    "another subject": (edited(subject=OTHER_SUBJECT), "attestations", False),
    "another type of predicate": (edited(predicateType=RESULT_TYPE), "attestations", False),
    "another type of statement": (edited(_type="https://in-toto.io/Statement/v0.1"), "attestations", False),
    "another key": (sign_with_another_key, "model.sig", True),
    "another key for the statements": (mix_signers, "attestations", False),
    "another key under the name of the right one": (sign_a_lie, "attestations", False),
    "another type of payload": (in_envelope(lambda it: it.update(payloadType="text/plain")), "attestations", False),
    "no signature": (in_envelope(lambda it: it.update(signatures=[])), "attestations", False),
    "no list of signatures": (in_envelope(lambda it: it.pop("signatures")), "attestations", False),
    "an unsigned remark": (in_envelope(lambda it: it.update(note="approved")), "attestations", False),
    "an unsigned remark on a signature": (
        in_envelope(lambda it: it["signatures"][0].update(by="the board")), "attestations", False
    ),
    "a statement less": (drop_statement, "attestations", False),
    "a statement twice": (repeat_statement, "attestations", False),
    "an unsigned statement": (add_unsigned_statement, "attestations", False),
    "no attestations": (drop_attestations, "attestations", False),
    "no signature of the model": (drop_model_signature, "model.sig", True),
    "an empty signature of the model": (edit_model_signature(unsign), "model.sig", True),
    "a remark in the signature of the model": (
        edit_model_signature(lambda it: it.update(note="approved")), "model.sig", True
    ),
    "two envelopes in the signature of the model": (edit_model_signature(spell_twice), "model.sig", True),
    "another type of payload in the signature of the model": (
        edit_model_signature(lambda it: it["dsseEnvelope"].update(payloadType="text/plain")), "model.sig", True
    ),
    "a signature of another model that names no key": (unname_model_key, "model.sig", True),
    "garbage for attestations": (garbage, "attestations", False),
    "garbage for a signature of the model": (garbage_for_the_model, "model.sig", True),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_every_tampering_is_noticed(
    original: Path, release: Path, keys: Keys, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, check, openssf_notices = TAMPERINGS[name]
    for sibling in ("other", "again"):
        shutil.copytree(original.parent / sibling, release.parent / sibling)
    assert openssf_accepts(release, "--public_key", keys.public)
    change(release, keys)
    capsys.readouterr()
    assert check in failed(release, public_key=keys.public)
    assert capsys.readouterr().out == ""  # a program may read what hush verify prints
    assert openssf_accepts(release, "--public_key", keys.public) == (not openssf_notices)


def test_whoever_writes_everything_again_lacks_the_key(release: Path, keys: Keys, plan: hush.Plan) -> None:
    """Consistent files pass as long as nobody asks by whom."""
    change_model(release, keys)
    certify(release, plan)
    hush.attest(release, private_key=keys.other_private, force=True)
    assert hush.verify(release).passed
    assert hush.verify(release, public_key=keys.other_public).passed
    assert failed(release, public_key=keys.public) == {"model.sig", "attestations"}


def test_certificates_vouch_for_their_signer_alone(original: Path, keys: Keys, tmp_path: Path) -> None:
    vouched = original.with_name("certified")
    ours, theirs = keys.authority, keys.other_authority
    assert failed(vouched, certificate_chain=[theirs.root]) == {"model.sig", "attestations"}
    assert failed(original, certificate_chain=[ours.root]) == {"model.sig", "attestations"}  # signed by a key
    assert "no signature that a key can check" in detail(vouched, "model.sig", public_key=keys.public)
    assert "no signature that certificates can check" in detail(original, "model.sig", certificate_chain=[ours.root])
    shutil.copytree(vouched, tmp_path / "mixed")
    shutil.copyfile(original / ATTESTATIONS, tmp_path / "mixed" / ATTESTATIONS)
    assert failed(tmp_path / "mixed", certificate_chain=[ours.root]) == {"attestations"}
    with pytest.raises(hush.InvalidInput, match="is not the certificate of the key"):
        hush.attest(vouched, private_key=ours.key, certificate=theirs.certificate, force=True)


def test_a_certificate_of_a_second_spelling_does_not_stand_for_the_one_that_is_verified(
    original: Path, keys: Keys, tmp_path: Path
) -> None:
    """The statements by somebody else, whose certificate stands in model.sig beside that of the one who is trusted."""
    forged, theirs = tmp_path / "forged", keys.other_authority
    shutil.copytree(original.with_name("certified"), forged)
    mine = json.loads((forged / "model.sig").read_text())
    hush.attest(forged, private_key=theirs.key, certificate=theirs.certificate, chain=[theirs.chain], force=True)
    other = json.loads((forged / "model.sig").read_text())["verificationMaterial"]["x509CertificateChain"]
    material = mine["verificationMaterial"]
    for spellings in (
        {"x509_certificate_chain": material["x509CertificateChain"], "x509CertificateChain": other},
        {"x509_certificate_chain": other, "x509CertificateChain": material["x509CertificateChain"]},
        {"x509_certificate_chain": material["x509CertificateChain"]},
    ):
        content = mine | {"verificationMaterial": {"tlogEntries": [], **spellings}}
        (forged / "model.sig").write_text(json.dumps(content))
        assert failed(forged, certificate_chain=[keys.authority.root]) == {"model.sig", "attestations"}


def test_a_result_of_another_version_counts_if_it_passed(
    release: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hush.plan.attestations.__version__", "0.0.9")
    monkeypatch.setattr("hush.plan.verify.NOT_ATTESTED", ("binding",))  # that version did not know this check
    hush.attest(release, private_key=keys.private, force=True)
    monkeypatch.undo()
    assert hush.verify(release, public_key=keys.public).passed
    monkeypatch.setattr("hush.plan.verify.NOT_ATTESTED", ("binding",))  # this version knows it
    hush.attest(release, private_key=keys.private, force=True)
    monkeypatch.undo()
    found = detail(release, "attestations", public_key=keys.public)
    assert found == "the statement about the result of the verification does not fit this release in passedTests"


# What is not attested.


def test_nothing_is_attested_that_fails_or_certifies_nothing(release: Path, keys: Keys, plan: hush.Plan) -> None:
    before = (release / ATTESTATIONS).read_bytes()
    with pytest.raises(hush.InvalidInput, match="so the release is attested; to do it again, pass force"):
        hush.attest(release, private_key=keys.private)
    with pytest.raises(hush.InvalidInput, match="is not a release, and attestations are about a model"):
        hush.attest(release / "plan", private_key=keys.private)
    certify(release, plan, marks=("insecure_seed was set",))
    with pytest.raises(hush.InvalidInput, match="carries a mark and certifies nothing"):
        hush.attest(release, private_key=keys.private, force=True)
    certify(release, plan)
    (release / "model" / "config.json").write_text("{}")
    with pytest.raises(hush.InvalidInput, match="was not attested; model: its files have the fingerprint"):
        hush.attest(release, private_key=keys.private, force=True)
    assert (release / ATTESTATIONS).read_bytes() == before


def test_keys_that_cannot_attest_are_refused_and_say_what_can(release: Path, keys: Keys, tmp_path: Path) -> None:
    create_keys(tmp_path / "private.pem", tmp_path / "public.pem")
    odd = ec.generate_private_key(ec.SECP256K1())
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "odd.pem").write_bytes(odd.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    public = odd.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "odd-public.pem").write_bytes(public)
    for name in ("private.pem", "odd.pem"):
        with pytest.raises(hush.InvalidInput, match="is not an elliptic-curve key on P-256"):
            hush.attest(release, private_key=tmp_path / name, force=True)
    with pytest.raises(hush.InvalidInput, match="is not a key on P-256"):
        hush.verify(release, public_key=tmp_path / "odd-public.pem")
    with pytest.raises(hush.InvalidInput, match="is not an unencrypted PEM private key"):
        hush.attest(release, private_key=keys.public, force=True)
    with pytest.raises(hush.InvalidInput, match="is not a PEM certificate"):
        hush.verify(release, certificate_chain=[keys.public])
    with pytest.raises(hush.InvalidInput, match="pass a key or certificates"):
        hush.verify(release, public_key=keys.public, certificate_chain=[keys.authority.root])
    with pytest.raises(hush.InvalidInput, match="pass the key of their signer as public_key"):
        hush.verify(release, attestation=release / ATTESTATIONS)
    with pytest.raises(hush.InvalidInput, match="is not a release, and attestations are about a model"):
        hush.verify(release / "plan", public_key=keys.public)


@pytest.mark.parametrize("library", ["model_signing", "securesystemslib", "in_toto_attestation.v1"])
def test_a_missing_library_is_named_with_what_to_install(
    release: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(hush.InvalidInput, match=rf'the library {library}; pip install "hush\[attest\]"'):
        hush.verify(release, public_key=keys.public)
    assert hush.verify(release).passed  # without a key none of them is needed
