"""Reconstruction attacks on trained models: name the secret among known candidates from a run's iterates [Hayes23].

A :class:`Scenario` is one secret, its candidates and the training of a small model on it. :class:`Transcripts` are the
models of many independent runs as an attacker sees them, from one of two trainers: ``train_small_runs``, a second
implementation of the private round for many runs at once (per-example gradients by ``torch.func``, nothing shared with
the training stage), or ``train_recorded_runs``, the loop of ``hush.train`` with every iterate kept, which attacks the
trainer itself. :func:`attack_runs` counts how often the attack names the secret.

Between two released models lies the sum of the drawn, clipped gradients, plus noise. Each candidate predicts what the
secret's examples would have added to it; the attacker computes that at the models it sees and scores the candidates:

- "likelihood": log of how much likelier the update is with the candidate's gradients, drawn with their rates, than
  with zeros in their place; the optimal test if nothing else varies.
- "inner": inner product of the update and the candidate's expected gradient.

Every score makes a valid attack: its success is a lower bound on what the promise must allow. Only the power depends on
the score.

Shapes: R runs, M candidates, N examples with the secret, O other examples, D trained parameters, S subsets of the N
examples, … the shape of one example.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hush.accounting import posterior
from hush.accounting.arguments import checked_choice, checked_noise, checked_rates, checked_rounds
from hush.audit.statistics import Success
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.clipping import Loss
from hush.train.private_training import PrivateTraining

__all__ = [
    "Scenario",
    "Score",
    "Transcripts",
    "attack_runs",
    "candidate_scores",
    "flat_parameters",
    "train_and_record",
    "train_recorded_runs",
    "train_small_runs",
]


Score = Literal["likelihood", "inner"]

MAX_SUBSET_EXAMPLES = 6  # examples with the secret up to which all 2^6 subsets are summed
MAX_GRADIENT_FLOATS = 2**25  # in the gradients of all candidates for a group of runs; 256 MiB as float64


@final
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Scenario:
    """A secret that is one of M equally likely candidates, and the training of a small model on it.

    data has one row per example; the rows ``holders`` contain the secret, and are replaced by those of a candidate:
    ``candidates[key][c, i]`` is what example ``holders[i]`` is if c is the secret. loss gives one loss per example, as
    in training. Every run starts from the parameters of ``model``, on a CPU. The optimizer is plain stochastic gradient
    descent, so that two successive iterates give the noisy sum between them.

    The attacker knows the model, every other example, the candidates, rates, noise and clip norm; not the true
    candidate, the draws and the noise.
    """

    model: nn.Module
    loss: Loss
    data: Mapping[str, Tensor]
    holders: NDArray[np.int64]
    candidates: Mapping[str, Tensor]
    rates: NDArray[np.float64]
    noise_multiplier: float
    rounds: int
    batch_size: float
    clip_norm: float
    learning_rate: float

    def __post_init__(self) -> None:
        holders = np.asarray(self.holders, dtype=np.int64)
        sizes = {len(value) for value in self.data.values()}
        if len(sizes) != 1 or self.data.keys() != self.candidates.keys():
            raise InvalidInput("data and candidates must be tensors under the same keys, one row per example in data")
        (size,) = sizes
        if (
            holders.ndim != 1
            or np.unique(holders).size != holders.size
            or not np.all((holders >= 0) & (holders < size))
        ):
            raise InvalidInput(f"holders must be different indices of examples, from 0 to {size - 1}")
        shapes = {tuple(value.shape[:2]) for value in self.candidates.values()}
        if len(shapes) != 1 or next(iter(shapes))[1:] != holders.shape or next(iter(shapes))[0] < 2:
            raise InvalidInput(
                f"candidates have the first dimensions {sorted(shapes)}; pass at least two candidates, each with a row "
                f"for each of the {holders.size} examples that contain the secret"
            )
        if not (0 < self.learning_rate < np.inf and 0 < self.clip_norm < np.inf and 0 < self.batch_size < np.inf):
            raise InvalidInput("learning_rate, clip_norm and batch_size must be finite and above 0")
        object.__setattr__(self, "holders", holders)
        object.__setattr__(self, "rates", checked_rates(self.rates, length=size))
        object.__setattr__(self, "rounds", checked_rounds(self.rounds))
        object.__setattr__(self, "noise_multiplier", checked_noise(self.noise_multiplier))

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        secret: int,
        *,
        model: nn.Module,
        loss: Loss,
        data: Mapping[str, Tensor],
        candidates: Mapping[str, Tensor],
        learning_rate: float,
    ) -> Self:
        """The scenario of one secret of a plan, which gives rates, rounds, noise, batch size and clip norm."""
        return cls(
            model=model, loss=loss, data=data, candidates=candidates, learning_rate=learning_rate,
            holders=plan.incidence.examples_of(secret).astype(np.int64), rates=plan.rates, rounds=plan.rounds,
            noise_multiplier=plan.noise_multiplier, batch_size=plan.batch_size, clip_norm=plan.clip_norm,
        )  # fmt: skip

    @property
    def num_candidates(self) -> int:
        """How many candidates the secret has."""
        return len(next(iter(self.candidates.values())))

    @property
    def prior(self) -> float:
        """The chance of naming the secret before training."""
        return 1 / self.num_candidates

    @property
    def certified(self) -> float:
        """Upper bound on the chance of naming the secret after a training that follows this scenario."""
        return posterior(
            self.rates[self.holders], noise_multiplier=self.noise_multiplier, rounds=self.rounds, prior=self.prior
        )

    @property
    def step_size(self) -> float:
        """The factor of a noisy sum in the update of the parameters."""
        return self.learning_rate / self.batch_size

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of each coordinate of a noisy sum."""
        return self.noise_multiplier * self.clip_norm

    @cached_property
    def other_examples(self) -> NDArray[np.int64]:
        """The examples that do not contain the secret."""
        return np.setdiff1d(np.arange(self.rates.size), self.holders)

    @cached_property
    def others(self) -> dict[str, Tensor]:
        """Their content: O × …"""
        return {key: value[torch.as_tensor(self.other_examples)] for key, value in self.data.items()}

    def data_with(self, candidate: int) -> dict[str, Tensor]:
        """All examples, if this candidate is the secret."""
        rows = torch.as_tensor(self.holders)
        return {key: value.index_copy(0, rows, self.candidates[key][candidate]) for key, value in self.data.items()}

    def clipped_gradients(self, parameters_RD: Tensor, batch: Mapping[str, Tensor], *, per_run: bool) -> Tensor:
        """Clipped gradient of each example at each run's parameters: R × examples × D. Non-finite gradients become 0.

        per_run: whether the batch has separate examples for each run, R × examples × …, or the same for all.
        """
        over_runs = vmap(vmap(grad(self._loss_at), in_dims=(None, 0)), in_dims=(0, 0 if per_run else None))
        gradients = over_runs(parameters_RD, dict(batch)).detach()
        norm = gradients.norm(dim=-1, keepdim=True)
        scale = (self.clip_norm / norm.clamp_min(1e-300 if norm.dtype == torch.float64 else 1e-30)).clamp_max(1.0)
        return torch.where(norm.isfinite(), gradients * scale, 0.0)

    def _loss_at(self, flat_D: Tensor, example: dict[str, Tensor]) -> Tensor:
        parameters, begin = {}, 0
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameters[f"model.{name}"] = flat_D[begin : begin + parameter.numel()].view(parameter.shape)
                begin += parameter.numel()
        batch = {key: value.unsqueeze(0) for key, value in example.items()}
        return functional_call(self._model_with_loss, parameters, (batch,)).sum()

    @cached_property
    def _model_with_loss(self) -> nn.Module:
        return _ModelWithLoss(self.model, self.loss)

    def __repr__(self) -> str:
        return (
            f"Scenario({self.num_candidates} candidates in {self.holders.size} of {self.rates.size} examples, "
            f"{self.rounds} rounds)"
        )


class _ModelWithLoss(nn.Module):
    """A model together with its loss, so that ``functional_call`` evaluates both at given parameters."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.loss(self.model, batch)


def flat_parameters(model: nn.Module) -> Tensor:
    """The trained parameters as one flat copy."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad]).clone()


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Transcripts:
    """The models of R independent runs, as an attacker sees them.

    iterates[r, i] is the model of run r after round released[i]. truth[r] is the candidate that run r was trained on;
    attacks do not use it.
    """

    iterates: Tensor  # R × released × D
    released: tuple[int, ...]
    truth: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.iterates.shape[:2] != (self.truth.size, len(self.released)):
            raise InvalidInput(
                f"iterates of shape {tuple(self.iterates.shape)} for {self.truth.size} runs with {len(self.released)} "
                "models each; pass runs × models × parameters"
            )
        if len(self.released) < 2 or any(late <= early for early, late in pairwise(self.released)):
            raise InvalidInput(
                f"models after the rounds {self.released}; pass at least two models, in the order of training"
            )

    def only(self, released: Sequence[int]) -> Self:
        """The same runs with fewer models released; [0, T] keeps the initial model, which is public, and the last."""
        missing = [index for index in released if index not in self.released]
        if missing:
            raise InvalidInput(f"no model was kept after the rounds {missing}; choose from {self.released}")
        columns = [self.released.index(index) for index in released]
        return replace(self, iterates=self.iterates[:, columns], released=tuple(released))

    def __repr__(self) -> str:
        return f"Transcripts({self.truth.size} runs, {len(self.released)} models of each)"


# The attack.


def attack_runs(scenario: Scenario, transcripts: Transcripts, *, score: Score = "likelihood") -> Success:
    """Name the secret of every run from its transcript, and count how often that is right.

    Guarantee: if training kept the scenario's promise, the attack on a run succeeds with probability at most
    ``scenario.certified``, whatever the score; the runs are independent, so the limits of the count are exact.
    """
    if not np.all((transcripts.truth >= 0) & (transcripts.truth < scenario.num_candidates)):
        raise InvalidInput(f"a run has a truth outside the {scenario.num_candidates} candidates of the scenario")
    named_R = candidate_scores(scenario, transcripts, score=score).argmax(dim=1).numpy()
    return Success(hits=int(np.count_nonzero(named_R == transcripts.truth)), runs=transcripts.truth.size)


def candidate_scores(scenario: Scenario, transcripts: Transcripts, *, score: Score = "likelihood") -> Tensor:
    """How well each candidate explains each run: R × M, larger is better. The truth is not used."""
    checked_choice("score", score, Score)
    if scenario.noise_deviation == 0:
        raise InvalidInput(
            "the scenario has no noise, so an update has no likelihood; pass a scenario with a noise_multiplier above 0"
        )
    iterates, released = transcripts.iterates, transcripts.released
    if released[0] < 0 or released[-1] > scenario.rounds:
        raise InvalidInput(
            f"models after the rounds {released[0]} to {released[-1]}, but the scenario, and with it the bound, has "
            f"{scenario.rounds} rounds; make the scenario of these runs"
        )
    per_run = scenario.num_candidates * max(scenario.holders.size, 1) * iterates.shape[2]
    parts = iterates.split(max(1, MAX_GRADIENT_FLOATS // per_run))
    return torch.cat([_scores_of(scenario, part, released, score) for part in parts])


def _scores_of(scenario: Scenario, iterates: Tensor, released: tuple[int, ...], score: Score) -> Tensor:
    total_RM = iterates.new_zeros(len(iterates), scenario.num_candidates, dtype=torch.float64)
    for i, (begin, end) in enumerate(pairwise(released)):
        before_RD, after_RD = iterates[:, i], iterates[:, i + 1]
        rounds = end - begin
        # Over several rounds the gradients change; those at the midpoint are closest to all of them.
        at_RD = before_RD if rounds == 1 else (before_RD + after_RD) / 2
        sum_RD = (before_RD - after_RD) / scenario.step_size - rounds * _expected_others(scenario, at_RD)
        gradient_RMND = _candidate_gradients(scenario, at_RD)
        if score == "likelihood" and rounds == 1:
            total_RM += _log_likelihood_ratio(scenario, sum_RD, gradient_RMND)
        else:
            total_RM += _matched_filter(scenario, sum_RD, gradient_RMND, rounds, centred=score == "likelihood")
    return total_RM


def _expected_others(scenario: Scenario, at_RD: Tensor) -> Tensor:
    """The expected contribution of the other examples to a round; the attacker does not know their draws."""
    if not scenario.other_examples.size:
        return torch.zeros_like(at_RD)
    gradients = scenario.clipped_gradients(at_RD, scenario.others, per_run=False)
    return torch.einsum("n,rnd->rd", _tensor(scenario.rates[scenario.other_examples], at_RD), gradients)


def _candidate_gradients(scenario: Scenario, at_RD: Tensor) -> Tensor:
    rows = {key: value.flatten(0, 1) for key, value in scenario.candidates.items()}
    gradients = scenario.clipped_gradients(at_RD, rows, per_run=False)
    return gradients.unflatten(1, (scenario.num_candidates, scenario.holders.size))


def _log_likelihood_ratio(scenario: Scenario, sum_RD: Tensor, gradient_RMND: Tensor) -> Tensor:
    """log E_b exp((<sum, v> - |v|²/2) / noise²), v the sum of the gradients of the subset b of the secret's examples.

    Exact for up to ``MAX_SUBSET_EXAMPLES`` examples; for more, each is scored as if the gradients were orthogonal.
    """
    dot_RMN = torch.einsum("rd,rmnd->rmn", sum_RD, gradient_RMND).double()
    rates = scenario.rates[scenario.holders]
    variance = scenario.noise_deviation**2
    if rates.size > MAX_SUBSET_EXAMPLES:
        square_RMN = gradient_RMND.double().square().sum(dim=-1)
        drawn = (dot_RMN - square_RMN / 2) / variance + _logs(rates)
        return torch.logaddexp(drawn, _logs(1 - rates).expand_as(drawn)).sum(dim=-1)
    gram_RMNN = torch.einsum("rmid,rmjd->rmij", gradient_RMND, gradient_RMND).double()
    subset_SN = torch.as_tensor((np.arange(2**rates.size)[:, None] >> np.arange(rates.size)) & 1, dtype=torch.float64)
    log_chance_S = torch.where(subset_SN > 0, _logs(rates), _logs(1 - rates)).sum(dim=1)
    square_RMS = torch.einsum("si,rmij,sj->rms", subset_SN, gram_RMNN, subset_SN)
    return ((dot_RMN @ subset_SN.T - square_RMS / 2) / variance + log_chance_S).logsumexp(dim=-1)


def _matched_filter(scenario: Scenario, sum_RD: Tensor, gradient_RMND: Tensor, rounds: int, *, centred: bool) -> Tensor:
    """<sum, mean> / variance, the mean being the candidate's expected gradient; ``centred`` subtracts |mean|²/2."""
    rate_N = _tensor(scenario.rates[scenario.holders], sum_RD)
    mean_RMD = rounds * torch.einsum("n,rmnd->rmd", rate_N, gradient_RMND)
    score_RM = torch.einsum("rd,rmd->rm", sum_RD, mean_RMD).double()
    if centred:
        score_RM -= mean_RMD.double().square().sum(dim=-1) / 2
    return score_RM / (rounds * scenario.noise_deviation**2)


def _logs(chances: NDArray[np.float64]) -> Tensor:
    """Logarithms, with that of 0 kept finite: subsets that cannot occur get no weight, and nothing becomes NaN."""
    return torch.as_tensor(np.log(np.maximum(chances, 1e-300)))


def _tensor(values: NDArray[np.float64], like: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=like.dtype)


# Two trainers of many runs.


def train_small_runs(scenario: Scenario, *, runs: int, generator: torch.Generator) -> Transcripts:
    """Train ``runs`` models from the same start, each on a uniformly drawn candidate; every iterate is kept.

    A round draws each example with its rate, clips and sums the gradients, adds noise once and divides by the expected
    batch size.
    """
    if runs < 1:
        raise InvalidInput(f"runs={runs}; train at least one run")
    start_D = flat_parameters(scenario.model)
    truth_R = torch.randint(scenario.num_candidates, (runs,), generator=generator)
    secret = {key: value[truth_R] for key, value in scenario.candidates.items()}
    iterates = start_D.new_empty(runs, scenario.rounds + 1, start_D.numel())
    iterates[:, 0] = start_D
    for round in range(scenario.rounds):
        current_RD = iterates[:, round].clone()
        total_RD = torch.zeros_like(current_RD)
        for examples, batch, per_run in (
            (scenario.holders, secret, True),
            (scenario.other_examples, scenario.others, False),
        ):
            if examples.size:
                drawn = _drawn(scenario.rates[examples], runs, generator).to(current_RD.dtype)
                gradients = scenario.clipped_gradients(current_RD, batch, per_run=per_run)
                total_RD += torch.einsum("rn,rnd->rd", drawn, gradients)
        noise_RD = torch.randn(total_RD.shape, generator=generator, dtype=total_RD.dtype)
        noisy_RD = total_RD + scenario.noise_deviation * noise_RD
        iterates[:, round + 1] = current_RD - scenario.step_size * noisy_RD
    return Transcripts(iterates=iterates, released=tuple(range(scenario.rounds + 1)), truth=truth_R.numpy())


def _drawn(rates: NDArray[np.float64], runs: int, generator: torch.Generator) -> Tensor:
    """Which examples each run draws, each with its rate: R × examples."""
    return torch.rand(runs, rates.size, generator=generator, dtype=torch.float64) < torch.as_tensor(rates)


def train_and_record(private: PrivateTraining, data: Mapping[str, Tensor]) -> Tensor:
    """Train to the end on these examples, one row each, and keep every iterate: rounds + 1 models × D."""
    _check_plain_sgd(private)
    iterates = [flat_parameters(private.model)]
    for round in private.rounds():
        for examples in round.micro_batches():
            rows = torch.as_tensor(examples.examples)
            private.accumulate({key: value[rows] for key, value in data.items()}, examples.real)
        private.step()
        iterates.append(flat_parameters(private.model))
    private.close()
    return torch.stack(iterates)


def train_recorded_runs(
    scenario: Scenario,
    plan: Plan,
    *,
    runs: int,
    rng: np.random.Generator,
    insecure_seed: int | None = None,
    micro_batch: int = 32,
) -> Transcripts:
    """Train ``runs`` models under the plan, each on a uniformly drawn candidate; every iterate is kept.

    Without a seed the draws and noise of each run come from the operating system; with one, runs can be repeated, and
    are independent to anyone who does not know the seed.
    """
    if runs < 1:
        raise InvalidInput(f"runs={runs}; train at least one run")
    if plan.rounds != scenario.rounds or plan.rates.size != scenario.rates.size:
        raise InvalidInput(
            f"the plan has {plan.rounds} rounds over {plan.rates.size} examples, the scenario {scenario.rounds} over "
            f"{scenario.rates.size}; make the scenario of this plan"
        )
    truth_R = rng.integers(scenario.num_candidates, size=runs)
    iterates: list[Tensor] = []
    for run, candidate in enumerate(truth_R.tolist()):
        model = deepcopy(scenario.model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=scenario.learning_rate)
        seed = None if insecure_seed is None else insecure_seed * 2**32 + run
        private = PrivateTraining(
            model, optimizer, plan, loss=scenario.loss, micro_batch=micro_batch, insecure_seed=seed
        )
        iterates.append(train_and_record(private, scenario.data_with(candidate)))
    return Transcripts(iterates=torch.stack(iterates), released=tuple(range(plan.rounds + 1)), truth=truth_R)


def _check_plain_sgd(private: PrivateTraining) -> None:
    """Refuse optimizers whose steps are not the gradient times a constant: iterates would not give the noisy sums."""
    groups = private.optimizer.param_groups
    plain = isinstance(private.optimizer, torch.optim.SGD) and private.scheduler is None
    if not plain or any(group["momentum"] or group["weight_decay"] or group["maximize"] for group in groups):
        raise InvalidInput(
            "the attack computes noisy sums from the iterates; train with plain SGD, without momentum or a schedule"
        )
