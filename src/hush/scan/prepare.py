"""From rules to what looks for their secrets: a finder for each, and who counts as a copy of whom.

A finder is imported when a rule asks for it, so a scan needs the extras of its own rules only.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, final

from hush.errors import InvalidInput
from hush.scan.finder import Finder, Prepared, Survey
from hush.scan.literal_files import check_names, read_literals
from hush.scan.promises import Promise
from hush.scan.rule_code import CodeRule, ContributorsRule
from hush.scan.rule_kinds import CopiesRule, CredentialsRule, LiteralsRule, PatternsRule, PersonalDataRule, Rule
from hush.scan.rules import Rules

if TYPE_CHECKING:
    from hush.scan.code.repository import Repository
    from hush.scan.code.settings import Chunks, CodeSettings, Contributors
    from hush.scan.copies import Copies

__all__ = ["Preparation", "chunks_of_rules", "code_settings", "prepare"]


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
            from hush.scan.finders.tokens import Tokens
            from hush.scan.finders.words import Words

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
            from hush.scan.finders.fields import Fields

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
    from hush.scan.copies import Copies

    if find_spec("rensa") is None:
        raise InvalidInput('near copies need the package rensa; run pip install "hush[copies]"')
    return Copies(similarity=rule.similarity, shingle=rule.shingle, permutations=rule.permutations, missed=rule.missed)


def _code(rule: CodeRule, rules: Rules, repository: "Repository | None") -> Prepared:
    if repository is None:
        raise InvalidInput("it is about code; scan the folder of a repository, or drop the rule")
    from hush.scan.code.finder import CodeSecrets

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
