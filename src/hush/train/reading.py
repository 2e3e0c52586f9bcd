"""The data of a plan as tokens: read once, fingerprinted in the same pass, with labels where only a part is learnt.

Rows that became texts by a rendering (:mod:`hush.data.chat`) are tokenised as their template wrote them, and what is
learnt of them may be their answers alone. Which characters these are is known from the rendering, so the labels of a
skeleton follow from public text (:mod:`hush.train.slots.texts`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.arrays import Progress
from hush.data import Corpus
from hush.data.chat import Learn, Range, covered_tokens
from hush.errors import InvalidInput, Setting
from hush.keys import DataKey
from hush.numbers import counted
from hush.plan import Plan
from hush.scan.long_texts.unread import Unread, read_by_encodings
from hush.train.language_models import IGNORED, TokenizedTexts
from hush.train.pretrained import Pretrained
from hush.train.slots.texts import SlotTexts

__all__ = ["as_rendered", "learnt_texts", "tokenised", "unlearnt"]


TEXTS_PER_CALL = 1000  # that a tokenizer gets at once


def learnt_texts(corpus: Corpus, learn: Learn | None) -> Iterator[tuple[str, Sequence[Range] | None]]:
    """Every text with the ranges of it that are learnt; None: all of it."""
    if corpus.rendering is None:
        if learn not in (None, "all"):
            raise InvalidInput(
                "the data are texts, without answers that could be learnt alone; leave it out",
                setting="learn",
                value=learn,
            )
        yield from ((text, None) for text in corpus.texts())
    elif corpus.rendering.learns(learn) == "all":
        yield from ((text, None) for text in corpus.texts())
    else:
        for example, (text, answers) in enumerate(corpus.texts_with_answers()):
            if answers is None:
                raise InvalidInput(
                    f"of example {example} it cannot be told what is an answer: the chat template does not mark it "
                    "({% generation %}), and renders the beginning of a conversation in another way than the whole; "
                    "name a template that marks answers, and scan again, or learn everything: ",
                    Setting("learn"),
                    "=all",
                    setting="learn",
                )
            yield text, answers


def tokenised(
    corpus: Corpus,
    pretrained: Pretrained,
    key: DataKey | None,
    reading: Progress | None = None,
    *,
    holds_N: NDArray[np.bool_] | None = None,
    learn: Learn | None = None,
) -> tuple[TokenizedTexts, str | None]:
    """Every example as tokens, and the fingerprint of the texts they were made from: the data is read once.

    holds_N: which examples contain a secret, to count those that are truncated.
    """
    tokens: list[NDArray[np.int32]] = []
    labels: list[NDArray[np.int32]] = []
    lengths, reads = list[int](), list[int]()

    def texts_read() -> Iterator[str]:
        for part in _chunks(learnt_texts(corpus, learn)):
            texts, learnt = [text for text, _ in part], [ranges for _, ranges in part]
            made = encoded(pretrained.tokenizer, texts, pretrained.max_length, offsets=learnt[0] is not None)
            rows = [np.asarray(row, dtype=np.int32) for row in made["input_ids"]]
            tokens.extend(rows)
            if learnt[0] is not None:
                offsets = made["offset_mapping"]
                labels.extend(map(_learnt_labels, rows, offsets, learnt))  # pyright: ignore[reportArgumentType]
            lengths.extend(map(len, texts))
            reads.extend(read_by_encodings(texts, made).tolist())
            if reading is not None:
                reading(len(tokens), len(corpus))
            yield from texts

    fingerprint = None
    if key is not None:
        fingerprint = key.fingerprint_rows(texts_read())
    else:
        for _ in texts_read():
            pass
    rows = TokenizedTexts(tokens, labels or None)  # pyright: ignore[reportArgumentType]
    rows.unread = Unread.of(lengths, reads, holds_N=False if holds_N is None else holds_N)
    return rows, fingerprint


def encoded(tokenizer: Any, texts: list[str], max_length: int, *, offsets: bool) -> Any:
    """The texts as tokens, with the characters that each token stands for if these are asked for."""
    if not offsets:
        return tokenizer(texts, truncation=True, max_length=max_length)
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidInput(
            "the tokenizer does not tell which characters a token stands for, so it cannot be told which tokens are an "
            "answer; use a model with a fast tokenizer, or learn everything",
            setting="learn",
        )
    return tokenizer(texts, truncation=True, max_length=max_length, return_offsets_mapping=True)


def _learnt_labels(
    tokens: NDArray[np.int32], offsets: Sequence[tuple[int, int]], learnt: Sequence[Range]
) -> NDArray[np.int32]:
    return np.where(covered_tokens(offsets, learnt), tokens, IGNORED).astype(np.int32)


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == TEXTS_PER_CALL:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def as_rendered(pretrained: Pretrained, corpus: Corpus) -> Pretrained:
    """The model with a tokenizer that reads texts as their template wrote them; refuses another template.

    A template that the user named is released with the model, whose own would show it other texts.
    """
    rendering = corpus.rendering
    if rendering is None:
        return pretrained
    rendering.check_tokenizer(pretrained.tokenizer)
    if rendering.template is not None and not rendering.template.of_model:
        pretrained.tokenizer.chat_template = rendering.template.source
    return replace(pretrained, tokenizer=rendering.tokenizer(pretrained.tokenizer))


def unlearnt(tokens: TokenizedTexts | SlotTexts, plan: Plan) -> str:
    """What to say before training where nothing of a secret is learnt; empty if that is not so. For the owner only."""
    bearing = np.flatnonzero(plan.incidence.secrets_per_example > 0).tolist()
    rows = [tokens[example] for example in bearing]
    silent = sum("labels" in row and not bool((row["labels"] != IGNORED).any()) for row in rows)
    if not silent:
        return ""
    return (
        f"Of {counted(len(bearing), 'example')} with a secret, {silent:,} teach the private rounds nothing: their "
        "secrets are outside of what is learnt, such as in a prompt, or were cut off. With learn: all they are learnt, "
        "and with part: difference what they change in an answer."
    )
