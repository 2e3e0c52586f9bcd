"""A folder of code as a list of text files, with or without git; the start of everything that a code rule knows.

With git it is what git tracks, as it lies in the work tree; without, what a walk finds. Whatever cannot be an example
is passed over by kind, with its path, so that nothing goes missing unseen.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

from hush.errors import InvalidInput
from hush.scan.code.git import ask_git, stream_git
from hush.scan.code.globs import Globs
from hush.scan.code.reading import Kind, content_or_problem, encodes, text_or_problem

__all__ = ["Repository"]

LARGEST = 1_000_000  # bytes
UNREAD: tuple[Kind, ...] = ("binary", "link", "missing", "not UTF-8", "submodule", "too large", "unreadable")


@final
@dataclass(frozen=True, kw_only=True)
class Repository:
    """The text files of a folder.

    root: the top of the git repository, or the folder itself without git. files: paths of all text files from there,
    with slashes, sorted. sizes: their bytes. below: the examples are the files whose path begins with this; it is ""
    unless the folder lies inside a repository. passed_over: what cannot be read as text, by kind. tracked: whether git
    says which files there are.
    """

    root: Path
    files: tuple[str, ...] = field(repr=False)
    sizes: Mapping[str, int] = field(repr=False)
    below: str = ""
    passed_over: Mapping[Kind, tuple[str, ...]] = field(repr=False)
    tracked: bool
    shallow: bool = False
    has_commits: bool = False

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, use_git: bool = True, largest: int = LARGEST) -> "Repository":
        """Looks at every file once. largest: bytes above which a file is passed over."""
        place = Path(folder).resolve()
        if not place.is_dir():
            raise InvalidInput(f"{place} is no folder; pass the folder of a repository")
        state = _git_state(place) if use_git else None
        entries = _walked(place) if state is None else _tracked(state.root)
        state = state or _State(root=place, tracked=False)
        sizes, passed_over = _sorted_out(state.root, entries, largest)
        return cls(
            root=state.root,
            files=tuple(sorted(sizes)),
            sizes=sizes,
            below=state.below,
            passed_over=passed_over,
            tracked=state.tracked,
            shallow=state.shallow,
            has_commits=state.has_commits,
        )

    @cached_property
    def examples(self) -> tuple[str, ...]:
        """The files that become examples: those of the folder that was asked for."""
        return tuple(path for path in self.files if path.startswith(self.below))

    @cached_property
    def known(self) -> frozenset[str]:
        """All paths that are there, even if they cannot be read as text: a file may import one that is too large."""
        return frozenset(self.files).union(*(self.passed_over.get(kind, ()) for kind in UNREAD))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The same, sorted."""
        return tuple(sorted(self.known))

    def read(self, path: str) -> str:
        """The text of one of its files, every character of it; an error that shows none of it if that fails."""
        text, problem = text_or_problem(self.root, path)
        if text is None:
            raise InvalidInput(f"{self.root / path} was text and is now {problem}; scan again while nothing changes it")
        return text

    def require_history(self) -> None:
        """An error that says what to do, unless every commit is at hand."""
        if not self.tracked:
            raise InvalidInput(
                f"{self.root} has no git history, which rules by authors or contributors need; "
                "clone the repository with git, or drop those rules"
            )
        if self.shallow:
            raise InvalidInput(
                f"{self.root} is a shallow clone: authors before its cut are unknown; run git fetch --unshallow there"
            )
        if not self.has_commits:
            raise InvalidInput(f"{self.root} has no commit yet; commit its files, or drop rules by authors")

    def __str__(self) -> str:
        """What is there, in one sentence."""
        kinds = ", ".join(f"{len(paths)} {kind}" for kind, paths in self.passed_over.items())
        return f"{self.root / self.below}: {len(self.examples)} text files" + (
            f"; passed over: {kinds}" if kinds else ""
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    root: Path
    below: str = ""
    tracked: bool
    shallow: bool = False
    has_commits: bool = False


def _git_state(folder: Path) -> _State | None:
    """What git says of a folder; None outside of git."""
    try:
        status, answer = ask_git(folder, "rev-parse", "--is-bare-repository", "--is-inside-git-dir")
    except FileNotFoundError:
        if (folder / ".git").exists():
            raise InvalidInput(f"{folder} is a git repository, but there is no git command; install git") from None
        return None
    if status:
        if (folder / ".git").exists():
            raise InvalidInput(
                f"{folder} has a .git that git cannot read; clone it again, or remove .git to scan it as plain files"
            )
        return None
    if b"true" in answer:
        raise InvalidInput(f"{folder} is a bare repository, without files; run git clone {folder} and scan the clone")
    # Each in its own call: names of folders may hold line ends, so one answer could not be told from the next.
    top, prefix, shallow = (
        os.fsdecode(ask_git(folder, "rev-parse", flag)[1].removesuffix(b"\n"))
        for flag in ("--show-toplevel", "--show-prefix", "--is-shallow-repository")
    )
    has_commits = ask_git(folder, "rev-parse", "--verify", "--quiet", "HEAD")[0] == 0
    return _State(root=Path(top), below=prefix, tracked=True, shallow=shallow == "true", has_commits=has_commits)


Entry = tuple[str, Kind | None]  # a path, and why it is passed over if that is known


def _tracked(top: Path) -> Iterator[Entry]:
    kinds: dict[bytes, Kind] = {b"160000": "submodule", b"120000": "link"}
    for entry in stream_git(top, "ls-files", "--stage", "-z"):
        mode, _, name = entry.partition(b"\t")
        yield os.fsdecode(name), kinds.get(mode[:6])


def _walked(folder: Path) -> Iterator[Entry]:
    """All files below a folder; hidden ones, and those that a .gitignore on the way names, end up passed over."""
    waiting: list[tuple[str, tuple[tuple[str, Globs], ...]]] = [("", ())]
    while waiting:
        prefix, rules = waiting.pop()
        ignoring, _ = text_or_problem(folder, f"{prefix}.gitignore")
        if ignoring is not None:
            rules = (*rules, (prefix, Globs(tuple(re.split(r"\r?\n", ignoring)))))
        try:
            entries = list(os.scandir(folder / prefix))
        except OSError:
            yield prefix, "unreadable"
            continue
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            path = prefix + entry.name + "/" * is_folder
            if entry.is_symlink():
                yield path, "link"
            elif entry.name.startswith("."):
                yield path, "hidden"
            elif _ignored(path, rules):
                yield path, "ignored"
            elif is_folder:
                waiting.append((path, rules))
            else:
                yield path, None


def _ignored(path: str, rules: tuple[tuple[str, Globs], ...]) -> bool:
    """As git decides: the deepest .gitignore that has a word on the path."""
    verdicts = (globs.verdict(path.removeprefix(prefix)) for prefix, globs in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _sorted_out(
    root: Path, entries: Iterator[Entry], largest: int
) -> tuple[dict[str, int], dict[Kind, tuple[str, ...]]]:
    """The sizes of the text files, and everything else by kind."""
    sizes: dict[str, int] = {}
    passed: defaultdict[Kind, set[str]] = defaultdict(set)
    for path, kind in entries:
        if not encodes(path):
            passed["odd name"].add(os.fsencode(path).decode(errors="backslashreplace"))
            continue
        content = None
        if kind is None:
            content, kind = content_or_problem(root, path, largest)
        if content is None:
            passed[kind or "unreadable"].add(path)
        else:
            sizes[path] = len(content)
    ordered: list[Kind] = sorted(passed)
    return sizes, {kind: tuple(sorted(passed[kind])) for kind in ordered}
