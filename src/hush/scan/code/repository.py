"""A folder of code as a list of text files, with or without git; the base of everything that a code rule reads.

With git, the files are those that git tracks, as they are in the work tree; without, those that a walk finds. A file
that cannot be an example is listed by kind with its path, so that none is lost silently. No link is followed.

A repository may come from anyone, and its configuration can name pagers, hooks, monitors, signature checkers and
converters that git would run. All calls of git go through this module, which switches each of them off, as well as the
user's settings and the network.
"""

import os
import re
import stat
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from hush.errors import InvalidInput

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["Globs", "Kind", "Repository", "ask_git", "content_or_problem", "is_utf8", "stream_git", "text_or_problem"]


MAX_FILE_BYTES = 1_000_000
BINARY_CHECK_BYTES = 8000  # a zero byte among these means binary, as for git
Kind = Literal[
    "binary", "not UTF-8", "too large", "submodule", "link", "missing", "unreadable", "odd name", "hidden", "ignored"
]
PRESENT_KINDS: tuple[Kind, ...] = ("binary", "link", "missing", "not UTF-8", "submodule", "too large", "unreadable")


@final
@dataclass(frozen=True)
class Globs:
    """Patterns for paths as in .gitignore: the last pattern that matches decides, and ! excludes paths again.

    >>> globs = Globs(("services/billing/**", "*.sql", "!public.sql"))
    >>> [globs.match(path) for path in ("services/billing/a/b.py", "db/all.sql", "db/public.sql")]
    [True, True, False]
    """

    patterns: tuple[str, ...]

    def match(self, path: str) -> bool:
        """Whether the patterns include a path, given from the root and with slashes."""
        return self.verdict(path) is True

    def verdict(self, path: str) -> bool | None:
        """As ``match``, but None if no pattern matches the path."""
        return self._spec.check_file(path).include

    @cached_property
    def _spec(self) -> "GitIgnoreSpec":
        try:
            from pathspec import GitIgnoreSpec
        except ImportError:
            raise InvalidInput('patterns for paths need the pathspec library; pip install "hush[code]"') from None
        try:
            return GitIgnoreSpec.from_lines(self.patterns)
        except ValueError:
            raise InvalidInput(
                f"one of the {len(self.patterns)} patterns for paths is not valid; write them as in .gitignore"
            ) from None


@final
@dataclass(frozen=True, kw_only=True)
class Repository:
    """The text files of a folder.

    root: the root of the git repository, or the folder itself without git. files: paths of all text files from there,
    with slashes, sorted. sizes: their bytes. below: only files whose path begins with this become examples; "" unless
    the folder lies inside a repository. passed_over: files that cannot be read as text, by kind. tracked: whether the
    files are those that git tracks.
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
    def open(
        cls, folder: str | os.PathLike[str], *, use_git: bool = True, max_bytes: int = MAX_FILE_BYTES
    ) -> "Repository":
        """Reads every file once. max_bytes: larger files are passed over."""
        place = Path(folder).resolve()
        if not place.is_dir():
            raise InvalidInput(f"{place} is not a folder; pass the folder of a repository")
        state = _git_state(place) if use_git else None
        entries = _walked(place) if state is None else _tracked(state.root)
        state = state or _State(root=place, tracked=False)
        sizes, passed_over = _classified(state.root, entries, max_bytes)
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
        """The files that become examples: those of the opened folder."""
        return tuple(path for path in self.files if path.startswith(self.below))

    @cached_property
    def known(self) -> frozenset[str]:
        """All existing paths, also of files that cannot be read as text: a file may import one that is too large."""
        return frozenset(self.files).union(*(self.passed_over.get(kind, ()) for kind in PRESENT_KINDS))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """All existing paths, sorted."""
        return tuple(sorted(self.known))

    def read(self, path: str) -> str:
        """The text of one of its files; an error if it changed since the repository was opened."""
        text, problem = text_or_problem(self.root, path)
        if text is None:
            raise InvalidInput(f"{self.root / path} was text and is now {problem}; scan again while nothing changes it")
        return text

    def require_history(self) -> None:
        """Raises InvalidInput unless the whole history is available."""
        if not self.tracked:
            raise InvalidInput(
                f"{self.root} has no git history, which rules by authors or contributors need; "
                "clone the repository with git, or drop those rules"
            )
        if self.shallow:
            raise InvalidInput(
                f"{self.root} is a shallow clone: earlier authors are unknown; run git fetch --unshallow there"
            )
        if not self.has_commits:
            raise InvalidInput(f"{self.root} has no commit yet; commit its files, or drop rules by authors")

    def __str__(self) -> str:
        """The number of files by kind."""
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
    """The state of the git repository of a folder; None outside of git."""
    try:
        status, answer = ask_git(folder, "rev-parse", "--is-bare-repository", "--is-inside-git-dir")
    except FileNotFoundError:
        if (folder / ".git").exists():
            raise InvalidInput(f"{folder} is a git repository, but the git command is missing; install git") from None
        return None
    if status:
        if (folder / ".git").exists():
            raise InvalidInput(
                f"{folder} has a .git that git cannot read; clone it again, or remove .git to scan it as plain files"
            )
        return None
    if b"true" in answer:
        raise InvalidInput(f"{folder} is a bare repository, without files; run git clone {folder} and scan the clone")
    # One call for each: folder names may contain line breaks, so several answers could not be separated.
    top, prefix, shallow = (
        os.fsdecode(ask_git(folder, "rev-parse", flag)[1].removesuffix(b"\n"))
        for flag in ("--show-toplevel", "--show-prefix", "--is-shallow-repository")
    )
    has_commits = ask_git(folder, "rev-parse", "--verify", "--quiet", "HEAD")[0] == 0
    return _State(root=Path(top), below=prefix, tracked=True, shallow=shallow == "true", has_commits=has_commits)


Entry = tuple[str, Kind | None]  # a path, and the reason to pass it over, if known already


def _tracked(top: Path) -> Iterator[Entry]:
    kinds: dict[bytes, Kind] = {b"160000": "submodule", b"120000": "link"}
    for entry in stream_git(top, "ls-files", "--stage", "-z"):
        mode, _, name = entry.partition(b"\t")
        yield os.fsdecode(name), kinds.get(mode[:6])


def _walked(folder: Path) -> Iterator[Entry]:
    """All files below a folder; hidden files and those that a .gitignore excludes come with the reason."""
    waiting: list[tuple[str, tuple[tuple[str, Globs], ...]]] = [("", ())]
    while waiting:
        prefix, rules = waiting.pop()
        ignore_file, _ = text_or_problem(folder, f"{prefix}.gitignore")
        if ignore_file is not None:
            rules = (*rules, (prefix, Globs(tuple(re.split(r"\r?\n", ignore_file)))))
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
    """As in git, the deepest .gitignore with a matching pattern decides."""
    verdicts = (globs.verdict(path.removeprefix(prefix)) for prefix, globs in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _classified(
    root: Path, entries: Iterator[Entry], max_bytes: int
) -> tuple[dict[str, int], dict[Kind, tuple[str, ...]]]:
    """The sizes of the text files, and all other paths by kind."""
    sizes: dict[str, int] = {}
    passed_over: defaultdict[Kind, set[str]] = defaultdict(set)
    for path, kind in entries:
        if not is_utf8(path):
            passed_over["odd name"].add(os.fsencode(path).decode(errors="backslashreplace"))
            continue
        content = None
        if kind is None:
            content, kind = content_or_problem(root, path, max_bytes)
        if content is None:
            passed_over[kind or "unreadable"].add(path)
        else:
            sizes[path] = len(content)
    ordered: list[Kind] = sorted(passed_over)
    return sizes, {kind: tuple(sorted(passed_over[kind])) for kind in ordered}


# Contents of files


def text_or_problem(root: Path, path: str) -> tuple[str | None, Kind | None]:
    """A file's text, or why it has none."""
    content, problem = content_or_problem(root, path, max_bytes=None)
    return (None, problem) if content is None else (content.decode(), None)


def content_or_problem(root: Path, path: str, max_bytes: int | None) -> tuple[bytes | None, Kind | None]:
    """A file's bytes if they are text, otherwise why not. No link is followed, not even one in place of a folder."""
    place = f"{root}/{path}"  # a string: path objects would take half of the time to read a repository
    try:
        if any(map(os.path.islink, _folders_of(place, len(str(root))))):
            return None, "link"
        status = os.lstat(place)
        if stat.S_ISLNK(status.st_mode):
            return None, "link"
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
            return None, "unreadable"
        if max_bytes is not None and status.st_size > max_bytes:
            return None, "too large"
        content = Path(place).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None, "missing"
    except OSError:
        return None, "unreadable"
    if b"\0" in content[:BINARY_CHECK_BYTES]:
        return None, "binary"
    try:
        content.decode()
    except UnicodeDecodeError:
        return None, "not UTF-8"
    return content, None


def _folders_of(place: str, root_length: int) -> Iterator[str]:
    """The root of a file, whose path has this length, and the folders from there to the file."""
    end = root_length
    while end >= 0:
        yield place[:end] or "/"
        end = place.find("/", end + 1)


def is_utf8(path: str) -> bool:
    """Whether a path can be written as UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 are decoded as lone surrogates
        return False
    return True


# Calls of git

READ_BYTES = 1 << 20
MAX_GIT_MESSAGE_BYTES = 200  # of git's error output in a message

_SETTINGS = {
    "safe.directory": "*",  # safe, since nothing that the repository's owner could make git run is left on
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.quotePath": "false",
    "diff.external": "",
    "diff.orderFile": os.devnull,
    "diff.renames": "false",
    "log.showSignature": "false",
    "log.showRoot": "true",
    "log.mailmap": "true",
    "protocol.allow": "never",  # a partial clone would fetch missing objects
    "submodule.recurse": "false",
}


def ask_git(folder: Path, *arguments: str) -> tuple[int, bytes]:
    """Exit status and output of a git command with a short output."""
    done = subprocess.run(_command(folder, arguments), capture_output=True, check=False, env=_environment())
    return done.returncode, done.stdout


def stream_git(folder: Path, *arguments: str) -> Iterator[bytes]:
    """Streams the NUL-terminated fields of a git command's output; an error if git fails."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            _command(folder, arguments), stdout=subprocess.PIPE, stderr=errors, env=_environment()
        )
        with process:
            output, rest = process.stdout, b""
            while output is not None and (read := output.read(READ_BYTES)):
                *fields, rest = (rest + read).split(b"\0")
                yield from fields
            if rest:
                yield rest
        if process.returncode:
            errors.seek(0)
            lines = errors.read(MAX_GIT_MESSAGE_BYTES).decode(errors="replace").splitlines() or ["no message"]
            raise InvalidInput(
                f"git {arguments[0]} failed in {folder} with status {process.returncode} ({lines[0]}); "
                "check the repository with git fsck, or clone it again"
            )


def _command(folder: Path, arguments: tuple[str, ...]) -> list[str]:
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    return ["git", "--no-pager", "-C", os.fspath(folder), *settings, *arguments]


def _environment() -> dict[str, str]:
    """The environment without variables that point git elsewhere (a hook sets GIT_DIR) or change its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "LC_", "LANG"))}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C",
        "TZ": "UTC",
    }
