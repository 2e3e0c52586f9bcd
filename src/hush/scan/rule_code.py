"""What rules for code may say: secret projects, how containment spreads from them, and how files become examples."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from hush.scan.promises import Promise
from hush.scan.rule_model import PROMISE, YES_OR_NO, Day, Model, Name, Real, Texts, Whole, wrong

__all__ = ["ChunksRule", "CodeRule", "CodeSecretRule", "ContributorsRule", "ImportsRule"]


def _depth(value: object) -> object:
    if value is None or value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise wrong("it is no depth; pass a whole number from 0 on (0: do not spread, 1: direct imports), or all")


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
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _has_files(self) -> Self:
        if not (self.paths or self.owners or self.authors):
            raise wrong("a secret of a code rule needs paths, owners or authors, at least one of them")
        return self


class ImportsRule(Model):
    """How far secrets spread to the files that import theirs."""

    depth: Annotated[int | Literal["all"] | None, BeforeValidator(_depth)] = 1


class ContributorsRule(Model):
    """Who counts as having written a file."""

    share: Real = Field(default=0.0, ge=0.0, le=1.0, description="a number from 0 to 1, such as 0.2")
    since: Day | None = Field(default=None, description="a day, such as 2024-01-01")
    of: Literal["commits", "lines"] = "commits"
    groups: bool = Field(default=False, description=YES_OR_NO)


class CodeRule(Model):
    """Projects of a repository, and how containment spreads from them."""

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
    promise: Promise | None = Field(default=None, description=PROMISE)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [secret.name for secret in self.secrets]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise wrong(f"secrets[{names.index(name)}] and secrets[{place}] are both called {name}; rename one")
        return self


class ChunksRule(Model):
    """How files of code are cut into examples."""

    lines: Whole | None = Field(default=None, ge=1, description="a whole number from 1 on")
    tokens: Whole | None = Field(default=None, ge=1, description="a whole number from 1 on")
    overlap: Whole = Field(default=0, ge=0, description="a whole number from 0 on, below the size of a chunk")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.lines is None) == (self.tokens is None):
            raise wrong("chunks need either lines or tokens, one of them")
        if self.overlap >= (self.lines or self.tokens or 0):
            raise wrong(f"an overlap of {self.overlap} is not below the chunk's own size; lower it")
        return self
