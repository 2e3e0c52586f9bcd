"""The rules file: which secrets to look for, how, and what each is promised; checked whole before anything is read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import Field, ValidationError

from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.rules.promises import Promise, protection_of
from hush.scan.rules.reading import Document, Problems, kind_of_value, read_yaml
from hush.scan.rules.schema import ChunksRule, CodeRule, CopiesRule, LiteralsRule, Rule
from hush.settings import Model

__all__ = ["Rules", "RulesFile", "listed", "load_rules"]


CANARIES = "canary"  # what a plan takes for planted, by ids that begin so: such a rule's secrets would count as unreal
ENDINGS = (".txt", ".csv", ".parquet")  # of files of literals


class RulesFile(Model):
    """The file as it is written."""

    version: Literal[1] = Field(default=1, description="1")
    defaults: Promise | None = Field(default=None, description="a mapping with prior and ceiling")
    chunks: ChunksRule | None = Field(default=None, description="a mapping with lines or tokens")
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)] = Field(
        description="a list of rules, each with name and find"
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Rules:
    """Rules that fit together: distinct names, a promise for every secret, files that exist.

    folder: where the paths of files begin.
    """

    file: RulesFile
    folder: Path = field(default_factory=Path)

    @classmethod
    def of(cls, content: Mapping[str, Any], *, folder: str | os.PathLike[str] = ".") -> Self:
        """Rules from Python, in the form of the file.

        >>> Rules.of({
        ...     "defaults": {"prior": 1e-10, "ceiling": 1e-3},
        ...     "rules": [{"name": "rare-words", "find": "words", "documents": [50, 100]}],
        ... })
        Rules(rare-words: words)
        """
        return cls.checked(Document(content=content, node=None), Path(folder), "the rules")

    @classmethod
    def checked(cls, document: Document, folder: Path, source: str) -> Self:
        """Rules from a document that was read; source: what messages call it."""
        if not isinstance(document.content, Mapping):
            said = kind_of_value(document.content)
            raise InvalidInput(f"{source}: the file is {said}; it takes a mapping with version, defaults and rules")
        problems = Problems(root=RulesFile, content=document.content, line_of=document.line_of)
        rules, found = None, list[str]()
        try:
            rules = cls(file=RulesFile.model_validate(document.content), folder=folder)
        except ValidationError as error:  # it quotes what it was given, so it goes no further, not even as a context
            found = problems.of(error)
        if rules is not None:
            found = rules.misfits(problems)
        if rules is None or found:
            raise listed(source, found)
        return rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        """In the order of the file, which is the order of their secrets."""
        return self.file.rules

    @property
    def about_code(self) -> bool:
        """Whether the data is a folder of code: a rule looks at code, or chunks are stated."""
        return self.file.chunks is not None or any(rule.find == "code" for rule in self.rules)

    def protection(self, rule: Rule, own: Promise | None = None) -> Protection:
        """What a secret of this rule is promised, whose own promise, if it has one, counts first."""
        return protection_of(own, None if isinstance(rule, CopiesRule) else rule.promise, self.file.defaults)

    def path(self, name: str) -> Path:
        """A file that the rules name."""
        return self.folder / Path(name).expanduser()

    def misfits(self, problems: Problems) -> list[str]:
        """What no rule can see alone; problems knows where the rules stand in their document."""
        found: list[str] = []

        def note(place: tuple[str | int, ...], said: str) -> None:
            found.append(problems.at(place, f"{problems.where(place)}: {said}"))

        first: dict[str, int] = {}
        for number, rule in enumerate(self.rules):
            before = first.setdefault(rule.name, number)
            if before != number:
                note(("rules", number, "name"), f"rules[{before}] has this name too; give each rule its own")
            if rule.name == CANARIES:
                note(("rules", number, "name"), "the ids of planted canaries begin so; give the rule another name")
            if isinstance(rule, LiteralsRule) and rule.file is not None:
                said = _unreadable(self.path(rule.file))
                if said:
                    note(("rules", number, "file"), said)
            for place, own in _promising(rule):
                try:
                    self.protection(rule, own)
                except InvalidInput as error:
                    note(("rules", number, *place), str(error))
        copies = [number for number, rule in enumerate(self.rules) if isinstance(rule, CopiesRule)]
        for number in copies[1:]:
            note(("rules", number), f"rules[{copies[0]}] looks for copies already; keep the one with less similarity")
        return found

    def __repr__(self) -> str:
        return f"Rules({', '.join(f'{rule.name}: {rule.find}' for rule in self.rules)})"


def load_rules(path: str | os.PathLike[str]) -> Rules:
    """The rules in a YAML file. One error lists everything that is wrong with it, by line, and quotes none of it."""
    document = read_yaml(Path(path))
    return Rules.checked(document, Path(path).parent, str(path))


def _promising(rule: Rule) -> list[tuple[tuple[str | int, ...], Promise | None]]:
    """Where secrets get their promise: from the rule, or one by one."""
    if isinstance(rule, CopiesRule):
        return []
    if isinstance(rule, CodeRule):
        return [(("secrets", number), secret.promise) for number, secret in enumerate(rule.secrets)]
    if isinstance(rule, LiteralsRule) and rule.file is not None and not rule.file.endswith(".txt"):
        return []  # its columns may promise; that shows when it is read
    return [((), None)]


def _unreadable(path: Path) -> str | None:
    if path.suffix.lower() not in ENDINGS:
        return f"a file of literals ends in {', '.join(ENDINGS)}"
    return None if path.is_file() else f"{path} is not a file; paths begin at the folder of the rules file"


def listed(source: str, found: list[str]) -> InvalidInput:
    """One error for everything that was found wrong with a document."""
    if len(found) == 1:
        return InvalidInput(f"{source}, {found[0]}")
    return InvalidInput("\n  ".join([f"{source} has {len(found)} problems:", *found]))
