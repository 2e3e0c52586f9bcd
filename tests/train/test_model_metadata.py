"""What is asked of a model's folder before anything is trained."""

from pathlib import Path

import pytest

import hush
from hush.train.pretrained import model_metadata


@pytest.mark.parametrize("kind", ["GPT2", "Bert", "Llama"])
def test_a_model_without_a_tokenizer_is_refused_in_whole_words(kind: str, tmp_path: Path) -> None:
    import transformers

    sizes = {"vocab_size": 40, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = getattr(transformers, f"{kind}Config")(**sizes, num_attention_heads=1)
    name = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM", "Llama": "LlamaForCausalLM"}[kind]
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    with pytest.raises(hush.InvalidInput, match="tokenizer") as refused:
        model_metadata(str(tmp_path), task=None, max_length=None)
    assert ":)" not in str(refused.value)
    assert ": )" not in str(refused.value)
