"""Who changed a file (git history, for rules by authors and contributors) and who owns it (CODEOWNERS).

History: names and addresses are those of .mailmap, as in ``git shortlog``. A file's history is that of its path and of
all paths from which it was moved, as git detects moves. Merges count as commits of their author; of files, a merge
changes only those that are in none of the merged branches. Shapes: E changes (one commit, one file), A authors.

CODEOWNERS is read as GitHub reads it: patterns are those of .gitignore with these differences: the last line that
matches applies as a whole, "!" and "[ ]" have no special meaning, so lines with them are skipped, and a last segment
"*" does not match below subfolders.
"""

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.scan.code.repository import ask_git, stream_git, text_or_problem

__all__ = ["Author", "History", "Owners", "read_history"]


_LOG = (
    *("log", "-z", "--format=tformat:%x01%aN%x00%aE%x00%at", "--encoding=UTF-8"),
    *("--no-ext-diff", "--no-textconv", "--ignore-submodules=none"),
    *("--no-show-signature", "--no-color", "--no-decorate", "--no-notes"),
)
_CHANGES = ("--no-merges", "--find-renames", "--no-rename-empty")
# Of a merge: the files that none of its parents has.
_MERGES = ("--merges", "--diff-merges=combined", "--no-renames", "--diff-filter=A", "--raw")
_LATEST = 1 << 62  # the time of a commit with an unreadable date: it counts as recent, so no author is lost

CODEOWNERS_PATHS = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")  # the first that exists is used
_WORD = re.compile(r"(?:\\.|[^\s\\])+")
_OWNER = re.compile(r"@[\w.-]+(?:/[\w.-]+)?|[^@\s]+@[^@\s]+")


@final
@dataclass(frozen=True, slots=True, order=True)
class Author:
    """A person in git's history, after .mailmap."""

    name: str
    email: str


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class History:
    """Every change of every file, also under its earlier paths.

    commit_A: commits by author, merges included. lines_E: added lines, None if they were not read.
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
        """For every file changed since a day (in UTC): each author's share of its changes.

        Authors are indices into ``authors``. For a file whose changes added no line, shares count commits.
        """
        if of == "lines" and self.lines_E is None:
            raise InvalidInput("this history was read without lines; read it with lines=True, or count commits")
        begin = -_LATEST if since is None else int(datetime(since.year, since.month, since.day, tzinfo=UTC).timestamp())
        recent = self.second_E >= begin
        pair_E = self.path_E[recent] * max(1, len(self.authors)) + self.author_E[recent]
        pairs, pair_index_E = np.unique(pair_E, return_inverse=True)
        path, author = np.divmod(pairs, max(1, len(self.authors)))
        amount = np.bincount(pair_index_E, minlength=pairs.size).astype(np.float64)
        if of == "lines" and self.lines_E is not None:
            lines = np.bincount(pair_index_E, weights=self.lines_E[recent], minlength=pairs.size)
            amount = np.where(np.bincount(path, weights=lines, minlength=len(self.paths))[path] > 0, lines, amount)
        total = np.bincount(path, weights=amount, minlength=len(self.paths))[path]
        shares: dict[str, dict[int, float]] = {}
        for path_number, author_number, share in zip(
            path.tolist(), author.tolist(), (amount / total).tolist(), strict=True
        ):
            shares.setdefault(self.paths[path_number], {})[author_number] = share
        return shares

    def __repr__(self) -> str:
        return f"History({int(self.commit_A.sum())} commits, {len(self.authors)} authors, {len(self.paths)} paths)"


def read_history(folder: Path, *, lines: bool = True) -> History:
    """The history of HEAD, from the root of a work tree or a bare repository; empty without a commit.

    lines: whether to count added lines, which is slower, since git must compare contents.
    """
    if ask_git(folder, "rev-parse", "--verify", "--quiet", "HEAD")[0]:
        return _parsed((), lines)
    queries = ((*_CHANGES, "--numstat" if lines else "--raw"), _MERGES)
    return _parsed(chain.from_iterable(stream_git(folder, *_LOG, *query, "HEAD", "--") for query in queries), lines)


def _parsed(fields: Iterable[bytes], lines: bool) -> History:
    """Parses the output of git log: three fields per commit, the first beginning with byte 1, then its changed files.

    A file is one field, ADDED REMOVED PATH; or two, of which the first begins with a colon and the second is the path.
    For a moved file the path is empty or missing, and two more fields follow: the old path and the new path.
    """
    authors: dict[tuple[bytes, bytes], int] = {}
    commits: list[int] = []
    paths: dict[bytes, int] = {}
    moves: defaultdict[int, set[int]] = defaultdict(set)  # old path -> new paths
    path_E, author_E, second_E, lines_E = (array("q") for _ in range(4))
    author, second = 0, 0
    stream = iter(fields)
    for entry in stream:
        # git ends a commit's header with NUL and puts an empty line before its files.
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
            lines_E.append(int(added) if added.isdigit() else 0)  # git writes a dash for binary files
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
    """Repeats each change for every path to which its file was moved; returns the paths and the changes' indices.

    The order of change and move is ignored, since it may differ between branches.
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
    """All paths that a chain of moves reaches from a path, without the path itself."""
    reached: dict[int, None] = {path: None}
    waiting = [path]
    while waiting:
        new = sorted(moves.get(waiting.pop(), set()) - reached.keys())
        reached |= dict.fromkeys(new)
        waiting += new
    return list(reached)[1:]


def _text(name: bytes) -> str:
    """Decodes a name so that different bytes stay different, also if they are not UTF-8."""
    return name.decode(errors="surrogateescape")


# CODEOWNERS


@final
@dataclass(frozen=True, kw_only=True)
class Owners:
    """Patterns with their owners, in the order of the file. skipped: numbers of the lines that GitHub ignores."""

    rules: tuple[tuple[str, tuple[str, ...]], ...] = field(repr=False)
    skipped: tuple[int, ...] = ()

    @classmethod
    def read(cls, root: Path) -> Self:
        """The owners in a repository's CODEOWNERS file; an error if it has none."""
        for place in CODEOWNERS_PATHS:
            text, problem = text_or_problem(root, place)
            if text is not None:
                return cls.parse(text)
            if problem != "missing":
                raise InvalidInput(f"{root / place} cannot be read: it is {problem}; correct the file")
        raise InvalidInput(
            f"{root} has no CODEOWNERS file, which rules by owners need; add one at {' or '.join(CODEOWNERS_PATHS)}"
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The rules of a file's text.

        >>> owners = Owners.parse("* @acme/all\\n/billing/ @acme/billing ana@acme.com\\n/billing/docs/")
        >>> [owners.of(path) for path in ("a.py", "billing/x/a.py", "billing/docs/a.md")]
        [('@acme/all',), ('@acme/billing', 'ana@acme.com'), ()]
        """
        rules: list[tuple[str, tuple[str, ...]]] = []
        skipped: list[int] = []
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
            words = _WORD.findall(line)
            if not words or words[0].startswith("#"):
                continue
            pattern, *rest = words
            comment = next((index for index, word in enumerate(rest) if word.startswith("#")), len(rest))
            owners = tuple(rest[:comment])
            if (
                pattern.startswith("!")
                or re.search(r"[\[\]]|\*\*\*", pattern)
                or not all(map(_OWNER.fullmatch, owners))
            ):
                skipped.append(number)
            else:
                rules.append((pattern, owners))
        return cls(rules=tuple(rules), skipped=tuple(skipped))

    def of(self, path: str) -> tuple[str, ...]:
        """The owners of a path from the root."""
        return next((owners for pattern, owners in reversed(self._compiled) if pattern.fullmatch(path)), ())

    @cached_property
    def _compiled(self) -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
        return tuple((re.compile(_expression(pattern), re.DOTALL), owners) for pattern, owners in self.rules)


def _expression(pattern: str) -> str:
    """A regular expression for the paths that a pattern matches.

    A pattern with a slash before its end is anchored at the root, any other matches in any folder. It matches a file of
    that name and everything below a folder of that name; a last segment "*" matches only names at that level.
    """
    anchored = "/" in pattern.rstrip("/")
    segments = pattern.strip("/").split("/")
    if segments == [""]:
        return r"(?!)"  # "/" matches nothing
    below = "/.+" if pattern.endswith("/") else "" if segments[-1] == "*" else "(?:/.+)?"
    expression = "" if anchored else "(?:.+/)?"
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            expression += ".+" if last else "(?:.+/)?"
        else:
            expression += _segment(segment) + (below if last else "/")
    return expression


def _segment(segment: str) -> str:
    special = {"*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"\\.|.", segment, re.DOTALL)
    return "[^/]+" if segment == "*" else "".join(special.get(token) or re.escape(token[-1]) for token in tokens)
