"""Attacks do not know the truth: every candidate is asked for in the same way, whichever is the true one."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from audited import QUICK, THREE, TOKENIZER, changed, corpus_of, plan_for, release
from hypothesis import given
from hypothesis import strategies as st
from memorising import byte_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers import processors as post

from hush.audit.auditor import audit
from hush.audit.canaries import Canary, CanarySet, Candidates, Template
from hush.audit.exposure import aligned_to_frames, canary_frame, rank_canary
from hush.audit.folders import SecretSpans
from hush.audit.models import Subject
from hush.audit.sequences import secret_sequences
from hush.audit.session import AuditInputs
from hush.audit.verdict import DependentSuccess


def test_a_rank_does_not_depend_on_where_the_true_candidate_stands() -> None:
    """A model whose rounding favours some rows of a batch: over all truths each rank is taken once."""

    class Favours(torch.nn.Module):
        """Adds to the rows of a batch what rounding might; the very first gets most."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = byte_model()
            self.config = self.inner.config

        def get_input_embeddings(self) -> Any:
            return self.inner.get_input_embeddings()

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            """Nothing but the row's place speaks: the token that follows is the likelier, the earlier the row."""
            sharp = 1.0 / (1 + torch.arange(len(input_ids), dtype=torch.float32))
            digits = torch.zeros(len(input_ids), input_ids.shape[1], 257)
            digits[:, :, TOKENIZER.convert_tokens_to_ids(list("0123456789"))] = sharp[:, None, None]
            return SimpleNamespace(logits=digits)

    candidates = Candidates.of_format("digits", 1)
    ranks = [
        rank_canary(
            Subject.of(Favours().eval()),
            TOKENIZER,
            Canary(id="canary-000000", template=Template.parse("Code: {secret}"), truth=truth, examples=(0,)),
            candidates,
            max_length=48,
            batch_size=10,
        ).rank
        for truth in range(10)
    ]
    assert sorted(ranks) == list(range(1, 11))


def merging(merges: list[tuple[str, str]], *, special: bool = False) -> Any:
    """A tokenizer over bytes that makes these pairs one, wherever they stand."""
    words = ["<end>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    level = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    level.decoder = decoders.ByteLevel()
    if special:
        level.post_processor = post.TemplateProcessing(single="<end> $A <end>", special_tokens=[("<end>", 0)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=level, eos_token="<end>", pad_token="<end>", mask_token="<mask>", model_max_length=48
    )


@st.composite
def trained_tokenizers(draw: st.DrawFn) -> Any:
    """The same, its merges learnt from texts of the kind that canaries stand in."""
    level = Tokenizer(models.BPE())
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = draw(st.lists(st.text("ab1", min_size=4, max_size=12), min_size=1, max_size=4))
    level.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=draw(st.integers(4, 12)), show_progress=False))
    return merging([tuple(pair) for pair in json.loads(level.to_str())["model"]["merges"]], special=draw(st.booleans()))


@given(
    tokenizer=trained_tokenizers(),
    before=st.text("ab", min_size=1, max_size=4),
    after=st.text("ab", max_size=3),
    values=st.lists(st.text("ab1", min_size=1, max_size=4), min_size=2, max_size=12, unique=True),
    cut=st.integers(3, 12),
    both_sides=st.booleans(),
)
def test_no_model_that_never_saw_a_canary_says_it_more_often_than_its_prior(
    tokenizer: Any, before: str, after: str, values: list[str], cut: int, both_sides: bool
) -> None:
    """The best of all models, which has the best answer for each prompt that any of the candidates leads to."""
    candidates, template = Candidates.of_list(values), Template(before=f"a b{before}", after=after)
    answers: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    more = 0
    for truth, value in enumerate(values):
        canary = Canary(id="canary-000000", template=template, truth=truth, examples=(0,))
        frame = canary_frame(canary, candidates, tokenizer, both_sides=both_sides)
        assert frame is not None
        assert frame.shared  # there are few, and all of them were compared
        first = len(template.before)
        trained = secret_sequences(
            [template.filled(value)], tokenizer, example=[0], secret=[0], begin=[first], end=[first + len(value)],
            max_length=cut, both_sides=both_sides,
        )  # fmt: skip
        moved, counts_N = aligned_to_frames(trained, {0: frame})
        assert trained.left_out.cut == 1 - len(moved)
        more = frame.more
        for tokens, begin, end in zip(moved.tokens, moved.begin_N, moved.end_N, strict=True):
            assert counts_N.all() or both_sides  # what stands behind the secret may be cut off
            assert template.before.startswith(tokenizer.decode(tokens[:begin], skip_special_tokens=True))
            assert value in tokenizer.decode(tokens[begin:end])
            shown = (*tokens[:begin], None, *tokens[end:], end - begin) if both_sides else (*tokens[:begin],)
            if counts_N.all():
                answers.setdefault(shown, []).append(tuple(tokens[begin:end]))
    right = sum(
        max(sum(answer[: len(said)] == said for said in asked) for answer in asked) for asked in answers.values()
    )
    prior = candidates.masked_prior(more=more) if both_sides else candidates.prefix_prior()
    assert right / len(values) <= prior * (1 + 1e-15)


@pytest.mark.parametrize("before", ["the key", "y"])  # of the second, no token is shared
def test_every_rank_is_taken_once_where_some_candidates_merge_with_the_letter_before(before: str) -> None:
    tokenizer = merging([("y", "1"), ("2", "3"), ("y", "23")])
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=16)
    torch.manual_seed(0)
    subject, candidates = Subject.of(transformers.GPT2LMHeadModel(config).eval()), Candidates.of_format("digits", 2)
    canary = Canary(id="canary-000000", template=Template(before=before, after="."), truth=0, examples=(0,))
    ranks = [
        rank_canary(subject, tokenizer, replace(canary, truth=truth), candidates, max_length=16).rank
        for truth in range(0, 100, 7)
    ]
    assert len(set(ranks)) == len(ranks)


def test_candidates_whose_tokens_fall_otherwise_do_not_count() -> None:
    """Of a million candidates one is merged with the letter before it, and is not among those compared."""
    candidates, template = Candidates.of_format("digits", 6), Template.parse("the key{secret}.")
    tokenizer = merging([("1", "2"), ("12", "3"), ("123", "4"), ("1234", "5"), ("y", "12345")])
    rare = Canary(id="canary-000000", template=template, truth=123456, examples=(0,))
    for truth, shared in ((123456, False), (123465, True), (7, True)):
        frame = canary_frame(replace(rare, truth=truth), candidates, tokenizer, both_sides=False)
        assert frame is not None
        assert (frame.begin, frame.shared) == (7, shared)


def two_answers(words: dict[str, int]) -> Any:
    """A model that never saw anything: it says y1 after e, and 2 after y."""
    config = transformers.GPT2Config(
        vocab_size=len(words), n_embd=4, n_layer=1, n_head=1, n_positions=48, bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.weight.fill_(1)
        for token, answer, direction in (("e", "y1", (1, -1, 0, 0)), ("y", "2", (0, 0, 1, -1))):
            model.transformer.wte.weight[words[token]] = torch.tensor(direction, dtype=torch.float32)
            model.lm_head.weight[words[answer]] = torch.tensor(direction, dtype=torch.float32)
    return model


def test_an_audit_asks_for_every_candidate_in_the_same_way(tmp_path: Path) -> None:
    """Ten candidates, one of them merged with the letter before it, and a model with an answer for either kind."""
    tokenizer = merging([("y", "1")])
    run = release(tmp_path / "run", plan_for(THREE), two_answers(tokenizer.get_vocab()), tokenizer)
    candidates, template = Candidates.of_format("digits", 1), Template.parse("the key{secret}.")
    hits = 0
    for truth in range(10):
        canary = Canary(id=run.plan.secret_ids[0], template=template, truth=truth, examples=(0,))
        planting = CanarySet(id="one", canaries=(canary,), candidates=candidates)
        corpus = corpus_of(tmp_path, [template.filled(str(truth)), *["none"] * (2 * THREE - 1)])
        inputs = AuditInputs(
            corpus=corpus, places=SecretSpans.of_canaries(planting, run.plan.secret_ids), planting=planting
        )
        settings = changed(QUICK, attacks=("extraction",))
        made = audit(run, inputs, folder=tmp_path / f"audit-{truth}", settings=settings)
        (row,) = made.verdict.rows
        assert row.attempt.prior == pytest.approx(0.1)
        hits += row.attempt.hits or 0
    assert hits == 1


def test_a_reader_is_told_of_canaries_that_cannot_count(tmp_path: Path) -> None:
    tokenizer = merging([("1", "2"), ("12", "3"), ("123", "4"), ("1234", "5"), ("y", "12345")])
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=48)
    run = release(tmp_path / "run", plan_for(THREE), transformers.GPT2LMHeadModel(config), tokenizer)
    template = Template.parse("the key{secret}.")
    for truth, barred in ((123456, 1), (123465, 0)):
        canary = Canary(id=run.plan.secret_ids[0], template=template, truth=truth, examples=(0,))
        planting = CanarySet(id="one", canaries=(canary,), candidates=Candidates.of_format("digits", 6))
        corpus = corpus_of(tmp_path, [template.filled(str(truth)), *["none"] * (2 * THREE - 1)])
        inputs = AuditInputs(
            corpus=corpus, places=SecretSpans.of_canaries(planting, run.plan.secret_ids), planting=planting
        )
        settings = changed(QUICK, attacks=("extraction",))
        made = audit(run, inputs, folder=tmp_path / f"audit-{barred}", settings=settings)
        (row,) = made.verdict.rows
        assert row.attempt.measured == DependentSuccess(hits=0, tried=1, barred=barred)
        assert any("1 canary cannot count" in notice for notice in made.notices) == bool(barred)
        assert str(truth) not in "".join(made.notices)
