"""The one way in which hush asks git: the user's settings and the programs that a repository names take no part.

A repository may come from anyone. Its own configuration can name pagers, hooks, monitors, signature checkers and
converters that git would run; each is switched off, as is the network.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hush.errors import InvalidInput

__all__ = ["ask_git", "stream_git"]

READ_AT_ONCE = 1 << 20
TOLD = 200  # characters of git's own words in a message

_SETTINGS = {
    "safe.directory": "*",  # nothing that the repository's owner could have git run is left below
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
    "protocol.allow": "never",  # a partial clone would fetch what it lacks
    "submodule.recurse": "false",
}


def ask_git(folder: Path, *arguments: str) -> tuple[int, bytes]:
    """Exit status and output of a git command with a short answer."""
    done = subprocess.run(_command(folder, arguments), capture_output=True, check=False, env=_environment())
    return done.returncode, done.stdout


def stream_git(folder: Path, *arguments: str) -> Iterator[bytes]:
    """The fields, each ended by NUL, of a git command's output, as they come; an error if git fails."""
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            _command(folder, arguments), stdout=subprocess.PIPE, stderr=complaints, env=_environment()
        )
        with process:
            output, rest = process.stdout, b""
            while output is not None and (read := output.read(READ_AT_ONCE)):
                *fields, rest = (rest + read).split(b"\0")
                yield from fields
            if rest:
                yield rest
        if process.returncode:
            complaints.seek(0)
            words = complaints.read(TOLD).decode(errors="replace").splitlines() or ["no message"]
            raise InvalidInput(
                f"git {arguments[0]} failed in {folder} with status {process.returncode} ({words[0]}); "
                "check the repository with git fsck, or clone it again whole"
            )


def _command(folder: Path, arguments: tuple[str, ...]) -> list[str]:
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    return ["git", "--no-pager", "-C", os.fspath(folder), *settings, *arguments]


def _environment() -> dict[str, str]:
    """The caller's, without whatever would point git elsewhere (a hook sets GIT_DIR) or change what it answers."""
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
