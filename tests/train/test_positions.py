"""Rotary positions that follow the longest text: harmless up to a length, which no batch of a training passes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from reference import EXAMPLES, small_plan
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PreTrainedTokenizerFast

from hush.errors import InvalidInput
from hush.train.language_models import causal_lm_loss
from hush.train.preconditions import most_positions, positions_of
from hush.train.pretrained import model_metadata
from hush.train.private_training import PrivateTraining

LIMIT = 16
SHAPE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 24, "initializer_range": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
CONFIGS = {
    "dynamic": LlamaConfig(
        **SHAPE,
        max_position_embeddings=LIMIT,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},  # pyright: ignore[reportArgumentType]
    ),
    "longrope": Phi3Config(
        **SHAPE,
        max_position_embeddings=4 * LIMIT,
        original_max_position_embeddings=LIMIT,
        rope_parameters=LONG,  # pyright: ignore[reportArgumentType]
    ),
}


def language_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name]).train()


def batch_of(*lengths: int) -> dict[str, Tensor]:
    inside = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(3, 90, (len(lengths), 40), generator=torch.Generator().manual_seed(0))
    tokens = tokens[:, : max(lengths)].masked_fill(~inside, 0)
    return {"input_ids": tokens, "attention_mask": inside.long(), "labels": tokens.masked_fill(~inside, -100)}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_loss_follows_its_neighbours_beyond_the_limit_and_not_up_to_it(name: str) -> None:
    model = language_model(name)
    assert most_positions(model) == LIMIT
    with torch.no_grad():
        alone, within, beyond = (
            float(causal_lm_loss(model, batch_of(*lengths))[0]) for lengths in ((8,), (8, LIMIT), (8, LIMIT + 1))
        )
    assert within == pytest.approx(alone, rel=1e-5)
    assert beyond != pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_beyond_the_limit_is_refused_whenever_it_comes(name: str) -> None:
    model = language_model(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = PrivateTraining(
        model, optimizer, small_plan(), loss=causal_lm_loss, micro_batch=EXAMPLES, insecure_seed=1
    )
    rounds = private.rounds()
    for length in (LIMIT, LIMIT + 1):
        (part,) = next(rounds).micro_batches()
        if length == LIMIT:
            private.accumulate(batch_of(*[length] * EXAMPLES), part.real)
            private.step()
        else:
            with pytest.raises(InvalidInput, match=f"{length} tokens in a row, but beyond {LIMIT}"):
                private.accumulate(batch_of(*[length] * EXAMPLES), part.real)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_takes_no_more_tokens_than_its_limit(name: str, tmp_path: Path) -> None:
    CONFIGS[name].save_pretrained(tmp_path)
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a").save_pretrained(tmp_path)
    assert model_metadata(str(tmp_path), task="causal", max_length=LIMIT).max_length == LIMIT
    with pytest.raises(InvalidInput, match=f"takes from 2 to {LIMIT} tokens"):
        model_metadata(str(tmp_path), task="causal", max_length=LIMIT + 1)


def test_fixed_frequencies_know_no_limit() -> None:
    assert positions_of(LlamaConfig(**SHAPE)) is None
    assert most_positions(nn.Linear(2, 2)) is None
