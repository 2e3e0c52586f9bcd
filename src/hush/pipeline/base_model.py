"""A small language model over bytes with random weights, for runs that name none.

Its tokenizer knows the 256 bytes and has seen no data: a tokenizer that was trained on the owner's texts would carry
their words into the release, and no promise covers that.
"""

from pathlib import Path
from typing import Any

from hush.config.sections import SmallModel
from hush.errors import InvalidInput
from hush.storage import whole_folder

__all__ = ["base_model", "base_model_path"]

SPECIAL = ("<pad>", "<end>")


def base_model_path(folder: Path, small: SmallModel) -> Path:
    """Where this model lies below ``folder``."""
    return folder / f"gpt2-bytes-{small.layers}x{small.width}-{small.heads}-{small.length}-{small.seed}"


def base_model(folder: Path, small: SmallModel) -> Path:
    """This model, made unless it is there; the same settings give the same weights."""
    path = base_model_path(folder, small)
    if not path.exists():
        with whole_folder(path) as work:
            _make(work, small)
    return path


def _make(folder: Path, small: SmallModel) -> None:
    try:
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    except ImportError as error:
        raise InvalidInput(f'a small model needs the library {error.name}; pip install "hush[hf]"') from error

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    over_bytes = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    over_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    over_bytes.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=over_bytes, pad_token=SPECIAL[0], eos_token=SPECIAL[1], model_max_length=small.length
    )
    shape: dict[str, Any] = {
        "vocab_size": len(words),
        "n_positions": small.length,
        "n_embd": small.width,
        "n_layer": small.layers,
        "n_head": small.heads,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "pad_token_id": 0,
        # Dropout is for models that see their data many times; here it would only add to the noise.
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(small.seed)
        model: Any = GPT2LMHeadModel(GPT2Config(**shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
