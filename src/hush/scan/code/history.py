"""Who changed which file, from one reading of git's history: the ground of rules by authors and contributors.

Names and addresses are those of .mailmap, as for ``git shortlog``. A file's history is that of its path and of every
path that it was moved from, as git recognises moves. Merges count as commits of their author; of files they change only
those that are in none of the merged branches.

Shapes: E changes (one commit, one file), A authors, P paths.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import chain
from pathlib import Path
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.scan.code.git import ask_git, stream_git

__all__ = ["Author", "History", "read_history"]

_LOG = (
    *("log", "-z", "--format=tformat:%x01%aN%x00%aE%x00%at", "--encoding=UTF-8"),
    *("--no-ext-diff", "--no-textconv", "--ignore-submodules=none"),
    *("--no-show-signature", "--no-color", "--no-decorate", "--no-notes"),
)
_CHANGES = ("--no-merges", "--find-renames", "--no-rename-empty")
_MERGES = ("--merges", "--diff-merges=combined", "--no-renames", "--diff-filter=A", "--raw")  # added for all parents
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
    """Every change of every file, those under its earlier paths included.

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

    lines: whether to count lines, for which git has to compare contents; without, it is faster.
    """
    if ask_git(folder, "rev-parse", "--verify", "--quiet", "HEAD")[0]:
        return _parsed((), lines)
    asked = ((*_CHANGES, "--numstat" if lines else "--raw"), _MERGES)
    return _parsed(chain.from_iterable(stream_git(folder, *_LOG, *one, "HEAD", "--") for one in asked), lines)


def _parsed(fields: Iterable[bytes], lines: bool) -> History:
    """Each commit is three fields, the first begun by the byte 1; then follow the files that it changes.

    A file is one field, ADDED REMOVED PATH; or two, of which the first begins with a colon and the second is the path.
    Of a file that was moved, the path is empty or missing, and two more fields follow: the old path and the new one.
    """
    authors: dict[tuple[bytes, bytes], int] = {}
    commits: list[int] = []
    paths: dict[bytes, int] = {}
    moves: defaultdict[int, set[int]] = defaultdict(set)  # from each path, where to
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
            if entry.startswith(b":"):
                added, path = b"-", b"" if b" R" in entry else next(stream)  # a status such as R090
            else:
                added, _, path = entry.split(b"\t", 2)
            before = b"" if path else next(stream)
            number = paths.setdefault(path or next(stream), len(paths))
            if before:
                moves[paths.setdefault(before, len(paths))].add(number)
            path_E.append(number)
            author_E.append(author)
            second_E.append(second)
            lines_E.append(int(added) if added.isdigit() else 0)  # a dash for binary files
    all_path_E, change_E = _under_later_paths(np.array(path_E, dtype=np.int64), moves)
    return History(
        authors=tuple(Author(_text(name), _text(email)) for name, email in authors),
        paths=tuple(map(_text, paths)),
        commit_A=np.array(commits, dtype=np.int64),
        path_E=all_path_E,
        author_E=np.array(author_E, dtype=np.int64)[change_E],
        second_E=np.array(second_E, dtype=np.int64)[change_E],
        lines_E=np.array(lines_E, dtype=np.int64)[change_E] if lines else None,
    )


def _under_later_paths(
    path_E: NDArray[np.int64], moves: Mapping[int, set[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The path of each change, and again for every path that its file was moved to later; and which change each is.

    Whether a change came before or after a move does not count: on another branch it may be either.
    """
    order_E = np.argsort(path_E, kind="stable")
    sorted_E = path_E[order_E]
    paths: list[NDArray[np.int64]] = [path_E]
    changes: list[NDArray[np.int64]] = [np.arange(len(path_E))]
    for path in moves:
        begin, end = np.searchsorted(sorted_E, [path, path + 1])
        for later in _reached(path, moves):
            paths.append(np.full(end - begin, later))
            changes.append(order_E[begin:end])
    return np.concatenate(paths), np.concatenate(changes)


def _reached(path: int, moves: Mapping[int, set[int]]) -> Sequence[int]:
    """All paths that a chain of moves leads to from a path, without itself."""
    found: dict[int, None] = {path: None}
    waiting = [path]
    while waiting:
        new = sorted(moves.get(waiting.pop(), set()) - found.keys())
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)[1:]


def _text(name: bytes) -> str:
    """Different bytes stay different, UTF-8 or not."""
    return name.decode(errors="surrogateescape")
