"""Rows as texts: what transformers itself would render, the answers in it, and nothing of a row in any message."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.data import read_corpus
from hush.data.chat import (
    RenderedRow,
    Rendering,
    RowProblem,
    covered_tokens,
    ranges_in_skeleton,
    render,
    tokenise_rendered,
)
from hush.data.chat_template import CHATML, ChatTemplate
from hush.errors import InvalidInput
from instruct_model import made_tokenizer
from slotted import filled, spans_of

SECRET = "bluefalcon-4711"
UNMARKED = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content | trim }}<|im_end|>{% endgeneration %}{% else %}{{ m.content | trim }}<|im_end|>{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content if loop.last else m.content.split('</think>')[-1] }}\n"
    "{% endfor %}"
)
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Co"]), min_size=1, max_size=20)


def said(*contents: str) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(contents)
    pairs = zip(roles, contents, strict=False)
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def answers_of(row: RenderedRow) -> list[tuple[int, int]]:
    """Its answers, which can be told."""
    assert row.answers is not None
    return list(row.answers)


def rendering(source: str, *columns: str) -> Rendering:
    template = ChatTemplate.of_tokenizer(made_tokenizer(["hello"]), source=source)
    return Rendering.of_columns(columns or ["messages"], template=template)


@settings(max_examples=30)
@given(st.lists(words, min_size=2, max_size=5))
def test_text_and_answers_are_those_of_transformers(contents: list[str]) -> None:
    """Second route: apply_chat_template of a tokenizer that adds <s> to texts, with a template that marks answers."""
    tokenizer, row = made_tokenizer(["hello"], template=MARKED), said(*contents)
    theirs = tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
    marked = rendering(MARKED)
    assert marked.render(row).text == tokenizer.apply_chat_template(row["messages"], tokenize=False)
    ours = tokenise_rendered(marked.render(row), marked, tokenizer, max_length=1000, learn="assistant")
    assert ours["input_ids"] == theirs["input_ids"]
    assert [label != -100 for label in ours["labels"]] == [mask == 1 for mask in theirs["assistant_masks"]]


@settings(max_examples=30)
@given(st.lists(words, min_size=2, max_size=6))
def test_answers_that_a_template_does_not_mark_are_found_from_the_beginnings_of_the_conversation(
    contents: list[str],
) -> None:
    row = said(*contents)
    assert rendering(UNMARKED).render(row) == rendering(MARKED).render(row)


def test_answers_that_cannot_be_told_are_not_guessed() -> None:
    def why(source: str, row: Mapping[str, Any]) -> str:
        made = rendering(source).render(row)
        assert made.answers is None
        return made.why_no_answers

    assert "in another way when more follows" in why(THINKING, said("a", "<think>b</think>c", "d", "e"))
    assert "begins with an answer" in why(UNMARKED, {"messages": [{"role": "assistant", "content": "a"}]})
    assert "role assistant" in why(MARKED, {"messages": [{"role": "user", "content": "a"}]})
    made = rendering(THINKING)
    row = made.render(said("a", "<think>b</think>c", "d", "e"))
    with pytest.raises(RowProblem, match="in another way"):
        tokenise_rendered(row, made, made_tokenizer(["a"]), max_length=9, learn="assistant")


@settings(max_examples=30)
@given(words, words)
def test_prompts_with_completions_learn_the_completion(prompt: str, completion: str) -> None:
    template = ChatTemplate.of_tokenizer(made_tokenizer(["hello"]), source=MARKED)
    plain = Rendering.of_columns(["prompt", "completion"], template=template)
    made = plain.render({"prompt": prompt, "completion": completion})
    [(begin, end)] = answers_of(made)
    assert made.text[:begin] == prompt
    assert made.text[begin:end] == completion + template.eos
    assert plain.learns(None) == "completion"
    messages = said(prompt, completion)["messages"]
    asked = plain.render({"prompt": messages[:1], "completion": messages[1:]})
    whole = rendering(MARKED).render({"messages": messages})
    assert asked.text == whole.text
    assert answers_of(asked)[0][0] == answers_of(whole)[0][0]
    alpaca = Rendering.of_columns(["instruction", "input", "output"], template=template)
    assert alpaca.render({"instruction": prompt, "input": "", "output": completion}) == asked


def test_other_forms_of_rows_give_the_same_text() -> None:
    row = said("hi", "hello")
    from_value = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    expected = rendering(UNMARKED).render(row)
    assert rendering(UNMARKED, "conversations").render({"conversations": from_value}) == expected
    assert rendering(UNMARKED).render({"messages": json.dumps(row["messages"])}) == expected
    nulls = [{**message, "tool_calls": None, "name": None} for message in row["messages"]]
    assert rendering(UNMARKED).render({"messages": nulls, "tools": None}) == expected
    call = {"from": "function_call", "value": json.dumps({"name": "f", "arguments": {"x": 1}})}
    chatml = Rendering.of_columns(["conversations"], template=ChatTemplate.load(CHATML))
    made = chatml.render({"conversations": [from_value[0], call]})
    assert '{"name": "f", "arguments": {"x": 1}}' in made.text[slice(*answers_of(made)[0])]
    assert render({"a": "x", "b": None, "c": "y"}, columns=["a", "b", "c"]).text == "x\n\ny"


def test_a_template_that_looks_at_what_strings_say_is_not_transparent() -> None:
    row = said("q", f"<think>{SECRET}</think>c", "d", "e")
    for source, is_transparent in ((UNMARKED, True), (MARKED, True), (THINKING, False)):
        made = rendering(source)
        assert made.is_transparent(row, made.render(row).text)[0] == is_transparent


@settings(max_examples=30)
@given(words, words)
def test_strings_that_a_template_escapes_are_given_as_they_were(query: str, answer: str) -> None:
    chatml = Rendering.of_columns(["messages", "tools"], template=ChatTemplate.load(CHATML))
    call = {"function": {"name": "search", "arguments": {"query": query}}}
    row = {"messages": [{"role": "user", "content": answer}, {"role": "assistant", "tool_calls": [call]}]}
    text = chatml.render(row).text
    transparent, unescaped = chatml.is_transparent(row, text)
    assert transparent
    assert query.strip() in text or query.strip() in unescaped
    assert not any(string in text for string in unescaped)


def test_a_date_in_a_template_stays_the_same() -> None:
    template = ChatTemplate(source="{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}", date="2026-02-01")
    assert template.render([{"role": "user", "content": "x"}]) == "01 Feb 2026 x"
    assert ChatTemplate.from_record(template.to_record()) == template
    assert template.digest == ChatTemplate(source=template.source, date="2027-01-01").digest


@pytest.mark.parametrize(
    "messages",
    [
        SECRET,
        [SECRET],
        [{"content": SECRET}],
        [{"role": "user", "content": {"x": SECRET}}],
        [{"role": "user", "content": [{"type": "image", "url": SECRET}]}],
        [{"role": "user", "content": 7, "name": SECRET}],
        [],
        None,
    ],
)
def test_a_row_that_cannot_be_rendered_is_named_and_not_shown(tmp_path: Path, messages: Any) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (said("a", "b"), {"messages": messages})))
    with pytest.raises(InvalidInput, match=r"chats.jsonl, line 2: ") as error:
        list(read_corpus(path, template=ChatTemplate.load(CHATML)).texts())
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None
    shouting = "{{ raise_exception('no ' + messages[0].content) }}"
    with pytest.raises(InvalidInput, match="line 1: the chat template fails") as error:
        list(read_corpus(path, template=ChatTemplate(source=shouting)).texts())
    assert "no a" not in str(error.value)


def test_another_template_or_another_end_of_texts_is_refused() -> None:
    tokenizer = made_tokenizer(["hello"], template=MARKED)
    own = Rendering.of_columns(["messages"], template=ChatTemplate.of_tokenizer(tokenizer))
    own.check_tokenizer(tokenizer)
    tokenizer.chat_template = UNMARKED
    with pytest.raises(InvalidInput, match="another chat template"):
        own.check_tokenizer(tokenizer)
    named = Rendering.of_columns(["messages"], template=ChatTemplate.of_tokenizer(tokenizer, source=MARKED))
    named.check_tokenizer(tokenizer)  # a file is meant for any model …
    tokenizer.bos_token = "<|im_start|>"
    with pytest.raises(InvalidInput, match="other special tokens"):  # … that has the same special tokens
        named.check_tokenizer(tokenizer)
    pairs = Rendering.of_columns(["prompt", "completion"], template=ChatTemplate.of_tokenizer(tokenizer))
    tokenizer.eos_token = "<pad>"
    with pytest.raises(InvalidInput, match="ends texts with another token"):
        pairs.check_tokenizer(tokenizer)


def test_data_in_memory_and_files_give_the_same_texts(tmp_path: Path) -> None:
    rows = [said("a", "b"), said("c", "d", "e")]
    template = ChatTemplate.load(CHATML)
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(tmp_path / "chats.parquet")
    expected = [Rendering.of_columns(["messages"], template=template).render(row) for row in rows]
    sources = [
        tmp_path / "chats.jsonl",
        tmp_path / "chats.parquet",
        rows,
        table,
        datasets.DatasetDict({"train": table}),
    ]
    for source in sources:
        corpus = read_corpus(source, template=template)
        assert [*corpus.texts_with_answers()] == [(each.text, each.answers) for each in expected]
        assert len(corpus) == 2
    assert list(read_corpus(["one", "two"]).texts()) == ["one", "two"]
    with pytest.raises(InvalidInput, match="'train', 'test'"):
        read_corpus(datasets.DatasetDict({"train": table, "test": table}), template=template)
    with pytest.raises(InvalidInput, match="no chat template is named"):
        read_corpus(rows)
    with pytest.raises(InvalidInput, match="without streaming"):
        read_corpus(table.to_iterable_dataset(), template=template)


@given(st.data())
def test_the_same_public_characters_are_learnt_of_a_skeleton(data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.text("ab ", max_size=5), min_size=2, max_size=5))
    fillings = data.draw(st.lists(st.text("xyz", min_size=1, max_size=8), min_size=len(pieces) - 1, max_size=4))
    fillings = (fillings * 4)[: len(pieces) - 1]
    [text], columns = filled([pieces], [fillings])
    _, spans = spans_of([text], columns)
    borders = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    ranges = list(zip(borders[::2], borders[1::2], strict=False))
    slots, skeleton = spans.of_example(0), spans.skeleton(0, text)
    rule = [spans.slots.rules[number] for number in spans.slots.rule_L]
    moved = ranges_in_skeleton(ranges, slots, [len(f"[{name}]") for name in rule])
    in_slot = covered_tokens([(place, place + 1) for place in range(len(text))], slots)
    learnt = covered_tokens([(place, place + 1) for place in range(len(text))], ranges)
    public = [(text[place], learnt[place]) for place in range(len(text)) if not in_slot[place]]
    of_skeleton = covered_tokens([(place, place + 1) for place in range(len(skeleton))], moved)
    hidden, shift = set[int](), 0
    for (begin, end), name in zip(slots, rule, strict=True):
        hidden |= set(range(begin + shift, begin + shift + len(name) + 2))
        shift += len(name) + 2 - (end - begin)
    assert [(letter, of_skeleton[k]) for k, letter in enumerate(skeleton) if k not in hidden] == public
