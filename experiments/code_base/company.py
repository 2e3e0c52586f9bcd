"""A company's code base: whose file is whose, which project is secret, and which file holds which secret.

Every entry of one folder is a project of its own. Projects that many others import are the company's libraries; two in
three of the others, by a hash of their names, are secrets. A secret is in its project's files, in files that import one
of them and, where the code base has a git history, in files that the project's contributors wrote.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from hush.errors import InvalidInput
from hush.scan.code.imports import ImportGraph, import_graph
from hush.scan.code.repository import Repository
from hush.scan.code.settings import CodeSecret, CodeSettings, Contributors, Imports
from hush.scan.code.spread import containment

__all__ = ["PROMISES", "Company", "held_out", "project_of", "read_company", "secret_projects"]

# (prior, ceiling): which of them a project gets follows from its name.
PROMISES = ((1e-10, 1e-4), (1e-10, 1e-3), (1e-8, 1e-3), (1e-6, 1e-2))
LIBRARY = 3  # a project that more than so many others import is no secret
SECRET_OF_THREE = 2  # of three projects that are no libraries
OF_PROJECTS, OF_OTHERS = 20, 5  # one in so many files is held out: of secret projects, of files without a secret
LEFT_OUT = frozenset({"test", "tests", "testing", "__pycache__", "site-packages", "dist-packages", "lib2to3"})


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Company:
    """Files to train on, files held out, and the secrets. promises: one of each secret; own: files of its project.

    secrets_of: numbers of the secrets that a file holds, for files that hold any. people: contributors known to git.
    """

    root: Path
    trained: tuple[str, ...]
    held_out_free: tuple[str, ...]
    held_out_projects: tuple[str, ...]
    names: tuple[str, ...]
    promises: tuple[tuple[float, float], ...]
    own: frozenset[str]
    secrets_of: Mapping[str, tuple[int, ...]] = field(repr=False)
    people: int

    def __repr__(self) -> str:
        return f"Company({len(self.trained)} files, {len(self.names)} secret projects)"


def read_company(root: Path, *, projects: str, largest: int, share: float) -> Company:
    """projects: the folder whose entries are projects, from the root, "" for the root itself."""
    whole = Repository.open(root, use_git=(root / ".git").exists())  # not of a repository that it merely lies in
    files = tuple(
        name
        for name in whole.examples
        if name.endswith(".py") and 0 < whole.sizes[name] <= largest and LEFT_OUT.isdisjoint(name.split("/"))
    )
    repository = replace(whole, files=files, sizes={name: whole.sizes[name] for name in files}, passed_over={})
    graph = import_graph(repository)
    own_files = secret_projects(files, graph, folder=projects)
    if not own_files:
        raise InvalidInput(f"{root} has no project below {projects or '.'!r}; pass --projects, the folder of projects")
    knows_people = repository.tracked and repository.has_commits and not repository.shallow
    rule = CodeSettings(
        secrets=tuple(CodeSecret(name=name, paths=_globs(own, projects)) for name, own in own_files.items()),
        imports=Imports(depth=1),
        contributors=Contributors(share=share) if knows_people else None,
    )
    found = containment(repository, rule, graph)
    secrets_of = {name: tuple(sorted({secret for secret, _ in pairs})) for name, pairs in found.reasons.items()}
    own = frozenset(name for names in own_files.values() for name in names)
    free = held_out([name for name in files if name not in secrets_of], one_in=OF_OTHERS)
    of_projects = held_out(sorted(own), one_in=OF_PROJECTS)
    away = {*free, *of_projects}
    return Company(
        root=repository.root,
        trained=tuple(name for name in files if name not in away),
        held_out_free=free,
        held_out_projects=of_projects,
        names=tuple(own_files),
        promises=tuple(PROMISES[_digest(name)[0] % len(PROMISES)] for name in own_files),
        own=own,
        secrets_of=secrets_of,
        people=_people(repository) if knows_people else 0,
    )


def project_of(path: str, folder: str) -> str | None:
    """The entry of the folder of projects that a file belongs to; None for files elsewhere.

    >>> project_of("parts/sun/moon.py", "parts"), project_of("core.py", "parts"), project_of("json/tool.py", "")
    ('sun', None, 'json')
    """
    inside = f"{folder.strip('/')}/".lstrip("/")
    return path.removeprefix(inside).split("/")[0].removesuffix(".py") if path.startswith(inside) else None


def secret_projects(files: Collection[str], graph: ImportGraph, *, folder: str) -> dict[str, list[str]]:
    """The files of each project that is a secret, by name: some of those that few others import."""
    own: dict[str, list[str]] = {}
    for path in sorted(files):
        name = project_of(path, folder)
        if name is not None and name != "__init__":
            own.setdefault(name, []).append(path)
    importers: dict[str, set[str]] = {}
    for path, target in graph.edges:
        from_, to = project_of(path, folder) or path, project_of(target, folder)
        if to is not None and from_ != to:
            importers.setdefault(to, set()).add(from_)
    return {
        name: paths
        for name, paths in own.items()
        if len(importers.get(name, ())) <= LIBRARY and _digest(name)[1] % 3 < SECRET_OF_THREE
    }


def held_out(files: Sequence[str], *, one_in: int) -> tuple[str, ...]:
    """The same ones for the same names."""
    chosen = sorted(files, key=lambda name: _digest(name))[: -(-len(files) // one_in)]
    return tuple(sorted(chosen))


def _people(repository: Repository) -> int:
    from hush.scan.code.history import read_history

    return len(read_history(repository.root, lines=False).authors)


def _globs(own: Sequence[str], folder: str) -> tuple[str, ...]:
    """Patterns that mean a project's folder, its module of the same name, or both."""
    depth = len([part for part in folder.split("/") if part]) + 1
    return tuple(sorted({_escaped("/".join(path.split("/")[:depth])) for path in own}))


def _escaped(path: str) -> str:
    return "/" + "".join(f"\\{letter}" if letter in "*?[]\\!# " else letter for letter in path)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
