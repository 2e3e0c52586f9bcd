"""The config of a run: one YAML file with data, rules, promises, plan, releases, model, training, audit, report,
attest, rehearsal and output.

A config is checked as a whole, and one error lists all its problems; relative paths start at the folder of the file.
It is read like a rules file, so messages have the same form: line, key, allowed values, the nearest name. Rules are
written as in a rules file (``promises`` are its ``defaults``), or are the path of a rules file. ``templates/`` holds a
commented config for each kind of data, which ``hush init`` writes.
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

from hush.data.chat_template import TEMPLATE_ENDINGS
from hush.data.text_readers import means_path
from hush.errors import HushError, InvalidInput
from hush.numbers import counted
from hush.plan.settings import Draw, PlanSettings
from hush.rehearse.settings import RehearsalSettings
from hush.report.settings import ReportSettings
from hush.run.sections import AttestSection, AuditSection, DataSection, ModelSection, ReleasesSection, TrainingSection
from hush.scan.rules import Rules, RulesFile, document_error
from hush.scan.rules.promises import Promise
from hush.scan.rules.reading import PROMISE, Document, Problems, kind_of_value, read_yaml
from hush.scan.rules.schema import ChunksRule, Rule
from hush.settings import AUTO, Auto, Model, Settings
from hush.train.settings import learns_first

__all__ = ["Config", "Kind", "config_key", "load_config", "settings_shown_as_keys", "shown_sizes", "template"]


BASE_MODEL = "base-model"  # as the reference of the audit: the model before training
PATHS_NOTE = "relative paths start at the folder of the config"

Kind = Literal["text", "chat", "code"]
Place = tuple[str | int, ...]


class _Sections(Model):
    """The file as it is written, except for its rules."""

    version: Literal[1] = Field(default=1, description="1")
    data: DataSection = Field(description="a mapping with source")
    promises: Promise | None = Field(default=None, description=PROMISE)
    rules: Any
    chunks: ChunksRule | None = Field(default=None, description="a mapping with lines, tokens or characters")
    plan: PlanSettings = Field(description="a mapping with batch_size and rounds")
    releases: ReleasesSection | None = Field(
        default=None, description="a mapping with ledger and series or filter, or leave it out for one release"
    )
    model: ModelSection = Field(description="a mapping with name or small")
    training: TrainingSection = Field(
        default=TrainingSection(),
        description="a mapping, such as {learning_rate: 5e-4}, or leave it out for the defaults",
    )
    audit: AuditSection | None = Field(
        default=None, description="a mapping, such as {trials: 20000}, or leave it out for no audit"
    )
    report: ReportSettings = Field(
        default=ReportSettings(), description="a mapping with title, frontier, methods or show_text"
    )
    attest: AttestSection | None = Field(
        default=None, description="a mapping, such as {private_key: key.pem}, or leave it out to sign nothing"
    )
    rehearsal: RehearsalSettings = Field(
        default=RehearsalSettings(),
        description="a mapping, such as {minutes: 30}, or leave it out for the defaults",
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
    """A checked config. Its repr shows no text of rules, which may list secrets.

    folder: where relative paths start. text: the file as it was read. stated_rules: rules, promises and chunks as
    they are written, for fingerprints.
    """

    data: DataSection
    rules: Rules
    plan: PlanSettings
    releases: ReleasesSection | None
    model: ModelSection
    training: TrainingSection
    audit: AuditSection | None
    report: ReportSettings
    attest: AttestSection | None
    rehearsal: RehearsalSettings
    output: Path | None
    folder: Path
    text: bytes
    rules_path: Path | None
    stated_rules: Any

    def draw(self, *, bearing: int, public: int) -> Draw | None:
        """From which examples the rounds draw where whole examples are secret; bearing: how many have a secret.

        As the config says; otherwise from those with a secret if the others are learnt first, unless a batch needs
        more than these.
        """
        if self.plan.draw is not None or not bearing or not learns_first(self.training.public_first, public):
            return self.plan.draw
        return "secrets" if self.plan.batch_size == AUTO or self.plan.batch_size <= bearing else "all"

    @classmethod
    def of(cls, content: Mapping[str, Any], *, folder: str | os.PathLike[str] = ".") -> "Config":
        """A config from a mapping in the form of the file.

        >>> Config.of({
        ...     "data": {"source": "imdb"},
        ...     "promises": {"prior": 1e-10, "ceiling": 1e-3},
        ...     "rules": [{"name": "rare-words", "find": "words", "documents": [50, 100]}],
        ...     "plan": {"batch_size": 256, "rounds": 1000},
        ...     "model": {"name": "gpt2"},
        ... })
        Config(rare-words: words; gpt2, 1,000 rounds of 256)
        """
        text = yaml.safe_dump(json.loads(json.dumps(dict(content), default=str)), sort_keys=False).encode()
        return _checked(Document(content=content, node=None), Path(folder), "the config", text)

    @property
    def source(self) -> str:
        """The data: a path relative to the config, or the name of a data set."""
        return self.located(self.data.source)

    @property
    def about_code(self) -> bool:
        """Whether the data is a folder of code."""
        return self.rules.about_code(self.source)

    def located(self, name: str) -> str:
        """A path relative to the folder of the config; what is not a path stays unchanged, and may be a name."""
        path = self.folder / Path(name).expanduser()
        return str(path) if path.exists() or means_path(name, folder=self.folder) else name

    def __repr__(self) -> str:
        rules = ", ".join(f"{rule.name}: {rule.find}" for rule in self.rules.rules)
        model = self.model.name or "a small model"
        return f"Config({rules}; {model}, {shown_sizes(self.plan.batch_size, self.plan.rounds)})"


def shown_sizes(batch_size: float | Auto, rounds: int | Auto) -> str:
    """How many rounds of which size, as far as the config says.

    >>> shown_sizes(16.0, 100), shown_sizes("auto", 100)
    ('100 rounds of 16', '100 rounds, batch size auto')
    >>> shown_sizes(16.0, "auto"), shown_sizes("auto", "auto")
    ('batches of 16, rounds auto', 'batch size and rounds auto')
    """
    if batch_size == AUTO:
        return "batch size and rounds auto" if rounds == AUTO else f"{counted(rounds, 'round')}, batch size auto"
    if rounds == AUTO:
        return f"batches of {batch_size:g}, rounds auto"
    return f"{counted(rounds, 'round')} of {batch_size:g}"


def load_config(path: str | os.PathLike[str]) -> Config:
    """The config in a YAML file. One error lists all its problems by line, and quotes no text of the file."""
    place = Path(path)
    return _checked(read_yaml(place), place.parent, str(path), place.read_bytes())


def _checked(document: Document, folder: Path, source: str, text: bytes) -> Config:
    content = document.content
    if not isinstance(content, Mapping):
        kind = kind_of_value(content)
        raise InvalidInput(f"{source}: the file is {kind}; it takes a mapping with data, rules, plan and model")
    has_rules_file = isinstance(content.get("rules"), str)
    root = _WithRulesFile if has_rules_file else _WithRules
    problems = Problems(root=root, content=content, line_of=document.line_of)
    try:
        sections = root.model_validate(content)
    except ValidationError as error:
        raise document_error(source, problems.of(error)) from None  # pydantic's error quotes the values
    rules_path = folder / Path(sections.rules).expanduser() if isinstance(sections, _WithRulesFile) else None
    messages = [*_rules_file_problems(sections, rules_path, problems)]
    if messages:
        raise document_error(source, messages)
    if rules_path is None:
        stated = RulesFile.model_construct(
            version=1, defaults=sections.promises, chunks=sections.chunks, rules=sections.rules
        )
        rules, stated_rules = Rules(file=stated, folder=folder), content["rules"]
        # The defaults of a rules file are called promises in a config.
        messages += [message.replace("under defaults", "under promises") for message in rules.inconsistencies(problems)]
    else:
        rules, stated_rules = _read_rules_file(rules_path, content)
    config = Config(
        data=sections.data,
        rules=rules,
        plan=sections.plan,
        releases=sections.releases,
        model=sections.model,
        training=sections.training,
        audit=sections.audit,
        report=sections.report,
        attest=sections.attest,
        rehearsal=sections.rehearsal,
        output=None if sections.output is None else folder / Path(sections.output).expanduser(),
        folder=folder,
        text=text,
        rules_path=rules_path,
        stated_rules=[stated_rules, content.get("promises"), content.get("chunks")],
    )
    messages += [
        problems.at(place, f"{problems.where(place)}: {message}")
        for place, message in (*_path_problems(config), *_section_conflicts(config))
    ]
    if messages:
        raise document_error(source, messages)
    return config


def _rules_file_problems(sections: _Sections, path: Path | None, problems: Problems) -> Iterator[str]:
    if path is None:
        return
    if not path.is_file():
        yield problems.at(("rules",), f"rules: {path} is not a file; {PATHS_NOTE}")
    if sections.chunks is not None:
        yield problems.at(("chunks",), "chunks: they belong in the rules file, next to its rules; move them there")


def _read_rules_file(path: Path, content: Mapping[str, Any]) -> tuple[Rules, object]:
    """The rules of a rules file, with the config's promises if the file states no defaults."""
    document = read_yaml(path)
    rules = document.content
    if isinstance(rules, Mapping) and content.get("promises") is not None:
        if "defaults" in rules:
            raise InvalidInput(
                f"{path}: the file states defaults and the config states promises, which are the same; keep one of them"
            )
        document = Document(content={**rules, "defaults": content["promises"]}, node=document.node)
    return Rules.checked(document, path.parent, str(path)), rules


def _path_problems(config: Config) -> Iterator[tuple[Place, str]]:
    """Paths that do not exist."""
    source = config.source
    if config.about_code:
        if not Path(source).is_dir():
            yield ("data", "source"), f"{source} is not a folder, but the rules are about code; {PATHS_NOTE}"
    elif means_path(config.data.source, folder=config.folder) and not Path(source.split(":")[0]).exists():
        yield ("data", "source"), f"{source} does not exist; {PATHS_NOTE}"
    name = config.model.name
    if name is not None and not Path(config.located(name)).is_dir() and means_path(name, folder=config.folder):
        message = f"{config.located(name)} is neither the folder of a model nor a name on the hub; {PATHS_NOTE}"
        yield ("model", "name"), message
    chat_template = config.data.chat_template
    if chat_template is not None and chat_template.endswith(TEMPLATE_ENDINGS):
        located = config.folder / Path(chat_template).expanduser()
        if not located.is_file():
            yield ("data", "chat_template"), f"{located} is not a file; {PATHS_NOTE}"
    held_out = None if config.audit is None else config.audit.held_out
    if held_out is not None and means_path(held_out, folder=config.folder):
        located = config.located(held_out)
        if not Path(located.split(":")[0]).exists():
            yield ("audit", "held_out"), f"{located} does not exist; {PATHS_NOTE}"
    attest = {} if config.attest is None else config.attest.model_dump(exclude_none=True)
    for name, stated in attest.items():
        for path in (stated,) if isinstance(stated, str) else stated:
            if not Path(config.located(path)).is_file():
                yield ("attest", name), f"{config.located(path)} is not a file; {PATHS_NOTE}"
    corpus = None if config.training.metric is None else config.training.metric.corpus
    if corpus is not None and means_path(corpus, folder=config.folder):
        located = config.located(corpus)
        if not Path(located.split(":")[0]).exists():
            yield ("training", "metric", "corpus"), f"{located} does not exist; {PATHS_NOTE}"


def _section_conflicts(config: Config) -> Iterator[tuple[Place, str]]:
    """Settings of one section that contradict another."""
    if config.about_code:
        for name in ("column", "columns", "chat_template", "unit", "id_column"):
            if getattr(config.data, name) is not None:
                yield ("data", name), "it is for tables, but the rules are about code; drop it"
    small, training, audit = config.model.small, config.training, config.audit
    if small is not None:
        if training.max_length is not None and training.max_length > small.length:
            message = f"{training.max_length} is more than model.small.length, {small.length}; lower it"
            yield ("training", "max_length"), message
        if training.lora is not None:
            yield (
                ("training", "lora"),
                "adapters are useless without their small model, which is not released; drop it",
            )
        if training.task == "masked":
            yield ("training", "task"), "a small model predicts the next byte; drop it, or name a masked model"
    if config.plan.rounds != AUTO and training.warmup > config.plan.rounds:
        message = f"{training.warmup} is more than plan.rounds, {config.plan.rounds}; lower it"
        yield ("training", "warmup"), message
    if audit is not None and audit.canaries is not None and not {"extraction", "exposure"} & set(audit.attacks):
        yield ("audit", "canaries"), "no attack looks for them; add exposure to attacks, or drop canaries"


def config_key(setting: str) -> str | None:
    """The config key of a setting; None if a config cannot state it.

    >>> config_key("batch_size"), config_key("lora.rank"), config_key("output"), config_key("insecure_seed")
    ('plan.batch_size', 'training.lora.rank', 'output', None)
    """
    return _config_keys().get(setting)


@contextmanager
def settings_shown_as_keys() -> Iterator[None]:
    """Errors raised inside name settings by their config key: ``plan.batch_size``."""
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
    """Names of the settings in a type, those of nested models as outer.inner."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        for name, field in annotation.model_fields.items():
            yield name
            yield from (f"{name}.{inner}" for inner in _settings_in(field.annotation))
    else:
        for part in get_args(annotation):
            yield from _settings_in(part)


def template(kind: Kind) -> str:
    """A commented config that is complete except for the path of the data."""
    return (Path(__file__).parent / "templates" / f"{kind}.yaml").read_text(encoding="utf-8")
