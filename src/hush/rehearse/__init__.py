"""The rehearsal: on public content, before the training, at no cost to any promise.

content   what is public under a plan: clear examples and skeletons
cast      which public examples play secrets, and which are set aside to judge on
scaled    the plan's rates and noise on a smaller stage
arms      the three ways, trained: dropping, redacting, hush
search    settings by Optuna
outcome   losses to expect with intervals, the choice, and the patch for the config
conclusion what the repeats say
rehearsal all of it, resumable in a folder
"""

from typing import TYPE_CHECKING

from hush.rehearse.content import PublicContent, public_content
from hush.rehearse.outcome import ArmForecast, Interval, Outcome, skips_private_rounds
from hush.rehearse.settings import RehearsalSettings

if TYPE_CHECKING:
    from hush.rehearse.rehearsal import rehearse

__all__ = [
    "ArmForecast",
    "Interval",
    "Outcome",
    "PublicContent",
    "RehearsalSettings",
    "public_content",
    "rehearse",
    "skips_private_rounds",
]


def __getattr__(name: str) -> object:
    """Load ``rehearse`` on first use."""
    if name != "rehearse":
        raise AttributeError(f"module 'hush.rehearse' has no attribute {name!r}")
    from hush.rehearse.rehearsal import rehearse

    return rehearse
