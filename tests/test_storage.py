"""Tables on disk: every name that the system allows, errors that name the file, and an end without aborts."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hush
from hush.storage import mapped, parquet_table, read_table, write_table

ODD = os.fsdecode(b"odd-\xff-name.parquet")  # not UTF-8
TABLE = pa.table({"number": list(range(1000)), "text": [f"row {row}" for row in range(1000)]})


@pytest.mark.parametrize("name", ["plain.parquet", "spaces and ünïcode.parquet", ODD])
def test_a_table_comes_back_as_it_was_under_any_name(tmp_path: Path, name: str) -> None:
    write_table(TABLE, tmp_path / name, kind="test", metadata={"a": "b"})
    table, labels = read_table(tmp_path / name, kind="test", columns=("number",))
    assert table.equals(TABLE)
    assert labels == {"a": "b", "kind": "test"}
    assert parquet_table(tmp_path / name, columns=["text", "other"]).equals(TABLE.select(["text"]))


def test_content_is_mapped_byte_for_byte(tmp_path: Path) -> None:
    for content in (b"", b"x", bytes(range(256)) * 100):
        (tmp_path / "any").write_bytes(content)
        assert mapped(tmp_path / "any").read() == content


@pytest.mark.parametrize("name", ["nosuch.parquet", ODD])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read_table(tmp_path / name, kind="test", columns=())
    assert caught.value.filename == str(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        parquet_table(tmp_path)


def test_whatever_is_damaged_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(TABLE, path, compression="zstd")
    whole = path.read_bytes()
    at = whole.index(bytes.fromhex("28b52ffd"))  # where zstd begins
    torn = whole[:at] + bytes(50) + whole[at + 50 :]  # a column that does not decompress, under a whole footer
    for content in (b"", b"PAR1", whole[:-20], torn):
        path.write_bytes(content)
        with pytest.raises(hush.InvalidInput, match=r"t\.parquet is not a readable Parquet file; write it again$"):
            parquet_table(path)


def test_a_process_that_read_a_table_and_ends_at_once_does_not_abort(tmp_path: Path) -> None:
    """Threads of Arrow that called Python at its exit aborted one of ten such processes."""
    write_table(TABLE, tmp_path / "t.parquet", kind="test")
    script = "from hush.storage import read_table; read_table('t.parquet', kind='test', columns=())"
    command = [sys.executable, "-c", script]
    ended = [subprocess.run(command, check=False, cwd=tmp_path).returncode for _ in range(5)]
    assert ended == [0] * 5
