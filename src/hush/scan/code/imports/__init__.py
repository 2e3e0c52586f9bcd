"""The import graph of a repository: which file imports which, in every language in the table ``LANGUAGES``.

A file that imports a secret module reveals something of its content, so containment spreads along these edges
(spread.py). parsing.py gives syntax trees; python.py, javascript.py, rust.py and c_go_java.py read one language each or
several. distributions.py and python_modules.py say which files a Python import may mean.
"""

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
    """A language: it reads the references of each file, then resolves them to files of the repository."""

    @property
    def name(self) -> str: ...

    @property
    def endings(self) -> tuple[str, ...]: ...

    def references(self, path: str, text: str) -> tuple[Any, bool]:
        """The imports of a file, and whether it has syntax errors."""
        ...

    def edges(self, repository: Repository, references: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
        """Each file with the files that it imports; one that defines nothing need not be among them."""
        ...


LANGUAGES: tuple[Language, ...] = (Python(), JavaScript(), Java(), Go(), Rust(), C(), CPlusPlus())


@final
@dataclass(frozen=True, kw_only=True)
class ImportGraph:
    """Which file imports which.

    imports: for each file of a known language, sorted, the files of the repository that it imports, itself excluded.
    Files that cannot be read as text can still be imported. with_errors: files that cannot be read or parsed
    completely; the imports that could be found are in ``imports``. files: the number of files read of each language.
    """

    imports: Mapping[str, tuple[str, ...]] = field(repr=False)
    with_errors: tuple[str, ...] = field(repr=False)
    files: Mapping[str, int]

    @property
    def edges(self) -> Iterator[tuple[str, str]]:
        """All pairs (importing, imported)."""
        return ((path, target) for path, targets in self.imports.items() for target in targets)

    def importers(self) -> dict[str, list[str]]:
        """For each imported file the files that import it, sorted."""
        importers: dict[str, list[str]] = {}
        for path, target in self.edges:
            importers.setdefault(target, []).append(path)
        return importers


def import_graph(repository: Repository, progress: Callable[[str], None] | None = None) -> ImportGraph:
    """Reads every file of a known language. progress: called with each file's path."""
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
