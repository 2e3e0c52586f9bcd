"""Whom a file's changes are due to, and whose a file is: the three ways in which a file is one of a secret's own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

from hush.scan.code.globs import Globs
from hush.scan.code.history import History, read_history
from hush.scan.code.owners import Owners
from hush.scan.code.repository import Repository
from hush.scan.code.settings import CodeSecret, CodeSettings, Contributors

__all__ = ["Evidence", "people_meant"]

ROUNDING = 1e-9  # a share of exactly the threshold counts, however the division rounds

Shares = Mapping[str, Mapping[int, float]]


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """What a repository says of its files, each source read when a rule first asks for it."""

    repository: Repository
    settings: CodeSettings

    @cached_property
    def history(self) -> History:
        """Every change of every file; an error that says what to do where the repository has no whole history."""
        self.repository.require_history()
        rules = (self.settings.contributors, self.settings.authored)
        return read_history(self.repository.root, lines=any(rule is not None and rule.of == "lines" for rule in rules))

    @cached_property
    def owners(self) -> Owners:
        return Owners.read(self.repository.root)

    def shares(self, rule: Contributors) -> Shares:
        """Who made which part of the changes of the repository's present files, as a rule counts them."""
        if rule not in self._shares:
            everything = self.history.shares(since=rule.since, of=rule.of)
            self._shares[rule] = {path: everything[path] for path in self.repository.paths if path in everything}
        return self._shares[rule]

    @cached_property
    def _shares(self) -> dict[Contributors, Shares]:
        return {}

    def own_files(self, secret: CodeSecret) -> dict[str, list[str]]:
        """The files of a secret, each with the reasons."""
        reasons: dict[str, list[str]] = {}
        if secret.paths:
            globs = Globs(secret.paths)
            for path in filter(globs.match, self.repository.paths):
                reasons.setdefault(path, []).append(f"file {path} is under paths of {secret.name}")
        if secret.owners:
            wanted = _entries(secret.owners, self.settings.groups)
            for path in self.repository.paths:
                owning = [owner for owner in self.owners.of(path) if owner.casefold() in wanted]
                if owning:
                    said = f"file {path} is owned by {', '.join(owning)}, owner of {secret.name}"
                    reasons.setdefault(path, []).append(said)
        if secret.authors:
            named = people_meant(secret.authors, self.history, self.settings.groups)
            people = self._with_groups(named, self.settings.authored)
            for path, said in self.files_of(people, self.settings.authored).items():
                reasons.setdefault(path, []).append(f"file {path} is by authors of {secret.name}: {said}")
        return reasons

    def slips(self, secret: CodeSecret) -> list[str]:
        """Entries of a secret that mean nothing in this repository, which may be a slip of its author."""
        said = [
            f"pattern {number} of the paths of {secret.name} matches no file"
            for number, pattern in enumerate(secret.paths, start=1)
            if not pattern.startswith("!") and not any(map(Globs((pattern,)).match, self.repository.paths))
        ]
        groups = self.settings.groups
        owners = _entries((owner for _, owners in self.owners.rules for owner in owners), {}) if secret.owners else ()
        said += [
            f"owner {name} of {secret.name} is not in CODEOWNERS"
            for name in secret.owners
            if _entries([name], groups).isdisjoint(owners)
        ]
        if secret.owners:
            said += [
                f"line {number} of CODEOWNERS is not valid and counts for nothing" for number in self.owners.skipped
            ]
        said += [
            f"author {name} of {secret.name} has no commit"
            for name in secret.authors
            if not people_meant([name], self.history, groups)
        ]
        return said

    def files_of(self, people: frozenset[int], rule: Contributors) -> dict[str, str]:
        """The files of which these people together made enough, each with how much that is."""
        found: dict[str, str] = {}
        for path, shares in self.shares(rule).items():
            theirs = {person: share for person, share in shares.items() if person in people}
            if theirs and sum(theirs.values()) >= rule.share - ROUNDING:
                most = min(theirs, key=lambda person: (-theirs[person], self.history.authors[person]))
                since = "" if rule.since is None else f" since {rule.since}"
                named = _shown(self.history.authors[most].email) + ("" if len(theirs) == 1 else " and others")
                found[path] = f"{sum(theirs.values()):.0%} of its {rule.of}{since} by {named}"
        return found

    def contributors(self, files: Iterable[str], rule: Contributors) -> frozenset[int]:
        """Those who made enough of one of these files."""
        shares = self.shares(rule)
        people = {
            person for file in files for person, share in shares.get(file, {}).items() if share >= rule.share - ROUNDING
        }
        return self._with_groups(frozenset(people), rule)

    def _with_groups(self, people: frozenset[int], rule: Contributors) -> frozenset[int]:
        """The same people, if the rule says so with everybody who is in a group with one of them."""
        groups = [people_meant(members, self.history, {}) for members in self.settings.groups.values()]
        return people.union(*(group for group in groups if rule.groups and group & people))


def people_meant(entries: Iterable[str], history: History, groups: Mapping[str, tuple[str, ...]]) -> frozenset[int]:
    """The authors that addresses, names or groups mean, in upper or lower case; numbers into ``history.authors``."""
    wanted = _entries(entries, groups)
    return frozenset(
        number
        for number, author in enumerate(history.authors)
        if author.email.casefold() in wanted or author.name.casefold() in wanted
    )


def _entries(names: Iterable[str], groups: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Names of groups replaced by their members."""
    return frozenset(entry.casefold() for name in names for entry in groups.get(name, (name,)))


def _shown(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="replace")
