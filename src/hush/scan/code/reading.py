"""One file of a repository as text, or why it is none; no link is followed on the way."""

import stat
from pathlib import Path
from typing import Literal

__all__ = ["Kind", "content_or_problem", "encodes", "text_or_problem"]

LOOKED_AT = 8000  # bytes in which a zero means binary, as for git

Kind = Literal[
    "binary", "not UTF-8", "too large", "submodule", "link", "missing", "unreadable", "odd name", "hidden", "ignored"
]


def text_or_problem(root: Path, path: str) -> tuple[str | None, Kind | None]:
    """A file's text, or why it has none."""
    content, problem = content_or_problem(root, path, largest=None)
    return (None, problem) if content is None else (content.decode(), None)


def content_or_problem(root: Path, path: str, largest: int | None) -> tuple[bytes | None, Kind | None]:
    """A file's bytes if they are text, else why not. No link is followed, not even one that replaced a folder."""
    place = root / path
    try:
        if any((root / parent).is_symlink() for parent in Path(path).parents):
            return None, "link"
        found = place.lstat()
        if stat.S_ISLNK(found.st_mode):
            return None, "link"
        if not stat.S_ISREG(found.st_mode):  # a pipe would keep its reader waiting
            return None, "unreadable"
        if largest is not None and found.st_size > largest:
            return None, "too large"
        content = place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None, "missing"
    except OSError:
        return None, "unreadable"
    if b"\0" in content[:LOOKED_AT]:
        return None, "binary"
    try:
        content.decode()
    except UnicodeDecodeError:
        return None, "not UTF-8"
    return content, None


def encodes(path: str) -> bool:
    """Whether a path can be written as UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8 come as lone surrogates
        return False
    return True
