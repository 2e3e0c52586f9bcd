"""What JavaScript projects say about names in JSON: tsconfig.json, jsconfig.json and package.json."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from hush.scan.code.repository import Repository

__all__ = ["Paths", "nearest_settings", "package_folders"]

_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """How names that are not relative map to paths: patterns with at most one star, and folders to count from."""

    patterns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bases: tuple[str, ...] = ()

    def candidates(self, name: str) -> Iterator[str]:
        """The paths that a name may mean, the likeliest first."""
        for pattern, places in sorted(self.patterns, key=lambda entry: -len(entry[0].partition("*")[0])):
            head, star, tail = pattern.partition("*")
            if star and len(name) >= len(head + tail) and name.startswith(head) and name.endswith(tail):
                inside = name[len(head) : len(name) - len(tail)]
                yield from (place.replace("*", inside, 1) for place in places)
            elif pattern == name:
                yield from places
        yield from (posixpath.join(base, name) for base in self.bases)


def nearest_settings(repository: Repository, folder: str) -> Paths:
    """The settings that hold in a folder: of the first tsconfig.json or jsconfig.json from there upwards."""
    while True:
        for name in ("tsconfig.json", "jsconfig.json"):
            file = posixpath.join(folder, name)
            if file in repository.sizes:
                return _paths(repository, file)
        if not folder:
            return Paths()
        folder = posixpath.dirname(folder)


def _paths(repository: Repository, file: str) -> Paths:
    """The paths of a file of settings and of all that it extends, its own first.

    A compiler lets the nearest paths replace all others. Whoever has both here finds too much rather than too little.
    """
    waiting, seen = [file], set[str]()
    bases: list[str] = []
    mapped: list[tuple[str, str, tuple[str, ...]]] = []  # the folder of the file, a pattern, and what it stands for
    while waiting:
        file = waiting.pop()
        if file in seen or file not in repository.sizes:
            continue
        seen.add(file)
        content = _loose_json(repository.read(file))
        folder = posixpath.dirname(file)
        options = content.get("compilerOptions")
        options = options if isinstance(options, dict) else {}
        if isinstance(base := options.get("baseUrl"), str):
            bases.append(posixpath.normpath(posixpath.join(folder, base)))
        entries = options.get("paths")
        for name, places in entries.items() if isinstance(entries, dict) else ():
            if isinstance(places, list):
                mapped.append((folder, name, tuple(place for place in places if isinstance(place, str))))
        parents = content.get("extends")
        for parent in parents if isinstance(parents, list) else [parents]:  # of several, the last counts most
            if isinstance(parent, str):
                named = posixpath.normpath(posixpath.join(folder, parent))
                waiting.append(named if named.endswith(".json") else f"{named}.json")
    # Places count from a base, which may stand in another file of the chain; without one, from their own file.
    patterns = tuple(
        (name, tuple(posixpath.join(start, place) for start in (*bases, folder) for place in places))
        for folder, name, places in mapped
    )
    return Paths(patterns=patterns, bases=tuple(bases))


def package_folders(repository: Repository) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The packages of a repository by the name that each gives itself: its folder, and all that it says."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for file in repository.files:
        if posixpath.basename(file) == "package.json":
            content = _loose_json(repository.read(file))
            if isinstance(name := content.get("name"), str):
                found.setdefault(name, (posixpath.dirname(file), content))
    return found


def _loose_json(text: str) -> dict[str, Any]:
    """JSON in which comments and commas before a closing bracket are allowed; empty if it is none even so."""
    plain = _LAST_COMMA.sub(lambda match: match[1] or "", _COMMENT.sub(lambda match: match[1] or " ", text))
    try:
        content = json.loads(plain.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
