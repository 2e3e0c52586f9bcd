"""The settings of a report, stated once: the options of ``hush report`` and ``report:`` in a config."""

from typing import final

from pydantic import Field

from hush.settings import YES_OR_NO, Settings, Text

__all__ = ["ReportSettings"]


@final
class ReportSettings(Settings):
    """What the report shows besides plan, training and audit.

    frontier: how much data each noise would keep. methods: the noise that other methods would need.
    """

    title: Text = Field(default="Protection of secrets in training", description="a title for the page")
    frontier: bool = Field(default=True, description=YES_OR_NO)
    methods: bool = Field(default=True, description=YES_OR_NO)
    show_text: bool = Field(default=False, description=YES_OR_NO)
