"""The settings of a plan: arguments of ``make_plan``, options of ``hush plan``, ``plan:`` in a config.

Those of a chain of releases are apart: of one plan they say to what it belongs.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, final

from pydantic import Field, model_validator

from hush.accounting.arguments import MAX_ROUNDS
from hush.errors import InvalidInput, Setting
from hush.settings import AUTO, OR_AUTO, Auto, Count, Positive, Real, Settings, Whole, wrong

__all__ = ["Draw", "FilterSettings", "PlanSettings", "SeriesSettings"]

Draw = Literal["all", "secrets"]

MAX_SCALE = 1e9  # of noise multiplier and clip norm: float32 can hold both, and their product

if TYPE_CHECKING:
    BatchSize = float | Auto
    Rounds = int | Auto
    Share = float | Auto
else:
    BatchSize = Annotated[Positive, *OR_AUTO]
    Rounds = Annotated[Count, Field(le=MAX_ROUNDS), *OR_AUTO]
    Share = Annotated[Real, Field(gt=0.0, le=1.0), *OR_AUTO]


class Sizes(NamedTuple):
    """The size of a round, and how many there are."""

    batch_size: float
    rounds: int


@final
class SeriesSettings(Settings):
    """A series of releases under one promise, announced before the first: how many, and how much they may grow.

    growth: how many times as often as in the first release a round of a later one may draw any secret.
    """

    count: Whole = Field(ge=2, le=1000, description="the number of releases, a whole number from 2 to 1000")
    growth: Real = Field(default=1.0, ge=1.0, le=1000.0, description="a factor from 1 to 1000, such as 1.2")


@final
class FilterSettings(Settings):
    """Releases that are added later, each of which may spend a share of the budget of every promise."""

    share: Real = Field(default=0.1, gt=0.0, le=1.0, description="a share above 0 and up to 1, such as 0.1")


@final
class PlanSettings(Settings):
    """How often examples are used, how much noise is added, and which examples are held out for evaluation.

    draw: from which examples, "all" or "secrets", those with a secret; with slots always the latter. By default all,
    but in ``hush run`` those with a secret wherever the others are learnt first (``hush.run.config``). batch_size,
    rounds and keep may be ``auto``: they are then chosen from the signal budget of the graph.
    """

    batch_size: BatchSize = Field(description="the expected number of examples in a round, a number above 0, or auto")
    rounds: Rounds = Field(
        description=f"the number of training rounds, a whole number from 1 to {MAX_ROUNDS:,}, or auto"
    )
    bound: Literal["blowup", "renyi", "kl"] = "blowup"
    capacity: Literal["accounted", "paper", "none"] = "accounted"
    noise_multiplier: Positive | None = Field(
        default=None, le=MAX_SCALE, description="a number above 0 and up to 1e9, or leave it out to have it computed"
    )
    keep: Share | None = Field(
        default=None,
        description="the share of their weight that examples with secrets keep, above 0 and up to 1, such as 0.9, or "
        "auto",
    )
    strength: Positive | None = Field(default=None, description="the constant c of the paper, a number above 0")
    draw: Draw | None = None
    hold_out: Real | None = Field(
        default=None,
        ge=0.0,
        le=0.5,
        description="the share of the examples without secrets to evaluate on, from 0 for none to 0.5, such as 0.05",
    )
    clip_norm: Positive = Field(
        default=1.0, ge=1 / MAX_SCALE, le=MAX_SCALE, description="a number from 1e-9 to 1e9, such as 1.0"
    )

    @property
    def sizes(self) -> "Sizes":
        """Batch size and rounds, where both are numbers."""
        if self.batch_size == AUTO or self.rounds == AUTO:
            raise InvalidInput("batch size or rounds are chosen only when the plan is made; state them, or plan first")
        return Sizes(self.batch_size, self.rounds)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``make_plan``; ``keep`` only if it is stated, since it has a default there."""
        unstated = {"keep"} if self.keep is None else set[str]()
        return self.model_dump(exclude={"hold_out"} | unstated)

    @model_validator(mode="after")
    def _one_goal(self) -> Self:
        if self.keep not in (None, AUTO) and (self.noise_multiplier is not None or self.capacity != "accounted"):
            raise wrong(
                Setting("keep"),
                " computes the noise for accounted capacities; drop it, or drop ",
                Setting("noise_multiplier"),
                " and ",
                Setting("capacity"),
            )
        if (self.strength is not None) != (self.capacity == "paper"):
            raise wrong(
                Setting("strength"), " and ", Setting("capacity"), " paper need each other; pass both or neither"
            )
        return self
