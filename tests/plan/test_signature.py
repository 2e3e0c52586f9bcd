"""Who vouches for a plan: a signature holds for one key and one plan, and nothing else."""

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

import hush
from hush.plan.files import create_keys, sign


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    create_keys(tmp_path / "private.pem", tmp_path / "public.pem")
    return tmp_path / "private.pem", tmp_path / "public.pem"


@pytest.fixture
def folder(plan: hush.Plan, tmp_path: Path) -> Path:
    plan.save(tmp_path / "plan")
    return tmp_path / "plan"


def problem(folder: Path, key: Path) -> str | None:
    (check,) = (check for check in hush.verify(folder, public_key=key).checks if check.name == "signature")
    return None if check.passed else check.detail


def test_a_signature_holds_for_its_key_and_plan(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    assert sign(folder, private) == folder / "plan.sig"
    assert problem(folder, public) is None
    assert hush.verify(folder, public_key=public).passed
    create_keys(tmp_path / "other.pem", tmp_path / "other-public.pem")
    assert "not valid for this key" in str(problem(folder, tmp_path / "other-public.pem"))
    signature = bytearray((folder / "plan.sig").read_bytes())
    signature[0] ^= 1
    (folder / "plan.sig").write_bytes(bytes(signature))
    assert "not valid" in str(problem(folder, public))
    (folder / "plan.sig").unlink()
    assert "there is no plan.sig" in str(problem(folder, public))


def test_a_signature_covers_every_file(plan: hush.Plan, folder: Path, keys: tuple[Path, Path]) -> None:
    sign(folder, keys[0])
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text + "\n")  # the same content
    assert "not valid" in str(problem(folder, keys[1]))
    (folder / "plan.json").write_text(text)
    for file in folder.glob("*.parquet"):
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        assert not hush.verify(folder, public_key=keys[1]).passed
        file.write_bytes(content)
    assert hush.verify(folder, public_key=keys[1]).passed


def test_the_private_key_is_its_owners_alone_and_keys_are_never_overwritten(keys: tuple[Path, Path]) -> None:
    private, public = keys
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    before = private.read_bytes()
    with pytest.raises(hush.InvalidInput, match="never overwritten"):
        create_keys(private, public.with_name("new.pem"))
    with pytest.raises(hush.InvalidInput, match="never overwritten"):
        create_keys(private.with_name("new.pem"), public)
    with pytest.raises(hush.InvalidInput, match="name two files"):
        create_keys(private.with_name("one.pem"), private.with_name("one.pem"))
    assert private.read_bytes() == before
    assert sorted(path.name for path in private.parent.iterdir()) == ["private.pem", "public.pem"]


def test_keys_of_another_kind_are_refused(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    key = generate_private_key(SECP256R1())
    other, other_public, garbage = (tmp_path / name for name in ("ec.pem", "ec-public.pem", "garbage.pem"))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    other_public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    garbage.write_text("hunter2")
    for wrong in (other, public, garbage):
        with pytest.raises(hush.InvalidInput, match="is not an"):
            sign(folder, wrong)
    for wrong in (other_public, private, garbage):
        with pytest.raises(hush.InvalidInput, match="is not a"):
            hush.verify(folder, public_key=wrong)
    assert not (folder / "plan.sig").exists()


def test_a_changed_plan_is_not_signed(folder: Path, keys: tuple[Path, Path]) -> None:
    (folder / "certificate.md").write_text("All is well.")
    with pytest.raises(hush.InvalidInput, match=r"certificate\.md changed"):
        sign(folder, keys[0])
    with pytest.raises(hush.InvalidInput, match=r"holds no plan\.json"):
        sign(folder.parent, keys[0])
