"""What is on disk: tables under every name, errors that name the file, modes, and an end without aborts."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush import storage
from hush.keys import DataKey
from hush.storage import (
    arrow_file,
    clear_leftovers,
    discard,
    is_leftover,
    parquet_file,
    parquet_table,
    read_table,
    readable_like_folder,
    whole_file,
    whole_folder,
    write_table,
)
from limits import no_file_above

ODD = os.fsdecode(b"odd-\xff-name.parquet")  # not UTF-8
TABLE = pa.table({"number": list(range(1000)), "text": [f"row {row}" for row in range(1000)]})


@pytest.mark.parametrize("name", ["plain.parquet", "spaces and ünïcode.parquet", ODD])
def test_a_table_comes_back_as_it_was_under_any_name(tmp_path: Path, name: str) -> None:
    write_table(TABLE, tmp_path / name, kind="test", metadata={"a": "b"})
    table, labels = read_table(tmp_path / name, kind="test", columns=("number",))
    assert table.equals(TABLE)
    assert labels == {"a": "b", "kind": "test"}
    assert parquet_table(tmp_path / name, columns=["text", "other"]).equals(TABLE.select(["text"]))


def test_content_is_read_byte_for_byte_under_any_name(tmp_path: Path) -> None:
    for content in (b"", b"x", bytes(range(256)) * 100):
        (tmp_path / ODD).write_bytes(content)
        with arrow_file(tmp_path / ODD) as file:
            assert file.read() == content


@pytest.mark.parametrize("name", ["nosuch.parquet", ODD])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read_table(tmp_path / name, kind="test", columns=())
    assert caught.value.filename == str(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        parquet_table(tmp_path)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_table(TABLE.append_column("number", TABLE.column("number")), tmp_path / "t.parquet", kind="test")
    read_table(tmp_path / "t.parquet", kind="test", columns=("text",))
    with pytest.raises(hush.InvalidInput, match=r"t\.parquet has several columns of the names \['number'\]"):
        read_table(tmp_path / "t.parquet", kind="test", columns=("number",))


def test_whatever_is_damaged_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(TABLE, path, compression="zstd")
    whole = path.read_bytes()
    at = whole.index(bytes.fromhex("28b52ffd"))  # where zstd begins
    torn = whole[:at] + bytes(50) + whole[at + 50 :]  # a column that does not decompress, under a whole footer
    misspelt = whole.replace(b"number", b"numb\xffr")  # a name that is not UTF-8
    for content in (b"", b"PAR1", whole[:-20], torn, misspelt):
        path.write_bytes(content)
        with pytest.raises(hush.InvalidInput, match=r"t\.parquet is not a readable Parquet file; write it again$"):
            parquet_table(path)


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tables are written and damaged, again and again."""
    return tmp_path_factory.mktemp("tables") / "t.parquet"


def written() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, row_group_size=250, compression="none")
    return sink.getvalue().to_pybytes()


WRITTEN = written()


@given(st.integers(0, len(WRITTEN) - 1))
def test_a_file_cut_anywhere_is_refused_by_name(table_file: Path, size: int) -> None:
    table_file.write_bytes(WRITTEN[:size])
    with pytest.raises(hush.InvalidInput, match=r"t\.parquet is not a readable Parquet file; write it again$"):
        parquet_table(table_file)


@given(st.integers(0, len(WRITTEN)), st.integers(0, 4))
def test_a_file_cut_while_it_is_read_gives_what_it_held_or_is_refused(table_file: Path, size: int, read: int) -> None:
    """Mapped into memory, it would end the process."""
    table_file.write_bytes(WRITTEN)
    found: list[pa.Table] = []
    refused = None
    try:
        with parquet_file(table_file, remedy="scan again") as file:
            for group in range(4):
                if group == read:
                    os.truncate(table_file, size)
                found.append(file.read_row_group(group))
    except hush.InvalidInput as error:
        refused = str(error)
    if refused is None:
        assert pa.concat_tables(found).equals(TABLE)
    else:
        assert size < len(WRITTEN)
        assert refused == f"{table_file} is not a readable Parquet file; scan again"


@settings(max_examples=200)
@given(st.data())
def test_no_flipped_bit_changes_a_value_that_hush_wrote(table_file: Path, data: st.DataObject) -> None:
    write_table(TABLE, table_file, kind="test")
    whole = bytearray(table_file.read_bytes())
    footer = int.from_bytes(whole[-8:-4], "little") + 8  # which has no checksum
    place = data.draw(st.integers(0, len(whole) - footer - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    table_file.write_bytes(whole)
    with suppress(hush.InvalidInput):  # not every bit matters
        assert parquet_table(table_file).equals(TABLE)


def test_a_process_that_read_a_table_and_ends_at_once_does_not_abort(tmp_path: Path) -> None:
    """Threads of Arrow that called Python at its exit aborted one of ten such processes."""
    write_table(TABLE, tmp_path / "t.parquet", kind="test")
    script = "from hush.storage import read_table; read_table('t.parquet', kind='test', columns=())"
    command = [sys.executable, "-c", script]
    ended = [subprocess.run(command, check=False, cwd=tmp_path).returncode for _ in range(5)]
    assert ended == [0] * 5


def test_a_folder_is_as_readable_as_itself_all_the_way_down(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    (folder / "deep").mkdir(parents=True, mode=0o700)
    for path in (folder / "deep" / "private", elsewhere):
        path.touch(mode=0o600)
    (folder / "link").symlink_to(elsewhere)
    folder.chmod(0o755)
    readable_like_folder(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder / "deep", folder / "deep" / "private", elsewhere)] == [
        0o755, 0o644, 0o600,
    ]  # fmt: skip


def test_a_folder_that_finds_no_room_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="large") as caught, no_file_above(10), whole_folder(tmp_path / "new") as work:
        (work / "file").write_text("much longer than that")
    assert caught.value.filename == str(tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [65, 10**6])
def test_a_file_that_finds_no_room_is_named_and_leaves_what_was_there(tmp_path: Path, size: int) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")
    with no_file_above(64), pytest.raises(OSError, match="large") as caught, whole_file(path) as file:
        file.write(b"x" * size)
    assert caught.value.filename == str(path)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("kept", b"old")]


# --- left-over files and folders


def killed_while(work: Callable[[], object], name: str, *, number: int = 1) -> None:
    """Do this in a child that is killed before its call of this number of os.NAME."""
    child = os.fork()
    if child:
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), f"it made fewer than {number} calls of os.{name}"
        return
    real, calls = getattr(os, name), [0]

    def called(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)

    setattr(os, name, called)
    try:
        work()
    finally:
        os._exit(0)


def filled(folder: Path, text: str) -> None:
    with whole_folder(folder) as work:
        (work / "a.txt").write_text(text)


def whole_file_written(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"new")


LEAVING: list[tuple[str, Callable[[Path], object], str]] = [
    ("file.txt", whole_file_written, "fsync"),
    ("folder", lambda path: filled(path, "new"), "fsync"),
    ("folder", discard, "rmdir"),
    ("my.key", DataKey.create, "fsync"),
]


@pytest.mark.parametrize(("name", "work", "call"), LEAVING)
@pytest.mark.parametrize("of", [False, True])
def test_whatever_a_kill_leaves_has_one_form_of_name_and_is_cleared(
    tmp_path: Path, name: str, work: Callable[[Path], object], call: str, of: bool
) -> None:
    if call == "rmdir":
        filled(tmp_path / name, "old")
    killed_while(lambda: work(tmp_path / name), call)
    (left,) = tmp_path.iterdir()
    assert is_leftover(left.name)
    clear_leftovers(tmp_path, of="other" if of else None)
    assert left.exists() == of
    clear_leftovers(tmp_path, of=name if of else None)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_a_kill_left_without_its_name_gets_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system cannot exchange two folders in one step: old and new are both beside, under other names."""
    monkeypatch.setattr(storage, "_exchanged", lambda *_: False)
    filled(tmp_path / "folder", "old")
    replace = Path.replace

    def killing(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    child = os.fork()
    if not child:
        Path.replace = killing  # type: ignore[method-assign,assignment]
        filled(tmp_path / "folder", "new")
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".old", ".tmp"]
    clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (tmp_path / "folder" / "a.txt").read_text() == "old"


def test_an_old_folder_whose_successor_is_in_place_goes(tmp_path: Path) -> None:
    filled(tmp_path / "folder", "new")
    filled(tmp_path / ".folder.0123456789abcdef.old", "old")
    clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (tmp_path / "folder" / "a.txt").read_text() == "new"


@pytest.mark.parametrize("name", [".plan.0123456789abcdef.tmp", ".plan.0123456789abcdef.old", ".work.tmp"])
def test_what_0_1_0_left_is_recognised(name: str) -> None:
    assert is_leftover(name)


@pytest.mark.parametrize("name", ["plan", ".git", "notes.tmp", ".tmp", ".old", ".hush-demo"])
def test_other_names_are_no_leftovers(name: str) -> None:
    assert not is_leftover(name)


def test_links_are_removed_and_not_followed_and_folders_set_apart_are_not_entered(tmp_path: Path) -> None:
    for place in ("elsewhere", "run", "run/below", "run/apart"):
        (tmp_path / place).mkdir()
        (tmp_path / place / ".a.tmp").write_text("left")
    (tmp_path / "run" / ".link.tmp").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    clear_leftovers(tmp_path / "run", recursive=True, apart_from=[tmp_path / "run" / "apart"])
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob(".*.tmp"))
    assert left == ["elsewhere/.a.tmp", "run/apart/.a.tmp"]
    clear_leftovers(tmp_path / "missing", recursive=True)
