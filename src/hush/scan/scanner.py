"""The one function: a corpus and rules in, who contains what, and why, out.

From rules to what looks for their secrets: a finder for each, and who counts as a copy of whom.

A finder is imported when a rule asks for it, so a scan needs the extras of its own rules only.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from hush.data import Corpus, read_corpus
from hush.data.text_readers import kind_of
from hush.errors import InvalidInput
from hush.keys import DataKey, check_key_apart
from hush.scan.engines import Engine, LocalEngine
from hush.scan.finders.literals import check_names, read_literals
from hush.scan.hits import Finder, Prepared, Survey
from hush.scan.rules import Rules, load_rules
from hush.scan.rules.promises import Promise
from hush.scan.rules.schema import (
    CodeRule,
    ContributorsRule,
    CopiesRule,
    CredentialsRule,
    LiteralsRule,
    PatternsRule,
    PersonalDataRule,
    Rule,
)

if TYPE_CHECKING:
    from hush.scan.code.repository import Repository
    from hush.scan.code.settings import Chunks, CodeSettings, Contributors
    from hush.scan.near_copies import Copies
    from hush.scan.result import Scan

__all__ = ["Preparation", "chunks_of_rules", "code_settings", "prepare", "scan"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """All that a scan needs to know of its rules."""

    rules: tuple[Prepared, ...]
    copies: "Copies | None"


def prepare(rules: Rules, *, repository: "Repository | None" = None) -> Preparation:
    """Rules that are ready to run; rules for code look at this repository."""
    ready: list[Prepared] = []
    copies = None
    for rule in rules.rules:
        try:
            if isinstance(rule, CopiesRule):
                copies = _copies(rule)
            else:
                ready.append(_prepared(rule, rules, repository))
        except InvalidInput as error:
            raise InvalidInput(f"rule {rule.name}: {error}") from None
    return Preparation(rules=tuple(ready), copies=copies)


def chunks_of_rules(rules: Rules) -> "Chunks | None":
    """How files of code are cut; None where the rules do not say."""
    from hush.scan.code.settings import Chunks

    stated = rules.file.chunks
    return None if stated is None else Chunks(lines=stated.lines, tokens=stated.tokens, overlap=stated.overlap)


def _prepared(rule: Rule, rules: Rules, repository: "Repository | None") -> Prepared:
    if isinstance(rule, LiteralsRule):
        return _literals(rule, rules)
    if isinstance(rule, CodeRule):
        return _code(rule, rules, repository)
    return Prepared(
        name=rule.name,
        finder=_finder(rule),
        protection=rules.protection(rule),
        public_names=rule.find == "fields" and rule.public_names,
        again=_again(rule),
    )


def _again(rule: Rule) -> Literal["text", "words"] | None:
    """How a rule whose secrets are known by their surroundings looks for their texts everywhere."""
    if isinstance(rule, PatternsRule | CredentialsRule) and rule.everywhere:
        return None if isinstance(rule, PatternsRule) and rule.secret == "pattern" else "text"
    return "words" if isinstance(rule, PersonalDataRule) and rule.everywhere else None


def _finder(rule: Rule) -> Finder | Survey:
    match rule.find:
        case "words":
            from hush.scan.finders.words import Tokens, Words

            return Words(documents=rule.documents, ranks=rule.ranks, tokens=Tokens(**rule.tokens.model_dump()))
        case "patterns":
            from hush.scan.finders.patterns import Patterns

            return Patterns(patterns=rule.patterns, secret=rule.secret, group=rule.group)
        case "credentials":
            from hush.scan.finders.credentials import Credentials

            return Credentials(detectors=rule.detectors)
        case "pii":
            from hush.scan.finders.personal import PersonalData

            model = {} if rule.model is None else {"model": rule.model}
            return PersonalData(entities=rule.entities, language=rule.language, score=rule.score, **model)
        case "fields":
            from hush.scan.finders.patterns import Fields

            return Fields(column=rule.column, separator=rule.separator, public_names=rule.public_names)
    raise InvalidInput(f"no finder is known for {rule.find}")


def _literals(rule: LiteralsRule, rules: Rules) -> Prepared:
    from hush.scan.finders.literals import Literals

    if rule.file is None:
        finder = Literals(values=rule.values or (), ignore_case=rule.ignore_case, whole_words=rule.whole_words)
        return Prepared(name=rule.name, finder=finder, protection=rules.protection(rule))
    listed = read_literals(rules.path(rule.file))
    protections = []
    for literal in listed:
        try:
            protections.append(rules.protection(rule, Promise(prior=literal.prior, ceiling=literal.ceiling)))
        except InvalidInput as error:
            raise InvalidInput(f"{literal.where}: {error}") from None
    names = [literal.name for literal in listed if literal.name is not None]
    finder = Literals(
        values=[literal.text for literal in listed],
        ids=names or None,
        protections=protections,
        ignore_case=rule.ignore_case,
        whole_words=rule.whole_words,
    )
    if names:
        check_names(listed, whole_words=rule.whole_words)
    return Prepared(name=rule.name, finder=finder, protection=protections[0])


def _copies(rule: CopiesRule) -> "Copies":
    from hush.scan.near_copies import Copies

    if find_spec("rensa") is None:
        raise InvalidInput('near copies need the package rensa; run pip install "hush[copies]"')
    return Copies(similarity=rule.similarity, shingle=rule.shingle, permutations=rule.permutations, missed=rule.missed)


def _code(rule: CodeRule, rules: Rules, repository: "Repository | None") -> Prepared:
    if repository is None:
        raise InvalidInput("it is about code; scan the folder of a repository, or drop the rule")
    from hush.scan.code.spread import CodeSecrets

    settings = code_settings(rule, rules)
    finder = CodeSecrets.of(repository, settings)
    return Prepared(name=rule.name, finder=finder, protection=rules.protection(rule, rule.secrets[0].promise))


def code_settings(rule: CodeRule, rules: Rules) -> "CodeSettings":
    """A code rule as its finder takes it."""
    from hush.scan.code.settings import CodeSecret, CodeSettings, Imports

    depth = 0 if rule.imports is None else rule.imports.depth
    return CodeSettings(
        secrets=tuple(
            CodeSecret(
                name=secret.name,
                paths=secret.paths or (),
                owners=secret.owners or (),
                authors=secret.authors or (),
                protection=rules.protection(rule, secret.promise),
            )
            for secret in rule.secrets
        ),
        imports=Imports(depth=None if depth == "all" else depth or 0),
        contributors=None if rule.contributors is None else _contributors(rule.contributors),
        authored=_contributors(rule.authored),
        groups=rule.groups,
    )


def _contributors(stated: ContributorsRule) -> "Contributors":
    from hush.scan.code.settings import Contributors

    return Contributors(share=stated.share, since=stated.since, of=stated.of, groups=stated.groups)


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
    from hush.scan.assemble import run_scan

    if rules.about_code:
        stray = {"column": column, "unit": unit, "id_column": id_column}
        for name in [name for name, value in stray.items() if value is not None]:
            raise InvalidInput(
                f"{name} is about tables, but these rules are about code; drop it, or the rules for code"
            )
    if not isinstance(key, DataKey | None) and not isinstance(source, Corpus):
        read_as_data = rules.about_code or kind_of(Path(key)) is not None  # a scan of code reads files of any name
        check_key_apart(Path(key), os.fspath(source), read_as_data=read_as_data)
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
    from hush.scan.code.spread import CodeSecrets

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
