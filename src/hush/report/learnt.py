"""What can be learnt: the signal of a plan, its elbow and prediction, and what dropping and redacting would leave.

The numbers are forecasts, and the section says so. They are functions of the plan and of public gradients, so the
released page shows them too.
"""

import math

import numpy as np

from hush.accounting.sampling_error import planning_ceiling
from hush.accounting.signal import budget_of, gaussian_shift
from hush.plan.signal import Outlook, Remaining, shown_signal
from hush.report.markup import at_most, percent_at_least, shown, table
from hush.report.page import Section, figure
from hush.report.plots import Plot

__all__ = ["learnt_section"]


CURVE_POINTS = 41  # of the plot, over a factor of 10,000 in batch size
VERDICTS = {"hopeless": "hopeless", "little": "expect little", "promising": "worth trying"}


def learnt_section(outlook: Outlook) -> Section | None:
    """The section; None if no example with a secret is ever drawn, or if they are drawn without noise."""
    budget, prediction = outlook.budget, outlook.prediction
    if not budget.private_batch or not math.isfinite(budget.signal):
        return None
    sentences = outlook.sentences()
    banner = "".join(
        f'<p class="banner bad" role="alert">{shown(each)}</p>\n' for each in sentences if each.startswith("Hopeless")
    )
    words = "".join(f"<p>{shown(each)}</p>\n" for each in sentences if not each.startswith("Hopeless"))
    rows = [
        ("this plan", at_most(budget.noise_multiplier), shown_signal(budget.signal), _kept(outlook)),
        ("a batch at the elbow", "", shown_signal(budget.at_elbow), _kept(outlook)),
        *((row.method, "0", "", _left(row)) for row in outlook.remaining),
    ]
    numbers = table(
        ["way", "noise", "signal (forecast)", "what is learnt from"],
        rows,
        caption="What can be learnt, and what is left without a promise",
    )
    if prediction is not None:
        numbers += _prediction(outlook)
    plot = _signal_plot(outlook)
    text = (
        "<p>Forecasts, unlike the promises: how far the gradients of all private examples could move the model, "
        "compared with the noise. Dropping the examples with secrets, or redacting them, needs no noise and no "
        "promise; where that leaves enough to learn from, it is the better choice.</p>\n"
    )
    return Section(
        name="learnt",
        link="Learnt",
        title="What can be learnt",
        html=banner + text + figure(plot) + words + numbers,
        plots=(plot,),
    )


def _kept(outlook: Outlook) -> str:
    return f"{percent_at_least(outlook.share, 3)} of the weight of examples with secrets"


def _left(row: Remaining) -> str:
    text = "" if row.text_share is None else f", {percent_at_least(row.text_share, 3)} of the text"
    return f"{row.examples:,} examples, {percent_at_least(row.share, 3)}{text}"


def _prediction(outlook: Outlook) -> str:
    """The prediction for the model, as a table."""
    prediction = outlook.prediction
    if prediction is None:
        return ""
    rows = [
        ("trained parameters", f"{prediction.parameters:,}"),
        ("signal / √parameters", shown_signal(prediction.ceiling)),
    ]
    if prediction.expected is not None and prediction.statistics is not None:
        measured = prediction.statistics
        rows += [
            ("public examples measured", f"{measured.examples:,}"),
            ("alignment of their gradients", f"{measured.alignment:.2g}"),
            ("effective dimension of the noise", f"{measured.effective_dimension:,.0f}"),
            ("expected signal over noise", shown_signal(prediction.expected)),
        ]
    rows.append(("in words", VERDICTS[prediction.verdict]))
    return table(["for this model", "forecast"], rows, caption="The prediction for this model")


def _signal_plot(outlook: Outlook) -> Plot:
    """The forecast signal against the batch size, at the rounds and weights of the plan; a star marks the plan."""
    budget = outlook.budget
    shift_S = gaussian_shift(outlook.prior_SQ, planning_ceiling(outlook.prior_SQ, outlook.ceiling_SQ))
    middle = budget.elbow if math.isfinite(budget.elbow) and budget.elbow > 0 else budget.batch_size
    total = float(outlook.weight_N.sum())
    sizes = [size for size in np.geomspace(middle / 100, middle * 100, CURVE_POINTS).tolist() if size <= total]
    signals = [
        budget_of(
            outlook.graph, outlook.weight_N, shift_S=shift_S, batch_size=size, rounds=budget.rounds
        ).signal
        for size in sizes
    ]  # fmt: skip
    cells = [(shown_signal(size), shown_signal(signal)) for size, signal in zip(sizes, signals, strict=True)]
    text = [f"batch {size}<br>signal {signal}" for size, signal in cells]
    point = f"batch {budget.batch_size:g}, signal {shown_signal(budget.signal)}"
    traces = (
        {
            "type": "scatter", "mode": "lines", "name": "forecast", "x": sizes, "y": signals,
            "line": {"color": "@green", "width": 2.4}, "text": text, "hoverinfo": "text",
        },
        {
            "type": "scatter", "mode": "markers", "name": "elbow", "x": [middle], "y": [budget.at_elbow],
            "marker": {"symbol": "diamond", "size": 12, "color": "@blue"},
            "text": [f"elbow<br>batch {shown_signal(middle)}"], "hoverinfo": "text",
        },
        {
            "type": "scatter", "mode": "markers", "name": "this plan", "x": [budget.batch_size], "y": [budget.signal],
            "marker": {"symbol": "star", "size": 18, "color": "@orange", "line": {"width": 1.5, "color": "@paper"}},
            "text": [f"<b>this plan</b><br>{point}"], "hoverinfo": "text",
        },
    )  # fmt: skip
    return Plot(
        name="signal",
        title="Signal against batch size",
        summary="The forecast signal of all private rounds against the batch size, at the plan's rounds and weights; "
        f"beyond the elbow a larger batch buys nothing. This plan: {point}.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "batch size"}, "type": "log"},
            "yaxis": {"title": {"text": "signal"}, "type": "log"},
        },
        numbers=table(["batch size", "signal"], cells, caption="The signal, point by point"),
    )
