"""What a plan can teach, said before training: its signal, what dropping and redacting would leave, and remedies.

The signal is a forecast, not a bound (:mod:`hush.accounting.signal`). Dropping and redacting need no noise and no
promise: they stand beside every plan, because where they leave enough to learn from they are the better choice.

Legend: N examples, S secrets.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting.sampling_error import planning_ceiling
from hush.accounting.signal import (
    HOPELESS,
    LITTLE,
    GradientStatistics,
    Prediction,
    SignalBudget,
    budget_of,
    gaussian_shift,
)
from hush.arrays import Array
from hush.incidence import Incidence
from hush.numbers import counted, rounded_down
from hush.plan.plan import Plan, drawable_examples, kept_weight
from hush.slots import Slots, Spans
from hush.weights.shift_capacity import swept_weights, weights_keeping

__all__ = ["Outlook", "Remaining", "Remedy", "TextShares", "plan_budget", "remaining", "shown_signal", "text_shares"]


SMALLER_SHARE = 0.5  # of the weight, that a remedy keeps: the smallest that our studies tried
HIGHER_CEILING = 10.0  # times as high, in a remedy
HELPS = 1.1  # times the signal, from which on another share or ceiling counts as a remedy
MAX_CEILING = 0.5
SMALLEST_MODEL = 100_000  # parameters: what is hopeless for so few is hopeless for every model


def plan_budget(plan: Plan) -> SignalBudget:
    """The signal budget of a plan: its signal at the noise that training adds, and what batch and rounds could change.

    >>> from hush.plan import make_plan
    >>> graph = Incidence.from_pairs(range(20), [0] * 20, num_examples=100, num_secrets=1)
    >>> budget = plan_budget(make_plan(graph, prior=1e-10, ceiling=1e-3, batch_size=10, rounds=100, capacity="none"))
    >>> round(budget.signal, 1), round(budget.limit, 1), round(budget.elbow, 1)
    (3.2, 3.3, 3.3)
    """
    drawn_N = drawable_examples(plan)
    return budget_of(
        plan.incidence.select(examples=drawn_N),
        plan.weights[drawn_N],
        shift_S=gaussian_shift(plan.prior, planning_ceiling(plan.prior, plan.ceiling)),
        batch_size=plan.batch_size,
        rounds=plan.rounds,
        noise_multiplier=plan.training_noise_multiplier,
    )


# What is left without a promise.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TextShares:
    """The shares of all characters that dropping and redacting leave; None where no spans say what to redact."""

    dropping: float
    redacting: float | None


def text_shares(incidence: Incidence, characters_N: NDArray[np.integer], spans: Spans | None = None) -> TextShares:
    """How much text is left without the examples that hold a secret, and without the secrets' spans.

    characters_N: the length of each example. Examples that are secret as a whole are left out in both cases.
    """
    total = max(float(characters_N.sum()), 1.0)
    bearing_N = incidence.secrets_per_example > 0
    redacting = None
    if spans is not None and len(spans.slots):
        hidden = float(characters_N[spans.slots.whole_examples(incidence)].sum())
        hidden += float((spans.end_L - spans.begin_L).sum())
        redacting = 1 - hidden / total
    return TextShares(dropping=float(characters_N[~bearing_N].sum()) / total, redacting=redacting)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What dropping or redacting would leave to learn from, without noise and without a promise.

    examples: how many are left, whole or without their secrets; share: of all examples. text_share: of all characters,
    None where the texts are not known.
    """

    method: Literal["dropping", "redacting"]
    examples: int
    share: float
    text_share: float | None

    def record(self) -> dict[str, Any]:
        """As plain data; the noise of both methods is 0."""
        return {
            "method": self.method,
            "noise_multiplier": 0.0,
            "examples": self.examples,
            "share": self.share,
            "text_share": self.text_share,
        }


def remaining(
    incidence: Incidence, slots: Slots | None = None, *, texts: TextShares | None = None
) -> tuple[Remaining, ...]:
    """What dropping leaves and, if rules hide spans, what redacting leaves.

    >>> graph = Incidence.from_pairs([0, 1], [0, 0], num_examples=10, num_secrets=1)
    >>> [(row.method, row.examples, row.share) for row in remaining(graph)]
    [('dropping', 8, 0.8)]
    """
    total = max(incidence.num_examples, 1)
    free = int(np.count_nonzero(incidence.secrets_per_example == 0))
    dropping = Remaining(
        method="dropping", examples=free, share=free / total, text_share=None if texts is None else texts.dropping
    )
    if slots is None or not len(slots):
        return (dropping,)
    left = incidence.num_examples - int(np.count_nonzero(slots.whole_examples(incidence)))
    redacting = Remaining(
        method="redacting", examples=left, share=left / total, text_share=None if texts is None else texts.redacting
    )
    return dropping, redacting


# The outlook of a plan.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something that raises the signal, or does without noise. signal: the forecast with it; None without noise."""

    name: Literal["keep", "batch_size", "ceiling", "without_noise"]
    text: str
    signal: float | None


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Outlook:
    """The signal of a plan or of a proposal for one, its prediction for a model, and what would remain without noise.

    graph, weight_N: of the examples that can be drawn. prior_SQ, ceiling_SQ: the promises. share: of the weight of
    examples with secrets that is kept. parameters: how many the model trains, None if that is not known. statistics: of
    public gradients, where there are any. is_planned: whether the noise is the plan's, which is proven, or a forecast.
    """

    budget: SignalBudget
    graph: Incidence
    weight_N: Array
    prior_SQ: Array
    ceiling_SQ: Array
    share: float
    remaining: tuple[Remaining, ...]
    parameters: int | None = None
    statistics: GradientStatistics | None = None
    is_planned: bool = True

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        *,
        parameters: int | None = None,
        statistics: GradientStatistics | None = None,
        texts: TextShares | None = None,
    ) -> Self:
        """The outlook of a plan. texts: how much text dropping and redacting leave."""
        drawn_N = drawable_examples(plan)
        return cls(
            budget=plan_budget(plan),
            graph=plan.incidence.select(examples=drawn_N),
            weight_N=plan.weights[drawn_N],
            prior_SQ=plan.prior,
            ceiling_SQ=plan.ceiling,
            share=kept_weight(plan),
            remaining=remaining(plan.incidence, plan.slots, texts=texts),
            parameters=parameters,
            statistics=statistics,
        )

    @property
    def prediction(self) -> Prediction | None:
        """For the model, if its size is known."""
        if self.parameters is None:
            return None
        return Prediction.of(self.budget.signal, self.parameters, self.statistics)

    @property
    def is_hopeless(self) -> bool:
        """Whether the expected signal is well below the noise: for this model, or for any."""
        if not self.budget.private_batch:
            return False  # nothing is private
        prediction = self.prediction or Prediction.of(self.budget.signal, SMALLEST_MODEL)
        return prediction.verdict == "hopeless"

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """Ways to more signal with their forecast figures: a smaller share, a larger batch, less that is secret."""
        budget, found = self.budget, list[Remedy]()
        sizes: Any = {"batch_size": budget.batch_size, "rounds": budget.rounds}
        if self.share > SMALLER_SHARE:
            shift_S = gaussian_shift(self.prior_SQ, planning_ceiling(self.prior_SQ, self.ceiling_SQ))
            swept = swept_weights(self.graph, shift_S, least_share=SMALLER_SHARE)
            less = weights_keeping(swept, SMALLER_SHARE).budget(self.graph, shift_S=shift_S, **sizes)
            text = (
                f"keep {100 * SMALLER_SHARE:.0f} % of the weight of examples with secrets: signal about "
                f"{shown_signal(less.signal)} at this batch size, {shown_signal(less.at_elbow)} at the elbow of "
                f"{shown_signal(less.elbow)}"
            )
            if max(less.signal, less.at_elbow) > HELPS * budget.signal:
                found.append(Remedy(name="keep", text=text, signal=less.signal))
        if budget.batch_size < budget.elbow:
            text = f"a batch size of {shown_signal(budget.elbow)}, the elbow: signal about "
            found.append(Remedy(name="batch_size", text=text + shown_signal(budget.at_elbow), signal=budget.at_elbow))
        higher_SQ = np.maximum(np.minimum(HIGHER_CEILING * self.ceiling_SQ, MAX_CEILING), self.ceiling_SQ)
        shift_S = gaussian_shift(self.prior_SQ, planning_ceiling(self.prior_SQ, higher_SQ))
        higher = budget_of(self.graph, self.weight_N, shift_S=shift_S, **sizes)
        times = f"{HIGHER_CEILING:g} times as high"
        if (HIGHER_CEILING * self.ceiling_SQ > MAX_CEILING).any():
            times = f"up to {times}, at most {MAX_CEILING:g}"
        if higher.signal > HELPS * budget.signal:
            text = f"ceilings {times}: signal about {shown_signal(higher.signal)}"
            found.append(Remedy(name="ceiling", text=text, signal=higher.signal))
        found.append(Remedy(name="without_noise", text=self._without_noise(), signal=None))
        return tuple(found)

    def _without_noise(self) -> str:
        """Hiding spans, dropping or redacting, with what they leave."""
        rows = {row.method: row for row in self.remaining}
        first = "hide spans instead of whole examples, so that the text around the secrets needs no noise"
        if "redacting" in rows:
            first = f"redact, which leaves {_left(rows['redacting'])}"
        return f"{first}, or drop the examples with secrets, which leaves {_left(rows['dropping'])}"

    def sentences(self) -> list[str]:
        """What to say before training: a line about the signal, and if it is hopeless that and the remedies."""
        budget, prediction = self.budget, self.prediction
        if not budget.private_batch or not math.isfinite(budget.signal):
            return []
        at = "beyond which a larger batch buys nothing"
        noise = "" if self.is_planned else "forecast "
        lines = [
            f"Signal (a forecast, not a bound): batch of private examples × √rounds / {noise}noise = "
            f"{shown_signal(budget.signal)}, at most about {shown_signal(budget.limit)} with these weights; elbow: "
            f"batch size {shown_signal(budget.elbow)}, {at}."
        ]
        if prediction is None:
            lines.append(
                f"It is well below the noise for a model of more than {_parameters(budget.signal / HOPELESS)} trained "
                f"parameters, and below it from {_parameters(budget.signal / LITTLE)} on."
            )
        else:
            lines.append(_predicted(prediction))
        if self.is_hopeless:
            remedies = "; ".join(f"({number}) {each.text}" for number, each in enumerate(self.remedies, 1))
            lines.append(
                "Hopeless: the expected signal is well below the noise, so the private rounds will teach the model "
                f"next to nothing. What would help: {remedies}."
            )
        return lines

    def record(self) -> dict[str, Any]:
        """All figures as plain data; remedies only where the signal is hopeless."""
        prediction = self.prediction
        return {
            **self.budget.record(),
            "share": self.share,
            "is_bound": False,
            "is_planned": self.is_planned,
            "prediction": None if prediction is None else prediction.record(),
            "hopeless": self.is_hopeless,
            "remedies": [
                {"name": each.name, "text": each.text, "signal": _finite(each.signal)}
                for each in (self.remedies if self.is_hopeless else ())
            ],
            "without_noise": [row.record() for row in self.remaining],
            "sentences": self.sentences(),
        }


def _predicted(prediction: Prediction) -> str:
    """The prediction for a model, in a sentence."""
    size = f"for {counted(prediction.parameters, 'trained parameter')}"
    words = {
        "hopeless": "well below the noise",
        "little": "below the noise: expect little from the private rounds",
        "promising": "enough for the private rounds to be worth trying",
    }[prediction.verdict]
    if prediction.expected is None or prediction.statistics is None:
        return (
            f"Signal / √parameters is {shown_signal(prediction.ceiling)} {size}, if all gradients agreed, which they "
            f"never do; that is {words}."
        )
    measured = prediction.statistics
    found = f"alignment {measured.alignment:.2g}, effective dimension {measured.effective_dimension:,.0f}"
    return (
        f"Expected signal over noise is {shown_signal(prediction.expected)} {size}, from "
        f"{counted(measured.examples, 'public example')} ({found}); that is {words}."
    )


def _left(row: Remaining) -> str:
    text = "" if row.text_share is None else f", {_percent(row.text_share)} of the text"
    return f"{counted(row.examples, 'example')} ({_percent(row.share)}){text}, without noise"


def _percent(share: float) -> str:
    return f"{rounded_down(round(100 * share, 9), 3)} %"


def _parameters(root: float) -> str:
    """A number of parameters from its square root, in words."""
    number = root**2
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= unit:
            return f"{number / unit:,.3g} {name}"
    return f"{number:.0f}"


def shown_signal(value: float) -> str:
    """A forecast with two digits: more would pretend to an accuracy that it does not have.

    >>> shown_signal(2482.3), shown_signal(0.0461), shown_signal(math.inf)
    ('2,500', '0.046', 'without limit')
    """
    if not math.isfinite(value):
        return "without limit"
    digits = float(f"{value:.2g}")
    return f"{digits:,.0f}" if digits >= 10 else f"{digits:g}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
