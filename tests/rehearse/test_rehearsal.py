"""A rehearsal as a whole: it finds a planted winner, spends no promise, and resumes to the same result."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import LITTLE_NOISE, MARKER, MUCH_NOISE, SMALL, Corpus, content_of, corpus, planned, rehearsed

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.make import make_plan_holding_out
from hush.rehearse import Outcome, RehearsalSettings, public_content, skips_private_rounds
from hush.scan.engines import LocalEngine
from hush.slots import slots_of_spans


@pytest.fixture(scope="module")
def data() -> Corpus:
    return corpus()


@pytest.fixture(scope="module")
def plan(data: Corpus) -> Plan:
    return planned(data, slotted=True, **LITTLE_NOISE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rehearsal")


@pytest.fixture(scope="module")
def outcome(model: Path, folder: Path, data: Corpus, plan: Plan) -> Outcome:
    return rehearsed(model, folder, data, plan)


def test_where_there_is_little_noise_and_much_to_learn_hush_wins(outcome: Outcome) -> None:
    assert outcome.choice == "hush"
    assert outcome.gains
    assert not skips_private_rounds(outcome)
    assert outcome.sentence.startswith("hush is worth it here")
    assert outcome.arm("hush").like.expected < min(outcome.arm(arm).like.expected for arm in ("dropping", "redacting"))
    assert outcome.arm("hush").like.expected < outcome.before["like"]


def test_intervals_hold_what_they_are_about(outcome: Outcome) -> None:
    for arm in outcome.arms:
        for interval in (arm.ordinary, arm.like):
            assert 0 <= interval.low < interval.expected < interval.high
    assert 0 < outcome.like_share < 1


def test_where_noise_drowns_the_signal_hush_gains_nothing(model: Path, tmp_path: Path, data: Corpus) -> None:
    drowned = rehearsed(model, tmp_path, data, planned(data, slotted=False, **MUCH_NOISE))
    assert drowned.choice != "hush"
    assert skips_private_rounds(drowned)
    assert drowned.sentence.startswith("hush is not worth it here")


def test_where_every_example_has_slots_dropping_leaves_the_model_as_it_is(model: Path, tmp_path: Path) -> None:
    """Skeletons may play what is public then, but dropping could not learn them."""
    data = corpus(public=0)
    plan = make_plan_holding_out(
        data.incidence, [], slots=data.spans.slots, prior=0.5, ceiling=1 - 1e-9, batch_size=32, rounds=30
    )
    settings = RehearsalSettings(tries=1, seeds=2, share=1.0)
    outcome = rehearsed(model, tmp_path, data, plan, settings=settings, keep=None)
    dropping, redacting = (outcome.arm(way).ordinary.expected for way in ("dropping", "redacting"))
    assert dropping == pytest.approx(outcome.before["ordinary"], rel=0.02)
    assert redacting < 0.9 * dropping
    assert outcome.choice != "dropping"


def test_a_secret_never_reaches_the_rehearsal(data: Corpus, plan: Plan, outcome: Outcome, folder: Path) -> None:
    assert any(MARKER in text for text in data.texts)
    for each in (plan, planned(data, slotted=False, **LITTLE_NOISE)):
        content = content_of(data, each)
        assert not any(MARKER in text for text in content.texts)
        assert MARKER not in repr(content)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"rehearsal.json", "search.sqlite", "repeat-1.json"}
    assert not any(MARKER.encode() in path.read_bytes() for path in files)
    assert not any(code_word.encode() in path.read_bytes() for path in files for code_word in ("qqqqqqqq", "zqqqqqqq"))


def test_other_secrets_lead_to_the_same_content(data: Corpus) -> None:
    texts = list(data.texts)
    columns: dict[str, list[int]] = {"example": [], "begin": [], "end": [], "secret": []}
    for secret in range(data.incidence.num_secrets):
        for example in data.incidence.examples_of(secret).tolist():
            [(begin, end)] = data.spans.of_example(example)
            other = "another secret, of another length"
            texts[example] = texts[example][:begin] + other + texts[example][end:]
            for column, value in zip(columns.values(), (example, begin, begin + len(other), secret), strict=True):
                column.append(value)
    rules = np.zeros(len(columns["example"]), dtype=int)
    changed = Corpus(
        texts=texts,
        incidence=data.incidence,
        spans=slots_of_spans(data.incidence, ["codes"], **columns, rule=rules),
    )
    for slotted in (True, False):
        before = content_of(data, planned(data, slotted=slotted, **LITTLE_NOISE))
        after = content_of(changed, planned(changed, slotted=slotted, **LITTLE_NOISE))
        assert before.texts == after.texts
        assert before.digest == after.digest


def test_in_other_processes_the_result_is_the_same(
    model: Path, tmp_path: Path, data: Corpus, plan: Plan, outcome: Outcome
) -> None:
    """Each try and each repeat is then a task of its own, which any engine of a scan can make."""
    assert rehearsed(model, tmp_path, data, plan, engine=LocalEngine(workers=2)) == outcome


class Killed(Exception):
    pass


def test_a_killed_rehearsal_resumes_to_the_same_result(
    model: Path, data: Corpus, plan: Plan, outcome: Outcome, tmp_path: Path
) -> None:
    """Killed in the second try and in the second repeat; each start goes on where the last one was killed."""
    deaths = [("Trying settings", 1), ("hush, 2 of 3", 5)]
    began: list[list[tuple[str, int]]] = []

    def watch(label: str, done: int, total: int) -> None:
        began[-1].append((label, done))
        if deaths and (label, done) == deaths[0]:
            deaths.pop(0)
            raise Killed

    for _ in range(2):
        began.append([])
        with pytest.raises(Killed):
            rehearsed(model, tmp_path, data, plan, progress=watch)
    began.append([])
    assert rehearsed(model, tmp_path, data, plan, progress=watch) == outcome
    assert ("Trying settings", 0) not in began[1]  # the finished try was kept
    assert {label for label, _ in began[2]} == {"hush, 2 of 3", "Dropping, 3 of 3", "Redacting, 3 of 3", "hush, 3 of 3"}
    began.append([])
    assert rehearsed(model, tmp_path, data, plan, progress=watch) == outcome
    assert began[3] == []  # a finished rehearsal is read
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list(tmp_path.rglob("checkpoints"))


def test_other_inputs_get_another_folder(outcome: Outcome, folder: Path, data: Corpus, plan: Plan, model: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(Killed):
        rehearsed(model, folder, data, plan, seed=1, progress=_kill)
    assert len({path.name for path in folder.iterdir()} - before) == 1


def _kill(label: str, done: int, total: int) -> None:
    raise Killed


def test_what_cannot_be_rehearsed_is_refused(data: Corpus, plan: Plan, model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="spans"):
        public_content(plan, data.texts)
    with pytest.raises(InvalidInput, match="there are 3 texts"):
        public_content(plan, data.texts[:3], spans=data.spans)
    with pytest.raises(InvalidInput, match="needs at least 60"):
        public_content(planned(data, slotted=False, **LITTLE_NOISE), ["" for _ in data.texts])
    with pytest.raises(InvalidInput, match="at_once=0"):
        rehearsed(model, tmp_path, data, plan, at_once=0)
    with pytest.raises(InvalidInput, match="max_examples=3"):
        RehearsalSettings(max_examples=3)
    with pytest.raises(InvalidInput, match="share kept is for plans with accounted"):
        rehearsed(model, tmp_path, data, replace(plan, capacity="none"), settings=SMALL)


def test_content_is_a_sample_of_what_is_public(data: Corpus, plan: Plan) -> None:
    some = content_of(data, plan, max_examples=100)
    everything = content_of(data, plan)
    assert len(some) == 100
    assert some.available == everything.available == len(everything)
    held_out = set() if plan.held_out is None else set(plan.held_out.tolist())
    assert held_out
    assert not held_out & set(everything.example_D.tolist())
