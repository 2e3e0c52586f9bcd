"""Naming the secret from the models of a training, its candidates and their prior being known (Hayes et al., 2023).

Between two released models lies the sum of the clipped gradients drawn, plus noise. Each candidate says what the
secret's examples would have added to it; the attacker computes that at the models it sees and scores the candidates:

- "likelihood": log of how much likelier the update is with the candidate's gradients, drawn with their rates, than
  with zeros in their place; the best test if nothing else varies.
- "inner": inner product of update and candidate's expected gradient.

Any way of scoring makes a valid attack: its success is a lower bound on what the promise must allow. Only the power
depends on the score.

Legend: R runs, M candidates, N examples with the secret, D parameters, S subsets of the N examples.
"""

from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.accounting.inputs import checked_choice
from hush.audit.scenario import Scenario
from hush.audit.statistics import Success
from hush.audit.transcripts import Transcripts
from hush.errors import InvalidInput

__all__ = ["Score", "attack_runs", "candidate_scores"]

Score = Literal["likelihood", "inner"]

MOST_SUBSETS = 6  # examples with the secret of which all subsets are tried
FLOATS_AT_ONCE = 2**25  # in the gradients of all candidates for some runs


def attack_runs(scenario: Scenario, transcripts: Transcripts, *, score: Score = "likelihood") -> Success:
    """Name the secret of every run from what its transcript shows, and count how often that is right.

    Guarantee: if training kept the scenario's promise, a run succeeds with probability ``scenario.certified`` at most,
    whatever the score; the runs are independent, so that limits of the count are exact.
    """
    if not np.all((transcripts.truth >= 0) & (transcripts.truth < scenario.num_candidates)):
        raise InvalidInput(f"a run has a truth outside the {scenario.num_candidates} candidates of the scenario")
    named_R = candidate_scores(scenario, transcripts, score=score).argmax(dim=1).numpy()
    return Success(hits=int(np.count_nonzero(named_R == transcripts.truth)), runs=transcripts.truth.size)


def candidate_scores(scenario: Scenario, transcripts: Transcripts, *, score: Score = "likelihood") -> Tensor:
    """How well each candidate explains each run: R × M, the larger the better. The truth is not looked at."""
    checked_choice("score", score, Score)
    if scenario.noise == 0:
        raise InvalidInput("the scenario has no noise, so that no update has a likelihood; there is nothing to test")
    iterates, released = transcripts.iterates, transcripts.released
    if released[0] < 0 or released[-1] > scenario.rounds:
        raise InvalidInput(
            f"models after the rounds {released[0]} to {released[-1]}, but the scenario, and with it the bound, has "
            f"{scenario.rounds}; make the scenario of these runs"
        )
    per_run = scenario.num_candidates * max(scenario.holders.size, 1) * iterates.shape[2]
    parts = iterates.split(max(1, FLOATS_AT_ONCE // per_run))
    return torch.cat([_scores_of(scenario, part, released, score) for part in parts])


def _scores_of(scenario: Scenario, iterates: Tensor, released: tuple[int, ...], score: Score) -> Tensor:
    total_RM = iterates.new_zeros(len(iterates), scenario.num_candidates, dtype=torch.float64)
    for i, (begin, end) in enumerate(pairwise(released)):
        before_RD, after_RD = iterates[:, i], iterates[:, i + 1]
        rounds = end - begin
        # Over several rounds gradients move; half-way between two models they are closest to all of them.
        at_RD = before_RD if rounds == 1 else (before_RD + after_RD) / 2
        sum_RD = (before_RD - after_RD) / scenario.update - rounds * _expected_others(scenario, at_RD)
        gradient_RMND = _candidate_gradients(scenario, at_RD)
        if score == "likelihood" and rounds == 1:
            total_RM += _log_likelihood_ratio(scenario, sum_RD, gradient_RMND)
        else:
            total_RM += _matched(scenario, sum_RD, gradient_RMND, rounds, centred=score == "likelihood")
    return total_RM


def _expected_others(scenario: Scenario, at_RD: Tensor) -> Tensor:
    """What the other examples add to a round on average; their draws are not known to the attacker."""
    if not scenario.other_examples.size:
        return torch.zeros_like(at_RD)
    gradients = scenario.clipped_gradients(at_RD, scenario.others, per_run=False)
    return torch.einsum("n,rnd->rd", _tensor(scenario.rates[scenario.other_examples], at_RD), gradients)


def _candidate_gradients(scenario: Scenario, at_RD: Tensor) -> Tensor:
    rows = {key: value.flatten(0, 1) for key, value in scenario.candidates.items()}
    found = scenario.clipped_gradients(at_RD, rows, per_run=False)
    return found.unflatten(1, (scenario.num_candidates, scenario.holders.size))


def _log_likelihood_ratio(scenario: Scenario, sum_RD: Tensor, gradient_RMND: Tensor) -> Tensor:
    """log E_b exp((<sum, v> - |v|²/2) / noise²), v the sum of the gradients of the subset b of the secret's examples.

    Exact for few examples; for many, the examples are scored one by one as if they did not overlap.
    """
    dot_RMN = torch.einsum("rd,rmnd->rmn", sum_RD, gradient_RMND).double()
    rates = scenario.rates[scenario.holders]
    variance = scenario.noise**2
    if rates.size > MOST_SUBSETS:
        square_RMN = gradient_RMND.double().square().sum(dim=-1)
        drawn = (dot_RMN - square_RMN / 2) / variance + _logs(rates)
        return torch.logaddexp(drawn, _logs(1 - rates).expand_as(drawn)).sum(dim=-1)
    gram_RMNN = torch.einsum("rmid,rmjd->rmij", gradient_RMND, gradient_RMND).double()
    subset_SN = torch.as_tensor((np.arange(2**rates.size)[:, None] >> np.arange(rates.size)) & 1, dtype=torch.float64)
    log_chance_S = torch.where(subset_SN > 0, _logs(rates), _logs(1 - rates)).sum(dim=1)
    square_RMS = torch.einsum("si,rmij,sj->rms", subset_SN, gram_RMNN, subset_SN)
    return ((dot_RMN @ subset_SN.T - square_RMS / 2) / variance + log_chance_S).logsumexp(dim=-1)


def _matched(scenario: Scenario, sum_RD: Tensor, gradient_RMND: Tensor, rounds: int, *, centred: bool) -> Tensor:
    """<sum, mean> / variance, the mean being the candidate's expected gradient; ``centred`` takes |mean|²/2 off."""
    rate_N = _tensor(scenario.rates[scenario.holders], sum_RD)
    mean_RMD = rounds * torch.einsum("n,rmnd->rmd", rate_N, gradient_RMND)
    score_RM = torch.einsum("rd,rmd->rm", sum_RD, mean_RMD).double()
    if centred:
        score_RM -= mean_RMD.double().square().sum(dim=-1) / 2
    return score_RM / (rounds * scenario.noise**2)


def _logs(chances: NDArray[np.float64]) -> Tensor:
    """Logarithms, that of 0 kept finite: subsets that cannot occur then count for nothing, and nothing is NaN."""
    return torch.as_tensor(np.log(np.maximum(chances, 1e-300)))


def _tensor(values: NDArray[np.float64], like: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=like.dtype)
