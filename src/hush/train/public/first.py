"""Public first: ordinary training on public examples, before the first private round.

Examples without a secret, and skeletons, are learnt without clipping and noise, with any batch and for as long as it
helps. The certificate of the private rounds covers the whole: they may start from any model that does not depend on the
secrets, and this one is a function of public text, the plan and a public seed.

The public examples are split in three. The ones that the plan holds out are never learnt: their loss is reported. A
validation part decides when training ends and which weights are kept, so its own loss looks better than it is. The rest
is learnt. The learning rate first rises, then stays constant until the validation loss stops falling; then training
goes back to the best weights, and the rate falls to 0 over a quarter of the steps that led there.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.storage import read_json
from hush.train.checkpoints import Checkpoints, durable_file
from hush.train.clipping import Loss
from hush.train.public.split import PublicSplit, split_of_plan, split_public
from hush.train.public.stream import Collate, own_random_state
from hush.train.settings import PublicFirst
from hush.train.side_effect_free import mean_loss
from hush.train.slots.batches import SkeletonBatches

__all__ = [
    "PublicOutcome",
    "PublicProgress",
    "PublicSplit",
    "learn_public",
    "split_public",
    "train_public",
]


MIN_INTERVAL, MAX_INTERVAL = 10, 500  # steps between evaluations; between them, once per pass
MIN_GAIN = 1e-3  # relative: a smaller fall of the validation loss does not count as one
DECAY_SHARE = 0.2  # of all steps: at their end the learning rate falls to 0
MAX_WARMUP = 100  # steps in which the learning rate rises
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0  # of a whole batch, against single bad steps; it protects nothing

# Tried for a few steps each, where none is stated. The best after a short while is seldom far from the best in the end.
LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
TRIAL_SHARE, MIN_TRIAL, MAX_TRIAL = 0.02, 20, 200  # of all steps, for each learning rate; steps

Batches = Callable[[NDArray[np.int64], int], Mapping[str, Tensor]]
"""Makes a batch of examples, by number, in a step."""


# ---- what is learnt, and what became of it ----


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicOutcome:
    """What ordinary training on public examples reached. The model has the weights of ``best_step``.

    before and after are mean losses on the held-out examples, None if there are none; validation is the lowest loss on
    the examples that decided when to stop. examples and skeletons count what was learnt or decided, without a secret
    and with one.
    """

    examples: int
    skeletons: int
    before: float | None
    after: float | None
    validation: float
    steps: int
    best_step: int
    passes: float
    learning_rate: float

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the outcome that a folder of ``train_public`` keeps."""
        try:
            return cls(**read_json(path))
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{path} is not the outcome of a public part; remove its folder to repeat it") from error

    def caution(self, settings: PublicFirst) -> str | None:
        """A warning if it was still learning when it ended: then private rounds gain what costs no noise at all."""
        if self.best_step < self.steps or self.passes < settings.epochs:
            return None
        return (
            f"The public part ended after {settings.epochs:g} passes over the public examples, the most that are "
            "allowed, while it was still learning. More passes cost no promise; raise public_first.epochs"
        )

    @property
    def public_part(self) -> dict[str, int]:
        """What the certificate of a run states of it."""
        return {"examples": self.examples, "skeletons": self.skeletons}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicProgress:
    """After a step: how many are done, of at most how many, and the lowest validation loss so far."""

    step: int
    most_steps: int
    validation: float


def learn_public(
    model: nn.Module,
    loss: Loss,
    batches: Collate,
    plan: Plan,
    *,
    settings: PublicFirst | None = None,
    examples: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    **options: Any,
) -> PublicOutcome | None:
    """Learn what is public under a plan, before its first private round; see ``train_public`` for the options.

    batches makes a batch from example numbers, as for ``PublicStream``: examples with slots take part only if it is
    :class:`~hush.train.slots.batches.SkeletonBatches`. examples are all public ones, unless some are chosen.

    Guarantee: the promises of the plan hold unchanged for private rounds that start from the result; the text of an
    example with a secret is refused.
    """
    split = split_of_plan(plan, batches, examples, seed=int(options.get("seed", 0)))
    if isinstance(batches, SkeletonBatches):
        skeletons = batches  # of this type in the function, too

        def of(chosen: NDArray[np.int64], step: int) -> Mapping[str, Tensor]:
            return skeletons(chosen, round=step)
    else:

        def of(chosen: NDArray[np.int64], step: int) -> Mapping[str, Tensor]:
            return batches(chosen)

    return train_public(model, loss, of, split, settings=settings, lengths=lengths, **options)


# ---- training ----


def train_public(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    split: PublicSplit,
    *,
    settings: PublicFirst | None = None,
    seed: int = 0,
    micro_batch: int = 32,
    lengths: ArrayLike | None = None,
    folder: str | Path | None = None,
    save_every: int = 200,
    autocast: torch.dtype | None = None,
    compile: bool = False,
    progress: Callable[[PublicProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> PublicOutcome | None:
    """Train the trainable parameters of a model, in place, on the examples of a split, by AdamW.

    loss(model, batch) gives one loss per example. micro_batch is how many examples the model sees at once. lengths, by
    example number, let batches hold texts of about the same length. With a folder, which stays with the owner, the
    state is saved every save_every steps and at every evaluation, and a finished training is not repeated. If stop
    returns True after a step, the state is saved and the result is None.

    Guarantee: safe to kill. Started again it ends with the same weights, on the same machine, as if it had not been
    interrupted; the weights are a function of the model, the examples of the split, settings and seed.
    """
    if seed < 0 or micro_batch < 1 or save_every < 1:
        raise InvalidInput("seed must be at least 0, micro_batch and save_every at least 1")
    training = _PublicTraining(
        model,
        loss,
        batches,
        split,
        settings=settings or PublicFirst(),
        seed=seed,
        micro_batch=micro_batch,
        lengths=None if lengths is None else np.asarray(lengths),
        folder=None if folder is None else Path(folder),
        autocast=autocast,
        compile=compile,
    )
    outcome = training.finished()
    if outcome is not None:
        return outcome
    training.begin()
    while training.phase != "done":
        training.train_step()
        if progress is not None:
            progress(training.progress)
        stopped = training.phase != "done" and stop is not None and stop()
        if stopped or training.state.step % save_every == 0:
            training.save()
        if stopped:
            return None
    return training.finish()


@dataclass(slots=True)
class _State:
    """What decides the course of a training; numbers only, so that it can be stored."""

    learning_rate: float
    before: float | None
    step: int = 0
    phase: Literal["constant", "decay", "done"] = "constant"
    best: float = float("inf")
    best_step: int = 0
    counted_best: float = float("inf")  # the last that was lower by more than MIN_GAIN
    fruitless: int = 0  # evaluations since then
    decay_begin: int = 0
    decay_end: int = 0


@final
class _PublicTraining:
    """One training: steps, evaluations, and a folder to resume from."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Batches,
        split: PublicSplit,
        *,
        settings: PublicFirst,
        seed: int,
        micro_batch: int,
        lengths: NDArray[np.int64] | None,
        folder: Path | None,
        autocast: torch.dtype | None,
        compile: bool,
    ) -> None:
        self._model, self._loss, self._batches, self._split = model, loss, batches, split
        self._run_model: Any = torch.compile(model) if compile else model
        self._settings, self._seed, self._micro_batch = settings, seed, micro_batch
        self._lengths, self._folder, self._autocast = lengths, folder, autocast
        self._trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._trainable:
            raise InvalidInput("no parameter of the model is trainable; set requires_grad on those to train")
        if any(isinstance(parameter, DTensor) for parameter in self._trainable.values()):
            raise InvalidInput("a sharded model cannot learn what is public first; load it whole for that")
        self._device = next(iter(self._trainable.values())).device
        self._batch = min(settings.batch, split.train.size)
        self._steps_per_pass = -(-split.train.size // self._batch)
        self.most_steps = max(2, round(settings.epochs * self._steps_per_pass))
        self._interval = min(max(self._steps_per_pass, MIN_INTERVAL), MAX_INTERVAL, -(-self.most_steps // 4))
        self._warmup = min(MAX_WARMUP, self.most_steps // 20)
        self._checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", keep=1)
        self._order: tuple[int, list[NDArray[np.int64]]] = (-1, [])  # of the pass of this number
        self.state = _State(learning_rate=0.0, before=None)
        self._best_weights = self._weights()
        self._optimizer = self._new_optimizer()

    @property
    def phase(self) -> str:
        """Whether the learning rate is constant or falling, or training is done."""
        return self.state.phase

    @property
    def progress(self) -> PublicProgress:
        """Where training stands."""
        most = self.state.decay_end if self.state.phase != "constant" else self.most_steps
        return PublicProgress(step=self.state.step, most_steps=most, validation=self.state.best)

    # ---- from the folder, and back ----

    def finished(self) -> PublicOutcome | None:
        """The outcome of a training that the folder holds complete; the model gets its weights."""
        if self._folder is None or not (self._folder / "outcome.json").is_file():
            return None
        state = self._stored()
        if state is None:
            raise InvalidInput(f"{self._folder} holds an outcome but no weights; restore them, or remove the folder")
        self._load(state["best_weights"])
        return PublicOutcome.load(self._folder / "outcome.json")

    def begin(self) -> None:
        """Resume what the folder holds, or choose the learning rate and score the model as it is."""
        state = self._stored()
        if state is not None:
            self.state = _State(**state["state"])
            self._best_weights = state["best_weights"]
            self._load(state["weights"])
            self._optimizer.load_state_dict(state["optimizer"])
            return
        stated = self._settings.learning_rate
        self.state = _State(learning_rate=stated or 0.0, before=self._held_out_loss())
        self.state.best = self.state.counted_best = self._validation_loss()
        if stated is None:
            self.state.learning_rate = self._best_learning_rate()

    def save(self) -> None:
        """Store the state after the last step."""
        if self._checkpoints is None or self._folder is None:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._checkpoints.write(
            self.state.step,
            {
                "begun": self._begun(),
                "state": asdict(self.state),
                "weights": self._weights(),
                "best_weights": self._best_weights,
                "optimizer": self._optimizer.state_dict(),
            },
        )

    def finish(self) -> PublicOutcome:
        """Give the model its best weights; store them and the outcome."""
        self._load(self._best_weights)
        state = self.state
        outcome = PublicOutcome(
            examples=self._split.train.size + self._split.validation.size - self._split.skeletons,
            skeletons=self._split.skeletons,
            before=state.before,
            after=self._held_out_loss(),
            validation=state.best,
            steps=state.step,
            best_step=state.best_step,
            passes=state.step / self._steps_per_pass,
            learning_rate=state.learning_rate,
        )
        self._optimizer.zero_grad(set_to_none=True)
        self.save()
        if self._folder is not None:
            with durable_file(self._folder / "outcome.json") as file:
                file.write(json.dumps(asdict(outcome)).encode())
        return outcome

    def _stored(self) -> dict[str, Any] | None:
        state = None if self._checkpoints is None else self._checkpoints.newest()
        if state is not None and state["begun"] != self._begun():
            raise InvalidInput(
                f"{self._folder} holds a public part that was begun with other examples, settings or another model; "
                "resume it as it began, or remove the folder"
            )
        return state

    def _begun(self) -> str:
        digest = blake2b(digest_size=16)
        for part in (self._split.train, self._split.validation, self._split.held_out):
            digest.update(part.astype("<i8").tobytes() + b"end")
        shapes = [(name, tuple(parameter.shape)) for name, parameter in self._trainable.items()]
        digest.update(repr((self._settings.model_dump(), self._seed, str(self._autocast), shapes)).encode())
        return digest.hexdigest()

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().to("cpu", copy=True) for name, parameter in self._trainable.items()}

    @torch.no_grad()
    def _load(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trainable.items():
            parameter.copy_(weights[name])

    def _new_optimizer(self) -> AdamW:
        return AdamW(self._trainable.values(), lr=1.0, weight_decay=WEIGHT_DECAY)

    # ---- steps ----

    def train_step(self) -> None:
        """One step of AdamW and, where it is due, an evaluation."""
        state = self.state
        rate = state.learning_rate * self._share_of_rate()
        self._update(self._examples_of(state.step), state.step, rate)
        state.step += 1
        if state.phase == "decay":
            if state.step >= state.decay_end or (state.step - state.decay_begin) % self._interval == 0:
                self._evaluate()
            if state.step >= state.decay_end:
                state.phase = "done"
        elif state.step % self._interval == 0 or state.step >= self._last_constant:
            self._evaluate()
            if state.fruitless >= self._settings.patience or state.step >= self._last_constant:
                self._begin_decay()

    @property
    def _last_constant(self) -> int:
        return max(1, round((1 - DECAY_SHARE) * self.most_steps))

    def _share_of_rate(self) -> float:
        state = self.state
        if state.phase == "decay":
            return 1 - (state.step - state.decay_begin) / (state.decay_end - state.decay_begin)
        return min(1.0, (state.step + 1) / (self._warmup + 1))

    def _begin_decay(self) -> None:
        """Back to the best weights; the learning rate falls over a quarter of the steps that led there."""
        state = self.state
        self._load(self._best_weights)
        steps = max(1, round(DECAY_SHARE / (1 - DECAY_SHARE) * state.best_step))
        state.phase, state.decay_begin, state.decay_end = "decay", state.step, state.step + steps
        if not state.best_step:  # nothing was better than the model to begin with
            state.phase, state.decay_end = "done", state.step

    def _evaluate(self) -> None:
        state, loss = self.state, self._validation_loss()
        if loss < state.best:  # not for NaN
            state.best, state.best_step, self._best_weights = loss, state.step, self._weights()
        state.fruitless += 1
        if not np.isfinite(state.counted_best) or loss < state.counted_best - MIN_GAIN * abs(state.counted_best):
            state.counted_best, state.fruitless = loss, 0
        self.save()

    def _update(self, examples: NDArray[np.int64], step: int, rate: float) -> None:
        seed = int(np.random.default_rng([self._seed, step, 1]).integers(2**63))
        self._model.train()
        with own_random_state(self._device, seed):
            for begin in range(0, examples.size, self._micro_batch):
                batch = self._on_device(examples[begin : begin + self._micro_batch], step)
                with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
                    losses = self._loss(self._run_model, batch)
                (losses.float().sum() / examples.size).backward()
        norm = nn.utils.clip_grad_norm_(self._trainable.values(), MAX_GRADIENT_NORM)
        if torch.isfinite(norm):  # otherwise the step is left out
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _best_learning_rate(self) -> float:
        """The one of LEARNING_RATES with the lowest validation loss after a few steps; the lower one of equals."""
        steps = min(max(MIN_TRIAL, round(TRIAL_SHARE * self.most_steps)), MAX_TRIAL)
        begun, losses = self._weights(), list[float]()
        for rate in LEARNING_RATES:
            for step in range(steps):
                self._update(self._examples_of(step), step, rate * min(1.0, 2 * (step + 1) / steps))
            loss = self._validation_loss()
            losses.append(loss if np.isfinite(loss) else np.inf)
            self._load(begun)
            self._optimizer = self._new_optimizer()
        return LEARNING_RATES[int(np.argmin(losses))]

    def _examples_of(self, step: int) -> NDArray[np.int64]:
        """The examples of a step: every pass goes through all of them, in an order of its own."""
        number, within = divmod(step, self._steps_per_pass)
        if self._order[0] != number:
            self._order = number, list(self._pass(number))
        return self._order[1][within]

    def _pass(self, number: int) -> Iterator[NDArray[np.int64]]:
        """Batches of one pass; with lengths, those of a window of batches are sorted so that little is padded."""
        rng = np.random.default_rng([self._seed, number])
        shuffled = rng.permutation(self._split.train)
        window = self._batch * (1 if self._lengths is None else 16)
        batches: list[NDArray[np.int64]] = []
        for begin in range(0, shuffled.size, window):
            part = shuffled[begin : begin + window]
            if self._lengths is not None:
                part = part[np.argsort(self._lengths[part], kind="stable")]
            batches += [part[first : first + self._batch] for first in range(0, part.size, self._batch)]
        for position in rng.permutation(len(batches)):
            yield batches[position]

    def _on_device(self, examples: NDArray[np.int64], step: int) -> dict[str, Tensor]:
        return {name: value.to(self._device) for name, value in self._batches(examples, step).items()}

    # ---- losses ----

    def _validation_loss(self) -> float:
        return self._mean_loss(self._split.validation)

    def _held_out_loss(self) -> float | None:
        return self._mean_loss(self._split.held_out) if self._split.held_out.size else None

    def _mean_loss(self, examples: NDArray[np.int64]) -> float:
        """The mean loss on these examples, which see the same random choices in every call."""
        return mean_loss(
            self._model,
            self._loss,
            lambda part: self._on_device(part, 0),
            examples,
            size=min(self._micro_batch, 8),
            autocast=self._autocast,
        )
