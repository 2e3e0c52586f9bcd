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
    """How names that are not relative map to paths: patterns with at most one star, and a folder to count from."""

    patterns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    base: str | None = None

    def candidates(self, name: str) -> Iterator[str]:
        """The paths that a name may mean, the likeliest first."""
        for pattern, places in sorted(self.patterns, key=lambda entry: -len(entry[0].partition("*")[0])):
            head, star, tail = pattern.partition("*")
            if star and len(name) >= len(head + tail) and name.startswith(head) and name.endswith(tail):
                inside = name[len(head) : len(name) - len(tail)]
                yield from (place.replace("*", inside, 1) for place in places)
            elif pattern == name:
                yield from places
        if self.base is not None:
            yield posixpath.join(self.base, name)


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
    """The paths of a file of settings, or of the first one that it extends and that has some."""
    seen: set[str] = set()
    while file in repository.sizes and file not in seen:
        seen.add(file)
        content = _loose_json(repository.read(file))
        folder = posixpath.dirname(file)
        options = content.get("compilerOptions")
        options = options if isinstance(options, dict) else {}
        base, mapped = options.get("baseUrl"), options.get("paths")
        if isinstance(base, str) or isinstance(mapped, dict):
            start = posixpath.normpath(posixpath.join(folder, base if isinstance(base, str) else "."))
            entries = mapped.items() if isinstance(mapped, dict) else ()
            patterns = tuple(
                (name, tuple(posixpath.join(start, place) for place in places if isinstance(place, str)))
                for name, places in entries
                if isinstance(places, list)
            )
            return Paths(patterns=patterns, base=start if isinstance(base, str) else None)
        parent = content.get("extends")
        if not isinstance(parent, str):
            break
        file = posixpath.normpath(posixpath.join(folder, parent))
        file = file if file.endswith(".json") else f"{file}.json"
    return Paths()


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
