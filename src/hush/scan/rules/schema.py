"""The fields of each kind of rule: one model for each value of ``find``, all joined in ``Rule``.

scanner.py turns each of them into a finder. Rules for code have nested models: secret projects, how containment spreads
along imports and contributors. ``ChunksRule`` says how files and long texts are cut into chunks.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hush.scan.rules.promises import Promise
from hush.scan.rules.reading import PROMISE, Day, Name
from hush.settings import YES_OR_NO, Model, Probability, Real, Text, Texts, Whole, wrong

__all__ = [
    "ChunksRule",
    "CodeRule",
    "CodeSecretRule",
    "ContributorsRule",
    "CopiesRule",
    "CredentialsRule",
    "FieldsRule",
    "GitleaksRule",
    "ImportsRule",
    "LiteralsRule",
    "PatternsRule",
    "PersonalDataRule",
    "Rule",
    "WordsRule",
]


MAX_COUNT = 2**53  # of examples or ranks; exact as a double
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def _pattern(value: str) -> str:
    try:
        compiled = re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:  # its message may quote the pattern
        at = getattr(error, "pos", None)
        where = "" if at is None else f" (from its character {at + 1} on)"
        raise wrong(f"it is not a regular expression of Python{where}; correct it, and use single quotes") from None
    if compiled.match("") is not None:
        raise wrong("it matches the empty text, and so everything; make it ask for at least one character")
    if CONTROL_CHARACTER.search(value):  # it would silently find nothing
        raise wrong("it holds a control character, which \\b is in double quotes; use single quotes, or write \\x08")
    return value


def _range(value: tuple[int, int]) -> tuple[int, int]:
    low, high = value
    if not 1 <= low <= high <= MAX_COUNT:
        raise wrong(f"[{low}, {high}] is not a range; pass two whole numbers from 1 on, the smaller one first")
    return value


def _group(value: object) -> object:
    if isinstance(value, int | str) and not isinstance(value, bool) and (not isinstance(value, int) or value >= 0):
        return value
    raise wrong("it is not a group of a pattern; pass its number (0 for the whole match) or its name")


def _whole_example(value: object) -> object:
    if value == "span":
        raise wrong("a column names the secret, and nothing says where it is in the text; write hides: example")
    return value


Hides = Literal["example", "span"]  # what of an example is secret: all of it, or the text of the secret alone
Range = Annotated[tuple[Whole, Whole], AfterValidator(_range)]
Pattern = Annotated[str, AfterValidator(_pattern)]


class TokensRule(Model):
    """How a text is cut into words."""

    letters: Literal["ascii", "unicode"] = "ascii"
    lower: bool = Field(default=True, description=YES_OR_NO)
    joiners: str = Field(
        default="-'", description="the characters that may join two runs of letters to one word, as one text"
    )
    skip_formulas: bool = Field(default=True, description=YES_OR_NO)


class WordsRule(Model):
    """Words chosen by the number of examples that contain them, or by their rank in that order."""

    name: Name
    find: Literal["words"]
    documents: Range | None = Field(
        default=None, description="[fewest, most] examples that contain the word, such as [50, 100]"
    )
    ranks: Range | None = Field(default=None, description="[first, last] rank from 1 on, such as [5000, 6000]")
    tokens: TokensRule = Field(
        default=TokensRule(), description="a mapping with letters, lower, joiners or skip_formulas"
    )
    hides: Hides = "example"
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _one_range(self) -> Self:
        if (self.documents is None) == (self.ranks is None):
            raise wrong("a rule for words needs either documents: [fewest, most] or ranks: [first, last], one of them")
        return self


class LiteralsRule(Model):
    """Strings that the owner lists."""

    name: Name
    find: Literal["literals"]
    file: str | None = Field(default=None, description="the path of a .txt, .csv or .parquet file, from the rules file")
    values: Texts | None = Field(default=None, description="a list of texts, each in quotes")
    ignore_case: bool = Field(default=False, description=YES_OR_NO)
    whole_words: bool = Field(default=False, description=YES_OR_NO)
    hides: Hides = "example"
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.values is None):
            raise wrong("a rule for literals needs either file or values, one of them")
        return self


class PatternsRule(Model):
    """Regular expressions."""

    name: Name
    find: Literal["patterns"]
    patterns: Annotated[tuple[Pattern, ...], Field(min_length=1)] = Field(
        description="a list of regular expressions, each in single quotes"
    )
    secret: Literal["match", "pattern"] = "match"
    group: Annotated[int | str, BeforeValidator(_group)] = 0
    everywhere: bool = True  # search all examples for the texts that were found in one
    hides: Hides = "example"
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _knows_its_spans(self) -> Self:
        if self.hides == "span" and self.secret == "pattern":
            raise wrong(
                "with secret: pattern the pattern is the secret, and each text that it matches tells about the others; "
                "a rule that hides spans needs secret: match, or write hides: example"
            )
        return self

    @model_validator(mode="after")
    def _has_group(self) -> Self:
        for place, pattern in enumerate(self.patterns):
            compiled = re.compile(pattern)
            if self.group not in (*range(compiled.groups + 1), *compiled.groupindex):
                raise wrong(
                    f"patterns[{place}] has no such group, only {compiled.groups} groups of which "
                    f"{len(compiled.groupindex)} have names; pass group: 0 for the whole match"
                )
        return self


class CredentialsRule(Model):
    """Passwords, keys and tokens that the detect-secrets library detects."""

    name: Name
    find: Literal["credentials"]
    detectors: Texts | None = Field(default=None, description="a list of names of detectors")
    accept: Literal["plausible", "all"] = "plausible"
    everywhere: bool = True  # search all examples for the texts that were found in one
    hides: Hides = "example"
    promise: Promise | None = Field(default=None, description=PROMISE)


class GitleaksRule(Model):
    """What the rules of a file of gitleaks detect."""

    name: Name
    find: Literal["gitleaks"]
    file: str = Field(description="the path of a .toml file with rules of gitleaks, from the rules file")
    everywhere: bool = True  # search all examples for the texts that were found in one
    hides: Hides = "example"
    promise: Promise | None = Field(default=None, description=PROMISE)


class PersonalDataRule(Model):
    """People, addresses and numbers that the Presidio library recognises."""

    name: Name
    find: Literal["pii"]
    entities: Texts = Field(description="a list of kinds of personal data, such as [PERSON, EMAIL_ADDRESS]")
    language: str = Field(default="en", description="a language code, such as en")
    score: Real = Field(default=0.5, ge=0.0, le=1.0, description="the least score that counts, a number from 0 to 1")
    model: str | None = Field(default=None, description="the name of a spaCy model")
    gliner: str | None = Field(default=None, min_length=1, description="the folder or the name of a GLiNER model")
    labels: dict[Text, str] | None = Field(
        default=None, min_length=1, description="a mapping from labels to entities, such as {patient: PERSON}"
    )
    everywhere: bool = True  # search all examples for the texts that were found in one
    hides: Hides = "example"
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _labels_of_entities(self) -> Self:
        if self.labels is not None and self.gliner is None:
            raise wrong("labels are for a GLiNER model; name it with gliner, or drop labels")
        if self.labels is not None and not set(self.labels.values()) <= set(self.entities):
            raise wrong("labels lead to an entity that is not among entities; add it there")
        return self


class FieldsRule(Model):
    """A column of the data names the secret."""

    name: Name
    find: Literal["fields"]
    column: str = Field(min_length=1, description="the name of a column of the data")
    separator: str | None = Field(
        default=None, min_length=1, description="the text that separates several names in a cell"
    )
    public_names: bool = Field(default=False, description=YES_OR_NO)
    hides: Annotated[Literal["example"], BeforeValidator(_whole_example)] = "example"
    promise: Promise | None = Field(default=None, description=PROMISE)


# Code


def _depth(value: object) -> object:
    if value is None or value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise wrong("it is not a depth; pass a whole number from 0 on (0: do not spread, 1: direct imports), or all")


class CodeSecretRule(Model):
    """A secret project of a repository."""

    name: Name
    paths: Texts | None = Field(
        default=None, description='a list of globs from the repository\'s root, such as ["pay/**"]'
    )
    owners: Texts | None = Field(
        default=None, description='a list of owners as in CODEOWNERS, such as ["@acme/billing"]'
    )
    authors: Texts | None = Field(default=None, description="a list of addresses, names or groups of authors")
    optional: bool = Field(default=False, description=YES_OR_NO)  # paths, owners and authors may match nothing
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _has_files(self) -> Self:
        if not (self.paths or self.owners or self.authors):
            raise wrong("a secret of a code rule needs paths, owners or authors, at least one of them")
        return self


class ImportsRule(Model):
    """How far containment spreads to files that import a file of the secret."""

    depth: Annotated[int | Literal["all"] | None, BeforeValidator(_depth)] = 1


class ContributorsRule(Model):
    """Who counts as having written a file."""

    share: Real = Field(default=0.0, ge=0.0, le=1.0, description="a number from 0 to 1, such as 0.2")
    since: Day | None = Field(default=None, description="a day, such as 2024-01-01")
    of: Literal["commits", "lines"] = "commits"
    groups: bool = Field(default=False, description=YES_OR_NO)


class CodeRule(Model):
    """Secret projects of a repository, and how containment spreads from their files."""

    name: Name
    find: Literal["code"]
    secrets: Annotated[tuple[CodeSecretRule, ...], Field(min_length=1)] = Field(
        description="a list of secrets, each with a name and paths, owners or authors"
    )
    imports: ImportsRule | None = Field(default=None, description="a mapping with depth")
    contributors: ContributorsRule | None = Field(default=None, description="a mapping with share, since, of or groups")
    authored: ContributorsRule = Field(
        default=ContributorsRule(), description="a mapping with share, since, of or groups"
    )
    groups: dict[Name, Texts] = Field(default={}, description="a mapping from names of groups to lists of addresses")
    hides: Literal["file", "definitions", "lines"] = "file"
    public: tuple[Literal["imports", "signatures", "docstrings"], ...] = Field(
        default=(), description="a list of imports, signatures and docstrings"
    )
    optional: bool = Field(default=False, description=YES_OR_NO)  # for all its secrets
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [secret.name for secret in self.secrets]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise wrong(f"secrets[{names.index(name)}] and secrets[{place}] are both called {name}; rename one")
        return self

    @model_validator(mode="after")
    def _public_of_definitions(self) -> Self:
        if self.public and self.hides != "definitions":
            raise wrong(f"public is for hides: definitions, and this rule has hides: {self.hides}; drop one of the two")
        return self


def _tokens(value: object) -> object:
    if value is None or value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise wrong("it is not a number of tokens; pass a whole number from 1 on, or auto: as many as the model reads")


class ChunksRule(Model):
    """How long texts, or files of code, are cut into examples."""

    lines: Whole | None = Field(default=None, ge=1, description="a whole number from 1 on")
    tokens: Annotated[int | Literal["auto"] | None, BeforeValidator(_tokens)] = None
    characters: Whole | None = Field(default=None, ge=1, description="a whole number from 1 on")
    overlap: Whole = Field(default=0, ge=0, description="a whole number from 0 on, below the size of a chunk")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        sizes = [size for size in (self.lines, self.tokens, self.characters) if size is not None]
        if len(sizes) != 1:
            raise wrong("chunks need lines, tokens or characters, one of them")
        if isinstance(sizes[0], int) and self.overlap >= sizes[0]:
            raise wrong(f"an overlap of {self.overlap} is not below the chunk's own size; lower it")
        return self

    @property
    def is_for_texts(self) -> bool:
        """Whether code is not cut this way."""
        return self.characters is not None or self.tokens == "auto"


class CopiesRule(Model):
    """Near copies inherit each other's secrets. The rule finds no secrets, so it has no promise."""

    name: Name
    find: Literal["copies"]
    similarity: Real = Field(default=0.8, gt=0.0, le=1.0, description="a number above 0 and up to 1, such as 0.8")
    shingle: Whole = Field(default=5, ge=1, le=1000, description="how many words are compared at once, 1 to 1000")
    permutations: Whole = Field(default=128, ge=8, le=4096, description="a multiple of 8 from 8 to 4096, such as 128")
    missed: Probability = Field(default=1e-3, description="the chance to miss a pair, a number between 0 and 1")


Rule = Annotated[
    WordsRule
    | LiteralsRule
    | PatternsRule
    | CredentialsRule
    | GitleaksRule
    | PersonalDataRule
    | FieldsRule
    | CodeRule
    | CopiesRule,
    Field(discriminator="find"),
]
