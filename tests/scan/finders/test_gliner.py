"""GLiNER reads all of every text: windows tile the text, each is one that the model reads whole, at any length."""

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from finder_cases import block_of, rows_of, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.scan.finders import PersonalData
from hush.scan.finders.gliner import (
    OVERLAP_CHARACTERS,
    WINDOW_CHARACTERS,
    _Measure,
    _Windows,
    gliner_recognizer,
    read_windows,
)
from hush.scan.rules import Rules

# --- windows


@settings(max_examples=60)
@given(texts | st.text("ab ", max_size=90).map(lambda part: part * 60), st.integers(1, 400), st.sampled_from([1, 7]))
def test_windows_tile_a_text_and_each_fits(text: str, most: int, weight: int) -> None:
    def fits(piece: str) -> bool:  # as tokens do, other characters weigh more
        return sum(1 if char.isascii() else weight for char in piece) <= max(most, weight)

    windows = list(read_windows(text, fits))
    assert all(fits(text[begin:end]) and end - begin <= WINDOW_CHARACTERS for begin, end, _, _ in windows)
    assert [first for _, _, first, _ in windows] == [0, *(last for _, _, _, last in windows)][:-1]
    assert windows[-1][3] == len(text)
    assert all(begin <= first <= last <= end for begin, end, first, last in windows)


@settings(max_examples=30)
@given(st.integers(0, 5_000), st.integers(1, OVERLAP_CHARACTERS // 2 - 1))
def test_an_entity_of_half_an_overlap_is_reported_once_and_whole(at: int, size: int) -> None:
    text = "." * at + "n" * size + "." * 2_000
    found = []
    for begin, end, first, last in read_windows(text, lambda _: True):
        place = text[begin:end].find("n")
        if place >= 0 and first <= begin + place < last:
            found.append((begin + place, text[begin:end].count("n")))
    assert found == [(at, size)]


# --- settings


def test_labels_belong_to_a_model_and_to_the_entities() -> None:
    rule = {"name": "r", "find": "pii", "entities": ["PERSON"], "labels": {"patient": "PERSON"}}
    defaults = {"prior": 1e-10, "ceiling": 1e-3}
    with pytest.raises(InvalidInput, match="labels are for a GLiNER model"):
        Rules.of({"defaults": defaults, "rules": [rule]})
    with pytest.raises(InvalidInput, match="labels lead to an entity that is not among entities"):
        Rules.of({"defaults": defaults, "rules": [rule | {"gliner": "m", "labels": {"drug": "DRUG"}}]})
    Rules.of({"defaults": defaults, "rules": [rule | {"gliner": "m"}]})


def test_without_the_package_it_is_named(monkeypatch) -> None:
    monkeypatch.setattr("hush.scan.finders.gliner.find_spec", lambda _name: None)
    with pytest.raises(InvalidInput, match=r'pip install "hush\[gliner\]"'):
        gliner_recognizer(model="any", labels={"person": "PERSON"}, language="en", score=0.5)


# --- a model, trained here to find names


@pytest.fixture(scope="module")
def spacy_model(tmp_path_factory) -> str:
    spacy = pytest.importorskip("spacy")
    pytest.importorskip("presidio_analyzer")
    folder = tmp_path_factory.mktemp("spacy") / "blank"
    spacy.blank("en").to_disk(folder)
    return str(folder)


WORDS = [f"w{number}" for number in range(10)]
NAMES = ["ann", "lee", "bo", "kim"]


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(97, 123)] + list("0123456789")
    pieces = [*special, *WORDS, *NAMES, "person", ".", *letters, *(f"##{letter}" for letter in letters)]
    inner = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    inner.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {f"{name[1:-1].lower()}_token": name for name in special}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=256, **named)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A GLiNER model with 96 words and 256 tokens, which learns that four words are names of people."""
    gliner = pytest.importorskip("gliner")
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("gliner")
    random.seed(0)
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder / "encoder")
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    encoder = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **sizes)
    BertModel(encoder).save_pretrained(folder / "encoder")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = gliner.GLiNERConfig(
            model_name=str(folder / "encoder"),
            hidden_size=32,
            max_len=96,
            max_width=3,
            dropout=0.0,
            span_mode="markerV0",
        )
        learner = gliner.GLiNER.from_config(config)
        collate = learner._create_data_collator()
        optimizer = torch.optim.Adam(learner.model.parameters(), lr=5e-3)
        for _ in range(150):
            loss = learner.model(**collate([_sentence() for _ in range(16)])).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        learner.save_pretrained(folder / "model")
    return str(folder / "model")


def _sentence() -> dict[str, Any]:
    words = random.choices(WORDS, k=random.randrange(3, 60))
    if random.random() < 0.3:
        words = ["q7" * random.randrange(1, 45)] * random.randrange(1, 3) + words[:8]
    at = random.randrange(len(words) + 1)
    words.insert(at, random.choice(NAMES))
    return {"tokenized_text": words, "ner": [[at, at, "person"]]}


@pytest.fixture(scope="module")
def finder(model: str, spacy_model: str) -> PersonalData:
    return PersonalData(entities=["PERSON"], model=spacy_model, gliner=model, labels={"person": "PERSON"})


@pytest.mark.parametrize("words", [5, 90, 500, 3_000])
def test_names_are_found_wherever_they_are_in_long_texts(finder: PersonalData, words: int) -> None:
    """A text of more than 96 words is cut by the model itself with a warning, which is an error in tests."""
    rng = random.Random(words)
    parts = [rng.choice(NAMES) if at % 50 == 3 else rng.choice(WORDS) for at in range(words)]
    text = " ".join(parts)
    rows = rows_of(finder.find(block_of([text])))
    assert all(text[begin:end] == key for _, begin, end, key, _ in rows)
    names = {sum(len(part) + 1 for part in parts[:at]) for at in range(3, words, 50)}
    assert {begin for _, begin, _, _, _ in rows} == names


def test_words_of_many_tokens_push_nothing_out_of_sight(finder: PersonalData) -> None:
    """Each of these words has 80 tokens; what is beyond 256 is cut by the tokenizer without a warning."""
    for number in (2, 3, 20):
        text = f"{'q7' * 40} " * number + "w1 ann w2"
        assert [row[3] for row in rows_of(finder.find(block_of([text])))] == ["ann"]


def test_what_is_measured_is_what_the_model_reads(finder: PersonalData) -> None:
    recognizer = next(each for each in finder._engine.registry.recognizers if each.name == "GLiNERRecognizer")
    assert isinstance(recognizer.text_chunker, _Windows)
    measure, processor = recognizer.text_chunker.measure, recognizer.gliner.data_processor
    rng = random.Random(1)
    for _ in range(60):
        text = " ".join("".join(rng.choices("abq79", k=rng.randrange(1, 12))) for _ in range(rng.randrange(1, 130)))
        words = [word for word, _, _ in processor.words_splitter(text)]
        inputs, _ = processor.prepare_inputs([words], {"person": 1})
        tokens = len(processor.transformer_tokenizer(inputs, is_split_into_words=True, truncation=False).input_ids[0])
        assert not measure(text) or (tokens <= 256 and len(words) <= 96)
    with pytest.raises(InvalidInput, match="take more than half of the 256 tokens"):
        _Measure(recognizer.gliner, ["person"] * 60)


@pytest.mark.filterwarnings("ignore:.*resume_download:UserWarning")
def test_a_model_that_is_not_there_is_never_fetched(spacy_model: str) -> None:
    pytest.importorskip("gliner")
    finder = PersonalData(entities=["PERSON"], model=spacy_model, gliner=str(Path("no", "such")))
    with pytest.raises(InvalidInput, match="cannot be loaded as a GLiNER model"):
        finder.find(block_of(["a"]))
