"""The personal data rule: finds what Presidio recognises, without logs, downloads or limits of length."""

import logging
import re
import socket
from pathlib import Path

import pytest
from finder_cases import block_of, rows_of

import hush

pytest.importorskip("presidio_analyzer")

from hush.scan.finders import PersonalData
from hush.scan.finders.personal import OVERLAP_CHARACTERS, WINDOW_CHARACTERS

ENTITIES = ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A pipeline without a language model: tokens only, enough for what patterns recognise."""
    import spacy

    folder = tmp_path_factory.mktemp("models") / "blank"
    spacy.blank("en").to_disk(folder)
    return str(folder)


@pytest.fixture(scope="module")
def finder(model: str) -> PersonalData:
    return PersonalData(entities=ENTITIES, score=0.4, model=model)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch) -> None:
    def refuse(*_args, **_kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_planted_addresses_and_numbers_are_found_at_their_characters(finder: PersonalData, caplog) -> None:
    texts = ["", "😀 é mail ana@example.org now", "card 4111111111111111, phone (212) 555-0123"]
    with caplog.at_level(logging.DEBUG):
        rows = rows_of(finder.find(block_of(texts)))
    assert all(texts[example][begin:end] == key for example, begin, end, key, _ in rows)
    assert {(row[0], row[3], row[4]) for row in rows} >= {
        (1, "ana@example.org", "entity EMAIL_ADDRESS"),
        (2, "4111111111111111", "entity CREDIT_CARD"),
        (2, "(212) 555-0123", "entity PHONE_NUMBER"),
    }
    assert not any("ana@" in record.getMessage() or "4111" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "at",
    [
        0,
        WINDOW_CHARACTERS - OVERLAP_CHARACTERS,
        WINDOW_CHARACTERS - OVERLAP_CHARACTERS // 2 - 5,
        WINDOW_CHARACTERS - 8,
        WINDOW_CHARACTERS,
        WINDOW_CHARACTERS + 5,
        2 * WINDOW_CHARACTERS,
    ],
)
def test_long_texts_hide_nothing_at_the_edges_of_windows(model: str, at: int) -> None:
    address = "ana@example.org"
    finder = PersonalData(entities=["EMAIL_ADDRESS"], score=0.4, model=model)
    text = ("- " * WINDOW_CHARACTERS)[:at] + f" {address} " + "- " * (WINDOW_CHARACTERS // 2)
    assert [row[:4] for row in rows_of(finder.find(block_of([text])))] == [(0, at + 1, at + 1 + len(address), address)]


def test_a_model_that_is_missing_is_named_and_never_fetched() -> None:
    with pytest.raises(hush.InvalidInput, match="python -m spacy download no_such_model"):
        PersonalData(entities=["PERSON"], model="no_such_model")


def test_what_is_no_model_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(hush.InvalidInput, match="python -m spacy download json"):
        PersonalData(entities=["PERSON"], model="json").find(block_of(["a"]))
    with pytest.raises(hush.InvalidInput, match="cannot be loaded as a spaCy model"):
        PersonalData(entities=["PERSON"], model=str(tmp_path)).find(block_of(["a"]))


def test_an_unknown_entity_is_refused_with_the_nearest_name(model: str) -> None:
    with pytest.raises(
        hush.InvalidInput,
        match=re.escape("no entity 'EMAIL_ADRESS' for the language 'en'; did you mean 'EMAIL_ADDRESS'?"),
    ):
        PersonalData(entities=["EMAIL_ADRESS"], model=model).find(block_of(["a"]))


@pytest.mark.parametrize("settings", [{"entities": []}, {"entities": "PERSON"}, {"entities": ["PERSON"], "score": 2.0}])
def test_settings_that_cannot_be_meant_are_refused(settings, model: str) -> None:
    with pytest.raises(hush.InvalidInput, match=r"entities is empty or a string|score=2.0"):
        PersonalData(model=model, **settings)


def test_a_missing_library_is_named_with_the_way_to_get_it(monkeypatch, model: str) -> None:
    monkeypatch.setattr("hush.scan.finders.personal.find_spec", lambda _name: None)
    with pytest.raises(hush.InvalidInput, match=re.escape('pip install "hush[pii]"')):
        PersonalData(entities=["PERSON"], model=str(Path(model)))
