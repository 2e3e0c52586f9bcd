"""Rules files of gitleaks (TOML): their fields, files that they extend, and what of them is refused.

The meaning of a file is that of gitleaks 8.30 (its README and config/config.go). What would silently find less than
gitleaks does is refused: keys that are not known, the rules built into gitleaks, composite rules. Keys are read in any
case, as gitleaks does. ``finders/gitleaks.py`` applies the rules to texts.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from hush.errors import InvalidInput
from hush.scan.rules.reading import Problems, document_error
from hush.settings import YES_OR_NO, Model, Real, Text, Whole, wrong

__all__ = ["DetectionRule", "DetectionRules", "RuleAllowlist", "read_gitleaks", "rule_files"]


MAX_EXTENSIONS = 2  # files in a chain of extensions beyond the first; gitleaks ignores further ones
BUILT_IN = (
    "the rules built into gitleaks are not part of hush; save its config/gitleaks.toml beside this file, and extend it "
    "by path"
)
Target = Literal["secret", "match", "line"]


def _condition(value: object) -> object:
    """gitleaks writes a condition in any case, or as an operator."""
    meaning = {"": "or", "||": "or", "&&": "and"}
    return meaning.get(value, value.lower()) if isinstance(value, str) else value


def _target(value: object) -> object:
    return value or "secret" if isinstance(value, str) else value


def _no_default_rules(value: bool) -> bool:
    if value:
        raise wrong(BUILT_IN)
    return value


def _no_address(value: str) -> str:
    if value:
        raise wrong("a scan downloads nothing; save the file, and extend it by path")
    return value


def _not_composite(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if value:
        raise wrong(
            "composite rules are not supported: their parts may lie in several examples of a file, and would be missed "
            "there; drop required, and the rule finds its own part everywhere"
        )
    return value


Patterns = Annotated[tuple[Text, ...], Field(description="a list of regular expressions, each in ''' '''")]
Names = Annotated[tuple[Text, ...], Field(description="a list of texts")]
OptionalText = Annotated[str, Field(description="a text")]


class RuleAllowlist(Model):
    """Findings that are none: by their text, their line, words in them, or the path of their file."""

    description: OptionalText = ""
    condition: Annotated[Literal["or", "and"], BeforeValidator(_condition)] = "or"
    commits: Names = ()
    paths: Patterns = ()
    regexTarget: Annotated[Target, BeforeValidator(_target)] = "secret"
    regexes: Patterns = ()
    stopwords: Names = ()

    @model_validator(mode="after")
    def _checks_something(self) -> Self:
        if not (self.commits or self.paths or self.regexes or self.stopwords):
            raise wrong("an allowlist needs commits, paths, regexes or stopwords, at least one of them")
        return self


class _Allowlist(RuleAllowlist):
    """An allowlist of the file: for all of its rules, or for some."""

    targetRules: Names = ()


def _one_spelling(allowlist: object, allowlists: Sequence[object]) -> None:
    if allowlist is not None and allowlists:
        raise wrong("allowlist is the older spelling of allowlists; write all of them as allowlists")


class DetectionRule(Model):
    """What one rule detects: a pattern, where, and with which exceptions."""

    id: Text = Field(description="the rule's own id, a text")
    description: OptionalText = ""
    path: OptionalText = ""
    regex: OptionalText = ""
    secretGroup: Annotated[Whole, Field(ge=0, description="the number of a group of regex")] = 0
    entropy: Annotated[Real, Field(allow_inf_nan=False, description="a number of bits per character")] = 0.0
    keywords: Names = ()
    tags: Annotated[tuple[str, ...], Field(description="a list of texts")] = ()
    allowlist: RuleAllowlist | None = Field(default=None, description="a table")
    allowlists: tuple[RuleAllowlist, ...] = Field(default=(), description="tables, [[rules.allowlists]]")
    required: Annotated[tuple[Any, ...], AfterValidator(_not_composite)] = ()
    skipReport: bool = Field(default=False, description=YES_OR_NO)

    @model_validator(mode="after")
    def _one_spelling_of_allowlists(self) -> Self:
        _one_spelling(self.allowlist, self.allowlists)
        return self

    @property
    def exceptions(self) -> tuple[RuleAllowlist, ...]:
        """The allowlists of the rule, in either spelling."""
        return self.allowlists if self.allowlist is None else (self.allowlist,)

    def over(self, base: "DetectionRule") -> "DetectionRule":
        """The rule of this id in an extended file, with what this one says instead or in addition."""
        return base.model_copy(
            update={
                **{
                    name: getattr(self, name)
                    for name in ("description", "entropy", "secretGroup", "regex", "path")
                    if getattr(self, name)
                },
                "keywords": base.keywords + self.keywords,
                "tags": base.tags + self.tags,
                "allowlist": None,
                "allowlists": base.exceptions + self.exceptions,
            }
        )


class _Extend(Model):
    useDefault: Annotated[bool, AfterValidator(_no_default_rules), Field(description=YES_OR_NO)] = False
    path: Annotated[str, Field(description="the path of a rules file of gitleaks")] = ""
    url: Annotated[str, AfterValidator(_no_address), Field(description="nothing")] = ""
    disabledRules: Names = ()


class _File(Model):
    title: OptionalText = ""
    description: OptionalText = ""
    extend: _Extend = Field(default=_Extend(), description="a table with path and disabledRules")
    rules: tuple[DetectionRule, ...] = Field(default=(), description="tables, [[rules]]")
    allowlist: _Allowlist | None = Field(default=None, description="a table")
    allowlists: tuple[_Allowlist, ...] = Field(default=(), description="tables, [[allowlists]]")
    minVersion: OptionalText = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _one_spelling(self.allowlist, self.allowlists)
        names = [rule.id for rule in self.rules]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise wrong(
                    f"rules[{names.index(name)}] and rules[{place}] have the same id, and gitleaks would use only the "
                    "last; rename one"
                )
        return self


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DetectionRules:
    """The rules of a file with all that it extends, and the allowlists that hold for all of them."""

    rules: tuple[DetectionRule, ...]
    allowlists: tuple[RuleAllowlist, ...] = ()

    def __repr__(self) -> str:
        return f"DetectionRules({len(self.rules)} rules)"


def read_gitleaks(path: Path) -> DetectionRules:
    """The rules of a file of gitleaks, with those of the files that it extends; errors never quote a file."""
    return _joined(list(_chain(path)), is_first=True)


def rule_files(path: Path) -> list[Path]:
    """The file, and those that it extends."""
    return [file for file, _ in _chain(path)]


def _chain(path: Path) -> Iterator[tuple[Path, _File]]:
    """A file and those that it extends, each by a path from its own folder."""
    for depth in range(MAX_EXTENSIONS + 1):
        content = _read(path)
        yield path, content
        if not content.extend.path:
            return
        if depth == MAX_EXTENSIONS:
            raise InvalidInput(
                f"{path} extends a further file, which gitleaks would ignore: it reads {MAX_EXTENSIONS} extensions in "
                "a row; join two of the files"
            )
        extended = path.parent / Path(content.extend.path).expanduser()
        if not extended.is_file():
            raise InvalidInput(f"{path} extends {extended}, which is no file; paths are relative to the file's folder")
        path = extended


def _joined(chain: Sequence[tuple[Path, _File]], *, is_first: bool = False) -> DetectionRules:
    """The rules of the first file of a chain over those of the rest."""
    (path, content), *rest = chain
    extended = _joined(rest) if rest else DetectionRules(rules=())
    try:
        return _merged(content, extended, is_first=is_first)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _merged(content: _File, extended: DetectionRules, *, is_first: bool) -> DetectionRules:
    """A file's own rules over those of the file that it extends."""
    rules = {rule.id: rule for rule in content.rules}
    for base in extended.rules:
        if base.id not in content.extend.disabledRules:
            rules[base.id] = rules[base.id].over(base) if base.id in rules else base
    listed = content.allowlists if content.allowlist is None else (content.allowlist,)
    common = tuple(each for each in listed if not each.targetRules)
    if is_first:  # as in gitleaks, allowlists of some rules hold only in the file that is named
        for allowlist in listed:
            for name in allowlist.targetRules:
                if name not in rules:
                    raise InvalidInput("targetRules of an allowlist names a rule that does not exist; correct it")
                rules[name] = rules[name].model_copy(
                    update={"allowlist": None, "allowlists": (*rules[name].exceptions, allowlist)}
                )
        for number, rule in enumerate(rules.values()):
            if not (rule.regex or rule.path):
                raise InvalidInput(f"rule {number + 1} has neither regex nor path, and so finds nothing; add one")
        if not rules:
            raise InvalidInput("there are no rules in it, so it would find nothing; add [[rules]], or extend a file")
    return DetectionRules(rules=tuple(rules.values()), allowlists=common + extended.allowlists)


def _read(path: Path) -> _File:
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        message = f"{path} is not UTF-8; write it as UTF-8"
    except OSError:
        message = f"{path} cannot be read; pass the path of a rules file of gitleaks"
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at (line \d+, column \d+|end of document)\)$", str(error))  # the rest may quote the file
        where = "" if place is None else f", {place[1]}"
        message = f"{path}{where}: this is not valid TOML; check quotes (patterns go in ''' ''') and brackets"
    else:
        stated = _in_one_case(content, str(path))
        try:
            return _File.model_validate(stated)
        except ValidationError as error:  # it quotes the input, so it is not passed on, not even as a context
            problems = Problems(root=_File, content=stated, line_of=lambda _: None)
            sentences = problems.of(error)
        raise document_error(str(path), sentences)
    raise InvalidInput(message)  # outside of the handlers, whose exceptions quote the file


_MODELS: tuple[type[Model], ...] = (_File, _Extend, DetectionRule, _Allowlist)
_KEYS = {name.lower(): name for model in _MODELS for name in model.model_fields}


def _in_one_case(content: Any, path: str) -> Any:
    """The content with known keys as hush writes them."""
    if isinstance(content, list):
        return [_in_one_case(entry, path) for entry in content]
    if not isinstance(content, Mapping):
        return content
    table: Mapping[str, Any] = content
    renamed: dict[str, Any] = {}
    for key, value in table.items():
        name = _KEYS.get(key.lower(), key)
        if name in renamed:
            raise InvalidInput(f"{path}: a table has {name} twice, in two spellings; remove one")
        renamed[name] = _in_one_case(value, path)
    return renamed
