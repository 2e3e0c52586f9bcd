"""``scan``: from a corpus and a rules file to the incidence, the secrets and the reasons of every pair.

``prepare`` turns each rule into a finder; the table ``FINDERS`` below lists the builder for each kind of rule. A finder
module is imported only if a rule asks for it, so a scan needs the optional packages of its own rules only.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from hush.arrays import Progress
from hush.data import Corpus, read_corpus
from hush.data.chat_template import ChatTemplate
from hush.data.text_readers import kind_of
from hush.errors import InvalidInput, Setting
from hush.keys import DataKey, check_key_apart
from hush.scan.engines import Engine, LocalEngine
from hush.scan.hits import PreparedRule
from hush.scan.rules import Rules, load_rules
from hush.scan.rules.promises import Promise
from hush.scan.rules.schema import (
    CodeRule,
    ContributorsRule,
    CopiesRule,
    CredentialsRule,
    FieldsRule,
    GitleaksRule,
    LiteralsRule,
    PatternsRule,
    PersonalDataRule,
    WordsRule,
)

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict  # pyright: ignore[reportMissingImports]

    from hush.scan.code.repository import Repository
    from hush.scan.code.settings import Chunks, CodeSettings, Contributors
    from hush.scan.identities import Identities
    from hush.scan.long_texts import LongTexts, ModelTokens
    from hush.scan.near_copies import Copies
    from hush.scan.result import Scan

__all__ = ["FINDERS", "Preparation", "chunks_of_rules", "code_settings", "long_texts_of_rules", "prepare", "scan"]


MAX_FILES_IN_NOTICE = 3

Source: TypeAlias = (
    "str | os.PathLike[str] | Corpus | Dataset | DatasetDict | Sequence[str] | Sequence[Mapping[str, Any]]"
)
RulesLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Rules


def scan(
    source: Source,
    rules: RulesLike,
    *,
    column: str | None = None,
    unit: Literal["line", "file"] | None = None,
    columns: Sequence[str] = (),
    chat_template: str | ChatTemplate | Callable[[], ChatTemplate] | None = None,
    id_column: str | None = None,
    key: DataKey | str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    model_tokens: "ModelTokens | None" = None,
    engine: Engine | None = None,
    workers: int = 1,
    known: "Identities | None" = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> "Scan":
    """Which examples contain which secrets, by these rules, and why.

    source: a file, a folder, the name of a data set, a datasets.Dataset, a list of texts or of rows, or a Corpus; if a
    rule is about code, or chunks of a folder are stated in lines or tokens, a folder of code. rules: a YAML file, a
    dictionary of the same form, or Rules. column and unit: as in ``read_corpus``. columns: several that hold text.
    chat_template: what makes one text of a conversation: a file, a model by name or folder, ``chatml``, or a
    ChatTemplate. What is scanned is that text, and it is saved with the scan, for training.

    id_column: a column with your own ids. key: for keyed fingerprints of the examples; the key of a path is created on
    first use. skip_bad: count and skip rows that cannot be read. model_tokens: what the model reads at once, for chunks
    with ``tokens: auto``. workers: processes on this machine; alternatively, engine: where to run. known: the
    identities of earlier scans under the same key: a secret among them keeps its id, and no id is given twice
    (``hush.ledger``). progress: called with the numbers of finished and of all shard tasks. notice: called with
    sentences for the owner: files that are not examples, entries of rules that match nothing.

    Guarantee: every pair of the incidence has a reason, and neither engine nor workers change the result. Secrets that
    no rule describes are not found.
    """
    if engine is not None and workers != 1:
        raise InvalidInput(
            "an engine is given, and workers are processes on this machine; drop one of the two",
            setting="workers",
            value=workers,
        )
    rules = _rules(rules)
    from hush.scan.assemble import run_scan

    about_code = rules.about_code(source) if isinstance(source, str | os.PathLike) else rules.have_code_rule
    if about_code:
        stated = {"column": column, "unit": unit, "id_column": id_column, "columns": columns or None}
        for name, value in stated.items():
            if value is not None:
                raise InvalidInput(
                    Setting(name),
                    " is for tables, but these rules are about code; drop it, or the rules for code",
                    setting=name,
                )
    if not isinstance(key, DataKey | None) and isinstance(source, str | os.PathLike):
        read_as_data = about_code or kind_of(Path(key)) is not None  # a scan of code reads files of any name
        check_key_apart(Path(key), os.fspath(source), read_as_data=read_as_data)
    if about_code:
        _refuse_moving_cuts(rules)
        from hush.scan.code.chunks import code_corpus
        from hush.scan.code.spread import CodeSecrets

        repository = _repository(source)
        preparation = prepare(rules, repository=repository)
        finders = (rule.finder for rule in preparation.rules)
        hidden = [finder.contained.hidden for finder in finders if isinstance(finder, CodeSecrets)]
        corpus, id_column = code_corpus(repository, chunks_of_rules(rules), hidden), "id"
    else:
        repository = None
        template = partial(ChatTemplate.load, chat_template) if isinstance(chat_template, str) else chat_template
        corpus = source
        if not isinstance(corpus, Corpus):
            corpus = read_corpus(corpus, column=column, unit=unit, columns=columns, template=template)
        if corpus.rendering is not None and not corpus.is_rendering:
            raise InvalidInput(
                f"{corpus.source} holds the texts of an earlier scan, which does not tell what the template changed; "
                "scan the conversations that they were made of"
            )
        if id_column == corpus.column:
            raise InvalidInput(
                "this is the column of the texts, and ids are shown in every explanation; name a column with ids, or "
                "drop it to identify examples by file and row",
                setting="id_column",
                value=id_column,
            )
        preparation = prepare(rules)
    if notice is not None and repository is not None:
        for sentence in _notices(repository, preparation):
            notice(sentence)
    engine = LocalEngine(workers=workers) if engine is None else engine
    connected = getattr(engine, "connected", nullcontext)  # a cluster starts slowly: connect once for all tasks
    with connected():
        return run_scan(
            corpus,
            preparation.rules,
            engine=engine,
            key=key if isinstance(key, DataKey | None) else DataKey.load_or_create(key),
            id_column=id_column,
            skip_bad=skip_bad,
            copies=preparation.copies,
            keep_texts=repository is not None,
            in_chunks=repository is not None,
            long_texts=None if repository is not None else long_texts_of_rules(rules, model_tokens),
            known=known,
            progress=progress,
        )


def _refuse_moving_cuts(rules: Rules) -> None:
    """Refuses spans in chunks of tokens: a secret with more tokens would move every later cut of its file."""
    hiding = [rule.name for rule in rules.rules if getattr(rule, "hides", None) == "span"]
    chunks = rules.file.chunks
    if hiding and chunks is not None and chunks.tokens is not None:
        raise InvalidInput(
            f"rule {hiding[0]} hides spans, and the chunks are counted in tokens, so that a longer secret would move "
            "their borders; cut files by lines, or hide whole examples"
        )


def _rules(rules: RulesLike) -> Rules:
    if isinstance(rules, Rules):
        return rules
    return Rules.of(rules) if isinstance(rules, Mapping) else load_rules(rules)


def _repository(source: Source) -> "Repository":
    from hush.scan.code.repository import Repository

    if not isinstance(source, str | os.PathLike) or not Path(source).is_dir():
        shown = source.source if isinstance(source, Corpus) else str(source) if isinstance(source, str) else "this"
        raise InvalidInput(f"{shown} is not a folder, but these rules are about code; pass the folder of a repository")
    return Repository.open(source)


# From rules to finders


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Everything that a scan takes from its rules: the finders, and what counts as a near copy."""

    rules: tuple[PreparedRule, ...]
    copies: "Copies | None"


def prepare(rules: Rules, *, repository: "Repository | None" = None) -> Preparation:
    """The rules with their finders, ready to run; rules for code read this repository."""
    prepared: list[PreparedRule] = []
    copies = None
    for rule in rules.rules:
        try:
            if isinstance(rule, CopiesRule):
                copies = _copies(rule)
            else:
                prepared.append(replace(FINDERS[rule.find](rule, rules, repository), find=rule.find))
        except InvalidInput as error:
            raise InvalidInput(f"rule {rule.name}: {error}") from None
    return Preparation(rules=tuple(prepared), copies=copies)


def _words(rule: WordsRule, rules: Rules, _: "Repository | None") -> PreparedRule:
    from hush.scan.finders.words import Tokens, Words

    finder = Words(documents=rule.documents, ranks=rule.ranks, tokens=Tokens(**rule.tokens.model_dump()))
    return PreparedRule(
        name=rule.name, finder=finder, protection=rules.protection(rule), hides_spans=rule.hides == "span"
    )


def _literals(rule: LiteralsRule, rules: Rules, _: "Repository | None") -> PreparedRule:
    from hush.scan.finders.literals import Literals, check_names, read_literals

    if rule.file is None:
        finder = Literals(values=rule.values or (), ignore_case=rule.ignore_case, whole_words=rule.whole_words)
        return PreparedRule(
            name=rule.name, finder=finder, protection=rules.protection(rule), hides_spans=rule.hides == "span"
        )
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
    return PreparedRule(name=rule.name, finder=finder, protection=protections[0], hides_spans=rule.hides == "span")


def _patterns(rule: PatternsRule, rules: Rules, _: "Repository | None") -> PreparedRule:
    from hush.scan.finders.patterns import Patterns

    finder = Patterns(patterns=rule.patterns, secret=rule.secret, group=rule.group)
    return PreparedRule(
        name=rule.name,
        finder=finder,
        protection=rules.protection(rule),
        literal_pass="text" if rule.everywhere and rule.secret == "match" else None,
        hides_spans=rule.hides == "span",
    )


def _credentials(rule: CredentialsRule, rules: Rules, repository: "Repository | None") -> PreparedRule:
    from hush.scan.finders.credentials import Credentials
    from hush.scan.finders.plausibility import is_distinctive

    protection = rules.protection(rule)
    return PreparedRule(
        name=rule.name,
        finder=Credentials(
            detectors=rule.detectors,
            prior=min(protection.priors),
            accept=rule.accept,
            path_column=None if repository is None else "path",
        ),
        protection=protection,
        literal_pass="ascii words" if rule.everywhere else None,
        distinctive=is_distinctive,
        hides_spans=rule.hides == "span",
    )


def _gitleaks(rule: GitleaksRule, rules: Rules, repository: "Repository | None") -> PreparedRule:
    from hush.scan.finders.gitleaks import Gitleaks
    from hush.scan.finders.plausibility import is_distinctive
    from hush.scan.rules.gitleaks import read_gitleaks

    protection = rules.protection(rule)
    return PreparedRule(
        name=rule.name,
        finder=Gitleaks(
            rules=read_gitleaks(rules.path(rule.file)),
            prior=min(protection.priors),
            path_column=None if repository is None else "path",
        ),
        protection=protection,
        literal_pass="ascii words" if rule.everywhere else None,
        distinctive=is_distinctive,
        hides_spans=rule.hides == "span",
    )


def _personal_data(rule: PersonalDataRule, rules: Rules, _: "Repository | None") -> PreparedRule:
    from hush.scan.finders.personal import PersonalData

    model = {} if rule.model is None else {"model": rule.model}
    in_folder = rule.gliner is not None and rules.path(rule.gliner).is_dir()
    return PreparedRule(
        name=rule.name,
        finder=PersonalData(
            entities=rule.entities,
            language=rule.language,
            score=rule.score,
            gliner=str(rules.path(rule.gliner)) if in_folder and rule.gliner is not None else rule.gliner,
            labels=rule.labels,
            **model,
        ),
        protection=rules.protection(rule),
        literal_pass="words" if rule.everywhere else None,
        hides_spans=rule.hides == "span",
    )


def _fields(rule: FieldsRule, rules: Rules, _: "Repository | None") -> PreparedRule:
    from hush.scan.finders.patterns import Fields

    return PreparedRule(
        name=rule.name,
        finder=Fields(column=rule.column, separator=rule.separator, public_names=rule.public_names),
        protection=rules.protection(rule),
        public_names=rule.public_names,
    )


def _code(rule: CodeRule, rules: Rules, repository: "Repository | None") -> PreparedRule:
    if repository is None:
        raise InvalidInput("it is about code; scan the folder of a repository, or drop the rule")
    from hush.scan.code.spread import CodeSecrets

    settings = code_settings(rule, rules)
    finder = CodeSecrets.of(repository, settings)
    _check_matched(finder.contained.unmatched, rule, settings, repository)
    protection = rules.protection(rule, rule.secrets[0].promise)
    return PreparedRule(
        name=rule.name,
        finder=finder,
        protection=protection,
        hides_spans=rule.hides != "file",
        keys_are_texts=False,
    )


def _check_matched(
    unmatched: Sequence[str], rule: CodeRule, settings: "CodeSettings", repository: "Repository"
) -> None:
    """Refuses paths, owners and authors that match nothing, unless their secret or the whole rule is optional.

    A typing error there would leave a project unprotected.
    """
    if rule.optional or not unmatched:
        return
    from hush.scan.code.spread import Evidence

    optional = {secret.name for secret in rule.secrets if secret.optional}
    evidence = Evidence(repository, settings)
    allowed = {
        sentence for secret in settings.secrets if secret.name in optional for sentence in evidence.unmatched(secret)
    }
    # Invalid lines of CODEOWNERS are only told: whoever wrote the rules cannot always mend that file. So are members.
    wrong = [each for each in unmatched if each not in allowed and not each.startswith(("line ", "member "))]
    if wrong:
        raise InvalidInput(
            f"{'; '.join(wrong)}. What matches nothing protects nothing: correct it, or mark the secret with "
            "optional: true"
        )


FINDERS: Mapping[str, Callable[[Any, Rules, "Repository | None"], PreparedRule]] = {
    "words": _words,
    "literals": _literals,
    "patterns": _patterns,
    "credentials": _credentials,
    "gitleaks": _gitleaks,
    "pii": _personal_data,
    "fields": _fields,
    "code": _code,
}
"""The builder of the finder for each kind of rule, by the rule's ``find``. The kind copies finds no secrets: it says
which examples inherit each other's."""


def _copies(rule: CopiesRule) -> "Copies":
    from hush.scan.near_copies import Copies

    if find_spec("rensa") is None:
        raise InvalidInput('near copies need the package rensa; run pip install "hush[copies]"')
    return Copies(similarity=rule.similarity, shingle=rule.shingle, permutations=rule.permutations, missed=rule.missed)


# Rules for code


def chunks_of_rules(rules: Rules) -> "Chunks | None":
    """How files of code are cut into examples; None if the rules do not say."""
    from hush.scan.code.settings import Chunks

    chunks = rules.file.chunks
    if chunks is None:
        return None
    tokens = chunks.tokens if isinstance(chunks.tokens, int) else None  # "auto" is not for code
    return Chunks(lines=chunks.lines, tokens=tokens, overlap=chunks.overlap)


# Rules for texts


def long_texts_of_rules(rules: Rules, model_tokens: "ModelTokens | None" = None) -> "LongTexts | None":
    """How long texts are cut into examples; None if the rules do not say."""
    from hush.scan.long_texts import Characters, Lines, LongTexts, Words

    chunks = rules.file.chunks
    if chunks is None:
        return None
    if chunks.tokens == "auto":
        if model_tokens is None:
            raise InvalidInput(
                "chunks with tokens: auto are as long as the model reads, and no model is named; state their size in "
                "characters, or name it with ",
                Setting("model"),
                setting="model",
            )
        return LongTexts(unit=model_tokens, size=model_tokens.size, overlap=chunks.overlap)
    unit, size = next(
        (unit, size)
        for unit, size in ((Lines(), chunks.lines), (Words(), chunks.tokens), (Characters(), chunks.characters))
        if size is not None
    )
    return LongTexts(unit=unit, size=size, overlap=chunks.overlap)


def code_settings(rule: CodeRule, rules: Rules) -> "CodeSettings":
    """The settings of a code rule in the form that its finder takes."""
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
        hides=rule.hides,
        public=rule.public,
    )


def _contributors(rule: ContributorsRule) -> "Contributors":
    from hush.scan.code.settings import Contributors

    return Contributors(share=rule.share, since=rule.since, of=rule.of, groups=rule.groups)


def _notices(repository: "Repository", preparation: Preparation) -> Iterator[str]:
    """What the owner of a repository should know about its files and about the rules."""
    from hush.scan.code.spread import CodeSecrets

    for kind, paths in repository.passed_over.items():
        yield f"{_counted(paths)} passed over ({kind}): {_listed(paths)}"
    for rule in preparation.rules:
        if isinstance(rule.finder, CodeSecrets):
            contained = rule.finder.contained
            yield from (f"rule {rule.name}: {sentence}" for sentence in contained.unmatched)
            if contained.with_errors:
                files = contained.with_errors
                yield f"rule {rule.name}: imports may be missing from {_counted(files)} with errors: {_listed(files)}"


def _counted(paths: Sequence[str]) -> str:
    return f"{len(paths):,} file{'' if len(paths) == 1 else 's'}"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths[:MAX_FILES_IN_NOTICE]) + (", …" if len(paths) > MAX_FILES_IN_NOTICE else "")
