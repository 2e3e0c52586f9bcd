"""Public first: what is learnt, what is refused, and that an interrupted training ends as if it had not been."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import cross_entropy, rows, small_data, small_model, small_plan
from torch import nn
from torch.nn import functional

from hush.errors import InvalidInput
from hush.train.public.first import (
    PublicOutcome,
    learn_public,
    train_public,
)
from hush.train.public.split import PublicSplit, split_public
from hush.train.settings import PublicFirst, learns_first

SETTINGS = PublicFirst(learning_rate=0.02, batch=8, epochs=12, patience=3)


def points(number: int = 200) -> dict[str, torch.Tensor]:
    """Points of three classes that a small network can tell apart, up to some noise."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(number, 4, generator=generator)
    noise = 0.3 * torch.randn(number, generator=generator)
    return {"x": x, "y": (x[:, 0] + noise > 0).long() + (x[:, 1] > 0.5).long()}


DATA = points()
SPLIT = split_public(np.arange(150), np.arange(150, 200))


def network(dropout: float = 0.2) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def batches(examples: np.ndarray, step: int) -> dict[str, torch.Tensor]:
    return {name: values[torch.from_numpy(examples)] for name, values in DATA.items()}


def learnt(model: nn.Module, **options: Any) -> PublicOutcome | None:
    return train_public(model, loss_of, batches, SPLIT, **{"settings": SETTINGS, "micro_batch": 4, **options})


@torch.no_grad()
def scored(model: nn.Module, examples: np.ndarray) -> float:
    return float(loss_of(model.eval(), batches(examples, 0)).mean())


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_the_loss_falls_on_examples_that_were_neither_learnt_nor_chosen_by() -> None:
    model = network()
    outcome = learnt(model)
    assert outcome is not None
    assert outcome.before is not None
    assert outcome.after is not None
    assert outcome.after < 0.8 * outcome.before
    assert outcome.after == pytest.approx(scored(model, SPLIT.held_out), rel=1e-5)


def test_the_weights_kept_are_those_of_the_best_step() -> None:
    seen, model = list[float](), network()
    outcome = learnt(model, progress=lambda done: seen.append(done.validation))
    assert outcome is not None
    assert scored(model, SPLIT.validation) == pytest.approx(outcome.validation, rel=1e-5)
    assert outcome.validation == min(seen)
    assert seen == sorted(seen, reverse=True)
    assert outcome.best_step <= outcome.steps == len(seen)


def test_a_model_that_cannot_get_better_stays_as_it_is() -> None:
    model = network()
    learnt(model)
    settled = weights(model)
    outcome = train_public(
        model, loss_of, batches, SPLIT, settings=PublicFirst(learning_rate=100.0, batch=8, epochs=3, patience=1)
    )
    assert outcome is not None
    assert outcome.best_step == 0
    assert torch.equal(weights(model), settled)


@settings(max_examples=12, deadline=None)
@given(stops=st.lists(st.integers(1, 120), max_size=3), dropout=st.sampled_from([0.0, 0.3]))
def test_a_training_stopped_anywhere_ends_with_the_same_weights(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], dropout: float
) -> None:
    folder, whole = tmp_path_factory.mktemp("public") / "first", network(dropout)
    expected = learnt(whole)
    for stop in stops:
        steps = iter(range(stop))
        learnt(network(dropout), folder=folder, stop=lambda steps=steps: next(steps, None) is None)
    torch.manual_seed(len(stops))  # the caller's random state does not matter
    model = network(dropout)
    assert learnt(model, folder=folder) == expected
    assert torch.equal(weights(model), weights(whole))


class Killed(Exception):
    """Stands for a kill: nothing is saved when it is raised."""


@pytest.mark.parametrize("step", [1, 25, 60])
def test_a_killed_training_ends_with_the_same_weights(tmp_path: Path, step: int) -> None:
    steps = iter(range(step))

    def kill(_: object) -> None:
        if next(steps, None) is None:
            raise Killed

    with pytest.raises(Killed):
        learnt(network(), folder=tmp_path, save_every=7, progress=kill)
    whole, model = network(), network()
    assert learnt(model, folder=tmp_path, save_every=7) == learnt(whole)
    assert torch.equal(weights(model), weights(whole))


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    first, second = network(), network()
    outcome = learnt(first, folder=tmp_path)

    def refuse(_: object) -> None:
        raise AssertionError("a step was done")

    assert learnt(second, folder=tmp_path, progress=refuse) == outcome
    assert torch.equal(weights(first), weights(second))


def test_another_training_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    learnt(network(), folder=tmp_path)
    with pytest.raises(InvalidInput, match="begun with other"):
        learnt(network(), folder=tmp_path, seed=1)
    with pytest.raises(InvalidInput, match="begun with other"):
        learnt(network(), folder=tmp_path, settings=SETTINGS.model_copy(update={"batch": 9}))


def test_the_size_of_micro_batches_changes_nothing_but_rounding() -> None:
    small, large = network(0.0), network(0.0)
    learnt(small, micro_batch=3)
    learnt(large, micro_batch=8)
    torch.testing.assert_close(weights(small), weights(large), rtol=1e-3, atol=1e-4)


def test_without_a_learning_rate_one_is_chosen_by_trials_that_leave_no_trace() -> None:
    chosen, stated = network(), network()
    outcome = learnt(chosen, settings=SETTINGS.model_copy(update={"learning_rate": None}))
    assert outcome is not None
    assert outcome.after is not None
    assert outcome.before is not None
    assert outcome.after < 0.8 * outcome.before
    learnt(stated, settings=SETTINGS.model_copy(update={"learning_rate": outcome.learning_rate}))
    assert torch.equal(weights(chosen), weights(stated))


@pytest.mark.parametrize("lengths", [None, np.arange(200) % 17], ids=["shuffled", "by length"])
def test_every_pass_goes_through_all_examples_once(lengths: np.ndarray | None) -> None:
    drawn = list[int]()

    def numbered(examples: np.ndarray, step: int) -> dict[str, torch.Tensor]:
        return batches(examples, step) | {"example": torch.from_numpy(examples)}

    def noted(model: nn.Module, batch: Any) -> torch.Tensor:
        drawn.extend(batch["example"].tolist() if model.training else ())
        return loss_of(model, batch)

    train_public(network(), noted, numbered, SPLIT, settings=SETTINGS, lengths=lengths)
    first, second = (drawn[begin : begin + SPLIT.train.size] for begin in (0, SPLIT.train.size))
    assert sorted(first) == sorted(second) == SPLIT.train.tolist()
    assert first != second


@given(st.integers(2, 20_000), st.integers(0, 3))
def test_a_split_has_no_example_twice_and_loses_none(size: int, seed: int) -> None:
    split = split_public(np.arange(size), seed=seed)
    assert np.array_equal(np.sort(np.concatenate([split.train, split.validation])), np.arange(size))
    assert split.validation.size <= min(500, size // 2)


def test_an_example_in_two_parts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="in two parts"):
        PublicSplit(train=np.arange(5), validation=np.array([5]), held_out=np.array([4]))


# ---- under a plan ----

PLAN = small_plan()
PLAN_DATA = small_data()
FREE = np.flatnonzero(PLAN.incidence.secrets_per_example == 0)


def collate(examples: np.ndarray) -> dict[str, torch.Tensor]:
    assert not {*examples.tolist()} - {*FREE.tolist()}, "an example with a secret was asked for"
    return rows(PLAN_DATA, examples)


def test_only_examples_without_a_secret_are_ever_asked_for() -> None:
    model = small_model()
    before = weights(model)
    outcome = learn_public(model, cross_entropy, collate, PLAN, settings=SETTINGS)
    assert outcome is not None
    assert (outcome.examples, outcome.skeletons) == (FREE.size, 0)
    assert outcome.best_step == 0 or not torch.equal(weights(model), before)


def test_examples_with_a_secret_are_refused() -> None:
    with pytest.raises(InvalidInput, match="contain a secret"):
        learn_public(small_model(), cross_entropy, collate, PLAN, examples=np.arange(40))


def test_by_default_it_is_on_where_a_hundred_public_examples_are() -> None:
    assert learns_first(None, 100)
    assert not learns_first(None, 99)
    assert not learns_first(False, 100)
    assert learns_first(True, 2)
    assert learns_first(SETTINGS, 2)
    with pytest.raises(InvalidInput) as refused:
        learns_first(True, 1)
    assert refused.value.setting == "public_first"


def test_secret_content_changes_nothing_that_is_learnt() -> None:
    one, other = small_model(), small_model()
    learn_public(one, cross_entropy, collate, PLAN, settings=SETTINGS)
    for name, values in PLAN_DATA.items():
        changed = values.clone()
        changed[np.setdiff1d(np.arange(len(values)), FREE)] = 0
        PLAN_DATA[name] = changed
    learn_public(other, cross_entropy, collate, PLAN, settings=SETTINGS)
    assert torch.equal(weights(one), weights(other))


def test_a_part_that_was_still_learning_when_it_ended_says_so() -> None:
    few = PublicFirst(learning_rate=0.003, batch=8, epochs=2)
    cut = learnt(network(), settings=few)
    assert cut is not None
    said = cut.caution(few)
    assert said is not None
    assert "after 2 passes" in said
    many = PublicFirst(learning_rate=0.05, batch=8, epochs=200, patience=2)
    ended = learnt(network(), settings=many)
    assert ended is not None
    assert ended.passes < 100
    assert ended.caution(many) is None
