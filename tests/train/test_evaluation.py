"""Scores on the way: of the model as it is, once a round however often training was killed, and released at the end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import EXAMPLES, cross_entropy, rows, small_data, small_model, train

import hush
from hush.errors import InvalidInput
from hush.plan.make import held_out_examples, make_plan_holding_out
from hush.train.evaluation import Evaluation
from hush.train.private_training import PrivateTraining
from hush.train.public.stream import PublicStream
from hush.train.run_keeper import rounded_score
from hush.train.scores import LOSS

ROUNDS = 6
DATA = small_data()
HELD = [3, 7, 20, 21, 39]
INCIDENCE = hush.Incidence.from_pairs([0, 1, 2, 5, 9], [0, 0, 1, 1, 1], num_examples=EXAMPLES, num_secrets=2)
PLAN = make_plan_holding_out(
    INCIDENCE, HELD, prior=1e-6, ceiling=1e-2, capacity="none", batch_size=8.0, rounds=ROUNDS, clip_norm=0.7
)


def private_training(folder: Path, **more: Any) -> PrivateTraining:
    model = small_model(dropout=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return PrivateTraining(model, optimizer, PLAN, loss=cross_entropy, micro_batch=8, folder=folder, **more)


def evaluation(private: PrivateTraining, **more: Any) -> Evaluation:
    batch_of = lambda examples: rows(DATA, examples)  # noqa: E731
    return Evaluation(private, cross_entropy, batch_of, held_out_examples(PLAN), size=2, **more)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_score_is_the_models_own_loss_and_leaves_no_trace(tmp_path: Path) -> None:
    private = private_training(tmp_path / "run")
    private.model.train()
    states = torch.get_rng_state()
    found = evaluation(private).loss()
    assert torch.equal(torch.get_rng_state(), states)
    assert all(module.training for module in private.model.modules())
    plain = small_model().eval()
    with torch.no_grad():
        expected = np.mean([float(cross_entropy(plain, rows(DATA, np.array([example])))[0]) for example in HELD])
    assert found == pytest.approx(expected, rel=1e-6)


def test_what_is_held_out_is_never_drawn_by_either_stream(tmp_path: Path) -> None:
    private = private_training(tmp_path / "run")
    drawn = np.concatenate(train(private, DATA))
    assert not np.isin(drawn, HELD).any()
    assert not np.isin(PublicStream(PLAN, lambda examples: {}, batch_size=4).examples, HELD).any()


@settings(max_examples=8, deadline=None)
@given(
    save_every=st.integers(1, 4),
    every=st.integers(1, 3),
    kills=st.lists(st.tuples(st.integers(0, ROUNDS), st.booleans()), max_size=4),
)
def test_however_it_was_killed_each_due_round_has_one_score_and_it_is_of_the_released_way(
    tmp_path_factory: pytest.TempPathFactory, save_every: int, every: int, kills: list[tuple[int, bool]]
) -> None:
    """A kill comes before or after the score of a round; what was not saved is done again, with other noise."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    seen: dict[int, float] = {}  # by round, as last done
    for until, scored in kills:
        live(private := private_training(folder, save_every=save_every), every, until, scored, seen)
        private.close()
        assert not (folder / "release" / "evaluations.jsonl").exists()
    live(private := private_training(folder, save_every=save_every), every, ROUNDS, True, seen)
    private.finish()
    found = lines(folder / "release" / "evaluations.jsonl")
    assert [row["round"] for row in found] == [round for round in range(ROUNDS) if round % every == 0] + [ROUNDS]
    assert {row["round"]: row[LOSS] for row in found} == {
        row["round"]: rounded_score(seen[row["round"]]) for row in found
    }


def live(private: PrivateTraining, every: int, until: int, scored: bool, seen: dict[int, float]) -> None:
    """Train until so many rounds are done, and die before or after the last one's score."""
    evaluate = evaluation(private, every=every)
    evaluate()
    seen[private.round] = evaluate.loss()
    while private.round < until:
        train(private, DATA, until=private.round + 1)
        seen[private.round] = evaluate.loss()
        if scored or private.round < until:
            evaluate()


def test_scores_appear_with_the_model_and_not_before(tmp_path: Path) -> None:
    private = private_training(tmp_path / "run")
    private.record_scores({"loss": 1.5, "broken": float("nan")})
    private.record_scores({"accuracy": 0.5})
    train(private, DATA, until=3)
    assert not (tmp_path / "run" / "release").exists()
    owned = tmp_path / "run" / "owner" / "scores.jsonl"
    assert owned.stat().st_mode & 0o077 == 0
    assert private.live is not None
    assert private.live.scores == {"loss": 1.5, "accuracy": 0.5, "round": 0}
    train(private, DATA)
    private.finish()
    released = tmp_path / "run" / "release" / "evaluations.jsonl"
    assert lines(released) == [{"loss": 1.5, "accuracy": 0.5, "round": 0}]
    assert released.stat().st_mtime == (tmp_path / "run" / "release" / "model").stat().st_mtime  # times tell nothing


def test_a_training_that_was_closed_keeps_no_scores_for_the_one_that_goes_on(tmp_path: Path) -> None:
    """Its last rounds are lost, and done again with other noise: their scores must not be released."""
    lost = private_training(tmp_path / "run", save_every=10)
    train(lost, DATA, until=3)
    lost.close()
    private = private_training(tmp_path / "run")
    assert private.round == 0
    train(private, DATA)
    with pytest.raises(InvalidInput, match="was closed; open the training again"):
        lost.record_scores({LOSS: 1.0})
    private.finish()
    assert not (tmp_path / "run" / "release" / "evaluations.jsonl").exists()


def test_without_held_out_examples_nothing_is_written(tmp_path: Path) -> None:
    private = private_training(tmp_path / "run")
    Evaluation(private, cross_entropy, lambda examples: {}, np.zeros(0, dtype=np.int64), size=2)()
    train(private, DATA)
    private.finish()
    assert not (tmp_path / "run" / "owner" / "scores.jsonl").exists()
    assert not (tmp_path / "run" / "release" / "evaluations.jsonl").exists()


def test_a_round_under_way_has_no_score(tmp_path: Path) -> None:
    private = private_training(tmp_path / "run")
    for current in private.rounds():
        for examples in current.micro_batches():
            private.accumulate(rows(DATA, examples), examples.real)
            with pytest.raises(InvalidInput, match="is open; score after its step"):
                private.record_scores({"loss": 1.0})
        private.step()
