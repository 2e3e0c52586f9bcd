"""Labels where only answers are learnt: of skeletons the same whatever the slots hold, of slots those in answers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.data import read_corpus
from hush.data.chat_template import ChatTemplate
from hush.errors import InvalidInput
from hush.train.language_models import IGNORED
from hush.train.reading import learnt_texts, unlearnt
from hush.train.slots.texts import tokenise_slots
from instruct_model import CHATML, made_tokenizer
from slotted import KINDS, filled, slot_plan
from slotted import made_tokenizer as small_tokenizer

PIECES = [["user: the old mill ", " and naps\nbot: a river runs ", " past; "], ["user: no slot\nbot: wheat"]]
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30)


def answers(texts: list[str]) -> list[list[tuple[int, int]]]:
    """What the bot says; no filling holds its name."""
    return [[(text.index("bot: ") + 5, len(text))] for text in texts]


@settings(max_examples=25)
@given(
    st.sampled_from(KINDS), st.booleans(), st.sampled_from([4, 9, 64]), st.sampled_from(["slot", "difference"]),
    st.lists(words.filter(lambda word: "bot" not in word), min_size=2, max_size=2),
)  # fmt: skip
def test_labels_of_skeletons_are_the_same_for_every_filling(
    kind: str, special: bool, max_length: int, part: Any, secrets: list[str]
) -> None:
    tokenizer = small_tokenizer(kind, special=special)

    def public(fillings: list[list[str]], part: Any) -> list[Any]:
        texts, columns = filled(PIECES, fillings)
        plan, spans = slot_plan(texts, columns)
        made = tokenise_slots(texts, tokenizer, plan, spans, max_length=max_length, part=part, learnt=answers(texts))
        return [{name: column.tolist() for name, column in made.skeletons[n].items()} for n in range(2)]

    assert public([secrets, []], part) == public([["Ann", "12-34"], []], "slot")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_length", [9, 400])
def test_only_what_answers_hold_is_learnt(kind: str, max_length: int) -> None:
    texts, columns = filled(PIECES, [["Ann Ann Ann Ann", "mill"], []])
    plan, spans = slot_plan(texts, columns)
    tokenizer = small_tokenizer(kind, special=True)
    made = tokenise_slots(texts, tokenizer, plan, spans, max_length=max_length, learnt=answers(texts))
    row = made[0]
    learnt = tokenizer.decode(row["labels"][row["labels"] != IGNORED].tolist()).replace(" ", "")
    assert "mill" in learnt  # also where the text is cut: to a window that holds a slot that is learnt
    assert "Ann" not in learnt
    assert unlearnt(made, plan) == ""
    public = made.skeletons[1]
    shown = tokenizer.decode(public["labels"][public["labels"] != IGNORED].tolist())
    assert "slot" not in shown
    pair = tokenise_slots(
        texts, tokenizer, plan, spans, max_length=max_length, part="difference", learnt=answers(texts)
    )[0]
    for side in (pair, pair["skeleton"]):
        said = tokenizer.decode(side["labels"][side["labels"] != IGNORED].tolist())
        assert "naps" not in said
    prompts = [[(0, text.index("bot: "))] for text in texts]
    silent = tokenise_slots(texts, tokenizer, plan, spans, max_length=max_length, learnt=[[(0, 5)], prompts[1]])
    assert "Of 1 example with a secret, 1 teach" in unlearnt(silent, plan)


def test_learning_answers_of_what_has_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("one\ntwo\n")
    assert list(learnt_texts(read_corpus(tmp_path / "data.txt"), None)) == [("one", None), ("two", None)]
    with pytest.raises(InvalidInput, match="learn='assistant'"):
        list(learnt_texts(read_corpus(tmp_path / "data.txt"), "assistant"))
    template = ChatTemplate.of_tokenizer(made_tokenizer(["a"]), source=CHATML)
    rows = [{"messages": [{"role": "user", "content": "a"}]}]
    corpus = read_corpus(rows, template=template)
    assert [ranges for _, ranges in learnt_texts(corpus, None)] == [None]
    with pytest.raises(InvalidInput, match="example 0"):
        list(learnt_texts(corpus, "assistant"))
    with pytest.raises(InvalidInput, match="learn='completion'"):
        list(learnt_texts(corpus, "completion"))
    pairs = read_corpus([{"prompt": "a", "completion": "b"}])
    assert [ranges for _, ranges in learnt_texts(pairs, None)] == [((1, 2),)]
