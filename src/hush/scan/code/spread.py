"""Which file contains which secret, and why: a secret's own files, then those that the structure of the code adds.

A secret spreads from its own files only: along imports to the chosen depth, and to files that the contributors of its
own files wrote. What one way adds is no start for the other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from hush.scan.code.containment import Evidence
from hush.scan.code.imports import ImportGraph, import_graph
from hush.scan.code.repository import Repository
from hush.scan.code.settings import CodeSecret, CodeSettings

__all__ = ["Containment", "Step", "containment", "reached_by_imports"]

SHOWN = 8  # files of a way that a reason names


@final
@dataclass(frozen=True, kw_only=True)
class Containment:
    """Files with their secrets.

    reasons: for each file that contains any, pairs of a secret's number and a sentence, each secret at least once.
    own: the number of own files of each secret. slips: sentences about entries of the rules that mean nothing here.
    with_errors: files whose imports may be incomplete.
    """

    secrets: tuple[CodeSecret, ...]
    files: tuple[str, ...] = field(repr=False)
    reasons: Mapping[str, tuple[tuple[int, str], ...]] = field(repr=False)
    own: tuple[int, ...]
    slips: tuple[str, ...] = ()
    with_errors: tuple[str, ...] = field(repr=False, default=())

    def files_of(self, name: str) -> frozenset[str]:
        """The files that contain the secret of this name."""
        number = [secret.name for secret in self.secrets].index(name)
        return frozenset(path for path, pairs in self.reasons.items() if any(found == number for found, _ in pairs))


def containment(repository: Repository, settings: CodeSettings, graph: ImportGraph | None = None) -> Containment:
    """Everything that the rules say of a repository's files. graph: its imports, where they have been read before."""
    evidence = Evidence(repository, settings)
    if settings.imports.depth != 0 and graph is None:
        graph = import_graph(repository)
    importers = {} if graph is None or settings.imports.depth == 0 else graph.importers()
    found: dict[str, list[tuple[int, str]]] = {}
    own: list[int] = []
    slips: list[str] = []
    for number, secret in enumerate(settings.secrets):
        reasons = evidence.own_files(secret)
        own.append(len(reasons))
        slips += evidence.slips(secret)
        files = frozenset(reasons)
        reached = reached_by_imports(importers, files, settings.imports.depth)
        for path in reached:
            reasons.setdefault(path, []).append(_said(path, reached, secret))
        if settings.contributors is not None:
            people = evidence.contributors(files, settings.contributors)
            for path, said in evidence.files_of(people, settings.contributors).items():
                if path not in files:
                    reasons.setdefault(path, []).append(f"file {path} is by contributors of {secret.name}: {said}")
        for path, sentences in reasons.items():
            found.setdefault(path, []).extend((number, sentence) for sentence in sentences)
    return Containment(
        secrets=settings.secrets,
        files=repository.files,
        reasons={path: tuple(found[path]) for path in sorted(found)},
        own=tuple(own),
        slips=tuple(dict.fromkeys(slips)),
        with_errors=() if graph is None else graph.with_errors,
    )


@final
@dataclass(frozen=True, slots=True)
class Step:
    """How a file comes to import one of a secret's: the file that it imports itself, the last one, and the steps."""

    imported: str
    last: str
    steps: int


def reached_by_imports(
    importers: Mapping[str, Iterable[str]], files: Iterable[str], depth: int | None
) -> dict[str, Step]:
    """The further files that import one of these in at most ``depth`` steps, with the first step of a shortest way.

    Ways of equal length are told apart by their names, so the same graph gives the same ways.

    >>> reached_by_imports({"core": ["a", "b"], "a": ["main"], "main": []}, ["core"], None)["main"]
    Step(imported='a', last='core', steps=2)
    """
    edge = sorted(files)
    reached = {file: Step(file, file, 0) for file in edge}
    own = frozenset(edge)
    steps = 0
    while edge and (depth is None or steps < depth):
        steps += 1
        new: dict[str, Step] = {}
        for target in edge:  # in order, so the first to reach a file has the least name
            for path in importers.get(target, ()):
                if path not in reached:
                    new.setdefault(path, Step(target, reached[target].last, steps))
        reached |= new
        edge = sorted(new)
    return {path: step for path, step in sorted(reached.items()) if path not in own}


def _said(path: str, reached: Mapping[str, Step], secret: CodeSecret) -> str:
    """The way from a file to a secret's, shortened in the middle if it is long."""
    last, steps = reached[path].last, reached[path].steps
    between: list[str] = []
    place = reached[path].imported
    while place != last and len(between) < SHOWN:
        between.append(place)
        place = reached[place].imported
    if place != last:
        between.append("…")
    through = f" through {' → '.join(between)}" if between else ""
    return f"file {path} imports {last} of {secret.name}{through} ({steps} step{'s' * (steps > 1)})"
