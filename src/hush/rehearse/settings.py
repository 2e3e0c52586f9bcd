"""The settings of a rehearsal: options of ``hush rehearse``, ``rehearsal:`` in a config. Imports no torch."""

from typing import Literal, final

from pydantic import Field

from hush.settings import Count, Positive, Settings, Whole

__all__ = ["RehearsalSettings", "Roles"]

Roles = Literal["words", "random"]


@final
class RehearsalSettings(Settings):
    """How much a rehearsal may cost, and which public examples play secrets.

    share: the work of all private rounds of the rehearsal together, as a share of that of the real training. minutes:
    instead, about how long it may take. tries: how many settings are compared; the first is that of the config.
    seeds: how often the three ways are trained with the settings that won, each time with other players, examples and
    noise. roles: "words", the texts that share a public word play a secret; "random", any texts do.
    """

    minutes: Positive | None = Field(default=None, description="a number of minutes above 0, such as 30")
    share: Positive = Field(
        default=1.0, description="the work of the rehearsal divided by that of the training, a number above 0"
    )
    tries: Count = Field(default=12, description="the number of settings to compare, a whole number of at least 1")
    seeds: Whole = Field(
        default=4, ge=2, description="the number of trainings behind each figure, a whole number of at least 2"
    )
    max_examples: Whole = Field(
        default=20_000, ge=60, description="the number of public examples to rehearse with, a whole number from 60"
    )
    roles: Roles = Field(default="words", description="words or random")
