"""Slots: what they say is the same for every content of the slots, and nothing that is not public gets into them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.slots import Slots, Spans, skeleton, slots_of_spans

RULES = ("names", "words")
SPANS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 8), st.integers(0, 1), st.integers(0, 4)),
    max_size=25,
)


def graph_of(spans, *, without=()):
    """The graph of these spans (example, begin, length, rule, secret), and pairs that no span shows."""
    pairs = sorted({(span[0], span[4]) for span in spans} | set(without))
    examples, secrets = zip(*pairs, strict=True) if pairs else ((), ())
    return Incidence.from_pairs(examples, secrets, num_examples=4, num_secrets=5)


def slots_from(graph, spans):
    columns = np.array(spans, dtype=np.int64).reshape(-1, 5).T
    return slots_of_spans(
        graph, RULES, example=columns[0], begin=columns[1], end=columns[1] + columns[2], rule=columns[3],
        secret=columns[4],
    )  # fmt: skip


@given(SPANS)
def test_slots_are_the_connected_runs_of_covered_characters(spans):
    spans_L = slots_from(graph_of(spans), spans)
    slots, begin_L, end_L = spans_L.slots, spans_L.begin_L, spans_L.end_L
    for example in range(4):
        mine = [(b, b + length, rule, secret) for e, b, length, rule, secret in spans if e == example]
        covered = np.zeros(40, dtype=bool)
        for first, last, _, _ in mine:
            covered[first:last] = True
        edges = np.flatnonzero(np.diff(np.concatenate([[0], covered, [0]])))
        numbers = list(slots.of_example(example))
        assert list(zip(begin_L[numbers], end_L[numbers], strict=True)) == list(
            zip(edges[::2], edges[1::2], strict=True)
        )
        for slot in numbers:
            inside = [span for span in mine if begin_L[slot] <= span[0] < end_L[slot]]
            assert slots.secrets_of(slot).tolist() == sorted({span[3] for span in inside})
            assert slots.rule_L[slot] == min(span[2] for span in inside)
            assert slots.place_L[slot] == np.count_nonzero(~covered[: begin_L[slot]])
    slots.check_against(graph_of(spans))


@given(st.data())
def test_slots_and_skeleton_are_the_same_for_every_filling(data):
    segments = data.draw(st.lists(st.text(max_size=6), min_size=1, max_size=5))
    segments[1:-1] = [part or "-" for part in segments[1:-1]]  # slots that touch are one slot
    seen = []
    for _ in range(2):
        text, spans = segments[0], []
        for secret, part in enumerate(segments[1:]):
            filling = data.draw(st.text(min_size=1, max_size=9))
            spans.append((0, len(text), len(filling), secret % 2, secret))
            text += filling + part
        made = slots_from(graph_of(spans), spans)
        seen.append((made.slots.fingerprint, made.skeleton(0, text)))
    assert seen[0] == seen[1]


@given(SPANS.filter(bool))
def test_an_example_with_a_secret_outside_its_slots_has_none(spans):
    example, secret = spans[0][0], 4
    visible = [span for span in spans if (span[0], span[4]) != (example, secret)]
    graph = graph_of(visible, without=[(example, secret)])
    slots = slots_from(graph, visible).slots
    assert not slots.has_slots_N[example]
    assert slots.whole_examples(graph)[example]
    slots.check_against(graph)
    whole_S = [sum(not slots.has_slots_N[e] for e in graph.examples_of(s)) for s in range(5)]
    assert slots.whole_examples_of_secrets(graph).tolist() == whole_S


@given(spans=SPANS)
def test_a_file_gives_the_same_slots_back(spans, tmp_path_factory):
    made = slots_from(graph_of(spans), spans)
    slots, path = made.slots, tmp_path_factory.mktemp("slots") / "slots.parquet"
    slots.to_parquet(path)
    again = Slots.from_parquet(path)
    assert again == slots
    assert again.parquet_digest == slots.parquet_digest
    made.to_parquet(path.with_name("spans.parquet"))
    read = Spans.from_parquet(path.with_name("spans.parquet"), again)
    assert (read.begin_L.tolist(), read.end_L.tolist()) == (made.begin_L.tolist(), made.end_L.tolist())
    assert path.with_name("spans.parquet").stat().st_mode & 0o077 == 0


def test_slots_of_another_graph_are_refused():
    spans = [(0, 3, 2, 0, 1), (2, 1, 4, 1, 0)]
    slots = slots_from(graph_of(spans), spans).slots
    for changed in (graph_of([*spans, (0, 8, 1, 0, 3)]), graph_of([(0, 3, 2, 0, 1), (2, 1, 4, 1, 2)])):
        with pytest.raises(InvalidInput, match="not for exactly the secrets"):
            slots.check_against(changed)
    with pytest.raises(InvalidInput, match="same scan"):
        slots.check_against(Incidence.from_pairs([0], [0], num_examples=3, num_secrets=5))


@pytest.mark.parametrize(
    "change",
    [
        {"place_L": [5, 5]},
        {"place_L": [6, 5]},
        {"example_L": [1, 0]},
        {"offset_L": [0, 0, 2]},
        {"offset_L": [0, 2, 2]},
        {"secret_P": [1, 0], "offset_L": [0, 2], "example_L": [0], "place_L": [1], "rule_L": [0]},
        {"rule_L": [0, 2]},
        {"rules": ("names", "names")},
        {"place_L": [1]},
    ],
)
def test_columns_that_contradict_each_other_are_refused(change):
    columns = {"example_L": [0, 0], "place_L": [1, 5], "rule_L": [0, 1], "offset_L": [0, 1, 2], "secret_P": [0, 1]}
    Slots(num_examples=4, num_secrets=5, rules=RULES, **columns)
    with pytest.raises(InvalidInput):
        Slots(**{"num_examples": 4, "num_secrets": 5, "rules": RULES, **columns, **change})


def test_a_changed_file_is_refused(tmp_path):
    spans = [(0, 3, 2, 0, 1), (2, 1, 4, 1, 0)]
    slots = slots_from(graph_of(spans), spans).slots
    other = Slots(**{**{name: getattr(slots, name) for name in slots.__dataclass_fields__}, "place_L": [3, 2]})
    object.__setattr__(other, "fingerprint", slots.fingerprint)
    other.to_parquet(tmp_path / "slots.parquet")
    with pytest.raises(InvalidInput, match="changed"):
        Slots.from_parquet(tmp_path / "slots.parquet")


def test_spans_outside_a_text_are_refused_and_no_text_is_shown():
    with pytest.raises(InvalidInput) as refused:
        skeleton("secret", [4, 2], [5, 3], ["[a]", "[a]"])
    assert "secret" not in str(refused.value)


def test_spans_of_other_slots_are_refused():
    slots = slots_from(graph_of([(0, 3, 2, 0, 1), (0, 9, 2, 0, 1)]), [(0, 3, 2, 0, 1), (0, 9, 2, 0, 1)]).slots
    Spans(slots, np.array([3, 10]), np.array([6, 12]))  # a longer filling of the first slot moves the second
    for begin, end in (([3, 9], [6, 12]), ([3], [5]), ([3, 8], [3, 10])):
        with pytest.raises(InvalidInput, match="same scan"):
            Spans(slots, np.array(begin), np.array(end))


def test_public_rows_are_texts_skeletons_or_nothing():
    spans = [(1, 0, 3, 0, 0)]
    graph = graph_of(spans, without=[(2, 1)])
    rows = slots_from(graph, spans).public_rows(graph, ["no secret", "Ann is here", "Ann wrote this", "none"])
    assert list(rows) == ["no secret", "[names] is here", "", "none"]


@given(SPANS)
def test_examples_added_at_the_end_change_no_other_slot(spans):
    before = slots_from(graph_of(spans), spans)
    pairs = [(span[0], span[4]) for span in spans] + [(4, 5), (5, 5)]
    graph = Incidence.from_pairs(*zip(*pairs, strict=True), num_examples=6, num_secrets=6)
    after = before.with_more(graph, "canary", example=[4, 5], begin=[2, 2], end=[5, 5], secret=[5, 5])
    after.slots.check_against(graph)
    kept = len(before.slots)
    assert len(after.slots) == kept + 2
    assert after.slots.rules == (*before.slots.rules, "canary")
    for name in ("example_L", "place_L", "rule_L", "offset_L"):
        assert getattr(after.slots, name)[:kept].tolist() == getattr(before.slots, name)[:kept].tolist()
    assert after.end_L[:kept].tolist() == before.end_L.tolist()
