"""Extraction: the same fractions as a plain loop over generate, in batches of any size."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memorising import (
    byte_model,
    byte_tokenizer,
    edits,
    generated,
    tiny,
    with_lora,
)

from hush.audit.extraction import Extraction, edit_distances, extract, extract_batches
from hush.audit.models import Subject, evaluation_mode, greedy_tokens, load_subject, matching_tokens
from hush.audit.sequences import Grid, Sequences, secret_sequences
from hush.audit.settings import Continuation
from hush.errors import InvalidInput

TOKENIZER = byte_tokenizer()
COUNT = 12


# --- agreement with plain loops


@cache
def case(family: str) -> tuple[Any, Sequences]:
    """A model with random weights, and texts that it says itself up to some token, or nearly."""
    model: Any = tiny(family).double().eval()  # in double precision no rounding decides which token is likeliest
    rng = np.random.default_rng(0)
    rows, begins = [], []
    for number in range(24):
        begin = int(rng.integers(2, 9))
        prompt = rng.integers(3, 97, begin).tolist()
        said = greedy_tokens(Subject.of(model), torch.tensor([prompt]), 12)[0].tolist()
        if number % 3:  # another token somewhere
            said[int(rng.integers(12))] = int(rng.integers(3, 97))
        rows.append(prompt + said[: int(rng.integers(6, 13))])
        begins.append(begin)
    ends = [begin + 1 + number % 5 for number, begin in enumerate(begins)]
    return model, Sequences.of(rows, begin=begins, end=ends, secret=np.arange(24) // 2)


PROMPTS = (2, 4, 7)
CONTINUATIONS: tuple[Continuation, ...] = (1, 3, 6, "secret")


@pytest.mark.parametrize("similarity", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_fractions_are_those_of_a_plain_loop_over_generate(family: str, similarity: bool) -> None:
    model, sequences = case(family)
    subject = Subject.of(model)
    end = model.generation_config.eos_token_id
    found = extract(
        subject,
        sequences,
        prompts=PROMPTS,
        continuations=CONTINUATIONS,
        similarity=similarity,
        end_tokens=[end],
        batch_size=7,
    )
    rows = [row.tolist() for row in sequences.tokens]
    rates = []
    for prompt in PROMPTS:
        said = [
            generated(model, row[begin - prompt : begin], 6) if begin >= prompt else None
            for row, begin in zip(rows, sequences.begin_N, strict=True)
        ]
        for continuation in CONTINUATIONS:
            hits, similar, short = [], [], 0
            for row, begin, stop, words in zip(rows, sequences.begin_N, sequences.end_N, said, strict=True):
                width = stop - begin if continuation == "secret" else int(continuation)
                if words is None or begin + width > len(row):
                    short += 1
                    continue
                hits.append(words[:width] == row[begin : begin + width])
                similar.append(1 - edits(words[:width], row[begin : begin + width]) / width)
            cell = found.cell(prompt, continuation)
            assert (cell.success.hits, cell.success.runs, cell.short) == (sum(hits), len(hits), short)
            if similarity:
                assert cell.similarity == pytest.approx(np.mean(similar), abs=1e-12)
            rates.append(cell.success.rate)
    assert [cell.success.rate for cell in found.cells()] == rates
    assert 0 < max(rates) < 1
    assert len(set(rates)) > 3


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_batches_and_pieces_change_nothing(family: str) -> None:
    """Gemma's window of 4 is shorter than the pieces in which targets are walked along."""
    model, _ = case(family)
    subject = Subject.of(model)
    prompts = torch.randint(3, 97, (9, 5), generator=torch.Generator().manual_seed(1))
    said = greedy_tokens(subject, prompts, 26)
    target = said.clone()
    for row, place in enumerate([0, 3, 7, 8, 9, 20, 23, 25]):
        target[row, place] = (target[row, place] + 1) % 97
    assert matching_tokens(subject, prompts, target).tolist() == [0, 3, 7, 8, 9, 20, 23, 25, 26]
    target[7, 10:] = -1
    assert matching_tokens(subject, prompts, target)[7] == 10
    alone = torch.cat([greedy_tokens(subject, prompts[row : row + 1], 26) for row in range(9)])
    assert torch.equal(said, alone)


@given(data=st.data(), width=st.integers(1, 7), rows=st.integers(1, 4))
def test_edit_distances_are_those_of_the_recursion(data: st.DataObject, width: int, rows: int) -> None:
    tokens = st.lists(st.lists(st.integers(0, 2), min_size=width, max_size=width), min_size=rows, max_size=rows)
    said, target = np.array(data.draw(tokens)), np.array(data.draw(tokens))
    length = np.array(data.draw(st.lists(st.integers(0, width), min_size=rows, max_size=rows)))
    widths = np.array(data.draw(st.lists(st.lists(st.integers(1, width), min_size=3, max_size=3), min_size=rows,
                                         max_size=rows)))  # fmt: skip
    found = edit_distances(said, length, target, widths)
    for row in range(rows):
        for column in range(3):
            wide = int(widths[row, column])
            one, other = said[row, : min(wide, length[row])].tolist(), target[row, :wide].tolist()
            assert found[row, column] == edits(one, other)


def test_lead_tokens_stand_before_prompts_cut_from_the_middle_only() -> None:
    model, _ = case("llama")
    subject = Subject.of(model)
    rng = np.random.default_rng(3)
    whole = rng.integers(3, 97, 5).tolist()
    middle, start = [1, *whole], whole
    rows = []
    for shown in (middle, start):
        rows.append(generated(model, shown, 4))
    sequences = Sequences.of([[9, *whole, *rows[0]], [*whole, *rows[1]]], begin=[6, 5])
    assert extract(subject, sequences, prompts=[5], continuations=[4], lead=[1]).cell(5, 4).success.hits == 2
    assert rows[0] != rows[1]
    assert extract(subject, sequences, prompts=[5], continuations=[4]).hits(5, 4).tolist() == [False, True]


def test_adapters_are_extracted_from_like_the_model_they_make(tmp_path: Path) -> None:
    base, adapters = tmp_path / "base", tmp_path / "adapters"
    byte_model().save_pretrained(base)
    TOKENIZER.save_pretrained(base)
    adapted: Any = with_lora(load_subject(str(base))[0].model, targets=["c_attn"])
    adapted.save_pretrained(adapters)
    prompts = torch.randint(1, 257, (3, 4), generator=torch.Generator().manual_seed(0))
    said = greedy_tokens(Subject.of(adapted), prompts, 6)
    subject, _ = load_subject(str(adapters))
    assert matching_tokens(subject, prompts, said).tolist() == [6, 6, 6]
    assert said[0].tolist() == generated(adapted.merge_and_unload(), prompts[0].tolist(), 6)
    (adapters / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="does not name the model of the adapters"):
        load_subject(str(adapters))


# --- batches, progress


def test_batches_go_on_where_an_earlier_try_stopped() -> None:
    model, sequences = case("gpt2")
    subject = Subject.of(model)
    grid = Grid.of(sequences, subject, prompts=[2, 4], continuations=[3])
    told: list[tuple[int, int]] = []
    whole = list(extract_batches(subject, grid, batch_size=5, progress=lambda done, total: told.append((done, total))))
    assert told[0] == (0, told[0][1])
    assert told[-1] == (told[0][1], told[0][1])
    assert told == sorted(told)
    early = whole[:3]
    late = list(extract_batches(subject, grid, batch_size=4, done=early))
    assert sum(len(one.rows) for one in early + late) == sum(len(one.rows) for one in whole)
    assert (Extraction.gather(grid, early + late).matched_NK == Extraction.gather(grid, whole).matched_NK).all()
    with pytest.raises(InvalidInput, match="were not tried yet"):
        Extraction.gather(grid, early)


def test_a_device_without_memory_gets_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    import hush.audit.extraction as module

    model, sequences = case("gpt2")
    subject = Subject.of(model)
    expected = extract(subject, sequences, prompts=[2], continuations=[3]).matched_NK
    sizes = []

    def limited(subject: Subject, prompt: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if len(prompt) > 3:
            raise torch.OutOfMemoryError
        sizes.append(len(prompt))
        return matching_tokens(subject, prompt, target)

    monkeypatch.setattr(module, "matching_tokens", limited)
    assert (extract(subject, sequences, prompts=[2], continuations=[3]).matched_NK == expected).all()
    assert max(sizes) <= 3


def test_the_models_mode_is_put_back() -> None:
    model = tiny("gpt2").train()
    model.get_submodule("transformer.h.0").eval()
    before = [module.training for module in model.modules()]
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before


# --- refusals


def refused(match: str, sequences: Sequences | None = None, **more: Any) -> None:
    sequences = Sequences.of([[5, 6, 7, 8, 9, 10]], begin=3) if sequences is None else sequences
    options: dict[str, Any] = {"prompts": [2], "continuations": [2]} | more
    with pytest.raises(InvalidInput, match=match):
        extract(Subject.of(tiny("gpt2")), sequences, **options)


def test_what_cannot_be_tried_is_refused_with_the_reason() -> None:
    refused("at least one", Sequences.of([], begin=[]))
    refused("prompt of 4 tokens and a continuation of 2 tokens.*at most 3", prompts=[2, 4])
    refused("continuation of 4 tokens: the longest sequence has 6", continuations=[4])
    refused("model takes 32", Sequences.of([list(range(60))], begin=30), prompts=[30], continuations=[5])
    refused("vocabulary of 97 tokens", Sequences.of([[5, 6], [5, 971_234]], begin=1), prompts=[1], continuations=[1])
    refused("lead holds", lead=[97])
    refused("from 0 to 96", end_tokens=[97])
    refused("at least 1", prompts=[0])
    refused("at least 1", batch_size=0)
    refused("no length", continuations=[])
    refused("different", continuations=[2, 2])
    with pytest.raises(InvalidInput, match="target from 2 to 2"):
        Sequences.of([[1, 2]], begin=2)
    with pytest.raises(InvalidInput, match="negative"):
        Sequences.of([[1, -2]], begin=1)
    with pytest.raises(InvalidInput, match="give each sequence one"):
        Sequences.of([[1, 2]], begin=[1, 1])
    with pytest.raises(InvalidInput, match="no Hugging Face"):
        Subject.of(torch.nn.Linear(2, 2))


def test_no_error_and_no_repr_shows_a_token_or_a_text() -> None:
    with pytest.raises(InvalidInput) as error:
        secret_sequences(["password hunter2"], TOKENIZER, example=[0], secret=[0], begin=[9], end=[99])
    assert "hunter2" not in str(error.value)
    with pytest.raises(InvalidInput, match="hold 1 example; pass the data"):
        secret_sequences(["password"], TOKENIZER, example=[4], secret=[0], begin=[0], end=[2])
    sequences = Sequences.of([[5, 6, 96, 8]], begin=2)
    subject = Subject.of(tiny("gpt2"))
    found = extract(subject, sequences, prompts=[2], similarity=True)
    batch = next(extract_batches(subject, found.grid))
    for one in (sequences, subject, found, batch):
        assert "96" not in repr(one)
