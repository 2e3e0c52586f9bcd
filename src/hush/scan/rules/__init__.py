"""The rules file: which secrets to look for, how, and the protection of each; validated before any data is read.

schema.py has the fields of each kind of rule, promises.py priors and ceilings, reading.py YAML and error messages,
gitleaks.py the rules files of gitleaks.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import Field, ValidationError

from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.rules.gitleaks import rule_files
from hush.scan.rules.promises import Promise, protection_of
from hush.scan.rules.reading import Document, Problems, document_error, kind_of_value, read_yaml
from hush.scan.rules.schema import ChunksRule, CodeRule, CopiesRule, GitleaksRule, LiteralsRule, Rule
from hush.settings import Model

__all__ = ["Rules", "RulesFile", "document_error", "load_rules"]


CANARY_RULE_NAME = "canary"  # ids that begin with it mark planted canaries, which a plan does not count as secrets
CONFIG_SECTIONS = {"audit", "data", "model", "plan", "training"}  # of a config of hush run, never of a rules file
FILE_ENDINGS = {"literals": (".txt", ".csv", ".parquet"), "gitleaks": (".toml",)}


class RulesFile(Model):
    """The content of a rules file."""

    version: Literal[1] = Field(default=1, description="1")
    defaults: Promise | None = Field(default=None, description="a mapping with prior and ceiling")
    chunks: ChunksRule | None = Field(default=None, description="a mapping with lines, tokens or characters")
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)] = Field(
        description="a list of rules, each with name and find"
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Rules:
    """Validated rules: distinct names, a protection for every secret, files that exist.

    folder: the folder to which the paths of files are relative.
    """

    file: RulesFile
    folder: Path = field(default_factory=Path)

    @classmethod
    def of(cls, content: Mapping[str, Any], *, folder: str | os.PathLike[str] = ".") -> Self:
        """Rules from a dictionary of the form of the file.

        >>> Rules.of({
        ...     "defaults": {"prior": 1e-10, "ceiling": 1e-3},
        ...     "rules": [{"name": "rare-words", "find": "words", "documents": [50, 100]}],
        ... })
        Rules(rare-words: words)
        """
        return cls.checked(Document(content=content, node=None), Path(folder), "the rules")

    @classmethod
    def checked(cls, document: Document, folder: Path, source: str) -> Self:
        """Rules from a parsed document; source: its name in messages."""
        if not isinstance(document.content, Mapping):
            kind = kind_of_value(document.content)
            raise InvalidInput(f"{source}: the file is {kind}; write a mapping with version, defaults and rules")
        problems = Problems(root=RulesFile, content=document.content, line_of=document.line_of)
        rules, sentences = None, list[str]()
        try:
            rules = cls(file=RulesFile.model_validate(document.content), folder=folder)
        except ValidationError as error:  # it quotes the input, so it is not passed on, not even as a context
            sentences = problems.of(error)
        if rules is not None:
            sentences = rules.inconsistencies(problems)
        if rules is None or sentences:
            raise document_error(source, sentences)
        return rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in the order of the file, which is also the order of their secrets."""
        return self.file.rules

    @property
    def have_code_rule(self) -> bool:
        """Whether a rule looks at code, so that the data is the folder of a repository."""
        return any(rule.find == "code" for rule in self.rules)

    def about_code(self, source: str | os.PathLike[str]) -> bool:
        """Whether the data is a folder of code: a rule looks at code, or a folder is to be cut in lines or tokens."""
        chunks = self.file.chunks
        cut_as_code = chunks is not None and not chunks.is_for_texts
        return self.have_code_rule or (cut_as_code and Path(source).is_dir())

    def protection(self, rule: Rule, promise: Promise | None = None) -> Protection:
        """The protection of a secret of this rule; the secret's own promise, if it has one, takes precedence."""
        return protection_of(promise, None if isinstance(rule, CopiesRule) else rule.promise, self.file.defaults)

    def path(self, name: str) -> Path:
        """The path of a file that the rules name."""
        return self.folder / Path(name).expanduser()

    def files(self, rule: Rule) -> list[tuple[str, Path]]:
        """The files that a rule reads: each with a name that stays when the folder of the rules moves, and its path."""
        if not isinstance(rule, LiteralsRule | GitleaksRule) or rule.file is None:
            return []
        if isinstance(rule, LiteralsRule):
            return [(rule.file, self.path(rule.file))]
        return [(f"{rule.file} {depth}", path) for depth, path in enumerate(rule_files(self.path(rule.file)))]

    def inconsistencies(self, problems: Problems) -> list[str]:
        """Sentences about what is wrong between rules: repeated names, missing protections, missing files."""
        sentences: list[str] = []

        def note(place: tuple[str | int, ...], problem: str) -> None:
            sentences.append(problems.at(place, f"{problems.where(place)}: {problem}"))

        first: dict[str, int] = {}
        for number, rule in enumerate(self.rules):
            before = first.setdefault(rule.name, number)
            if before != number:
                note(("rules", number, "name"), f"rules[{before}] has this name too; give each rule its own")
            if rule.name == CANARY_RULE_NAME:
                note(
                    ("rules", number, "name"),
                    "the ids of planted canaries begin with this name; give the rule another name",
                )
            if isinstance(rule, LiteralsRule | GitleaksRule) and rule.file is not None:
                problem = _file_problem(rule.find, self.path(rule.file))
                if problem:
                    note(("rules", number, "file"), problem)
            for place, promise in _promises(rule):
                try:
                    self.protection(rule, promise)
                except InvalidInput as error:
                    note(("rules", number, *place), str(error))
        if self.have_code_rule and self.file.chunks is not None and self.file.chunks.is_for_texts:
            note(("chunks",), "code is cut at line ends; pass lines, or tokens as a number")
        copies = [number for number, rule in enumerate(self.rules) if isinstance(rule, CopiesRule)]
        for number in copies[1:]:
            note(("rules", number), f"rules[{copies[0]}] looks for copies already; keep the one with less similarity")
        return sentences

    def __repr__(self) -> str:
        return f"Rules({', '.join(f'{rule.name}: {rule.find}' for rule in self.rules)})"


def load_rules(path: str | os.PathLike[str]) -> Rules:
    """The rules in a YAML file. One error lists all problems, by line, without quoting the file."""
    document = read_yaml(Path(path))
    content = document.content
    sections = sorted(CONFIG_SECTIONS.intersection(content)) if isinstance(content, Mapping) else []
    if sections:
        raise InvalidInput(
            f"{path} is a config of a run, not a rules file: it has the section {' and '.join(sections)}; run it with "
            "hush run, or move its rules to a file of their own, where promises are called defaults"
        )
    return Rules.checked(document, Path(path).parent, str(path))


def _promises(rule: Rule) -> list[tuple[tuple[str | int, ...], Promise | None]]:
    """The promises to check, with their place in the rule: one for the rule, or one for each secret."""
    if isinstance(rule, CopiesRule):
        return []
    if isinstance(rule, CodeRule):
        return [(("secrets", number), secret.promise) for number, secret in enumerate(rule.secrets)]
    if isinstance(rule, LiteralsRule) and rule.file is not None and not rule.file.endswith(".txt"):
        return []  # its columns may state promises, which are checked when it is read
    return [((), None)]


def _file_problem(find: str, path: Path) -> str | None:
    if path.suffix.lower() not in FILE_ENDINGS[find]:
        return f"a file of {find} ends in {', '.join(FILE_ENDINGS[find])}"
    return None if path.is_file() else f"{path} is not a file; paths are relative to the folder of the rules file"
