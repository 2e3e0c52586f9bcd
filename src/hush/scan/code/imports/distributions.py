"""The Python distributions of a repository: what belongs to each, and which others it depends on.

A distribution is a folder with a pyproject.toml (that states a project or how to build one), a setup.cfg or a setup.py,
and everything below it that is not part of a distribution further down. Nothing is executed: a setup.py is parsed, and
only literals in it count. Dependencies that cannot be read are unknown, which is not the same as none.
"""

import ast
import configparser
import posixpath
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

from hush.scan.code.repository import Repository

__all__ = ["Distribution", "Distributions", "read_distributions"]


FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
_REQUIRES_KEYWORDS = ("install_requires", "extras_require", "tests_require")  # of setup()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution by its folder ("" for the top).

    name: normalised, None if unknown. requires: the normalised names that it depends on, also optionally or for
    development; None if they cannot be read. always: those of them without which it is never installed.
    """

    folder: str
    name: str | None
    requires: frozenset[str] | None
    always: frozenset[str] = frozenset()


@final
@dataclass(frozen=True)
class Distributions:
    """The distributions of a repository, by the index of each in ``all``."""

    all: tuple[Distribution, ...] = ()

    def of(self, path: str) -> int | None:
        """The distribution that a file belongs to; None if it belongs to none."""
        return self.of_folder(posixpath.dirname(path))

    def may_need(self, number: int) -> frozenset[int] | None:
        """Itself and the distributions that it depends on, also indirectly; None if that is unknown."""
        if number not in self._may_need:
            waiting = reached = {number, *self._unnamed}  # one without a name may be any that is required
            while waiting:
                required = [self.all[index].requires for index in waiting]
                if any(names is None for names in required):
                    reached = None
                    break
                waiting = self._named(name for names in required for name in names or ()) - reached
                reached = reached | waiting
            self._may_need[number] = None if reached is None else frozenset(reached)
        return self._may_need[number]

    def needs(self, number: int) -> frozenset[int]:
        """Itself and distributions without which it is never installed, as far as that can be read."""
        if number not in self._needs:
            waiting = reached = {number}
            while waiting:
                waiting = self._named(name for index in waiting for name in self.all[index].always) - reached
                reached = reached | waiting
            self._needs[number] = frozenset(reached)
        return self._needs[number]

    def together_with(self, number: int) -> frozenset[int]:
        """The distributions on which another may depend that may depend on this one, as far as that can be read."""
        if number not in self._together:
            needed = filter(None, map(self.may_need, range(len(self.all))))
            self._together[number] = frozenset().union(*(group for group in needed if number in group))
        return self._together[number]

    def _named(self, names: Iterable[str]) -> set[int]:
        return {index for name in names for index in self._by_name.get(name, ())}

    def of_folder(self, folder: str) -> int | None:
        """As ``of``, for the files of a folder."""
        if folder not in self._folders:
            self._folders[folder] = None if not folder else self.of_folder(posixpath.dirname(folder))
        return self._folders[folder]

    @cached_property
    def _folders(self) -> dict[str, int | None]:
        return {distribution.folder: index for index, distribution in enumerate(self.all)}

    @cached_property
    def _may_need(self) -> dict[int, frozenset[int] | None]:
        return {}

    @cached_property
    def _together(self) -> dict[int, frozenset[int]]:
        return {}

    @cached_property
    def _needs(self) -> dict[int, frozenset[int]]:
        return {}

    @cached_property
    def _unnamed(self) -> frozenset[int]:
        return frozenset(index for index, distribution in enumerate(self.all) if distribution.name is None)

    @cached_property
    def _by_name(self) -> Mapping[str, list[int]]:
        names: dict[str, list[int]] = {}
        for index, distribution in enumerate(self.all):
            if distribution.name is not None:
                names.setdefault(distribution.name, []).append(index)
        return names


def read_distributions(repository: Repository) -> Distributions:
    """The distributions of a repository. A file that cannot be read leaves dependencies unknown."""
    folders: dict[str, set[str]] = {}
    for path in repository.paths:
        if posixpath.basename(path) in FILES:
            folders.setdefault(posixpath.dirname(path), set()).add(posixpath.basename(path))
    found = (_distribution(repository, folder, names) for folder, names in sorted(folders.items()))
    return Distributions(tuple(distribution for distribution in found if distribution is not None))


@final
@dataclass(slots=True)
class _Stated:
    """What the files of one folder state. known: whether any of them states the dependencies in full."""

    is_distribution: bool = False
    known: bool = False
    unreadable: bool = False
    names: list[str] = field(default_factory=list)
    always: list[str] = field(default_factory=list)
    requires: list[str] = field(default_factory=list)


def _distribution(repository: Repository, folder: str, names: set[str]) -> Distribution | None:
    stated = _Stated()
    readers = {"pyproject.toml": _read_pyproject, "setup.cfg": _read_setup_cfg, "setup.py": _read_setup_py}
    for name in FILES:
        path = posixpath.join(folder, name)
        if name in names and path in repository.sizes:
            readers[name](repository.read(path), stated)
        elif name in names:  # a link, or too large
            stated.is_distribution = stated.unreadable = True
    if not stated.is_distribution:
        return None
    parsed = [_NAME.match(requirement) for requirement in stated.always + stated.requires]
    always = [_NAME.match(requirement) for requirement in stated.always if ";" not in requirement]
    known = stated.known and not stated.unreadable and all(parsed)
    return Distribution(
        folder=folder,
        name=_normalised(stated.names[0]) if stated.names else None,
        requires=frozenset(_normalised(match[1]) for match in parsed if match) if known else None,
        always=frozenset(_normalised(match[1]) for match in always if match),
    )


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _read_pyproject(text: str, stated: _Stated) -> None:
    try:
        content = tomllib.loads(text)
    except ValueError:
        stated.is_distribution = stated.unreadable = True
        return
    tool = _table(content.get("tool"))
    project, poetry = _table(content.get("project")), _table(tool.get("poetry"))
    if not (project or poetry or "build-system" in content):
        return  # the settings of a linter
    stated.is_distribution = True
    stated.names += [table["name"] for table in (project, poetry) if isinstance(table.get("name"), str)]
    dynamic = _list(project.get("dynamic"))
    stated.unreadable |= "dependencies" in dynamic or "optional-dependencies" in dynamic
    stated.known |= bool(project) or bool(poetry)
    groups = [_table(poetry.get("group")).values(), [poetry]]
    entries = _table(poetry.get("dependencies")).items()
    stated.always += [name for name, entry in entries if isinstance(entry, str)]  # a table may state conditions
    for group in (_table(group) for several in groups for group in several):
        stated.requires += [*_table(group.get("dependencies")), *_table(group.get("dev-dependencies"))]
    uv, pdm = _table(tool.get("uv")), _table(tool.get("pdm"))
    stated.always += [entry for entry in _list(project.get("dependencies")) if isinstance(entry, str)]
    listed = [uv.get("dev-dependencies")]
    tables = (project.get("optional-dependencies"), content.get("dependency-groups"), pdm.get("dev-dependencies"))
    listed += [entries for table in tables for entries in _table(table).values()]
    stated.requires += [entry for entries in listed for entry in _list(entries) if isinstance(entry, str)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_setup_cfg(text: str, stated: _Stated) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        stated.is_distribution = stated.unreadable = True
        return
    if not (parser.has_section("metadata") or parser.has_section("options")):
        return  # the settings of a linter
    stated.is_distribution = True
    if name := parser.get("metadata", "name", fallback=""):
        stated.names.append(name)
    stated.known |= parser.has_option("options", "install_requires")
    extras = parser["options.extras_require"].values() if parser.has_section("options.extras_require") else ()
    installed = parser.get("options", "install_requires", fallback="")
    optional = [parser.get("options", "tests_require", fallback=""), *extras]
    stated.unreadable |= any(value.lstrip().startswith(("file:", "attr:")) for value in (installed, *optional))
    stated.always += _requirement_lines(installed)
    stated.requires += [line for value in optional for line in _requirement_lines(value)]


def _requirement_lines(text: str) -> list[str]:
    """The requirements in lines; comments and references to other values are left out."""
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith(("#", "%"))]


def _read_setup_py(text: str, stated: _Stated) -> None:
    stated.is_distribution = True
    try:
        tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        stated.unreadable |= not stated.known
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == "setup"]
    for keyword in (keyword for call in calls for keyword in call.keywords):
        if keyword.arg in (None, "pbr", *_REQUIRES_KEYWORDS):
            try:
                value = ast.literal_eval(keyword.value) if keyword.arg in _REQUIRES_KEYWORDS else None
                (stated.always if keyword.arg == "install_requires" else stated.requires).extend(_flat(value))
            except (ValueError, TypeError, RecursionError, MemoryError):
                stated.unreadable = True
            stated.known |= keyword.arg == "install_requires"
        elif keyword.arg == "name" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
            stated.names.append(keyword.value.value)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _flat(value: object) -> list[str]:
    """The requirements of a literal: a text with lines, a list of them, or a dictionary of lists."""
    if isinstance(value, str):
        return _requirement_lines(value)
    if isinstance(value, dict):
        return [entry for entries in value.values() for entry in _flat(entries)]
    if isinstance(value, list | tuple | set):
        return [entry for entries in value for entry in _flat(entries)]
    raise TypeError("requirements are texts and lists of texts")
