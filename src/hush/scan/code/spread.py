"""Which file contains which secret, and why; and the finder that applies this to the chunks of the files.

A secret's own files are those under its paths, of its owners, or by its authors (``Evidence``). From its own files
only, a secret spreads along imports up to the chosen depth, and to files that the contributors of its own files wrote;
files that one way adds are not starting points for the other (``containment``). ``CodeSecrets`` is the finder of the
code rule: a chunk contains the secrets of its file.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Self, final

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.code.chunks import HiddenSpans, merged_spans
from hush.scan.code.hiding import Hidden, Sources, hidden_text
from hush.scan.code.history import History, Owners, read_history
from hush.scan.code.imports import ImportGraph, import_graph
from hush.scan.code.repository import Globs, Repository
from hush.scan.code.settings import CodeSecret, CodeSettings, Contributors
from hush.scan.hits import DeclaredSecret, Hits

__all__ = ["CodeSecrets", "Containment", "Evidence", "Step", "containment", "matching_authors", "reached_by_imports"]


SHARE_TOLERANCE = 1e-9  # a share of exactly the threshold counts despite rounding
MAX_CHAIN_FILES = 8  # of an import chain that a reason names

Shares = Mapping[str, Mapping[int, float]]


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """History, owners and shares of a repository's files; each is read on first use."""

    repository: Repository
    settings: CodeSettings

    @cached_property
    def history(self) -> History:
        """Every change of every file; an error if the repository lacks its whole history."""
        self.repository.require_history()
        rules = (self.settings.contributors, self.settings.authored)
        return read_history(self.repository.root, lines=any(rule is not None and rule.of == "lines" for rule in rules))

    @cached_property
    def owners(self) -> Owners:
        return Owners.read(self.repository.root)

    @cached_property
    def _owners_of_paths(self) -> dict[str, tuple[str, ...]]:
        return {path: self.owners.of(path) for path in self.repository.paths}

    def shares(self, rule: Contributors) -> Shares:
        """Each author's share of the changes of the repository's present files, as the rule counts them."""
        if rule not in self._shares:
            all_shares = self.history.shares(since=rule.since, of=rule.of)
            self._shares[rule] = {path: all_shares[path] for path in self.repository.paths if path in all_shares}
        return self._shares[rule]

    @cached_property
    def _shares(self) -> dict[Contributors, Shares]:
        return {}

    def own_files(self, secret: CodeSecret) -> dict[str, list[str]]:
        """The files of a secret by its paths, owners and authors, each with the reasons."""
        reasons: dict[str, list[str]] = {}
        if secret.paths:
            globs = Globs(secret.paths)
            for path in filter(globs.match, self.repository.paths):
                reasons.setdefault(path, []).append(f"file {path} is under paths of {secret.name}")
        if secret.owners:
            wanted = _entries(secret.owners, self.settings.groups)
            for path, owners in self._owners_of_paths.items():
                owning = [owner for owner in owners if owner.casefold() in wanted]
                if owning:
                    sentence = f"file {path} is owned by {', '.join(owning)}, owner of {secret.name}"
                    reasons.setdefault(path, []).append(sentence)
        if secret.authors:
            named = matching_authors(secret.authors, self.history, self.settings.groups)
            people = self._with_groups(named, self.settings.authored)
            for path, share in self.files_of(people, self.settings.authored).items():
                reasons.setdefault(path, []).append(f"file {path} is by authors of {secret.name}: {share}")
        return reasons

    def declared_files(self, secret: CodeSecret) -> frozenset[str]:
        """The files of a secret by its paths and owners, whoever wrote them."""
        if not (secret.paths or secret.owners):
            return frozenset()
        return frozenset(self.own_files(replace(secret, authors=())))

    def unmatched(self, secret: CodeSecret) -> list[str]:
        """Sentences about entries of a secret that match nothing in this repository, which may be mistakes."""
        sentences = [
            f"pattern {number} of the paths of {secret.name} matches no file"
            for number, pattern in enumerate(secret.paths, start=1)
            if not pattern.startswith("!") and not any(map(Globs((pattern,)).match, self.repository.paths))
        ]
        groups = self.settings.groups
        listed = _entries((owner for _, owners in self.owners.rules for owner in owners), {}) if secret.owners else ()
        owning = _entries(chain.from_iterable(self._owners_of_paths.values()), {}) if secret.owners else ()
        for name in secret.owners:
            if _entries([name], groups).isdisjoint(listed):
                sentences.append(f"owner {name} of {secret.name} is not in CODEOWNERS")
            elif _entries([name], groups).isdisjoint(owning):
                sentences.append(f"owner {name} of {secret.name} owns no file by CODEOWNERS")
        sentences += [
            f"author {name} of {secret.name} has no commit"
            for name in secret.authors
            if not matching_authors([name], self.history, groups)
        ]
        if not sentences and not self.own_files(secret):  # each entry matches, but patterns cancel, or shares are small
            sentences.append(f"secret {secret.name} has no file of its own")
        if secret.owners:
            sentences += [f"line {number} of CODEOWNERS is not valid and is ignored" for number in self.owners.skipped]
        # A group may be of people who did not all work here, so these are no errors; an account is no author.
        sentences += [
            f"member {number} of the group {name}, authors of {secret.name}, has no commit"
            for name in secret.authors
            for number, member in enumerate(groups.get(name, ()), start=1)
            if not member.startswith("@") and not matching_authors([member], self.history, {})
        ]
        return sentences

    def files_of(self, people: frozenset[int], rule: Contributors) -> dict[str, str]:
        """The files of which these people together made at least the rule's share, each with that share in words."""
        files: dict[str, str] = {}
        for path, shares in self.shares(rule).items():
            theirs = {person: share for person, share in shares.items() if person in people}
            if theirs and sum(theirs.values()) >= rule.share - SHARE_TOLERANCE:
                most = min(theirs, key=lambda person: (-theirs[person], self.history.authors[person]))
                since = "" if rule.since is None else f" since {rule.since}"
                named = _shown(self.history.authors[most].email) + ("" if len(theirs) == 1 else " and others")
                files[path] = f"{sum(theirs.values()):.0%} of its {rule.of}{since} by {named}"
        return files

    def contributors(self, files: Iterable[str], rule: Contributors) -> frozenset[int]:
        """The people who made at least the rule's share of one of these files."""
        shares = self.shares(rule)
        people = {
            person
            for file in files
            for person, share in shares.get(file, {}).items()
            if share >= rule.share - SHARE_TOLERANCE
        }
        return self._with_groups(frozenset(people), rule)

    def _with_groups(self, people: frozenset[int], rule: Contributors) -> frozenset[int]:
        """These people and, if the rule counts groups, everybody who shares a group with one of them."""
        groups = [matching_authors(members, self.history, {}) for members in self.settings.groups.values()]
        return people.union(*(group for group in groups if rule.groups and group & people))


def matching_authors(entries: Iterable[str], history: History, groups: Mapping[str, tuple[str, ...]]) -> frozenset[int]:
    """The authors with these addresses, names or groups, in any case; as indices into ``history.authors``."""
    wanted = _entries(entries, groups)
    return frozenset(
        number
        for number, author in enumerate(history.authors)
        if author.email.casefold() in wanted or author.name.casefold() in wanted
    )


def _entries(names: Iterable[str], groups: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """The names in lower case, with groups replaced by their members."""
    return frozenset(entry.casefold() for name in names for entry in groups.get(name, (name,)))


def _shown(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="replace")


@final
@dataclass(frozen=True, kw_only=True)
class Containment:
    """Files with their secrets.

    reasons: for each file that contains any, pairs of a secret's number and a sentence, each secret at least once.
    num_own_files: of each secret. unmatched: sentences about entries of the rules that match nothing in the repository.
    with_errors: files whose imports may be incomplete. spans: for a rule that hides definitions or lines, the spans of
    each file that are secret, by the secret's number; the whole file is secret where there are none. hidden: all spans
    of a file together. Both are private.
    """

    secrets: tuple[CodeSecret, ...]
    files: tuple[str, ...] = field(repr=False)
    reasons: Mapping[str, tuple[tuple[int, str], ...]] = field(repr=False)
    num_own_files: tuple[int, ...]
    unmatched: tuple[str, ...] = ()
    with_errors: tuple[str, ...] = field(repr=False, default=())
    spans: Mapping[str, Mapping[int, tuple[tuple[int, int], ...]]] = field(repr=False, default_factory=dict)
    hidden: Mapping[str, HiddenSpans] = field(repr=False, default_factory=dict)

    def files_of(self, name: str) -> frozenset[str]:
        """The files that contain the secret of this name."""
        number = [secret.name for secret in self.secrets].index(name)
        return frozenset(path for path, pairs in self.reasons.items() if any(secret == number for secret, _ in pairs))


def containment(repository: Repository, settings: CodeSettings, graph: ImportGraph | None = None) -> Containment:
    """Which files of a repository contain which secrets. graph: its import graph, if it has been read already."""
    evidence = Evidence(repository, settings)
    if settings.imports.depth != 0 and graph is None:
        with ThreadPoolExecutor(max_workers=1) as background:  # git works in a process of its own meanwhile
            history = background.submit(lambda: evidence.history) if settings.needs_history else None
            graph = import_graph(repository)
        if history is not None:
            history.result()
    importers = {} if graph is None or settings.imports.depth == 0 else graph.importers()
    reasons_of_file: dict[str, list[tuple[int, str]]] = {}
    spans_of_file: dict[str, dict[int, tuple[tuple[int, int], ...]]] = {}
    sources = Sources(repository, graph)
    num_own_files: list[int] = []
    unmatched: list[str] = []
    for number, secret in enumerate(settings.secrets):
        reasons = evidence.own_files(secret)
        num_own_files.append(len(reasons))
        unmatched += evidence.unmatched(secret)
        files = frozenset(reasons)
        reached = reached_by_imports(importers, files, settings.imports.depth)
        for path in reached:
            reasons.setdefault(path, []).append(_import_reason(path, reached, secret))
        by_contributors: set[str] = set()
        if settings.contributors is not None:
            people = evidence.contributors(files, settings.contributors)
            for path, share in evidence.files_of(people, settings.contributors).items():
                if path not in files:
                    reasons.setdefault(path, []).append(f"file {path} is by contributors of {secret.name}: {share}")
                    by_contributors.add(path)
        if settings.hides != "file":
            hidden = hidden_text(
                sources,
                own=files,
                whole=files - frozenset(evidence.declared_files(secret)),
                hides=settings.hides,
                public=settings.public,
                depth=settings.imports.depth,
            )
            hidden |= dict.fromkeys(by_contributors, Hidden(None))
            reasons = {path: reasons.get(path) or [_hidden_reason(path, each, secret)] for path, each in hidden.items()}
            for path, each in hidden.items():
                if each.spans is not None:
                    spans_of_file.setdefault(path, {})[number] = merged_spans(each.spans)
        for path, sentences in reasons.items():
            reasons_of_file.setdefault(path, []).extend((number, sentence) for sentence in sentences)
    return Containment(
        secrets=settings.secrets,
        files=repository.files,
        reasons={path: tuple(reasons_of_file[path]) for path in sorted(reasons_of_file)},
        num_own_files=tuple(num_own_files),
        unmatched=tuple(dict.fromkeys(unmatched)),
        with_errors=() if graph is None else graph.with_errors,
        spans=spans_of_file,
        hidden={
            path: HiddenSpans.of(sources.text(path), chain.from_iterable(of_secrets.values()))
            for path, of_secrets in spans_of_file.items()
        },
    )


def _hidden_reason(path: str, hidden: Hidden, secret: CodeSecret) -> str:
    """Why a file hides something that imports no file of the secret itself."""
    through = "" if hidden.through is None else f" that {hidden.through} hands on"
    return f"file {path} uses names of {secret.name}{through}"


@final
@dataclass(frozen=True, slots=True)
class Step:
    """A shortest import chain from a file to a secret's file: the first file imported, the last, and the length."""

    imported: str
    last: str
    steps: int


def reached_by_imports(
    importers: Mapping[str, Iterable[str]], files: Iterable[str], depth: int | None
) -> dict[str, Step]:
    """The other files that import one of these in at most ``depth`` steps, with the first step of a shortest chain.

    Among chains of equal length the first by name is chosen, so the result depends on the graph alone.

    >>> reached_by_imports({"core": ["a", "b"], "a": ["main"], "main": []}, ["core"], None)["main"]
    Step(imported='a', last='core', steps=2)
    """
    frontier = sorted(files)
    reached = {file: Step(file, file, 0) for file in frontier}
    start = frozenset(frontier)
    steps = 0
    while frontier and (depth is None or steps < depth):
        steps += 1
        new: dict[str, Step] = {}
        for target in frontier:  # sorted, so the first to reach a file has the least name
            for path in importers.get(target, ()):
                if path not in reached:
                    new.setdefault(path, Step(target, reached[target].last, steps))
        reached |= new
        frontier = sorted(new)
    return {path: step for path, step in sorted(reached.items()) if path not in start}


def _import_reason(path: str, reached: Mapping[str, Step], secret: CodeSecret) -> str:
    """The import chain from a file to a secret's file, shortened in the middle if it is long."""
    last, steps = reached[path].last, reached[path].steps
    between: list[str] = []
    file = reached[path].imported
    while file != last and len(between) < MAX_CHAIN_FILES:
        between.append(file)
        file = reached[file].imported
    if file != last:
        between.append("…")
    through = f" through {' → '.join(between)}" if between else ""
    return f"file {path} imports {last} of {secret.name}{through} ({steps} step{'s' * (steps > 1)})"


@final
@dataclass(frozen=True, eq=False)
class CodeSecrets:
    """Finds the secrets of a repository in the chunks of its files, by the column path. Secret names are public.

    If definitions or lines are hidden, a chunk contains a secret if one of the secret's spans of the file is in it.
    """

    contained: Containment

    @classmethod
    def of(cls, repository: Repository, settings: CodeSettings) -> Self:
        """Reads the files, history, owners and imports that the rules need."""
        return cls(containment(repository, settings))

    @property
    def columns(self) -> tuple[str, ...]:
        return ("path", "offset") if self.contained.spans else ("path",)

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return [
            DeclaredSecret(key=secret.name, name=secret.name, protection=secret.protection)
            for secret in self.contained.secrets
        ]

    def find(self, block: Block) -> Hits:
        paths: list[str] = block.columns["path"].to_pylist()
        examples: list[int] = []
        keys_of_hits: list[int] = []
        reasons_of_hits: list[int] = []
        begins: list[int] = []
        ends: list[int] = []
        reason_index: dict[str, int] = {}
        offsets = block.columns["offset"].to_pylist() if self.contained.spans else [0] * len(paths)
        for row, path in enumerate(paths):
            if path not in self._files:
                raise InvalidInput(
                    f"an example is of file {path!r}, which the repository did not have when its rules were read; "
                    "scan the same repository, and do not change it meanwhile"
                )
            spans = self.contained.spans.get(path, {})
            for secret, sentence in self.contained.reasons.get(path, ()):
                found = [(-1, -1)]
                if secret in spans:
                    found = _spans_inside(spans[secret], int(offsets[row]), len(block.strings[row]), path)
                for begin, end in found:
                    examples.append(row)
                    keys_of_hits.append(secret)
                    begins.append(begin)
                    ends.append(end)
                    reasons_of_hits.append(reason_index.setdefault(sentence, len(reason_index)))
        keys = tuple(secret.name for secret in self.contained.secrets)
        return Hits.of(
            examples,
            keys_of_hits,
            keys=keys,
            reasons=tuple(reason_index),
            reason=reasons_of_hits,
            begin=begins,
            end=ends,
        )

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(self.contained.files)

    def __getstate__(self) -> Containment:
        return self.contained

    def __setstate__(self, contained: Containment) -> None:
        object.__setattr__(self, "contained", contained)

    def __repr__(self) -> str:
        return f"CodeSecrets({len(self.contained.secrets)} secrets in {len(self.contained.reasons)} files)"


def _spans_inside(spans: Sequence[tuple[int, int]], offset: int, length: int, path: str) -> list[tuple[int, int]]:
    """The spans of a file that are in a chunk, counted from the chunk's beginning; a border never cuts one."""
    first = bisect_left(spans, (offset, offset))
    inside: list[tuple[int, int]] = []
    for begin, end in spans[max(first - 1, 0) :]:
        if begin >= offset + length:
            break
        if end <= offset:
            continue
        if begin < offset or end > offset + length:
            raise InvalidInput(
                f"a chunk of {path} cuts text that a rule hides; make the chunks with the spans of the same rules"
            )
        inside.append((begin - offset, end - offset))
    return inside
