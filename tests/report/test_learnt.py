"""The page says what can be learnt: the numbers of the outlook, and in red where there is no hope."""

import re
from dataclasses import replace

from made_plans import small_plan

from hush.accounting.signal import GradientStatistics
from hush.plan.signal import Outlook, TextShares, plan_budget, shown_signal
from hush.report.hidden import HiddenExample
from hush.report.learnt import learnt_section
from hush.report.report import Report


def test_the_section_shows_the_outlook_with_dropping_and_redacting() -> None:
    plan = small_plan()
    texts = TextShares(dropping=0.25, redacting=None)
    outlook = Outlook.of_plan(plan, parameters=100, texts=texts)
    section = learnt_section(outlook)
    assert section is not None
    budget = plan_budget(plan)
    free = int((plan.incidence.secrets_per_example == 0).sum())
    for words in (
        f"<td>{shown_signal(budget.signal)}</td>",
        f"<td>{shown_signal(budget.at_elbow)}</td>",
        f"{free} examples, ",
        "25 % of the text",
        "a forecast, not a bound",
    ):
        assert words in section.html
    assert "Hopeless" not in section.html
    (plot,) = section.plots
    curve = next(trace for trace in plot.traces if trace["name"] == "forecast")
    assert list(curve["y"]) == sorted(curve["y"])
    star = next(trace for trace in plot.traces if trace["name"] == "this plan")
    assert (star["x"], star["y"]) == ([plan.batch_size], [budget.signal])


def test_a_hopeless_plan_is_a_banner_with_remedies_on_the_page() -> None:
    plan = small_plan()
    page = Report(plan=plan, outlook=Outlook.of_plan(plan, parameters=10**10)).page()
    banner = re.search(r'<p class="banner bad" role="alert">(Hopeless.*?)</p>', page)
    assert banner is not None
    assert "What would help: (1)" in banner[1]
    statistics = GradientStatistics(parameters=100, alignment=0.5, effective_dimension=100, examples=40)
    measured = Report(plan=plan, outlook=Outlook.of_plan(plan, parameters=100, statistics=statistics)).page()
    assert "alignment of their gradients" in measured
    assert "Hopeless" not in measured


def test_a_page_for_others_does_not_tell_how_long_the_secrets_are() -> None:
    """The share of the characters that is left without the secrets is the owner's."""
    plan = small_plan()
    short, long = (
        Report(plan=plan, outlook=Outlook.of_plan(plan, parameters=100, texts=TextShares(dropping=d, redacting=r)))
        for d, r in ((0.25, 0.9), (0.2, 0.6))
    )
    assert short.page() == long.page()
    example = HiddenExample(example=0, parts=(("the ", None), ("key", "rule")))
    owners = [replace(report, hidden=[example]).page() for report in (short, long)]
    assert [share in page for share, page in zip(("25 % of the text", "20 % of the text"), owners, strict=True)] == [
        True
    ] * 2


def test_without_noise_or_private_examples_there_is_no_section() -> None:
    plan = small_plan()
    assert learnt_section(Outlook.of_plan(replace(plan, noise_scale=1e-320))) is None
    assert 'id="learnt"' in Report(plan=plan).page()
