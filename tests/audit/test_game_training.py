"""The game of a promise about slots, with the private rounds of hush.train in place of the game's own.

Scan, skeletons, plan and attacker are those of the game. The draw, the gradients, clipping, the sum, the noise and the
step are those of ``PrivateTraining``, on a torch model with the same bigram logits.
"""

from typing import Any

import numpy as np
import pytest
import torch
from broken_steps import CANDIDATES, literal_scan, small_game
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from hush.audit import game as module
from hush.audit.game import Arena, Game, Steps, arenas_of, log_likelihoods
from hush.audit.statistics import Success
from hush.train import PrivateTraining
from hush.train.noise import Noise

RUNS, ROUNDS = 60, 5


def no_public_step(round: int, drawn_RE: NDArray[np.bool_], public_W: NDArray[np.int64], size: int) -> NDArray[Any]:
    """What is public is learnt elsewhere: the step of the trainer is the whole round."""
    return np.zeros((len(drawn_RE), public_W.size))


def game_of(part: Any, **changes: Any) -> Game:
    steps = Steps(scan=literal_scan, public_weights=no_public_step)
    settings = {"rounds": ROUNDS, "ceiling": 0.6, "batch_size": 0.8, "steps": steps, "part": part} | changes
    return small_game(**settings)


def batch_of(counts_NVV: NDArray[Any], arena: Arena) -> dict[str, torch.Tensor]:
    """For each example the pairs of tokens that its private part learns, with how often; nothing for public ones."""
    width = max(int(np.count_nonzero(counts)) for counts in counts_NVV)
    size = len(arena.game.texts), width
    before_EK, after_EK, weight_EK = np.zeros(size, int), np.zeros(size, int), np.zeros(size)
    for example, counts in zip(arena.private_N.tolist(), counts_NVV, strict=True):
        first, second = np.nonzero(counts)
        part = example, slice(len(first))
        before_EK[part], after_EK[part], weight_EK[part] = first, second, counts[first, second]
    return {name: torch.from_numpy(rows) for name, rows in
            (("before", before_EK), ("after", after_EK), ("weight", weight_EK))}  # fmt: skip


def bigram_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    logits_BKV = model(batch["before"])
    loss_BK = functional.cross_entropy(logits_BKV.transpose(1, 2), batch["after"], reduction="none")
    return (loss_BK * batch["weight"]).sum(dim=1)


def trained_by_hush(arena: Arena, truth_R: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """In place of the game's own training: every model of each run, R × (2T + 1) × V × V."""
    tokens = arena.count_WVV.shape[-1]
    every = []
    for candidate in truth_R.tolist():
        rows = batch_of(arena.count_MNVV[candidate], arena)
        model = nn.Embedding(tokens, tokens, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=arena.game.learning_rate)
        private = PrivateTraining(
            model, optimizer, arena.plan, loss=bigram_loss, micro_batch=2, insecure_seed=int(rng.integers(2**31))
        )
        models = [model.weight.detach().numpy().copy()]
        for round in private.rounds():
            for batch in round.micro_batches():
                private.accumulate({name: column[batch.examples] for name, column in rows.items()}, batch.real)
            private.step()
            models += [models[-1], model.weight.detach().numpy().copy()]  # no public step, then the private one
        every.append(np.stack(models))
    return np.stack(every)


def attacked(game: Game, truth_R: NDArray[np.int64], rng: np.random.Generator) -> tuple[Success, float]:
    """How often the exact attack names the secret after trainings by hush, and how often it expects to."""
    (arena,) = arenas_of(game)
    score_RM = log_likelihoods(arena, trained_by_hush(arena, truth_R, rng))
    belief_RM = np.exp(score_RM - np.logaddexp.reduce(score_RM, axis=1, keepdims=True))
    hits = int(np.count_nonzero(score_RM.argmax(axis=1) == truth_R))
    return Success(hits=hits, runs=len(truth_R)), float(belief_RM.max(axis=1).mean())


@pytest.mark.parametrize("part", ["slot", "difference"])
def test_trainings_by_hush_keep_the_bound_and_follow_the_law_that_the_attacker_assumes(part: Any) -> None:
    """The attack is exact only if hush draws, clips, sums and adds noise as the plan says: then it is right as often as
    it believes to be."""
    rng, game = np.random.default_rng(5), game_of(part)
    truth_R = rng.integers(len(CANDIDATES), size=RUNS)
    named, believed = attacked(game, truth_R, rng)
    (arena,) = arenas_of(game)
    assert named.lower(0.01) <= arena.plan.posterior[0, 0]
    assert named.lower(0.01) > game.stated_prior  # the attack works
    assert named.lower(0.01) <= believed <= named.upper(0.01)


def test_trainings_by_hush_move_like_those_of_the_game() -> None:
    """The squared distance from the first model, round by round, is that of the game's own trainings."""
    rng, game = np.random.default_rng(6), game_of("slot", rounds=3)
    (arena,) = arenas_of(game)
    truth_R = np.zeros(40, dtype=int)
    ours = trained_by_hush(arena, truth_R, rng)
    others = module._train(arena, np.zeros(4000, dtype=int), rng)
    for step in (2, 4, 6):
        here, there = (np.square(models[:, step]).sum(axis=(1, 2)) for models in (ours, others))
        error = np.hypot(here.std() / len(here) ** 0.5, there.std() / len(there) ** 0.5)
        assert abs(here.mean() - there.mean()) < 4.5 * error


def test_less_noise_in_the_training_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Noise.add_

    def add_less(self: Noise, sums: Any, *, scale: float, **more: Any) -> None:
        add(self, sums, scale=0.3 * scale, **more)

    monkeypatch.setattr(Noise, "add_", add_less)
    rng, game = np.random.default_rng(7), game_of("slot", ceiling=0.3)
    named, _ = attacked(game, rng.integers(len(CANDIDATES), size=RUNS), rng)
    assert named.lower(0.01) > 0.3
