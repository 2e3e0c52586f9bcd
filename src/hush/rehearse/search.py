"""The search for settings by Optuna: learning rate, clip norm, batch against rounds, share kept, rank of adapters.

The first settings tried are those of the config, so the search never ends with worse ones on what it measures. Batch
and rounds move against each other at equal cost. Several tries may be made at a time; they are then chosen together.
Tries that are killed are made again; the sampler is seeded by how many tries are finished, so an interrupted search
ends like one that was not.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.rehearse.outcome import Tried
from hush.train.settings import Recipe

__all__ = ["Choice", "Evaluated", "Losses", "Search", "objective", "stated_choice"]


LEARNING_RATES, CLIP_NORMS = 30.0, 30.0  # how far from the stated value is searched, as a factor
MIN_CLIP_NORM, MAX_CLIP_NORM, MAX_RATE = 1e-9, 1e9, 1e3  # of the settings themselves
BATCH_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the batch; the rounds are divided by it
KEPT = (0.5, 0.7, 0.9, 1.0)
RANKS = (2, 4, 8, 16, 32, 64)
ORDINARY_PENALTY = 10.0  # nats for each nat by which ordinary content gets worse than allowed
RANDOM_TRIES = 4  # before the sampler makes use of what earlier tries reached

Losses = tuple[float, float]  # on ordinary examples, on examples like the players
Evaluated = tuple[Losses | None, float]  # None if there is no plan for the settings; seconds that it took


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Settings of the real training. keep: None where the plan does not compute its noise from a share kept."""

    learning_rate: float
    clip_norm: float
    batch_size: float
    rounds: int
    keep: float | None
    rank: int | None

    def patch(self, stated: "Choice") -> dict[str, dict[str, Any]]:
        """What changes in a config that states ``stated``, by section."""
        plan = {
            name: getattr(self, name)
            for name in ("batch_size", "rounds", "clip_norm", "keep")
            if getattr(self, name) != getattr(stated, name)
        }
        training: dict[str, Any] = {}
        if self.learning_rate != stated.learning_rate:
            training["learning_rate"] = self.learning_rate
        if self.rank != stated.rank:
            training["lora"] = {"rank": self.rank}
        return {name: section for name, section in (("plan", plan), ("training", training)) if section}

    def recipe(self, recipe: Recipe, *, rate_factor: float, rounds_factor: float) -> Recipe:
        """The recipe of a training with these settings, whose steps and rounds are scaled."""
        changes: dict[str, Any] = {
            "learning_rate": min(MAX_RATE, self.learning_rate * rate_factor),
            "warmup": round(recipe.warmup * rounds_factor),
        }
        if recipe.lora is not None and self.rank is not None:
            changes["lora"] = recipe.lora.model_copy(update={"rank": self.rank})
        return recipe.model_copy(update=changes)


def stated_choice(plan: Plan, recipe: Recipe, *, keep: float | None) -> Choice:
    """The settings as the config states them. keep: None if the search leaves it alone."""
    default = 0.1 if recipe.optimizer == "sgd" else 1e-3 if recipe.lora else 5e-4
    return Choice(
        learning_rate=recipe.learning_rate or default,
        clip_norm=plan.clip_norm,
        batch_size=plan.batch_size,
        rounds=plan.rounds,
        keep=keep,
        rank=None if recipe.lora is None else recipe.lora.rank,
    )


def objective(losses: Losses, *, allowed: float) -> float:
    """What the search minimises: the loss on content like the secrets', and a penalty above ``allowed`` elsewhere."""
    ordinary, like = losses
    return like + ORDINARY_PENALTY * max(0.0, ordinary - allowed)


@final
class Search:
    """A study in a SQLite file. allowed: the loss on ordinary examples up to which there is no penalty."""

    def __init__(self, path: Path, stated: Choice, *, allowed: float, seed: int, most_batch: float) -> None:
        try:
            import optuna
        except ImportError as error:
            raise InvalidInput('a rehearsal needs the library optuna; pip install "hush[rehearse]"') from error
        optuna.logging.set_verbosity(logging.WARNING)
        self._optuna: Any = optuna
        self._stated, self._allowed, self._seed = stated, allowed, seed
        self._factors = [
            factor
            for factor in BATCH_FACTORS
            if factor == 1 or (stated.rounds / factor >= 1 and stated.batch_size * factor <= most_batch)
        ]
        self._storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        self._study: Any = optuna.create_study(
            storage=self._storage, study_name="rehearsal", direction="minimize", load_if_exists=True
        )
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state in (optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING):
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # of a process that was killed

    @property
    def finished(self) -> list[Any]:
        """The trials that are finished, in the order in which they were made."""
        kinds = self._optuna.trial.TrialState
        return [t for t in self._study.get_trials(deepcopy=False) if t.state in (kinds.COMPLETE, kinds.PRUNED)]

    @property
    def seconds(self) -> float:
        """How long the finished tries took, in all processes that made them."""
        return sum(float(trial.user_attrs.get("seconds", 0.0)) for trial in self.finished)

    def step(self, evaluate: Callable[[Sequence[Choice]], Iterable[Evaluated]], *, at_once: int = 1) -> None:
        """Make so many more tries. They are recorded when all of them are finished."""
        number = len(self.finished)
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=int(np.random.default_rng([self._seed, number]).integers(2**31)),
            n_startup_trials=RANDOM_TRIES,
        )
        if not number:
            self._study.enqueue_trial(self._stated_parameters())
        trials = [self._study.ask() for _ in range(at_once)]
        choices = [self._suggested(trial) for trial in trials]
        for trial, (losses, seconds) in zip(trials, list(evaluate(choices)), strict=True):
            trial.set_user_attr("seconds", seconds)
            if losses is None:
                self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
                continue
            trial.set_user_attr("losses", list(losses))
            self._study.tell(trial, objective(losses, allowed=self._allowed))

    @property
    def best(self) -> Choice:
        """The settings with the lowest objective; of equals the first."""
        complete = [trial for trial in self.finished if trial.value is not None]
        if not complete:
            return self._stated
        return self._choice(min(complete, key=lambda trial: (trial.value, trial.number)).params)

    @property
    def tried(self) -> tuple[Tried, ...]:
        """Every finished try."""
        rows = list[Tried]()
        for trial in self.finished:
            ordinary, like = trial.user_attrs.get("losses", (None, None))
            rows.append(Tried(settings=self._choice(trial.params).patch(self._stated), ordinary=ordinary, like=like))
        return tuple(rows)

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _stated_parameters(self) -> dict[str, Any]:
        stated = self._stated
        parameters: dict[str, Any] = {
            "learning_rate": stated.learning_rate,
            "clip_norm": stated.clip_norm,
            "batch_factor": 1.0,
        }
        if stated.keep is not None:
            parameters["keep"] = stated.keep
        if stated.rank is not None:
            parameters["rank"] = stated.rank
        return parameters

    def _suggested(self, trial: Any) -> Choice:
        stated = self._stated
        rate, clip = stated.learning_rate, stated.clip_norm
        trial.suggest_float("learning_rate", rate / LEARNING_RATES, min(MAX_RATE, rate * LEARNING_RATES), log=True)
        low, high = max(MIN_CLIP_NORM, clip / CLIP_NORMS), min(MAX_CLIP_NORM, clip * CLIP_NORMS)
        trial.suggest_float("clip_norm", low, high, log=True)
        trial.suggest_categorical("batch_factor", self._factors)
        if stated.keep is not None:
            trial.suggest_categorical("keep", sorted({*KEPT, stated.keep}))
        if stated.rank is not None:
            trial.suggest_categorical("rank", sorted({*RANKS, stated.rank}))
        return self._choice(trial.params)

    def _choice(self, parameters: Mapping[str, Any]) -> Choice:
        """The settings of these parameters, rounded to what a person would write into a config."""
        stated, factor = self._stated, float(parameters["batch_factor"])
        whole = (stated.batch_size, stated.rounds) if factor == 1 else _batch_and_rounds(stated, factor)
        return Choice(
            learning_rate=_rounded(parameters["learning_rate"], stated.learning_rate),
            clip_norm=_rounded(parameters["clip_norm"], stated.clip_norm),
            batch_size=whole[0],
            rounds=whole[1],
            keep=parameters.get("keep"),
            rank=parameters.get("rank"),
        )


def _batch_and_rounds(stated: Choice, factor: float) -> tuple[float, int]:
    rounds = max(1, round(stated.rounds / factor))
    batch = stated.batch_size * factor
    return (float(round(batch)) if batch >= 2 else batch), rounds


def _rounded(value: float, stated: float) -> float:
    return stated if value == stated else float(f"{value:.2g}")
