"""What a rehearsal found: the loss to expect of each way with its interval, which way to take, and a patch.

**Intervals.** Every repeat has its own players, examples to train on, order, and noise, so the spread of a figure over
repeats contains all of these. The interval for one training is Student's, from R repeats: mean ± t·√(v·(1 + 1/R) + e),
where v is the variance between repeats: of one way, or the mean over the three if that is larger, since few repeats
underestimate it. Siblings differ between repeats, so v contains the choice of examples to judge on, and e is 0.
Ordinary examples to judge on are the same in all repeats, so e = s²/n + s²/h is what the choice of these n adds, and
that of the h examples that the real training holds out, if there are any. A difference of two ways is taken within each
repeat, where players, examples and start are shared; its interval is that of the expected difference, mean ± t·√(v/R).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np

from hush.errors import InvalidInput
from hush.storage import read_json, whole_file

__all__ = [
    "LEVEL",
    "ORDINARY_MARGIN",
    "OUTCOME",
    "Arm",
    "ArmForecast",
    "Difference",
    "Interval",
    "Outcome",
    "Reached",
    "Tried",
    "decide",
    "difference",
    "forecast_interval",
    "last_outcome",
    "skips_private_rounds",
]


Arm = Literal["dropping", "redacting", "hush"]
ARMS: tuple[Arm, ...] = ("dropping", "redacting", "hush")
LEVEL = 0.9  # of all intervals
ORDINARY_MARGIN = 0.005  # hush may be this much worse on ordinary content, relative to the better of the others
FORMAT = "hush rehearsal 1"
OUTCOME = "rehearsal.json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One number of one repeat: the mean loss of some examples, their standard deviation and their number."""

    mean: float
    deviation: float
    count: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The expected loss of a training, and where 90 % of such trainings are expected."""

    expected: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.expected <= self.high:  # NaN fails
            raise InvalidInput(f"{self.low} to {self.high} is no interval around {self.expected}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArmForecast:
    """What to expect of one way."""

    arm: Arm
    ordinary: Interval
    like: Interval


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The expected loss of one way minus that of another, on content like the secrets' or ordinary content."""

    arm: Arm
    other: Arm
    content: Literal["ordinary", "like"]
    difference: Interval


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Settings that were compared, as changes of the config, and what they reached; no losses if no plan exists."""

    settings: Mapping[str, Any]
    ordinary: float | None
    like: float | None


def forecast_interval(repeats: Sequence[Reached], *, pooled_variance: float, held_out: int | None) -> Interval:
    """The interval for one training, from the repeats of a way; see above. Errs on the wide side.

    held_out: how many examples the real training is judged on, if all repeats are judged on the same ones; else None.

    >>> same = [Reached(mean=2.0, deviation=0.0, count=100)] * 4
    >>> forecast_interval(same, pooled_variance=0.0, held_out=100)
    Interval(expected=2.0, low=2.0, high=2.0)
    """
    means = np.array([reached.mean for reached in repeats])
    number, expected = means.size, float(means.mean())
    between = max(float(means.var(ddof=1)), pooled_variance)
    judged = 0.0
    if held_out is not None:
        of_real = 1 / held_out if held_out else 0.0  # where none are held out, the loss on all such examples is meant
        judged = float(np.mean([r.deviation**2 * (1 / r.count + of_real) for r in repeats]))
    half = _student(number) * math.sqrt(between * (1 + 1 / number) + judged)
    return Interval(expected=expected, low=max(0.0, expected - half), high=expected + half)  # no loss is below 0


def difference(first: Sequence[Reached], second: Sequence[Reached]) -> Interval:
    """The expected difference of two ways, from repeats that share everything else."""
    gaps = np.array([mine.mean - other.mean for mine, other in zip(first, second, strict=True)])
    half = _student(gaps.size) * math.sqrt(float(gaps.var(ddof=1)) / gaps.size)
    expected = float(gaps.mean())
    return Interval(expected=expected, low=expected - half, high=expected + half)


def _student(repeats: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, repeats - 1))


def decide(
    forecasts: Mapping[Arm, ArmForecast], differences: Sequence[Difference], *, like_share: float, slotted: bool
) -> tuple[Arm, bool]:
    """Which way has the lowest losses, and whether the private rounds gain on the training that they start from.

    hush gains on the training that it starts from if on content like the secrets' the whole interval of the
    difference lies below 0, and below what it gains on ordinary content, which the public stream beside the rounds
    gains too where ordinary training ended early; and if on ordinary content it is expected at most 0.5 % above it.
    It is the choice if it gains and is expected to be better than the third way, too. Otherwise redacting and dropping
    are compared on the data's own mixture of both contents. Where only slots are secret, redacting shows nothing that
    the rules do not call public, and learns from more of it: dropping must surely be better. Where whole examples are,
    dropping shows the least: redacting must surely be better, and where hush gains it comes before dropping.
    """
    start: Arm = "redacting" if slotted else "dropping"
    gap = {(row.arm, row.other, row.content): row.difference for row in differences}
    hush = forecasts["hush"]
    others = [forecasts["dropping"], forecasts["redacting"]]

    def near(other: ArmForecast) -> bool:
        return hush.ordinary.expected <= (1 + ORDINARY_MARGIN) * other.ordinary.expected

    by_stream = min(0.0, gap["hush", start, "ordinary"].expected)
    gains = gap["hush", start, "like"].high < by_stream and near(forecasts[start])
    if gains and all(near(other) and hush.like.expected < other.like.expected for other in others):
        return "hush", gains
    mixed = [(1 - like_share, "ordinary"), (like_share, "like")]
    to_dropping = [(share, gap["redacting", "dropping", content]) for share, content in mixed]
    if slotted:
        return ("dropping" if sum(share * each.low for share, each in to_dropping) > 0 else "redacting"), gains
    if sum(share * each.high for share, each in to_dropping) < 0:
        return "redacting", gains
    return ("hush" if gains else "dropping"), gains


def skips_private_rounds(outcome: "Outcome") -> bool:
    """Whether a run that leaves the choice to hush should train no private rounds: they would gain nothing here."""
    return not outcome.gains


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished rehearsal.

    choice: which of the three has the lowest losses. gains: whether the private rounds lower the loss of the ordinary
    training that they start from. patch: changes of the config, by section, with which hush was judged. before: losses
    of the model to begin with. like_share: the share of the data that is like the players. scale: how the private
    rounds were scaled, in words. slotted: whether the text in slots is what is secret. notes: what limits the forecast.
    It holds no text.
    """

    choice: Arm
    gains: bool
    arms: tuple[ArmForecast, ...]
    differences: tuple[Difference, ...]
    before: Mapping[str, float]
    patch: Mapping[str, Mapping[str, Any]]
    tried: tuple[Tried, ...]
    repeats: int
    like_share: float
    scale: str
    slotted: bool
    documents: int
    available: int
    notes: tuple[str, ...] = ()

    def arm(self, name: Arm) -> ArmForecast:
        """The forecast of one way."""
        return next(arm for arm in self.arms if arm.arm == name)

    @property
    def sentence(self) -> str:
        """Whether hush is worth it here, with figures."""
        dropping, redacting, hush = (self.arm(name) for name in ARMS)
        content = "in slots like the secrets'" if self.slotted else "on content like the secrets'"
        figures = (
            f"{content} expect a loss of {_shown(hush.like)} with hush, {dropping.like.expected:.3f} when dropping and "
            f"{redacting.like.expected:.3f} when redacting; on ordinary content {_shown(hush.ordinary)}, "
            f"{dropping.ordinary.expected:.3f} and {redacting.ordinary.expected:.3f}"
        )
        if self.choice == "hush":
            return f"hush is worth it here: {figures}. Take hush."
        if self.gains and self.choice == "redacting" and not self.slotted:
            return (
                f"hush is worth it here if whole examples must stay secret: {figures}. If only the hidden words must, "
                "take redacting, or let the rules hide spans and rehearse again."
            )
        return f"hush is not worth it here: {figures}. Take {self.choice}."

    def is_followed_by(self, **sections: Any) -> bool:
        """Whether these sections of a config, by name, state every setting of the patch."""
        return all(_states(sections.get(name), settings) for name, settings in self.patch.items())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        stated = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"format": FORMAT} | {name: _plain(value) for name, value in stated.items()}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The outcome in a file that ``store`` wrote."""
        try:
            record: dict[str, Any] = read_json(Path(path))
            if record.pop("format") != FORMAT:
                raise ValueError("another format")
            record["arms"] = tuple(
                ArmForecast(arm=arm["arm"], ordinary=Interval(**arm["ordinary"]), like=Interval(**arm["like"]))
                for arm in record["arms"]
            )
            record["differences"] = tuple(
                Difference(**(row | {"difference": Interval(**row["difference"])})) for row in record["differences"]
            )
            record["tried"] = tuple(Tried(**row) for row in record["tried"])
            record["notes"] = tuple(record["notes"])
            return cls(**record)
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidInput(f"{path} is not the outcome of a rehearsal; rehearse again") from None

    def store(self, path: Path) -> None:
        """Write the file, which appears complete or not at all."""
        with whole_file(path, owner_only=True) as file:
            file.write(json.dumps(self.to_dict(), indent=2, allow_nan=False).encode() + b"\n")


def last_outcome(folder: Path) -> Outcome | None:
    """The outcome of the last rehearsal whose files lie in this folder; None if there was none."""
    return Outcome.load(folder / OUTCOME) if (folder / OUTCOME).is_file() else None


def _states(section: Any, settings: Mapping[str, Any]) -> bool:
    return section is not None and all(
        _states(getattr(section, name), value) if isinstance(value, Mapping) else getattr(section, name) == value
        for name, value in settings.items()
    )


def _shown(interval: Interval) -> str:
    return f"{interval.expected:.3f} (90 %: {interval.low:.3f} to {interval.high:.3f})"


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(entry) for name, entry in asdict(value).items()}
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
