"""A corpus that the user states to be public: its texts as tokens, without those of examples with a secret."""

from functools import partial
from itertools import islice

import numpy as np
import torch

from hush.data import Corpus, read_corpus
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.train.language_models import TokenizedTexts
from hush.train.pretrained import Pretrained
from hush.train.public.metric import PublicMetric
from hush.train.public.stream import Collate
from hush.train.settings import MetricSettings
from hush.train.slots.batches import Batches
from hush.train.slots.texts import SlotTexts

__all__ = ["metric_of_settings", "refuse_private_texts", "tokenised_sample"]


MAX_TEXTS = 10_000  # of a corpus: a measurement draws some hundreds of them


def metric_of_settings(
    settings: MetricSettings,
    plan: Plan,
    tokens: TokenizedTexts | SlotTexts,
    collate: Collate,
    pretrained: Pretrained,
    *,
    micro_batch: int,
    device: torch.device,
) -> PublicMetric:
    """The metric that these settings ask for: of what is public of the data by ``collate``, or of their corpus."""
    stated = settings.model_dump(exclude={"corpus"}) | {"micro_batch": micro_batch}
    if settings.corpus is None:
        return PublicMetric.of_plan(plan, collate, **stated)
    texts = tokenised_sample(read_corpus(settings.corpus), pretrained)
    refuse_private_texts(texts, tokens, plan)
    batches = Batches(texts, pretrained.collator(pretrained.max_length), device)
    return PublicMetric.of_corpus(len(texts), partial(batches.of, round=0), **stated)


def tokenised_sample(corpus: Corpus, pretrained: Pretrained, *, most: int = MAX_TEXTS) -> TokenizedTexts:
    """Up to so many texts of a corpus, evenly spaced, as tokens; longer texts are truncated to what the model reads."""
    step = max(1, -(-len(corpus) // most))
    sample = list(islice(corpus.texts(), 0, None, step))
    rows = pretrained.tokenizer(sample, truncation=True, max_length=pretrained.max_length)["input_ids"]
    return TokenizedTexts([np.asarray(row, dtype=np.int32) for row in rows])  # pyright: ignore[reportArgumentType]


def refuse_private_texts(public: TokenizedTexts, tokens: TokenizedTexts | SlotTexts, plan: Plan) -> None:
    """Refuse a corpus that has a text of an example with a secret, as far as both are tokenised."""
    stated = {public[row]["input_ids"].tobytes() for row in range(len(public))}
    bearing = np.flatnonzero(plan.incidence.secrets_per_example > 0).tolist()
    shared = sum(np.asarray(tokens[example]["input_ids"], dtype=np.int32).tobytes() in stated for example in bearing)
    if shared:
        raise InvalidInput(
            f"{shared} of the examples with a secret are also in the corpus that is stated to be public; pass a corpus "
            "without them",
            setting="metric.corpus",
        )
