"""The personal data rule: names, e-mail addresses, phone numbers and other entities that Presidio recognises.

It runs a spaCy model that is installed on the machine and, if one is named, a GLiNER model (gliner.py); nothing is
downloaded. Long texts are read in overlapping windows.
"""

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.finders.gliner import gliner_recognizer
from hush.scan.hits import DeclaredSecret, Hits, SpanList, pickled_fields

__all__ = ["PersonalData"]


WINDOW_CHARACTERS = 100_000  # a spaCy model needs about a gigabyte of memory for this many
OVERLAP_CHARACTERS = 2_000  # longer than any name or number
TEXT_LOGGERS = ("presidio-analyzer", "decision_process", "tldextract", "spacy", "gliner")


@final
@dataclass(frozen=True, kw_only=True)
class PersonalData:
    """Finds what Presidio recognises as one of these entities (PERSON, EMAIL_ADDRESS, ...) with at least this score.

    model: a spaCy pipeline, named by its package or its folder. gliner: a GLiNER model, by its folder or its name.
    labels: what it looks for in plain words, and the entity of each; without them, the names of the entities in small
    letters. A secret's key is the text found.
    """

    entities: Sequence[str]
    language: str = "en"
    score: float = 0.5
    model: str = "en_core_web_lg"
    gliner: str | None = None
    labels: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.entities, str) or not self.entities:
            raise InvalidInput("entities is empty or a string; pass a list of names, such as PERSON and EMAIL_ADDRESS")
        object.__setattr__(self, "entities", tuple(self.entities))
        if not 0.0 <= self.score <= 1.0:
            raise InvalidInput(f"score={self.score!r} is not a confidence; pass a number from 0 to 1")
        if find_spec("presidio_analyzer") is None:
            raise InvalidInput(
                'the personal data rule needs the package presidio-analyzer; run pip install "hush[pii]"'
            )
        if not (Path(self.model).is_dir() or (self.model.isidentifier() and find_spec(self.model) is not None)):
            raise _no_model(self.model)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return ()

    def find(self, block: Block) -> Hits:
        hits = SpanList()
        for example, text in enumerate(block.strings):
            for begin, end, entity in self._recognised(text):
                hits.add(example, begin, end, text[begin:end], f"entity {entity}")
        return hits.hits()

    def _recognised(self, text: str) -> Iterator[tuple[int, int, str]]:
        for start in range(0, max(len(text) - OVERLAP_CHARACTERS, 1), WINDOW_CHARACTERS - OVERLAP_CHARACTERS):
            stop = start + WINDOW_CHARACTERS
            # Each window reports entities that begin in its middle; the first and the last also those at the ends.
            first = start + OVERLAP_CHARACTERS // 2 if start else 0
            last = stop - OVERLAP_CHARACTERS // 2 if stop < len(text) else len(text)
            results = self._engine.analyze(
                text[start:stop], self.language, entities=list(self.entities), score_threshold=self.score
            )
            for result in results:
                if first <= start + result.start < last and result.start < result.end:
                    yield start + result.start, start + result.end, result.entity_type

    @cached_property
    def _engine(self) -> Any:
        import spacy
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import SpacyNlpEngine

        if not (Path(self.model).is_dir() or spacy.util.is_package(self.model)):
            raise _no_model(self.model)  # Presidio would download it
        for name in TEXT_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # they may log texts
        _keep_domain_names_offline()
        language_model = SpacyNlpEngine(models=[{"lang_code": self.language, "model_name": self.model}])
        try:
            language_model.load()
        except (OSError, ValueError):
            raise InvalidInput(f"{self.model!r} cannot be loaded as a spaCy model; name one that can") from None
        engine = AnalyzerEngine(nlp_engine=language_model, supported_languages=[self.language])
        if self.gliner is not None:
            labels = self.labels or {entity.lower().replace("_", " "): entity for entity in self.entities}
            engine.registry.add_recognizer(
                gliner_recognizer(model=self.gliner, labels=labels, language=self.language, score=self.score)
            )
        known = sorted(engine.get_supported_entities(self.language))
        for entity in self.entities:
            if entity not in known:
                near = difflib.get_close_matches(str(entity), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise InvalidInput(f"there is no entity {entity!r} for the language {self.language!r}; {hint}")
        return engine

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)


def _no_model(name: str) -> InvalidInput:
    return InvalidInput(
        f"the spaCy model {name!r} is not installed, and a scan downloads nothing; run "
        f"python -m spacy download {name}, or name another model or the folder of one"
    )


def _keep_domain_names_offline() -> None:
    """Makes Presidio check e-mail addresses against the installed list of top-level domains, not one on the network."""
    import tldextract
    from presidio_analyzer.predefined_recognizers.generic import email_recognizer

    class InstalledList:
        extract = staticmethod(tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None))

    setattr(email_recognizer, "tldextract", InstalledList)  # noqa: B010 - a module's import, not its interface
