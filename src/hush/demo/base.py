"""The model that every arm begins with: the small one of ``hush run``, over bytes, without dropout.

Its tokenizer has seen no data. Dropout is for models that see their data many times; here it would only blur.
"""

import tempfile
from pathlib import Path

from hush.config.sections import SmallModel
from hush.demo.sizes import Size
from hush.pipeline.base_model import base_model
from hush.storage import whole_folder

__all__ = ["write_model"]


def write_model(folder: Path, size: Size) -> Path:
    """Write model and tokenizer; the same size gives the same weights."""
    from transformers import AutoTokenizer, GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as work, whole_folder(folder) as target:
        made = base_model(Path(work), SmallModel(**size.model))
        GPT2LMHeadModel.from_pretrained(made, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).save_pretrained(target)
        AutoTokenizer.from_pretrained(made).save_pretrained(target)
    return folder
