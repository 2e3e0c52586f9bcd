"""The import graph of a repository in every language that hush reads: who would see a secret module's content."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from hush.scan.code.imports.c_go_java import C, CPlusPlus, Go, Java
from hush.scan.code.imports.javascript import JavaScript
from hush.scan.code.imports.python import Python
from hush.scan.code.imports.rust import Rust
from hush.scan.code.repository import Repository

__all__ = ["LANGUAGES", "ImportGraph", "Language", "import_graph"]


class Language(Protocol):
    """One language: it reads each file alone, then finds the files that all of them refer to."""

    @property
    def name(self) -> str: ...

    @property
    def endings(self) -> tuple[str, ...]: ...

    def references(self, path: str, text: str) -> tuple[Any, bool]:
        """What a file imports, and whether it has errors."""
        ...

    def edges(self, repository: Repository, references: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports."""
        ...


LANGUAGES: tuple[Language, ...] = (Python(), JavaScript(), Java(), Go(), Rust(), C(), CPlusPlus())


@final
@dataclass(frozen=True, kw_only=True)
class ImportGraph:
    """Which file imports which.

    imports: for each file of a known language, sorted, the files of the repository that it imports, itself excluded.
    Files that cannot be read as text can still be imported.
    with_errors: files whose imports may be incomplete, as they cannot be read or their language cannot parse them
    whole; what could be made out of them is in ``imports``. files: how many were read of each language.
    """

    imports: Mapping[str, tuple[str, ...]] = field(repr=False)
    with_errors: tuple[str, ...] = field(repr=False)
    files: Mapping[str, int]

    @property
    def edges(self) -> Iterator[tuple[str, str]]:
        """All pairs (importing, imported)."""
        return ((path, target) for path, targets in self.imports.items() for target in targets)

    def importers(self) -> dict[str, list[str]]:
        """For each file that is imported, the files that import it, sorted."""
        found: dict[str, list[str]] = {}
        for path, target in self.edges:
            found.setdefault(target, []).append(path)
        return found


def import_graph(repository: Repository, progress: Callable[[str], None] | None = None) -> ImportGraph:
    """Reads every file of a known language. progress: told each file's path."""
    imports: dict[str, tuple[str, ...]] = {}
    with_errors: list[str] = []
    files: Counter[str] = Counter()
    for language in LANGUAGES:
        references: dict[str, Any] = {}
        for path in repository.files:
            if path.endswith(language.endings):
                references[path], has_errors = language.references(path, repository.read(path))
                with_errors += [path] * has_errors
                if progress is not None:
                    progress(path)
        files[language.name] += len(references)
        with_errors += [path for path in repository.paths if path.endswith(language.endings) and path not in references]
        imports |= {path: tuple(sorted(targets - {path})) for path, targets in language.edges(repository, references)}
    return ImportGraph(
        imports=dict(sorted(imports.items())), with_errors=tuple(sorted(with_errors)), files=dict(+files)
    )
