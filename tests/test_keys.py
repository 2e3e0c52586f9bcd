"""The owner's key: what it fingerprints is told apart exactly, and neither key nor content shows anywhere."""

import errno
import hashlib
import hmac
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush import keys as keyed
from hush.keys import DataKey, check_key_apart, is_fingerprint, key_id_of

ROWS = st.lists(st.one_of(st.text("ab\x00é", max_size=3), st.binary(max_size=3)), max_size=4)
KEY = DataKey(bytes(range(32)))


@given(ROWS, ROWS)
def test_fingerprints_are_equal_exactly_for_equal_rows_in_equal_order(
    one: list[str | bytes], other: list[str | bytes]
) -> None:
    assert (KEY.fingerprint_rows(one) == KEY.fingerprint_rows(iter(other))) == (one == other)


def written_out(message: bytes) -> bytes:
    """HMAC-SHA256 as RFC 2104 writes it."""
    block = bytes(range(32)) + bytes(32)
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + message).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()


@given(ROWS)
def test_a_second_hmac_agrees(rows: list[str | bytes]) -> None:
    """HMAC written out over the serialisation written out."""
    message = b"hush rows 2\n"
    for row in rows:
        content = row.encode() if isinstance(row, str) else row
        kind = b"s" if isinstance(row, str) else b"b"
        message += written_out(b"hush row 2\n" + kind + len(content).to_bytes(8, "little") + content)
    message += len(rows).to_bytes(8, "little")
    assert KEY.fingerprint_rows(rows) == f"{KEY.id}:{written_out(message).hex()}"


@given(ROWS, st.integers(0, 4))
def test_leaves_made_apart_and_joined_in_runs_give_the_fingerprint_of_the_rows(
    rows: list[str | bytes], cut: int
) -> None:
    leaves = [KEY.fingerprint_row(row) for row in reversed(rows)][::-1]
    assert KEY.fingerprint_leaves(leaves) == KEY.fingerprint_rows(rows)
    assert KEY.fingerprint_leaves([b"".join(leaves[:cut]), b"".join(leaves[cut:])]) == KEY.fingerprint_rows(rows)


def test_a_leaf_is_no_corpus_and_half_a_leaf_is_no_leaf() -> None:
    assert KEY.fingerprint_row("a").hex() not in (
        KEY.fingerprint_rows(["a"]),
        KEY.fingerprint_rows(["a"]).split(":")[1],
    )
    with pytest.raises(hush.InvalidInput, match="a leaf has 31 bytes"):
        KEY.fingerprint_leaves([bytes(31)])
    with pytest.raises(hush.InvalidInput, match="a row is a int"):
        KEY.fingerprint_row(3)  # pyright: ignore[reportArgumentType]


def test_rows_that_run_together_alike_are_told_apart() -> None:
    corpora = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], ["c", "ab"], [], [""], [b"abc"], ["\ud800"]]
    assert len({KEY.fingerprint_rows(rows) for rows in corpora}) == len(corpora)


def test_another_key_gives_another_fingerprint_and_another_id() -> None:
    other = DataKey(bytes(32))
    assert other.fingerprint_rows(["a"]).split(":")[1] != KEY.fingerprint_rows(["a"]).split(":")[1]
    assert other.id != KEY.id
    assert key_id_of(KEY.fingerprint_rows(["a"])) == KEY.id
    assert other != KEY
    assert DataKey(bytes(range(32))) == KEY
    assert len({KEY, DataKey(bytes(range(32))), other}) == 2
    assert KEY != "key"


def test_a_key_comes_from_the_systems_entropy_into_a_file_of_its_owner(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        made = DataKey.create(tmp_path / "one.key")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "one.key").stat().st_mode) == 0o600
    assert DataKey.load(tmp_path / "one.key") == made == DataKey.load_or_create(tmp_path / "one.key")
    assert DataKey.load_or_create(tmp_path / "two.key") != made
    assert DataKey.load(tmp_path / "two.key") != made


def test_a_kill_leaves_a_whole_key_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            DataKey.create(tmp_path / "my.key")
    assert list(tmp_path.iterdir()) == []
    made = DataKey.create(tmp_path / "my.key")
    assert [path.name for path in tmp_path.iterdir()] == ["my.key"]
    assert DataKey.load(tmp_path / "my.key") == made


def test_two_that_need_a_key_at_once_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = DataKey.create(tmp_path / "my.key")
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as the second saw it just before
    assert DataKey.load_or_create(tmp_path / "my.key") == first


def without_links(number: int) -> Callable[..., None]:
    """What stands for os.link on a file system that has none."""

    def link(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    return link


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_without_hard_links_keys_are_made_and_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", without_links(number))
    made = DataKey.create(tmp_path / "my.key")
    with pytest.raises(hush.InvalidInput, match="never overwritten"):
        DataKey.create(tmp_path / "my.key")
    assert DataKey.load(tmp_path / "my.key") == made
    assert [path.name for path in tmp_path.iterdir()] == ["my.key"]
    assert stat.S_IMODE((tmp_path / "my.key").stat().st_mode) == 0o600


def test_without_hard_links_many_that_need_a_key_at_once_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def slowly(*names: Any) -> None:
        time.sleep(0.05)  # the others find the name taken, and the key not yet there
        replace(*names)

    monkeypatch.setattr(os, "link", without_links(errno.EPERM))
    monkeypatch.setattr(os, "replace", slowly)
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: DataKey.load_or_create(tmp_path / "my.key"), range(8)))
    assert keys == {DataKey.load(tmp_path / "my.key")}
    assert [path.name for path in tmp_path.iterdir()] == ["my.key"]


def test_without_hard_links_an_interrupt_leaves_nothing_and_a_kill_nothing_that_passes_for_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", without_links(errno.EPERM))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            DataKey.create(tmp_path / "my.key")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "my.key").touch(mode=0o600)  # what a kill leaves between the name and the key
    monkeypatch.setattr(keyed, "WAIT_SECONDS", 0.0)
    for again in (DataKey.load, DataKey.load_or_create):
        with pytest.raises(hush.InvalidInput, match=r"is not a data key but empty.*delete it"):
            again(tmp_path / "my.key")
    with pytest.raises(hush.InvalidInput, match="never overwritten"):
        DataKey.create(tmp_path / "my.key")


def test_another_failure_of_a_link_is_not_taken_for_a_lack_of_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", without_links(errno.ENOSPC))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        DataKey.create(tmp_path / "my.key")
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    made = DataKey.create(tmp_path / "my.key")
    with pytest.raises(hush.InvalidInput, match="never overwritten"):
        DataKey.create(tmp_path / "my.key")
    assert DataKey.load(tmp_path / "my.key") == made


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    DataKey.create(tmp_path / "my.key")
    (tmp_path / "my.key").chmod(mode)
    with pytest.raises(hush.InvalidInput, match="chmod 600"):
        DataKey.load(tmp_path / "my.key")


@pytest.mark.parametrize(
    "content", [b"", b"hunter2\n", b"hush data key 1\n" + b"0" * 63 + b"\n", b"\x00" * 32, b"0" * 300]
)
def test_any_other_file_is_no_key_and_its_content_stays_unsaid(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(hush.InvalidInput, match="is not a data key") as caught:
        DataKey.load(path)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        DataKey.load(tmp_path / "missing")


def test_what_is_no_place_for_a_key_is_named_and_nobody_is_locked_out(tmp_path: Path) -> None:
    """Advice to change permissions is for keys alone: of a folder it would lock its owner out."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "hunter2"}\n')
    data.chmod(0o644)
    for path, said in [
        (tmp_path, f"{tmp_path} is a folder; name the file of the key"),
        (data, "is not a data key; pass the file that was created as key, or the name of a new file"),
    ]:
        with pytest.raises(hush.InvalidInput) as caught:
            DataKey.load_or_create(path)
        assert said in str(caught.value)
        assert "chmod" not in str(caught.value)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(FileNotFoundError) as missing:
        DataKey.load_or_create(tmp_path / "nosuch" / "my.key")
    assert missing.value.filename == str(tmp_path / "nosuch")


def test_nothing_shows_the_key() -> None:
    secret = bytes(range(32))
    shown = f"{KEY!r} {KEY} {KEY.id} {[KEY]}"
    assert secret.hex() not in shown
    assert repr(secret)[2:20] not in shown
    assert repr(KEY) == f"DataKey(id='{KEY.id}')"
    assert KEY.id == hmac.new(secret, b"hush data key id 1", "sha256").hexdigest()[:16]


@pytest.mark.parametrize("secret", [b"", bytes(31), "0" * 32, None])
def test_a_key_of_another_size_is_refused(secret: bytes) -> None:
    with pytest.raises(hush.InvalidInput, match="exactly 32 bytes"):
        DataKey(secret)


def test_a_row_that_is_no_text_is_named_by_its_index() -> None:
    with pytest.raises(hush.InvalidInput, match="row 1 is a int; pass text or bytes"):
        KEY.fingerprint_rows(["a", 3])  # pyright: ignore[reportArgumentType]


def test_what_is_no_fingerprint_is_recognised() -> None:
    good = KEY.fingerprint_rows([])
    assert is_fingerprint(good)
    for bad in (None, 3, "", good[:-1], good.upper(), good + "0", good.replace(":", ""), f" {good}"):
        assert not is_fingerprint(bad)
    with pytest.raises(hush.InvalidInput, match="not a keyed fingerprint"):
        key_id_of("abc")


def test_a_key_that_would_be_read_as_data_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "data" / "deep" / "my.txt", tmp_path / "my.txt"
    inside.parent.mkdir(parents=True)
    folder = str(tmp_path / "data")
    with pytest.raises(hush.InvalidInput, match="lies inside the data") as caught:
        check_key_apart(inside, folder, read_as_data=True)
    assert caught.value.setting == "key"
    check_key_apart(inside, folder, read_as_data=False)
    check_key_apart(outside, folder, read_as_data=True)
    check_key_apart(inside, "a/name/on/the/hub", read_as_data=True)
