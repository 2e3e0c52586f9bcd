"""The runs themselves. Each job is one line of the study's log, so that the study goes on where it stopped; several
processes may share one device.

Tuning comes first, on validation data and with the first seed; then every arm with every seed. The private part goes on
from the model that skeletons alone gave with the same seed.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hush
from experiments.runs import RunLog, worker_map
from experiments.secret_spans.data import PLACEHOLDER_ID, Part
from experiments.secret_spans.training import Bench, Private, losses_of, train_in_slots, train_openly
from experiments.secret_words.data import PARTS
from experiments.secret_words.training import Task, new_model

__all__ = ["Promise", "Scale", "Setup", "arms_of", "run_jobs", "table"]

GROUPS = 2  # of words; each is left out once
BEFORE: dict[str, Any] = {"arm": "before"}
OPEN = ("no protection", "skeletons")  # the arms without noise
MOST_ELSEWHERE = 0.01  # nats that the private part may cost outside the slots
# Of what the private part changed, that is looked at as well (0 is where it began): a part costs no promise.
SHARES = (0.0, 0.25, 0.5, 0.75)

Key = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Promise:
    """What the private part promises for every word: who names it at most at the prior ends at most at the ceiling."""

    prior: float
    ceiling: float

    def __str__(self) -> str:
        return f"{self.prior:g} to {self.ceiling:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the study is: of the part without noise, and of the private part after it."""

    abstracts: int | None
    documents: tuple[int, int]
    batch_size: int
    rounds: int
    private_batch: int
    private_rounds: int
    public_batch: int
    micro_batch: int
    rates: tuple[float, ...]
    longer_rates: tuple[float, ...]
    private: tuple[Private, ...]
    seeds: int
    group_seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where a study reads and writes."""

    work: Path
    log: Path
    start: Path
    vocabulary: int
    scale: Scale
    promises: tuple[Promise, ...]
    workers: int
    until: float | None

    def plan(self, promise: Promise) -> Path:
        size = f"{self.scale.private_batch}-{self.scale.private_rounds}"
        return self.work / f"plan-{size}-{promise.prior:g}-{promise.ceiling:g}"

    @property
    def minutes(self) -> float | None:
        return None if self.until is None else (self.until - time.time()) / 60

    def model(self, arm: str, rate: float, seed: int) -> Path:
        """The model after an arm without noise, which longer training and the private part go on from."""
        return self.work / f"{arm.replace(' ', '-')}-{rate:g}-{seed}.pt"


def open_key(arm: str, rate: float, seed: int, rounds: int, group: int | None = None) -> Key:
    return {"arm": arm, "rate": rate, "seed": seed, "rounds": rounds, "group": group}


def longer_key(arm: str, rate: float, seed: int) -> Key:
    return {"arm": f"{arm}, longer", "rate": rate, "seed": seed}


def private_key(promise: Promise, settings: Private, seed: int) -> Key:
    return {"arm": "private part", **asdict(promise), **asdict(settings), "seed": seed}


def _promises_in(log: RunLog) -> list[Promise]:
    """The promises under which the private part has run."""
    keys = [entry["key"] for entry in log.entries() if entry["key"]["arm"] == "private part"]
    return sorted({Promise(prior=key["prior"], ceiling=key["ceiling"]) for key in keys})


def _validated(log: RunLog, keys: Iterable[Key]) -> list[tuple[Key, dict[str, float]]]:
    return [(key, outcome["validation"]) for key in keys if (outcome := log.outcome(key)) is not None]


def best_open(log: RunLog, scale: Scale, arm: str) -> Key | None:
    """The run with the least validation loss outside the slots."""
    return _least_elsewhere(log, [open_key(arm, rate, 0, scale.rounds) for rate in scale.rates])


def best_longer(log: RunLog, scale: Scale, arm: str) -> Key | None:
    return _least_elsewhere(log, [longer_key(arm, rate, 0) for rate in scale.longer_rates])


def _least_elsewhere(log: RunLog, keys: Iterable[Key]) -> Key | None:
    done = _validated(log, keys)
    return min(done, key=lambda each: each[1]["elsewhere"])[0] if done else None


def best_private(log: RunLog, scale: Scale, promise: Promise) -> Private | None:
    """The settings with the least validation loss at secret pieces, of those that cost next to nothing elsewhere."""
    done = _validated(log, [private_key(promise, settings, 0) for settings in scale.private])
    public = best_open(log, scale, "skeletons")
    if not done or public is None:
        return None
    kept = [each for each in done if each[1]["elsewhere"] <= _began(log, each[0], public) + MOST_ELSEWHERE]
    kept = kept or [min(done, key=lambda each: each[1]["elsewhere"])]
    key = min(kept, key=lambda each: each[1]["secret pieces"])[0]
    return Private(**{name: key[name] for name in asdict(scale.private[0])})


def _began(log: RunLog, key: Key, public: Key) -> float:
    """The validation loss elsewhere of the model that a private part went on from, which may be a second training."""
    shares = (log.outcome(key) or {}).get("shares", {})
    began = shares["0"] if "0" in shares else (log.outcome(public) or {})
    return began["validation"]["elsewhere"]


def arms_of(log: RunLog, scale: Scale, promises: Iterable[Promise]) -> dict[str, list[Key]]:
    """The runs of every arm of the table, as far as tuning has chosen their settings.

    The arms without noise are the same whatever is promised.
    """
    arms: dict[str, list[Key]] = {"before training": [BEFORE]}
    seeds, rounds = range(scale.seeds), scale.rounds
    for arm in OPEN:
        chosen = best_open(log, scale, arm)
        if chosen is not None:
            arms[arm] = [open_key(arm, chosen["rate"], seed, rounds) for seed in seeds]
        chosen = best_longer(log, scale, arm)
        if chosen is not None:
            arms[f"{arm}, longer"] = [longer_key(arm, chosen["rate"], seed) for seed in seeds]
    full = best_open(log, scale, "no protection")
    if full is not None:
        arms["words left out"] = [
            open_key("no protection", full["rate"], seed, rounds, group)
            for seed in range(scale.group_seeds)
            for group in range(GROUPS)
        ]
    for promise in promises:
        settings = best_private(log, scale, promise)
        if settings is not None:
            name = f"skeletons, then the private part ({promise})"
            arms[name] = [private_key(promise, settings, seed) for seed in seeds]
    return arms


def run_jobs(setup: Setup) -> None:
    """Everything that is left to do and has time."""
    scale = setup.scale

    def tuning_open(log: RunLog) -> list[Key]:
        return [BEFORE, *(open_key(arm, rate, 0, scale.rounds) for arm in OPEN for rate in scale.rates)]

    def tuning_further(log: RunLog) -> list[Key]:
        longer = [longer_key(arm, rate, 0) for arm in OPEN for rate in scale.longer_rates]
        private = [private_key(promise, settings, 0) for settings in scale.private for promise in setup.promises]
        return [*longer, *private]

    def without_noise(log: RunLog) -> list[Key]:
        arms = arms_of(log, scale, setup.promises)
        return [key for name in (*OPEN, "words left out") for key in arms.get(name, [])]

    def every_arm(log: RunLog) -> list[Key]:
        return [key for keys in arms_of(log, scale, setup.promises).values() for key in keys]

    with worker_map(setup.workers, _begin, setup) as run:
        for keys_of in (tuning_open, without_noise, tuning_further, every_arm):
            log = RunLog(setup.log)
            keys = keys_of(log)
            left = [key for key in keys if log.outcome(key) is None]
            print(f"{len(keys) - len(left)} of {len(keys)} runs are there, {len(left)} to do", flush=True)
            list(run(_train_again, _models_missing(log, setup, left)))
            list(run(_work, left))


def _models_missing(log: RunLog, setup: Setup, keys: Iterable[Key]) -> list[Key]:
    """The arms without noise that these runs go on from, where their models are not here: a log may outlive them."""
    missing: dict[Path, Key] = {}
    for key in keys:
        arm = "skeletons" if key["arm"] == "private part" else key["arm"].removesuffix(", longer")
        if arm == key["arm"] or (chosen := best_open(log, setup.scale, arm)) is None:
            continue
        path = setup.model(arm, chosen["rate"], key["seed"])
        if not path.exists():
            missing[path] = open_key(arm, chosen["rate"], key["seed"], setup.scale.rounds)
    return list(missing.values())


_state: dict[str, Any] = {}  # of this worker


def _begin(setup: Setup) -> None:
    torch.set_float32_matmul_precision("high")
    if setup.workers > 1:
        torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bench = Bench(
        parts={name: Part.load(setup.work / f"{name}.npz") for name in PARTS}, vocabulary=setup.vocabulary,
        device=device, micro_batch=setup.scale.micro_batch,
    )  # fmt: skip
    _state.update(setup=setup, bench=bench, log=RunLog(setup.log, minutes=setup.minutes))


def _work(key: Key) -> None:
    arms: dict[str, Callable[[Key, Setup, Bench], dict[str, Any]]] = {"before": _before, "private part": _private}
    work = arms.get(key["arm"], _longer if key["arm"].endswith(", longer") else _open)
    _state["log"].run(key, lambda: work(key, _state["setup"], _state["bench"]))


def _train_again(key: Key) -> None:
    """Only for its model; what it scores is in the log already, and in the outcomes of the runs that go on from it."""
    if not _state["log"].out_of_time:
        _open(key, _state["setup"], _state["bench"])


def _scores(bench: Bench, model: Any, chosen: Any = None) -> dict[str, Any]:
    return {name: losses_of(bench, model, name, of_secrets=chosen) for name in PARTS[1:]}


def _new_model(setup: Setup, bench: Bench) -> Any:
    return new_model(Task(rows={}, vocabulary=bench.vocabulary, device=bench.device, micro_batch=1), setup.start)


def _before(key: Key, setup: Setup, bench: Bench) -> dict[str, Any]:
    return _scores(bench, _new_model(setup, bench))


def _open(key: Key, setup: Setup, bench: Bench) -> dict[str, Any]:
    """Training without noise: on full texts, on skeletons, or on texts without one group of words."""
    train, group = bench.parts["train"], key["group"]
    rows_NT = train.skeleton_NT if key["arm"] == "skeletons" else train.token_NT
    chosen = None
    if group is not None:
        rows_NT = np.where((train.secret_NT >= 0) & (train.secret_NT % GROUPS == group), PLACEHOLDER_ID, rows_NT)
        chosen = np.arange(hush.Plan.load(setup.plan(setup.promises[0])).incidence.num_secrets) % GROUPS == group
    model = train_openly(
        bench, _new_model(setup, bench), rows_NT, batch_size=setup.scale.batch_size, rounds=key["rounds"],
        rate=key["rate"], seed=key["seed"],
    )  # fmt: skip
    if group is None:
        torch.save(model.state_dict(), setup.model(key["arm"], key["rate"], key["seed"]))
    return _scores(bench, model, chosen)


def _trained_model(arm: str, key: Key, setup: Setup, bench: Bench) -> Any:
    """The model after an arm without noise, with the rate that was best for it."""
    chosen = best_open(RunLog(setup.log), setup.scale, arm)
    if chosen is None:
        raise ValueError(f"no run of {arm} has ended")
    model, first = _new_model(setup, bench), setup.model(arm, chosen["rate"], key["seed"])
    model.load_state_dict(torch.load(first, map_location=bench.device, weights_only=True))
    return model


def _longer(key: Key, setup: Setup, bench: Bench) -> dict[str, Any]:
    """As many rounds more as the private part has, without noise."""
    arm, train = key["arm"].removesuffix(", longer"), bench.parts["train"]
    model = train_openly(
        bench, _trained_model(arm, key, setup, bench),
        train.skeleton_NT if arm == "skeletons" else train.token_NT,
        batch_size=setup.scale.batch_size, rounds=setup.scale.private_rounds, rate=key["rate"], seed=key["seed"],
    )  # fmt: skip
    return _scores(bench, model)


def _private(key: Key, setup: Setup, bench: Bench) -> dict[str, Any]:
    """The plan's rounds after skeletons alone, and models on the way from there to where they end."""
    model = _trained_model("skeletons", key, setup, bench)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    plan = hush.Plan.load(setup.plan(Promise(prior=key["prior"], ceiling=key["ceiling"])))
    settings = Private(**{each.name: key[each.name] for each in fields(Private)})
    trained = train_in_slots(bench, model, plan, settings, public_batch=setup.scale.public_batch, seed=key["seed"])
    outcome = {**_scores(bench, trained), "noise_multiplier": plan.noise_multiplier}
    last = {name: value.clone() for name, value in trained.state_dict().items()}
    outcome["shares"] = {}
    for share in SHARES:
        trained.load_state_dict({name: torch.lerp(first[name], value, share) if value.is_floating_point() else value
                                 for name, value in last.items()})  # fmt: skip
        outcome["shares"][f"{share:g}"] = _scores(bench, trained)
    return outcome


def table(log: RunLog, scale: Scale, interval: Callable[[Sequence[float]], tuple[float, float]]) -> list[Mapping]:
    """Rows of the table: mean test losses with 95 % intervals."""
    rows = list[Mapping]()

    def add(name: str, outcomes: Sequence[Mapping[str, Any]]) -> None:
        row: dict[str, Any] = {"arm": name, "runs": len(outcomes)}
        for where in ("secret pieces", "whole words", "elsewhere") if outcomes else ():
            row[where] = interval([outcome["test"][where] for outcome in outcomes])
        rows.append(row)

    for name, keys in arms_of(log, scale, _promises_in(log)).items():
        outcomes = [outcome for key in keys if (outcome := log.outcome(key)) is not None]
        add(name, outcomes)
        for share in SHARES:
            parts = [outcome["shares"][f"{share:g}"] for outcome in outcomes if "shares" in outcome]
            if parts:
                add(f"{name}, {share:g} of the way", parts)
    return rows
