"""(n, p)-discoverable extraction: chances against sampling, the warpers of Transformers, mpmath and plain products."""

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memorising import SECRET, byte_model, tiny

from hush.audit.extraction import (
    Discovery,
    Sampling,
    discover,
    discover_batches,
    log_chance,
    log_samples_needed,
    samples_needed,
)
from hush.audit.models import Subject, greedy_tokens
from hush.audit.sequences import Sequences
from hush.audit.settings import Continuation
from hush.errors import InvalidInput

SCHEMES = [Sampling(), Sampling(temperature=0.6, top_k=5), Sampling(temperature=2.0), Sampling(top_k=97)]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.8), Sampling(temperature=1.2, top_k=6)], ids=str)
def test_chances_are_the_frequencies_of_sampled_continuations(sampling: Sampling) -> None:
    model: Any = tiny("llama").eval()
    prompt, draws = torch.tensor([[5, 17, 40]]), 20_000
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        said = model.generate(
            prompt.expand(draws, -1),
            attention_mask=torch.ones(draws, 3, dtype=torch.long),
            do_sample=True,
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            max_new_tokens=2,
            eos_token_id=96,
        )[:, 3:]
    words, counts = torch.unique(said, dim=0, return_counts=True)
    order = counts.argsort(descending=True)[:40]
    frequent = [(pair, int(n)) for pair, n in zip(words[order].tolist(), counts[order], strict=True) if pair[0] != 96]
    rows = [[5, 17, 40, *pair] for pair, _ in frequent]
    found = discover(Subject.of(model), Sequences.of(rows, begin=3), prompts=[3], sampling=sampling).log_q(3)
    for q, (_, count) in zip(np.exp(found), frequent, strict=True):
        assert abs(count - draws * q) < 6 * np.sqrt(draws * q) + 3
    assert max(count for _, count in frequent) > 100


@pytest.mark.parametrize("sampling", SCHEMES, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_chances_are_products_over_one_sequence_at_a_time(family: str, sampling: Sampling) -> None:
    """By the warpers of Transformers on uncached logits; some targets are likely, some ruled out by top-k."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper

    model: Any = tiny(family).double().eval()
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, 97, (8, 4))
    said = greedy_tokens(Subject.of(model), torch.from_numpy(prompts), 12).numpy()
    said[1, 3], said[2, 11] = (said[1, 3] + 40) % 97, (said[2, 11] + 40) % 97
    said[3:6] = rng.integers(0, 97, (3, 12))
    rows = [[*start, *end[: 12 - 2 * (row == 7)]] for row, (start, end) in enumerate(zip(prompts, said, strict=True))]
    found = discover(
        Subject.of(model),
        Sequences.of(rows, begin=4),
        prompts=[2, 4],
        continuations=[1, 9, 12, "secret"],
        sampling=sampling,
        batch_size=3,
    )
    for prompt in (2, 4):
        for row, tokens in enumerate(rows):
            shown: Any = torch.tensor([tokens[4 - prompt :]])
            with torch.no_grad():
                scores = model(input_ids=shown, use_cache=False).logits[0, prompt - 1 : -1]
            scores = TemperatureLogitsWarper(sampling.temperature)(shown, scores)
            if sampling.top_k is not None:
                scores = TopKLogitsWarper(sampling.top_k)(shown, scores)
            steps = scores.log_softmax(-1).gather(-1, shown[0, prompt:, None]).squeeze(-1).cumsum(0).numpy()
            cases: list[tuple[Continuation, int]] = [(1, 1), (9, 9), (12, 12), ("secret", len(tokens) - 4)]
            for continuation, width in cases:
                got = found.log_q(prompt, continuation)[row]
                if width > len(steps):
                    assert np.isnan(got)
                else:
                    np.testing.assert_allclose(got, steps[width - 1], rtol=1e-6)  # parts of Gemma are single
    if sampling.top_k == 5:
        assert np.isneginf(found.log_q_NKM).any()
    assert found.cell(4, 12, n=10, p=0.5).short == 1
    everything = found.cell(4, 1, n=1e300, p=0.5).success
    assert everything.runs == 8


def test_tokens_that_tie_with_the_least_of_top_k_stay() -> None:
    logits = torch.tensor([[[3.0, 2.0, 2.0, 1.0]]], dtype=torch.float64).expand(1, 4, 4)
    found = Sampling(top_k=2).log_probabilities(logits, torch.arange(4)[None]).exp()[0]
    total = np.exp(3) + 2 * np.exp(2)
    np.testing.assert_allclose(found.numpy(), [np.exp(3) / total, np.exp(2) / total, np.exp(2) / total, 0.0])


def test_a_token_that_is_certain_is_no_likelier_than_that_and_bfloat16_is_read_in_float32() -> None:
    logits = 300 * torch.randn(1, 64, 50, generator=torch.Generator().manual_seed(0))
    best = logits.argmax(dim=-1)
    found = Sampling().log_probabilities(logits.bfloat16(), best)
    assert found.max() <= 0
    expected = logits.bfloat16().double().log_softmax(-1).gather(-1, best[..., None]).squeeze(-1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)  # logits of a thousand, rounded to 1e-4


def exact_log_chance(log_q: float, n: int) -> Any:
    with mpmath.workdps(1500):  # enough to tell 1 − q from 1
        return mpmath.log(1 - (1 - mpmath.exp(log_q)) ** n)


@given(log_q=st.floats(-1500, 0), n=st.integers(1, 10**12))
def test_the_chance_of_n_samples_is_exact_where_floats_would_underflow(log_q: float, n: int) -> None:
    np.testing.assert_allclose(float(log_chance(log_q, n)), float(exact_log_chance(log_q, n)), rtol=1e-12, atol=1e-15)


@given(log_q=st.floats(-20, 0), p=st.floats(0.001, 0.999))
def test_samples_needed_is_the_smallest_number_that_suffices(log_q: float, p: float) -> None:
    n = int(samples_needed(log_q, p))
    assert float(mpmath.exp(exact_log_chance(log_q, n))) >= p * (1 - 1e-11)
    if n > 1:
        assert float(mpmath.exp(exact_log_chance(log_q, n - 1))) < p * (1 + 1e-11)


def test_chances_at_the_ends() -> None:
    assert log_chance([0.0, -np.inf, np.nan], 5)[:2].tolist() == [0.0, -np.inf]
    assert np.isnan(log_chance(np.nan, 5))
    assert samples_needed([0.0, -np.inf, -1e5], 0.9).tolist() == [1.0, np.inf, np.inf]
    assert float(log_samples_needed(-1e5, 0.9)) == pytest.approx(1e5 + np.log(np.log(10)))
    assert float(log_samples_needed(-np.inf, 0.9)) == np.inf


@given(log_q=st.floats(-800, 0), p=st.floats(0.01, 0.99), n=st.integers(1, 10**6))
def test_more_samples_and_likelier_secrets_are_never_harder(log_q: float, p: float, n: int) -> None:
    assert log_chance(log_q, n + 1) >= log_chance(log_q, n) - 1e-15
    assert log_chance(log_q / 2, n) >= log_chance(log_q, n) - 1e-15
    assert samples_needed(log_q / 2, p) <= samples_needed(log_q, p)


def test_an_untrained_model_says_a_secret_about_as_often_as_blind_guessing() -> None:
    rows = np.random.default_rng(0).integers(1, 257, (10, 4 + SECRET))
    sequences = Sequences.of(list(rows), begin=4, secret=np.arange(10) // 5)
    found = discover(Subject.of(byte_model()), sequences, prompts=[4])
    blind = -SECRET * np.log(257)
    np.testing.assert_allclose(found.log_q(4), blind, rtol=0.1)
    assert found.cell(4, n=10**9, p=0.01).success.hits == 0
    assert found.cell(4, n=float(samples_needed(2 * blind, 0.5)), p=0.5).success.hits == 10
    by_secret = found.by_secret(4, n=10**9, p=0.01)
    assert {secret: one.runs for secret, one in by_secret.items() if one} == {0: 5, 1: 5}


def test_batches_go_on_where_an_earlier_try_stopped() -> None:
    subject = Subject.of(tiny("gpt2"))
    sequences = Sequences.of(np.random.default_rng(0).integers(0, 97, (9, 10)).tolist(), begin=5)
    whole = discover(subject, sequences, prompts=[3, 5], batch_size=9)
    early = list(discover_batches(subject, whole.grid, sampling=Sampling(), batch_size=4))[:3]
    late = list(discover_batches(subject, whole.grid, sampling=Sampling(), done=early))
    again = Discovery.gather(whole.grid, Sampling(), [*early, *late])
    np.testing.assert_allclose(again.log_q_NKM, whole.log_q_NKM, rtol=1e-5)
    with pytest.raises(InvalidInput, match="missing"):
        Discovery.gather(whole.grid, Sampling(), early)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"temperature": float("nan")}, {"top_k": 0}])
def test_a_scheme_that_cannot_sample_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="above 0"):
        Sampling(**wrong)


def test_numbers_that_are_no_chances_are_refused() -> None:
    with pytest.raises(InvalidInput, match="more than 1"):
        log_chance(0.1, 1)
    for n in (0, float("inf"), float("nan")):
        with pytest.raises(InvalidInput, match="at least 1"):
            log_chance(-1.0, n)
    for p in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidInput, match="between 0 and 1"):
            samples_needed(-1.0, p)
