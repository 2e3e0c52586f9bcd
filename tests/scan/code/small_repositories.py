"""Generated repositories: the same people, days and files on every machine."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hush.scan.code.repository import Repository

__all__ = ["ANA", "BO", "CAI", "commit", "git", "new_repository", "plain_folder", "write"]

ANA, BO, CAI = "Ana <ana@acme.com>", "Bo <bo@acme.com>", "Cai <cai@acme.com>"


def git(folder: Path, *arguments: str, author: str = ANA, day: str = "2024-01-01") -> str:
    """Runs git with nothing of the machine's own settings."""
    name, _, email = author.removesuffix(">").partition(" <")
    stamp = f"{day}T12:00:00+0000"
    people = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in
              (("NAME", name), ("EMAIL", email), ("DATE", stamp))}  # fmt: skip
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment = inherited | people | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def new_repository(folder: Path, files: Mapping[str, str | bytes] | None = None) -> Path:
    """An empty repository, or one with these files in a first commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    if files is not None:
        commit(folder, files)
    return folder


def commit(folder: Path, files: Mapping[str, str | bytes], *, author: str = ANA, day: str = "2024-01-01") -> None:
    write(folder, files)
    git(folder, "add", "--all", author=author, day=day)
    git(folder, "commit", "--quiet", "--allow-empty", "--message=change", author=author, day=day)


def plain_folder(folder: Path, files: Mapping[str, str | bytes]) -> Repository:
    """A folder of files without git, opened."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, files)
    return Repository.open(folder, use_git=False)
