"""GLiNER models for the personal data rule: entities that are named by labels in plain words, in texts of any length.

A GLiNER model reads a few hundred words at once, and what is beyond is cut off: with a warning after its own number of
words, without one after the tokens of its encoder, among which the labels count. Therefore a text is read in
overlapping windows, and each is measured by the model's own words and tokens before the model gets it.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, final

from hush.errors import InvalidInput

__all__ = ["gliner_recognizer", "read_windows"]


WINDOW_CHARACTERS = 1_500  # about 250 words; models are trained on sentences and paragraphs
OVERLAP_CHARACTERS = 300  # an entity with up to half of this lies whole in the window that reports it
SPECIAL_TOKENS = 8  # at most, around a text and its labels
TOKENS_PER_LABEL = 2  # besides those of its words: the marks before and after it
NO_LIMIT = 10**9  # a tokenizer without a largest length states a huge one


def gliner_recognizer(*, model: str, labels: Mapping[str, str], language: str, score: float) -> Any:
    """Presidio's recognizer of a GLiNER model that reads all of every text. labels: the entity of each label.

    model: a folder, or a name of the Hugging Face hub that was downloaded before. Nothing is downloaded.
    """
    if find_spec("gliner") is None:
        raise InvalidInput('gliner needs the package gliner; run pip install "hush[gliner]"')
    from presidio_analyzer.predefined_recognizers import GLiNERRecognizer

    windows = _Windows()
    try:
        recognizer = GLiNERRecognizer(
            entity_mapping=dict(labels),
            supported_language=language,
            model_name=model,
            threshold=score,
            text_chunker=windows,  # pyright: ignore[reportArgumentType] - only its one method is called
            local_files_only=True,
        )
    except (OSError, ValueError, RuntimeError):  # what it says may quote addresses and keys of weights by the hundred
        raise InvalidInput(
            f"{model!r} cannot be loaded as a GLiNER model; pass its folder, or download it before: a scan downloads "
            "nothing"
        ) from None
    windows.measure = _Measure(recognizer.gliner, list(labels))
    return recognizer


def read_windows(text: str, fits: Callable[[str], bool]) -> Iterator[tuple[int, int, int, int]]:
    """The windows of a text: begin, end, and the first and the last place of the entities that the window reports.

    fits: whether the model reads all of a piece; a piece of one character does. Every place of the text is in exactly
    one of the reported ranges, and except at the ends of the text about half an overlap of context is on either side.

    >>> list(read_windows("abcdefgh", lambda piece: len(piece) <= 4))
    [(0, 4, 0, 3), (2, 5, 3, 5), (4, 8, 5, 8)]
    """
    begin = first = 0
    while True:
        end = min(begin + WINDOW_CHARACTERS, len(text))
        while end - begin > 1 and not fits(text[begin:end]):
            end = begin + (end - begin + 1) // 2
        overlap = min(OVERLAP_CHARACTERS, (end - begin) // 2)
        last = len(text) if end == len(text) else end - overlap // 2
        yield begin, end, first, last
        if end == len(text):
            return
        begin, first = end - overlap, last


@final
class _Measure:
    """Whether a model reads all of a text, with its labels."""

    def __init__(self, model: Any, labels: list[str]) -> None:
        processor = model.data_processor
        self._split, self._tokenizer = processor.words_splitter, processor.transformer_tokenizer
        self._max_words: int = model.config.max_len
        encoder = getattr(model.config, "encoder_config", None)
        positions = getattr(encoder, "max_position_embeddings", None) or NO_LIMIT
        limit = min(self._tokenizer.model_max_length, positions)
        self._max_tokens = limit - SPECIAL_TOKENS - sum(self._tokens([label]) + TOKENS_PER_LABEL for label in labels)
        if 2 * self._max_tokens < limit:
            raise InvalidInput(
                f"the {len(labels)} labels take more than half of the {limit} tokens that the GLiNER model reads; "
                "write several rules, each with some of the entities"
            )

    def __call__(self, text: str) -> bool:
        words = [word for word, _, _ in self._split(text)]
        return len(words) <= self._max_words and self._tokens(words) <= self._max_tokens

    def _tokens(self, words: list[str]) -> int:
        if not words:
            return 0
        encoded = self._tokenizer(words, is_split_into_words=True, truncation=False, add_special_tokens=False)
        return len(encoded["input_ids"])


@final
class _Windows:
    """What Presidio calls a chunker: how a text is shown to the model."""

    measure: Callable[[str], bool]

    def predict_with_chunking(self, text: str, predict_func: Callable[[str], list[Any]]) -> list[Any]:
        results: list[Any] = []
        for begin, end, first, last in read_windows(text, self.measure):
            for result in predict_func(text[begin:end]):
                if first <= begin + result.start < last:
                    result.start, result.end = begin + result.start, begin + result.end
                    results.append(result)
        return results
