"""The one function: a corpus and rules in, who contains what, and why, out."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hush.corpus import Corpus, read_corpus
from hush.corpus.formats import check_key_apart
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.scan.engines import Engine
from hush.scan.engines.local import LocalEngine
from hush.scan.prepare import Preparation, chunks_of_rules, prepare
from hush.scan.rules import Rules, load_rules

if TYPE_CHECKING:
    from hush.scan.code.repository import Repository
    from hush.scan.result import Scan

__all__ = ["scan"]

NAMED = 3  # files in a notice

Source: TypeAlias = str | os.PathLike[str] | Corpus
RulesLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Rules


def scan(
    source: Source,
    rules: RulesLike,
    *,
    column: str | None = None,
    unit: Literal["line", "file"] | None = None,
    id_column: str | None = None,
    key: DataKey | str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    engine: Engine | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> "Scan":
    """Which examples contain which secrets, by these rules, and why.

    source: a file, a folder, a data set's name, a Corpus; or, where a rule is about code or the rules state chunks, a
    folder of code. rules: a YAML file, a dictionary of the same form, or Rules. column and unit: as in ``read_corpus``.
    id_column: a column with ids of your own. key: for keyed fingerprints of the examples; a path's key is made on first
    use. skip_bad: count and leave out rows that cannot be read. workers: processes on this machine; or engine: where
    else to run. progress: called with how many pieces of work are done, of how many. notice: called with sentences that
    the owner should read: files that are no examples, entries of rules that mean nothing here.

    Guarantee: every pair of the incidence has a reason, and neither engine nor workers change the result. Secrets that
    no rule describes are not found.
    """
    if engine is not None and workers != 1:
        raise InvalidInput(f"workers={workers} is about this machine, but an engine is given; drop one of them")
    rules = _rules(rules)
    from hush.scan.pipeline import run_scan

    if rules.about_code:
        stray = {"column": column, "unit": unit, "id_column": id_column}
        for name in [name for name, value in stray.items() if value is not None]:
            raise InvalidInput(
                f"{name} is about tables, but these rules are about code; drop it, or the rules for code"
            )
    if not isinstance(key, DataKey | None) and not isinstance(source, Corpus):
        check_key_apart(Path(key), os.fspath(source), code=rules.about_code)
    if rules.about_code:
        from hush.scan.code.chunks import code_corpus

        repository = _repository(source)
        corpus, id_column = code_corpus(repository, chunks_of_rules(rules)), "id"
    else:
        repository = None
        corpus = source if isinstance(source, Corpus) else read_corpus(source, column=column, unit=unit)
        if id_column == corpus.column:
            raise InvalidInput(
                f"id_column={id_column!r} is the column of the texts; ids are shown in every explanation, texts are "
                "not: name a column with ids, or none, and an id says file and row"
            )
    ready = prepare(rules, repository=repository)
    if notice is not None and repository is not None:
        for said in _notices(repository, ready):
            notice(said)
    engine = LocalEngine(workers=workers) if engine is None else engine
    connected = getattr(engine, "connected", nullcontext)  # a cluster takes a while to start: once for all its work
    with connected():
        return run_scan(
            corpus,
            ready.rules,
            engine=engine,
            key=key if isinstance(key, DataKey | None) else DataKey.load_or_create(key),
            id_column=id_column,
            skip_bad=skip_bad,
            copies=ready.copies,
            keep_texts=repository is not None,
            progress=progress,
        )


def _rules(rules: RulesLike) -> Rules:
    if isinstance(rules, Rules):
        return rules
    return Rules.of(rules) if isinstance(rules, Mapping) else load_rules(rules)


def _repository(source: Source) -> "Repository":
    from hush.scan.code.repository import Repository

    if isinstance(source, Corpus) or not Path(source).is_dir():
        shown = source.source if isinstance(source, Corpus) else os.fspath(source)
        raise InvalidInput(f"{shown} is no folder, but these rules are about code; pass the folder of a repository")
    return Repository.open(source)


def _notices(repository: "Repository", ready: Preparation) -> Iterator[str]:
    """What the owner of a repository should know of it and of the rules."""
    from hush.scan.code.finder import CodeSecrets

    for kind, paths in repository.passed_over.items():
        yield f"{_counted(paths)} passed over ({kind}): {_named(paths)}"
    for rule in ready.rules:
        if isinstance(rule.finder, CodeSecrets):
            contained = rule.finder.contained
            yield from (f"rule {rule.name}: {slip}" for slip in contained.slips)
            if contained.with_errors:
                broken = contained.with_errors
                yield f"rule {rule.name}: imports may be missing from {_counted(broken)} with errors: {_named(broken)}"


def _counted(paths: Sequence[str]) -> str:
    return f"{len(paths):,} file{'' if len(paths) == 1 else 's'}"


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:NAMED]) + (", …" if len(paths) > NAMED else "")
