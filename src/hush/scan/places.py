"""Which row of which file each example is, for the owner: ids that stay the same and say nothing about the content."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hush.scan.collecting import Collecting
from hush.scan.owner import ROW_GROUP, OwnerWriter

__all__ = ["write_examples"]


def write_examples(found: Collecting, path: Path, source: str) -> None:
    """The table of examples: id (of its column, or FILE:ROW), file, row and, if there is a key, fingerprint."""
    file_N, row_N, leaf_N, ids = found.column("file"), found.column("row"), found.column("leaf"), found.ids()
    names = pa.array(map(_utf8, found.files), pa.string())
    short = [_utf8(_short(name, source)) for name in found.files]
    schema = pa.schema({"id": pa.string(), "file": pa.string(), "row": pa.int64()})
    if leaf_N is not None:
        schema = schema.append(pa.field("fingerprint", pa.binary(leaf_N.shape[1])))
    with OwnerWriter(path, schema, kind="scan examples") as writer:
        for begin in range(0, found.num_examples, ROW_GROUP):
            part = slice(begin, begin + ROW_GROUP)
            places = [
                f"{short[file]}:{row}" for file, row in zip(file_N[part].tolist(), row_N[part].tolist(), strict=True)
            ]
            columns: dict[str, Any] = {"id": places, "file": names.take(pa.array(file_N[part])), "row": row_N[part]}
            if ids is not None:
                given = ids.slice(begin, len(places)).to_pylist()
                columns["id"] = [place if name is None else name for name, place in zip(given, places, strict=True)]
            if leaf_N is not None:
                leaves = np.ascontiguousarray(leaf_N[part])
                columns["fingerprint"] = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(leaves.shape[1]), len(leaves), [None, pa.py_buffer(leaves)]
                )
            writer.write(columns)


def _utf8(name: str) -> str:
    """A file's name as text, also where the system has bytes in it that are none."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _short(name: str, source: str) -> str:
    """A file's name below the source, or its last part where it is the source: the same on every machine."""
    path = Path(name)
    if name == source or not path.is_relative_to(source):
        return path.name
    return path.relative_to(source).as_posix()
