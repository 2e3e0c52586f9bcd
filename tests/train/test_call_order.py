"""The training loop: the order of its calls, and the optimizers that it takes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from private_runs import DATA, PLAN, private_training, sgd
from reference import cross_entropy, rows, small_model, train
from torch import nn

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.run_folder import RunLog

# --- the order of calls


def test_every_drawn_example_must_be_accumulated_before_the_step() -> None:
    private = private_training(micro_batch=1)
    for round in private.rounds():
        batches = round.micro_batches()
        first = next(batches)
        private.accumulate(rows(DATA, first), first.real)
        break
    with pytest.raises(InvalidInput, match="round 0 is not complete"):
        private.step()


def test_no_micro_batch_counts_twice_or_with_another_mask() -> None:
    private = private_training()
    round = next(private.rounds())
    batches = round.micro_batches()
    with pytest.raises(InvalidInput, match="handed out before"):
        round.micro_batches()
    first = next(batches)
    with pytest.raises(InvalidInput, match="not the mask"):
        private.accumulate(rows(DATA, first), np.zeros(8, dtype=bool))
    private.accumulate(rows(DATA, first), first.real)
    with pytest.raises(InvalidInput, match="exactly once"):
        private.accumulate(rows(DATA, first), first.real)


def test_micro_batches_may_be_prepared_ahead() -> None:
    private = private_training(micro_batch=2)
    round = next(private.rounds())
    ahead = [(rows(DATA, examples), torch.as_tensor(examples.real)) for examples in round.micro_batches()]
    assert len(ahead) > 1
    for batch, real in ahead:
        private.accumulate(batch, real)
    private.step()
    assert private.round == 1


def test_padding_alone_may_be_accumulated_any_time_and_adds_nothing() -> None:
    models = [small_model(), small_model()]
    for model, padded in zip(models, (False, True), strict=True):
        private = private_training(model, insecure_seed=3)
        round = next(private.rounds())
        for examples in round.micro_batches():
            private.accumulate(rows(DATA, examples), examples.real)
        if padded:
            private.accumulate(rows(DATA, np.arange(8)), np.zeros(8, dtype=bool))
        private.step()
    assert all(torch.equal(*pair) for pair in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_calls_outside_a_round_are_refused() -> None:
    private = private_training()
    with pytest.raises(InvalidInput, match="no round is open"):
        private.step()
    with pytest.raises(InvalidInput, match="no round is open"):
        private.accumulate(rows(DATA, np.arange(8)), np.ones(8, dtype=bool))
    rounds = private.rounds()
    next(rounds)
    with pytest.raises(InvalidInput, match="left without step"):
        next(rounds)


def test_finish_needs_all_rounds_and_no_step_follows_them() -> None:
    private = private_training(insecure_seed=None)
    train(private, DATA, until=3)
    with pytest.raises(InvalidInput, match="9 of 12 rounds are left"):
        private.finish()
    train(private, DATA)
    assert private.round == PLAN.rounds
    assert list(private.rounds()) == []
    with pytest.raises(InvalidInput, match="no round is open"):
        private.step()
    assert private.finish().is_real


def test_a_round_that_failed_is_begun_again_with_the_same_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    models, draws = [small_model(), small_model()], []
    for model, fails in zip(models, (False, True), strict=True):
        private = private_training(model, micro_batch=2, insecure_seed=4)
        if fails:
            accumulate, calls = Clipper.accumulate, iter(range(100))

            def failing(self: Any, *args: Any, accumulate: Any = accumulate, calls: Any = calls) -> Any:
                done = accumulate(self, *args)
                if next(calls) == 3:
                    raise MemoryError
                return done

            with monkeypatch.context() as patch:
                patch.setattr(Clipper, "accumulate", failing)
                with pytest.raises(MemoryError):
                    train(private, DATA, until=1)
            with pytest.raises(InvalidInput, match="no round is open"):
                private.step()
        draws.append(train(private, DATA, until=2))
    assert all(np.array_equal(*pair) for pair in zip(*draws, strict=True))
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_round_interrupted_after_its_noise_counts_and_the_next_is_recorded_alone(tmp_path: Path) -> None:
    class Interrupted(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            type(self).calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().step(closure)

    model = small_model()
    private = private_training(model, optimizer=Interrupted(model.parameters(), lr=0.1), folder=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(private, DATA)
    assert private.round == 3
    draws = train(private, DATA)
    assert Interrupted.calls == PLAN.rounds
    records = RunLog.read(tmp_path / "run/owner/rounds.jsonl")
    assert [(record.round, record.examples) for record in records[2:]] == list(enumerate(map(len, draws), start=4))


# --- optimizers


def test_the_optimizer_must_have_exactly_the_trainable_parameters() -> None:
    model = small_model()
    model[1].requires_grad_(False)
    with pytest.raises(InvalidInput, match=r"2 parameters .* \(1\.bias, 1\.weight\)"):
        private_training(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    model = small_model()
    with pytest.raises(InvalidInput, match=r"lacks 2 trainable parameters \(0\.bias, 0\.weight\)"):
        private_training(model, optimizer=torch.optim.SGD([*model[1].parameters(), *model[4].parameters()], lr=1.0))
    extra = [*model.parameters(), nn.Parameter(torch.zeros(1))]
    with pytest.raises(InvalidInput, match="another model"):
        private_training(model, optimizer=torch.optim.SGD(extra, lr=1.0))
    private = private_training(model)
    round = next(private.rounds())
    for examples in round.micro_batches():
        private.accumulate(rows(DATA, examples), examples.real)
    private.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(InvalidInput, match="another model"):
        private.step()


def test_what_looks_at_the_data_again_is_refused() -> None:
    model = small_model()
    with pytest.raises(InvalidInput, match="LBFGS"):
        private_training(model, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(InvalidInput, match="GradScaler"):
        private_training(model, optimizer=torch.amp.GradScaler("cpu"))
    optimizer = sgd(model)
    with pytest.raises(InvalidInput, match="ReduceLROnPlateau"):
        private_training(model, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), optimizer=optimizer)


def test_nobody_else_may_step_the_optimizer_while_it_trains_privately() -> None:
    model = small_model()
    private = private_training(model)
    cross_entropy(model, DATA).mean().backward()
    with pytest.raises(InvalidInput, match=r"outside of PrivateTraining\.step"):
        private.optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(cross_entropy(model, DATA).mean()).backward()
    with pytest.raises(InvalidInput, match="scaler"):
        scaler.step(private.optimizer)
    private_training(model, optimizer=private.optimizer).close()
    private.optimizer.step()  # given free


def test_stray_gradients_do_not_reach_the_update() -> None:
    models = [small_model(), small_model()]
    for model, stray in zip(models, (False, True), strict=True):
        private = private_training(model, insecure_seed=6)
        if stray:
            (100 * cross_entropy(model, DATA).sum()).backward()
        train(private, DATA, until=1)
    assert all(torch.equal(*pair) for pair in zip(models[0].parameters(), models[1].parameters(), strict=True))
