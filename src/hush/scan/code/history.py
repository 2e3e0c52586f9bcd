"""Who changed which file, from one reading of git's history: the ground of rules by authors and contributors.

Names and addresses are those of .mailmap, as for ``git shortlog``. A file's history is that of its path: a renamed file
begins anew, with the one who renamed it. Merges count as commits of their author but change no file.

Shapes: E changes (one commit, one file), A authors, P paths.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.scan.code.git import ask_git, stream_git

__all__ = ["Author", "History", "read_history"]

_LOG = (
    *("log", "-z", "--format=tformat:%x01%aN%x00%aE%x00%at", "--encoding=UTF-8"),
    *("--no-renames", "--no-ext-diff", "--no-textconv", "--diff-merges=off", "--ignore-submodules=none"),
    *("--no-show-signature", "--no-color", "--no-decorate", "--no-notes", "HEAD", "--"),
)
_LATEST = 1 << 62  # the time of a commit whose date cannot be read: it counts as recent, so that none slips out


@final
@dataclass(frozen=True, slots=True, order=True)
class Author:
    """A person as git knows them after .mailmap."""

    name: str
    email: str


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class History:
    """Every change of every file.

    commit_A: commits by author, merges included. lines_E: lines added, None where they were not asked for.
    """

    authors: tuple[Author, ...]
    paths: tuple[str, ...]
    commit_A: NDArray[np.int64]
    path_E: NDArray[np.int64] = field(repr=False)
    author_E: NDArray[np.int64] = field(repr=False)
    second_E: NDArray[np.int64] = field(repr=False)
    lines_E: NDArray[np.int64] | None = field(repr=False)

    def commits(self) -> dict[Author, int]:
        """Commits by author: what ``git shortlog --summary --numbered --email HEAD`` counts."""
        return dict(zip(self.authors, self.commit_A.tolist(), strict=True))

    def shares(self, *, since: date | None, of: Literal["commits", "lines"]) -> Mapping[str, Mapping[int, float]]:
        """For every file changed since a day (in UTC): the part of its changes that each author made.

        Authors are numbers into ``authors``. A file whose changes added no line at all counts by commits.
        """
        if of == "lines" and self.lines_E is None:
            raise InvalidInput("this history was read without lines; read it with lines=True, or share by commits")
        begin = -_LATEST if since is None else int(datetime(since.year, since.month, since.day, tzinfo=UTC).timestamp())
        recent = self.second_E >= begin
        pair_E = self.path_E[recent] * max(1, len(self.authors)) + self.author_E[recent]
        pairs, place_E = np.unique(pair_E, return_inverse=True)
        path, author = np.divmod(pairs, max(1, len(self.authors)))
        amount = np.bincount(place_E, minlength=pairs.size).astype(np.float64)
        if of == "lines" and self.lines_E is not None:
            lines = np.bincount(place_E, weights=self.lines_E[recent], minlength=pairs.size)
            amount = np.where(np.bincount(path, weights=lines, minlength=len(self.paths))[path] > 0, lines, amount)
        total = np.bincount(path, weights=amount, minlength=len(self.paths))[path]
        found: dict[str, dict[int, float]] = {}
        for path_number, author_number, share in zip(
            path.tolist(), author.tolist(), (amount / total).tolist(), strict=True
        ):
            found.setdefault(self.paths[path_number], {})[author_number] = share
        return found

    def __repr__(self) -> str:
        return f"History({int(self.commit_A.sum())} commits, {len(self.authors)} authors, {len(self.paths)} paths)"


def read_history(folder: Path, *, lines: bool = True) -> History:
    """The history that leads to HEAD, from the top of a work tree or a bare repository; empty without a commit.

    lines: whether to count lines, for which git has to compare contents; without, it is faster, and a partial clone
    that lacks old contents will do.
    """
    if ask_git(folder, "rev-parse", "--verify", "--quiet", "HEAD")[0]:
        return _parsed((), lines)
    return _parsed(stream_git(folder, *_LOG[:-2], "--numstat" if lines else "--raw", *_LOG[-2:]), lines)


def _parsed(fields: Iterable[bytes], lines: bool) -> History:
    """Each commit is three fields, the first begun by the byte 1; then follow the files that it changes.

    A file is one field, ADDED REMOVED PATH; or two, of which the first begins with a colon and the second is the path.
    """
    authors: dict[tuple[bytes, bytes], int] = {}
    commits: list[int] = []
    paths: dict[bytes, int] = {}
    path_E, author_E, second_E, lines_E = (array("q") for _ in range(4))
    author, second = 0, 0
    stream = iter(fields)
    for entry in stream:
        # git ends a commit's header with NUL, and puts an empty line before its files.
        entry = entry.lstrip(b"\n")
        if entry.startswith(b"\x01"):
            author = authors.setdefault((entry[1:], next(stream)), len(authors))
            if author == len(commits):
                commits.append(0)
            commits[author] += 1
            stamp = next(stream)
            second = min(int(stamp), _LATEST) if stamp.isdigit() else _LATEST
        elif entry:
            added, _, path = (b"-", b"", next(stream)) if entry.startswith(b":") else entry.split(b"\t", 2)
            path_E.append(paths.setdefault(path, len(paths)))
            author_E.append(author)
            second_E.append(second)
            lines_E.append(int(added) if added.isdigit() else 0)  # a dash for binary files
    return History(
        authors=tuple(Author(_text(name), _text(email)) for name, email in authors),
        paths=tuple(map(_text, paths)),
        commit_A=np.array(commits, dtype=np.int64),
        path_E=np.array(path_E, dtype=np.int64),
        author_E=np.array(author_E, dtype=np.int64),
        second_E=np.array(second_E, dtype=np.int64),
        lines_E=np.array(lines_E, dtype=np.int64) if lines else None,
    )


def _text(name: bytes) -> str:
    """Different bytes stay different, UTF-8 or not."""
    return name.decode(errors="surrogateescape")
