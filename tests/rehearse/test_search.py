"""The search: begins with what the config states, never ends with worse, resumes to the same."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from hush.rehearse.search import BATCH_FACTORS, Choice, Evaluated, Losses, Search, objective
from hush.train.settings import Lora, Recipe

STATED = Choice(learning_rate=1e-3, clip_norm=1.0, batch_size=64, rounds=1000, keep=0.9, rank=8)


def search(path: Path, *, most_batch: float = 1e9) -> Search:
    return Search(path, STATED, allowed=3.0, seed=0, most_batch=most_batch)


def bowl(choice: Choice) -> Losses:
    """Lowest at a learning rate of 1e-2."""
    return 3.0, 2.0 + abs(choice.learning_rate - 1e-2)


def test_the_first_try_is_what_the_config_states(tmp_path: Path) -> None:
    tried = list[Choice]()

    def watch(choice: Choice) -> Losses:
        tried.append(choice)
        return bowl(choice)

    with closing(search(tmp_path / "s.sqlite")) as study:
        for _ in range(12):
            study.step(each(watch))
        assert tried[0] == STATED
        assert min(bowl(choice) for choice in tried) == bowl(study.best)
        assert bowl(study.best)[1] < bowl(STATED)[1]
        assert study.tried[0].settings == {}
        assert study.tried[3].settings == tried[3].patch(STATED)
        assert {choice.batch_size * choice.rounds for choice in tried} == {64_000}  # at equal cost
        assert len({choice.batch_size for choice in tried}) > 1


def each(evaluate: Callable[[Choice], Losses | None]) -> Callable[[Sequence[Choice]], Iterable[Evaluated]]:
    return lambda choices: ((evaluate(choice), 1.0) for choice in choices)


def interrupted(at: int) -> Iterator[Callable[[Choice], Losses]]:
    """Dies at try ``at``."""

    def die(choice: Choice) -> Losses:
        raise KeyboardInterrupt

    for number in range(100):
        yield die if number == at else bowl


@pytest.mark.parametrize("at", [0, 3])
def test_a_search_that_was_killed_ends_like_one_that_was_not(tmp_path: Path, at: int) -> None:
    with closing(search(tmp_path / "whole.sqlite")) as study:
        for _ in range(6):
            study.step(each(bowl))
        whole = study.tried
    evaluations = interrupted(at)
    with closing(search(tmp_path / "killed.sqlite")) as study:
        for _ in range(at):
            study.step(each(next(evaluations)))
        with pytest.raises(KeyboardInterrupt):
            study.step(each(next(evaluations)))
    with closing(search(tmp_path / "killed.sqlite")) as study:
        assert len(study.finished) == at
        while len(study.finished) < 6:
            study.step(each(bowl))
        assert study.tried == whole


def test_settings_that_are_tried_at_a_time_are_chosen_together_and_differ(tmp_path: Path) -> None:
    batches = list[list[Choice]]()

    def watch(choices: Sequence[Choice]) -> Iterable[Evaluated]:
        batches.append(list(choices))
        return each(bowl)(choices)

    with closing(search(tmp_path / "s.sqlite")) as study:
        for _ in range(3):
            study.step(watch, at_once=4)
        assert batches[0][0] == STATED
        assert [len(set(batch)) for batch in batches] == [4, 4, 4]
        assert study.seconds == 12
        whole = study.tried
    evaluations = interrupted(1)
    with closing(search(tmp_path / "killed.sqlite")) as study:
        study.step(each(next(evaluations)), at_once=4)
        with pytest.raises(KeyboardInterrupt):
            study.step(each(next(evaluations)), at_once=4)
    with closing(search(tmp_path / "killed.sqlite")) as study:
        for _ in range(2):
            study.step(each(bowl), at_once=4)
        assert study.tried == whole


def test_settings_without_a_plan_are_left_out(tmp_path: Path) -> None:
    with closing(search(tmp_path / "s.sqlite")) as study:
        study.step(each(lambda choice: None))
        assert study.best == STATED
        assert study.tried[0].like is None
        study.step(each(bowl))
        assert study.best != STATED
        assert len(study.finished) == 2


def test_no_batch_is_larger_than_rates_allow(tmp_path: Path) -> None:
    assert max(BATCH_FACTORS) > 1
    with closing(search(tmp_path / "s.sqlite", most_batch=64)) as study:
        for _ in range(8):
            study.step(each(bowl))
        changed = [row.settings.get("plan", {}).get("batch_size", 64) for row in study.tried]
        assert max(changed) <= 64
        assert min(changed) < 64


def test_ordinary_content_may_not_pay_for_the_secrets() -> None:
    assert objective((3.0, 2.0), allowed=3.0) == 2.0
    assert objective((3.1, 1.5), allowed=3.0) > objective((3.0, 2.0), allowed=3.0)


def test_a_patch_states_what_changed_and_nothing_else() -> None:
    other = Choice(learning_rate=1e-3, clip_norm=0.5, batch_size=64, rounds=1000, keep=1.0, rank=4)
    assert STATED.patch(STATED) == {}
    assert other.patch(STATED) == {"plan": {"clip_norm": 0.5, "keep": 1.0}, "training": {"lora": {"rank": 4}}}


def test_a_recipe_takes_the_settings_over_and_is_scaled() -> None:
    recipe = Recipe(model="m", lora=Lora(rank=8, alpha=32), warmup=100)
    choice = Choice(learning_rate=1e-3, clip_norm=1.0, batch_size=64, rounds=1000, keep=0.9, rank=4)
    scaled = choice.recipe(recipe, rate_factor=2.0, rounds_factor=0.1)
    assert (scaled.learning_rate, scaled.warmup) == (2e-3, 10)
    assert scaled.lora == Lora(rank=4, alpha=32)
