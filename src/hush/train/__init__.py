"""Stage 5, training: draws, per-example clipping in one backward pass, noise, checkpoints, front doors. Needs torch.

Each name loads its module on first use: Transformers is imported for HushTrainer alone. ``Corpus`` is the name that
``TokenizedTexts`` had in 0.1.0.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.train.clipping import Clipper
    from hush.train.hf.config import HushConfig
    from hush.train.hf.preparation import training_texts
    from hush.train.hf.trainer import HushTrainer
    from hush.train.language_models import (
        CausalCollator,
        DifferenceLoss,
        MaskedCollator,
        TokenizedTexts,
        causal_lm_loss,
        classification_loss,
        default_loss,
        masked_lm_loss,
        tokenise,
    )
    from hush.train.preferences import DPOLoss, PairCollator, PreferencePairs, pair_texts, tokenise_pairs
    from hush.train.private_training import PrivateTraining
    from hush.train.public.down_projections import freeze_down_projections
    from hush.train.public.first import PublicOutcome, learn_public
    from hush.train.public.metric import PublicMetric
    from hush.train.public.stream import PublicStream
    from hush.train.settings import PublicFirst
    from hush.train.slots.batches import Batches, SkeletonBatches
    from hush.train.slots.texts import SlotTexts, add_placeholder_tokens, tokenise_slots
    from hush.train.trainable import train_only

__all__ = [
    "Batches",
    "CausalCollator",
    "Clipper",
    "DPOLoss",
    "DifferenceLoss",
    "HushConfig",
    "HushTrainer",
    "MaskedCollator",
    "PairCollator",
    "PreferencePairs",
    "PrivateTraining",
    "PublicFirst",
    "PublicMetric",
    "PublicOutcome",
    "PublicStream",
    "SkeletonBatches",
    "SlotTexts",
    "TokenizedTexts",
    "add_placeholder_tokens",
    "causal_lm_loss",
    "classification_loss",
    "default_loss",
    "freeze_down_projections",
    "learn_public",
    "masked_lm_loss",
    "pair_texts",
    "tokenise",
    "tokenise_pairs",
    "tokenise_slots",
    "train_only",
    "training_texts",
]


_HOME = {
    "Batches": "slots.batches",
    "CausalCollator": "language_models",
    "Clipper": "clipping",
    "DPOLoss": "preferences",
    "DifferenceLoss": "language_models",
    "HushConfig": "hf.config",
    "HushTrainer": "hf.trainer",
    "MaskedCollator": "language_models",
    "PairCollator": "preferences",
    "PreferencePairs": "preferences",
    "PrivateTraining": "private_training",
    "PublicFirst": "settings",
    "PublicMetric": "public.metric",
    "PublicOutcome": "public.first",
    "PublicStream": "public.stream",
    "SkeletonBatches": "slots.batches",
    "SlotTexts": "slots.texts",
    "TokenizedTexts": "language_models",
    "add_placeholder_tokens": "slots.texts",
    "causal_lm_loss": "language_models",
    "classification_loss": "language_models",
    "default_loss": "language_models",
    "freeze_down_projections": "public.down_projections",
    "learn_public": "public.first",
    "masked_lm_loss": "language_models",
    "pair_texts": "preferences",
    "tokenise": "language_models",
    "tokenise_pairs": "preferences",
    "tokenise_slots": "slots.texts",
    "train_only": "trainable",
    "training_texts": "hf.preparation",
}


_NAMES_OF_0_1_0 = {"Corpus": "TokenizedTexts"}  # old name -> name; they still work, but __all__ leaves them out


def __getattr__(name: str) -> Any:
    name = _NAMES_OF_0_1_0.get(name, name)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"hush.train.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
