"""Boxes over secrets: for the owner only, and without the secret unless it is asked for."""

import stat

from hypothesis import given
from hypothesis import strategies as st
from made_plans import small_plan

from hush.incidence import Incidence
from hush.report.hidden import hidden_examples, hidden_section
from hush.report.report import Report
from hush.slots import slots_of_spans

TEXTS = ["nothing here", "call Ann\nor Bob", "whole secret", "Bob again"]


def spans_of_texts():
    graph = Incidence.from_pairs([1, 1, 2, 3], [0, 1, 2, 1], num_examples=4, num_secrets=3)
    return slots_of_spans(
        graph, ["names"], example=[1, 1, 3], begin=[5, 12, 0], end=[8, 15, 3], rule=[0, 0, 0], secret=[0, 1, 1]
    )


def test_only_examples_with_slots_are_shown_and_their_parts_join_to_the_text():
    shown = hidden_examples(spans_of_texts(), TEXTS)
    assert [example.example for example in shown] == [1, 3]
    assert ["".join(text for text, _ in example.parts) for example in shown] == [TEXTS[1], TEXTS[3]]
    assert [text for example in shown for text, rule in example.parts if rule == "names"] == ["Ann", "Bob", "Bob"]
    assert "Ann" not in repr(shown)
    assert [each.example for each in hidden_examples(spans_of_texts(), TEXTS, number=1)] == [1]


def test_a_box_shows_its_rule_and_the_secret_only_if_asked():
    shown = hidden_examples(spans_of_texts(), TEXTS)
    silent, open_ = (hidden_section(shown, show_text=asked).html for asked in (False, True))
    assert "Ann" not in silent
    assert "Bob" not in silent
    assert silent.count('class="slot"') == open_.count('class="slot"') == 3
    assert "Ann" in open_
    assert "again" in silent
    assert "call " in silent


@given(st.text(min_size=1, max_size=30))
def test_no_text_changes_what_the_section_is_made_of(text):
    graph = Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)
    spans = slots_of_spans(graph, ["a<b"], example=[0], begin=[0], end=[1], rule=[0], secret=[0])
    html = hidden_section(hidden_examples(spans, [text + "<script>"]), show_text=True).html
    assert html.count("<span") == html.count("<figure") == 1
    assert "<script" not in html


def test_a_page_with_boxes_is_for_its_owner_alone(tmp_path):
    page = Report(plan=small_plan(), hidden=hidden_examples(spans_of_texts(), TEXTS))
    page.write(tmp_path / "owner.html")
    assert stat.S_IMODE((tmp_path / "owner.html").stat().st_mode) == 0o600
    assert "What is hidden" in (tmp_path / "owner.html").read_text()
    assert "What is hidden" not in Report(plan=small_plan()).page()
