"""The sections of a config that no single stage states: where the data are, which model to begin with, what to attack.

The other sections are the settings of the stages, as they are: ``plan:`` is :class:`~hush.plan.settings.PlanSettings`,
``report:`` is :class:`~hush.report.settings.ReportSettings`. ``training:`` holds what a run keeps and what only changes
its speed; ``audit:`` the effort, and what the audit is given beside the run.
"""

from typing import Literal, Self, final

from pydantic import Field, model_validator

from hush.audit.settings import AuditSettings, CanarySettings
from hush.settings import YES_OR_NO, Count, Settings, Text, Whole, wrong
from hush.train.settings import Learning, Recipe, Runtime

__all__ = ["AuditSection", "DataSection", "ModelSection", "SmallModel", "TrainingSection"]


@final
class DataSection(Settings):
    """What to train on."""

    source: Text = Field(description="the path of a file or a folder with your data, or the name of a data set")
    column: Text | None = Field(default=None, description="the name of the column that holds the text")
    unit: Literal["line", "file"] | None = None
    id_column: Text | None = Field(default=None, description="the name of a column with ids of your own")
    key: Text | None = Field(default=None, description="the path of your key, which is made on first use")
    skip_bad: bool = Field(default=False, description=YES_OR_NO)
    workers: Count = Field(default=1, description="how many processes look for secrets, a whole number from 1 on")


@final
class SmallModel(Settings):
    """A GPT-2 over bytes with random weights, made on the spot: for demonstrations, and where nothing is downloaded."""

    layers: Count = Field(default=2, description="a whole number from 1 on, such as 2")
    width: Count = Field(default=64, description="a whole number from 1 on, a multiple of heads, such as 64")
    heads: Count = Field(default=2, description="a whole number from 1 on, such as 2")
    length: Whole = Field(
        default=128, ge=2, description="the most bytes of a text, a whole number from 2 on, such as 128"
    )
    seed: Whole = Field(default=0, ge=0, description="a whole number from 0 on")

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.width % self.heads:
            raise wrong(f"a width of {self.width} cannot be split over {self.heads} heads; pass a multiple of heads")
        return self


@final
class ModelSection(Settings):
    """Which model is fine-tuned."""

    name: Text | None = Field(default=None, description="the name of a model on the hub, or the path of its folder")
    small: SmallModel | None = Field(
        default=None, description="a mapping with layers, width, heads, length or seed, maybe empty: {}"
    )

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.name is None) == (self.small is None):
            raise wrong("a model is needed: pass either name (of the hub, or a folder) or small, one of them")
        return self


@final
class TrainingSection(Runtime, Learning):  # fields of the last base come first
    """How the model learns, and how fast; the options of ``hush train``."""

    def recipe(self, model: str) -> Recipe:
        """What is trained and how, for a model by name or folder."""
        return Recipe(model=model, **{name: getattr(self, name) for name in Learning.model_fields})

    @property
    def runtime(self) -> Runtime:
        """What changes no model."""
        return Runtime(**{name: getattr(self, name) for name in Runtime.model_fields})


@final
class AuditSection(AuditSettings):
    """Which attacks to try on the result, how hard, and with what."""

    seed: None = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=None, exclude=True, description="nothing: an audit draws its own randomness"
    )
    reference: Text | None = Field(
        default=None,
        description="the name or folder of a model that never saw the data, or base-model for the one you begin with",
    )
    held_out: Text | None = Field(default=None, description="the path of texts that the model never sees")
    canaries: CanarySettings | None = Field(
        default=None, description="a mapping with ceiling, count, repeats, alphabet, length or templates"
    )

    @property
    def effort(self) -> AuditSettings:
        """How hard the attacks try."""
        return AuditSettings(**{name: getattr(self, name) for name in AuditSettings.model_fields if name != "seed"})
