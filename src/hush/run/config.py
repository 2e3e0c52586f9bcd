"""One file that says everything about a run: data, rules, promises, plan, model, training, audit and output.

sections (what each part may say) -> config (the whole file, read and checked); templates: files to begin with.

The whole config: read, checked in one go, and with every path found from where the file lies.

It is read by what reads rules files, so its messages have the same form: line, key, what is allowed, the nearest name.
Rules stand in it as in a rules file (``promises`` are its ``defaults``), or in a file of their own.

Commented configs to begin with, one for each kind of data; ``hush init`` writes them.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, final, get_args

import yaml
from pydantic import Field, ValidationError

from hush.data.text_readers import means_path
from hush.errors import HushError, InvalidInput
from hush.plan.settings import PlanSettings
from hush.report.settings import ReportSettings
from hush.run.sections import AuditSection, DataSection, ModelSection, TrainingSection
from hush.scan.rules import Rules, RulesFile, document_error
from hush.scan.rules.promises import Promise
from hush.scan.rules.reading import PROMISE, Document, Problems, kind_of_value, read_yaml
from hush.scan.rules.schema import ChunksRule, Rule
from hush.settings import Model, Settings

__all__ = ["Config", "Kind", "config_key", "load_config", "settings_shown_as_keys", "template"]


BASE_MODEL = "base-model"  # as the audit's reference: the model that training begins with
Place = tuple[str | int, ...]


class _Sections(Model):
    """The file as it is written, but for its rules."""

    version: Literal[1] = Field(default=1, description="1")
    data: DataSection = Field(description="a mapping with source")
    promises: Promise | None = Field(default=None, description=PROMISE)
    rules: Any
    chunks: ChunksRule | None = Field(default=None, description="a mapping with lines or tokens")
    plan: PlanSettings = Field(description="a mapping with batch_size and rounds")
    model: ModelSection = Field(description="a mapping with name or small")
    training: TrainingSection = Field(
        default=TrainingSection(), description="a mapping, such as {learning_rate: 5e-4}; leave it out for defaults"
    )
    audit: AuditSection | None = Field(
        default=None, description="a mapping, such as {trials: 20000}; leave it out for no audit"
    )
    report: ReportSettings = Field(
        default=ReportSettings(), description="a mapping with title, frontier, methods or show_text"
    )
    output: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="the path of the run's folder")


class _WithRules(_Sections):
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)] = Field(
        description="a list of rules, each with name and find, or the path of a rules file"
    )


class _WithRulesFile(_Sections):
    rules: Annotated[str, Field(min_length=1)] = Field(
        description="a list of rules, each with name and find, or the path of a rules file"
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Config:
    """A config that fits together. Its repr shows no text: rules may list secrets.

    folder: where relative paths begin. text: the file as it was read. stated_rules: rules, promises and chunks as
    they are written, for fingerprints.
    """

    data: DataSection
    rules: Rules
    plan: PlanSettings
    model: ModelSection
    training: TrainingSection
    audit: AuditSection | None
    report: ReportSettings
    output: Path | None
    folder: Path
    text: bytes
    rules_path: Path | None
    stated_rules: Any

    @classmethod
    def of(cls, content: Mapping[str, Any], *, folder: str | os.PathLike[str] = ".") -> "Config":
        """A config from Python, in the form of the file.

        >>> Config.of({
        ...     "data": {"source": "imdb"},
        ...     "promises": {"prior": 1e-10, "ceiling": 1e-3},
        ...     "rules": [{"name": "rare-words", "find": "words", "documents": [50, 100]}],
        ...     "plan": {"batch_size": 256, "rounds": 1000},
        ...     "model": {"name": "gpt2"},
        ... })
        Config(rare-words: words; gpt2, 1000 rounds of 256)
        """
        text = yaml.safe_dump(json.loads(json.dumps(dict(content), default=str)), sort_keys=False).encode()
        return _checked(Document(content=content, node=None), Path(folder), "the config", text)

    @property
    def source(self) -> str:
        """The data: a path found from the config, or a name as it is."""
        return self.located(self.data.source)

    def located(self, name: str) -> str:
        """A path that the config names, from its folder; what is not there stays as it is, and may be a name."""
        path = self.folder / Path(name).expanduser()
        return str(path) if path.exists() or means_path(name, folder=self.folder) else name

    def __repr__(self) -> str:
        rules = ", ".join(f"{rule.name}: {rule.find}" for rule in self.rules.rules)
        model = self.model.name or "a small model"
        return f"Config({rules}; {model}, {self.plan.rounds} rounds of {self.plan.batch_size:g})"


def load_config(path: str | os.PathLike[str]) -> Config:
    """The config in a YAML file. One error lists all that is wrong with it, by line, and quotes no text of it."""
    place = Path(path)
    return _checked(read_yaml(place), place.parent, str(path), place.read_bytes())


def _checked(document: Document, folder: Path, source: str, text: bytes) -> Config:
    content = document.content
    if not isinstance(content, Mapping):
        said = kind_of_value(content)
        raise InvalidInput(f"{source}: the file is {said}; it takes a mapping with data, rules, plan and model")
    named = isinstance(content.get("rules"), str)
    root = _WithRulesFile if named else _WithRules
    problems = Problems(root=root, content=content, line_of=document.line_of)
    try:
        sections = root.model_validate(content)
    except ValidationError as error:
        raise document_error(source, problems.of(error)) from None  # the original quotes what it was given
    rules_path = folder / Path(sections.rules).expanduser() if isinstance(sections, _WithRulesFile) else None
    found = [*_rules_misfits(sections, rules_path, problems)]
    if found:
        raise document_error(source, found)
    if rules_path is None:
        stated = RulesFile.model_construct(
            version=1, defaults=sections.promises, chunks=sections.chunks, rules=sections.rules
        )
        rules, stated_rules = Rules(file=stated, folder=folder), content["rules"]
        # What a rules file calls defaults is called promises here.
        found += [said.replace("under defaults", "under promises") for said in rules.inconsistencies(problems)]
    else:
        rules, stated_rules = _from_file(rules_path, content)
    config = Config(
        data=sections.data,
        rules=rules,
        plan=sections.plan,
        model=sections.model,
        training=sections.training,
        audit=sections.audit,
        report=sections.report,
        output=None if sections.output is None else folder / Path(sections.output).expanduser(),
        folder=folder,
        text=text,
        rules_path=rules_path,
        stated_rules=[stated_rules, content.get("promises"), content.get("chunks")],
    )
    found += [
        problems.at(place, f"{problems.where(place)}: {said}")
        for place, said in (*_path_misfits(config), *_misfits(config))
    ]
    if found:
        raise document_error(source, found)
    return config


def _rules_misfits(sections: _Sections, path: Path | None, problems: Problems) -> Iterator[str]:
    if path is None:
        return
    if not path.is_file():
        yield problems.at(("rules",), f"rules: {path} is not a file; paths begin at the folder of the config")
    if sections.chunks is not None:
        yield problems.at(("chunks",), "chunks: they belong into the rules file, beside its rules; move them there")


def _from_file(path: Path, content: Mapping[str, Any]) -> tuple[Rules, object]:
    """The rules of a file of their own, with the config's promises where the file states no defaults."""
    document = read_yaml(path)
    rules = document.content
    if isinstance(rules, Mapping) and content.get("promises") is not None:
        if "defaults" in rules:
            raise InvalidInput(
                f"{path}: the file states defaults, and the config promises too; keep one of them, they mean the same"
            )
        document = Document(content={**rules, "defaults": content["promises"]}, node=document.node)
    return Rules.checked(document, path.parent, str(path)), rules


def _path_misfits(config: Config) -> Iterator[tuple[Place, str]]:
    """Paths that lead nowhere, before anything is begun."""
    source, begin = config.source, "paths begin at the folder of the config"
    if config.rules.about_code:
        if not Path(source).is_dir():
            yield ("data", "source"), f"{source} is no folder, but the rules are about code; {begin}"
    elif means_path(config.data.source, folder=config.folder) and not Path(source.split(":")[0]).exists():
        yield ("data", "source"), f"{source} does not exist; {begin}"
    name = config.model.name
    if name is not None and not Path(config.located(name)).is_dir() and means_path(name, folder=config.folder):
        yield ("model", "name"), f"{config.located(name)} is no folder of a model, nor is it a name of the hub; {begin}"
    held_out = None if config.audit is None else config.audit.held_out
    if held_out is not None and means_path(held_out, folder=config.folder):
        found = config.located(held_out)
        if not Path(found.split(":")[0]).exists():
            yield ("audit", "held_out"), f"{found} does not exist; {begin}"


def _misfits(config: Config) -> Iterator[tuple[Place, str]]:
    """What no section can see alone."""
    if config.rules.about_code:
        for name in ("column", "unit", "id_column"):
            if getattr(config.data, name) is not None:
                yield ("data", name), "it is about tables, but the rules are about code; drop it"
    small, training, audit = config.model.small, config.training, config.audit
    if small is not None:
        if training.max_length is not None and training.max_length > small.length:
            said = f"{training.max_length} is more than model.small.length, which is {small.length}; lower it"
            yield ("training", "max_length"), said
        if training.lora is not None:
            yield (
                ("training", "lora"),
                "adapters are of no use without the small model beneath, which is not shared; drop it",
            )
        if training.task == "masked":
            yield ("training", "task"), "a small model predicts the next byte; drop it, or name a masked model"
    if training.warmup > config.plan.rounds:
        said = f"{training.warmup} is more than plan.rounds, which is {config.plan.rounds}; lower it"
        yield ("training", "warmup"), said
    if audit is not None and audit.canaries is not None and not {"extraction", "exposure"} & set(audit.attacks):
        yield ("audit", "canaries"), "no attack would look for them; add exposure to attacks, or drop canaries"


def config_key(setting: str) -> str | None:
    """The key of a config that states a setting; None if no config states it.

    >>> config_key("batch_size"), config_key("lora.rank"), config_key("output"), config_key("insecure_seed")
    ('plan.batch_size', 'training.lora.rank', 'output', None)
    """
    return _config_keys().get(setting)


@contextmanager
def settings_shown_as_keys() -> Iterator[None]:
    """Errors raised inside name settings as the config does: ``plan.batch_size``."""
    try:
        yield
    except HushError as error:
        error.show_settings_as(config_key)
        raise


@cache
def _config_keys() -> dict[str, str]:
    keys: dict[str, str] = {}
    for section, field in _Sections.model_fields.items():
        keys.setdefault(section, section)
        for name in _settings_in(field.annotation):
            keys.setdefault(name, f"{section}.{name}")
    return keys


def _settings_in(annotation: Any) -> Iterator[str]:
    """Settings that a type states, those of nested models as outer.inner."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        for name, field in annotation.model_fields.items():
            yield name
            yield from (f"{name}.{inner}" for inner in _settings_in(field.annotation))
    else:
        for part in get_args(annotation):
            yield from _settings_in(part)


Kind = Literal["text", "code"]


def template(kind: Kind) -> str:
    """A config that is whole but for the path of the data."""
    return (Path(__file__).parent / "templates" / f"{kind}.yaml").read_text(encoding="utf-8")
