"""Sections of a config that are not the settings of a single stage: data, model, training, audit and releases.

The other sections are the settings of their stage: ``plan:`` is :class:`~hush.plan.settings.PlanSettings`, ``report:``
is :class:`~hush.report.settings.ReportSettings`. ``training:`` combines the settings of learning with those of speed
and memory; ``audit:`` adds the inputs of the audit to its settings. ``releases:`` names the ledger of a chain.
"""

from typing import Literal, Self, final

from pydantic import Field, model_validator

from hush.audit.settings import AuditSettings, CanarySettings
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.settings import YES_OR_NO, Auto, Count, Settings, Text, Texts, Whole, wrong
from hush.train.settings import Learning, Recipe, Runtime

__all__ = [
    "SMALL_SPECIAL_TOKENS",
    "AuditSection",
    "DataSection",
    "ModelSection",
    "ReleasesSection",
    "SmallModel",
    "TrainingSection",
]


SMALL_SPECIAL_TOKENS = {"eos_token": "<end>", "pad_token": "<pad>"}  # of the small model


@final
class DataSection(Settings):
    """The data to train on, and how to read them. chat_template: by default that of the model."""

    source: Text = Field(description="the path of a file or a folder with your data, or the name of a data set")
    column: Text | None = Field(default=None, description="the name of the column that holds the text")
    columns: Texts | None = Field(
        default=None, description="a list of columns that hold text, joined in this order, such as [title, body]"
    )
    chat_template: Text | None = Field(
        default=None,
        description="what renders conversations: a file that ends in .jinja, the name or folder of a model, or chatml",
    )
    unit: Literal["line", "file"] | None = None
    id_column: Text | None = Field(default=None, description="the name of a column with your own ids")
    key: Text | None = Field(default=None, description="the path of your key, which is created on first use")
    skip_bad: bool = Field(default=False, description=YES_OR_NO)
    workers: Count = Field(
        default=1, description="the number of processes that look for secrets, a whole number of at least 1"
    )


@final
class SmallModel(Settings):
    """A byte-level GPT-2 with random weights: for demonstrations, and for machines that download nothing."""

    layers: Count = Field(default=2, description="a whole number of at least 1, such as 2")
    width: Count = Field(default=64, description="a whole number of at least 1, a multiple of heads, such as 64")
    heads: Count = Field(default=2, description="a whole number of at least 1, such as 2")
    length: Whole = Field(
        default=128,
        ge=2,
        description="the maximum number of bytes of a text, a whole number of at least 2, such as 128",
    )
    seed: Whole = Field(default=0, ge=0, description="a whole number of at least 0")

    @model_validator(mode="after")
    def _width_is_multiple_of_heads(self) -> Self:
        if self.width % self.heads:
            raise wrong(f"width {self.width} is not a multiple of heads, {self.heads}; pass a multiple of heads")
        return self


@final
class ModelSection(Settings):
    """Which model is fine-tuned."""

    name: Text | None = Field(default=None, description="the name of a model on the hub, or the path of its folder")
    small: SmallModel | None = Field(
        default=None, description="a mapping with layers, width, heads, length or seed, which may be empty: {}"
    )

    @model_validator(mode="after")
    def _exactly_one_model(self) -> Self:
        if (self.name is None) == (self.small is None):
            raise wrong("pass exactly one of name (on the hub, or a folder) and small")
        return self


@final
class TrainingSection(Runtime, Learning):  # fields of the last base come first
    """The settings of a training except for its model: those of learning, and those of speed and memory.

    private_part: whether the rounds of the plan are trained; with auto not where the signal is hopeless, or where a
    rehearsal of these settings found that they gain nothing. The model is then that of the public part.
    """

    private_part: bool | Auto = Field(default=True, description="true, false or auto")

    def recipe(self, model: str) -> Recipe:
        """The settings that a run keeps, for a model by name or folder."""
        return Recipe(model=model, **{name: getattr(self, name) for name in Learning.model_fields})

    @property
    def runtime(self) -> Runtime:
        """The settings of speed and memory."""
        return Runtime(**{name: getattr(self, name) for name in Runtime.model_fields})


@final
class AuditSection(AuditSettings):
    """The settings of an audit, and its inputs besides the run."""

    seed: None = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=None, exclude=True, description="nothing; an audit draws its own randomness"
    )
    reference: Text | None = Field(
        default=None,
        description="the name or folder of a model that never saw the data, or base-model for the one before training",
    )
    held_out: Text | None = Field(default=None, description="the path of texts that the model never sees")
    canaries: CanarySettings | None = Field(
        default=None, description="a mapping with ceiling, count, repeats, alphabet, length or templates"
    )

    @property
    def effort(self) -> AuditSettings:
        """The settings of the attacks, without the inputs."""
        return AuditSettings(**{name: getattr(self, name) for name in AuditSettings.model_fields if name != "seed"})


@final
class ReleasesSection(Settings):
    """More than one release under one promise: the ledger, and how the releases share what is promised.

    series: all releases are announced before the first. filter: releases are added as they come. uncovered: what
    happens where a secret stood, unlisted, in a row that an earlier release was trained on.
    """

    ledger: Text = Field(description="the path of the ledger's folder, which is created on first use")
    series: SeriesSettings | None = Field(default=None, description="a mapping, such as {count: 12, growth: 1.2}")
    filter: FilterSettings | None = Field(default=None, description="a mapping, such as {share: 0.1}")
    uncovered: Literal["refuse", "state"] = Field(
        default="refuse", description="refuse, or state to go on and have it stated"
    )

    @model_validator(mode="after")
    def _exactly_one_kind(self) -> Self:
        if (self.series is None) == (self.filter is None):
            raise wrong("pass exactly one of series (announced beforehand) and filter (releases as they come)")
        return self


@final
class AttestSection(Settings):
    """Whose key signs the release at the end of the run, for the tools of OpenSSF and in-toto."""

    private_key: Text = Field(description="the path of a private key on P-256, P-384 or P-521, in PEM")
    certificate: Text | None = Field(default=None, description="the path of that key's certificate, in PEM")
    chain: tuple[Text, ...] = Field(default=(), description="a list of paths: certificates between it and a root")
