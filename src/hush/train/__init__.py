"""Stage 5, training: draws, per-example clipping in one backward pass, noise, checkpoints, front doors. Needs torch.

Each name loads its module on first use: Transformers is imported for HushTrainer alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.train.clipping import Clipper
    from hush.train.collate import CausalCollator, Corpus, MaskedCollator
    from hush.train.language import causal_lm_loss, classification_loss, default_loss, masked_lm_loss
    from hush.train.private import PrivateTraining
    from hush.train.public import PublicStream
    from hush.train.trainer import HushTrainer

__all__ = [
    "CausalCollator",
    "Clipper",
    "Corpus",
    "HushTrainer",
    "MaskedCollator",
    "PrivateTraining",
    "PublicStream",
    "causal_lm_loss",
    "classification_loss",
    "default_loss",
    "masked_lm_loss",
]

_HOME = {
    "CausalCollator": "collate",
    "Clipper": "clipping",
    "Corpus": "collate",
    "HushTrainer": "trainer",
    "MaskedCollator": "collate",
    "PrivateTraining": "private",
    "PublicStream": "public",
    "causal_lm_loss": "language",
    "classification_loss": "language",
    "default_loss": "language",
    "masked_lm_loss": "language",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"hush.train.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
