"""Scans of conversations: secrets in every part, in whatever form the template writes them; what is whole then."""

import json
from pathlib import Path
from typing import Any

import pytest

from hush.data import read_corpus
from hush.data.chat_template import CHATML, ChatTemplate
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.scan import Scan, scan
from hush.scan.redact import redact

SECRET = "AB-1234"
RULES: dict[str, Any] = {
    "rules": [{"name": "codes", "find": "patterns", "patterns": [r"[A-Z]{2}-\d{4}"], "hides": "span"}],
    "defaults": {"prior": 1e-4, "ceiling": 0.1},
}
THINKING = "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
PLAIN = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello, too"}]
PLACES: dict[str, dict[str, Any]] = {
    "system": {"messages": [{"role": "system", "content": f"It is {SECRET}."}, *PLAIN]},
    "user": {"messages": [{"role": "user", "content": f"  {SECRET}  "}, PLAIN[1]]},
    "assistant": {"messages": [PLAIN[0], {"role": "assistant", "content": f"It is {SECRET}"}]},
    "role": {"messages": [{"role": SECRET, "content": "hello"}, *PLAIN]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": SECRET}]}, PLAIN[1]]},
    "tool name": {"messages": [PLAIN[0], {"role": "assistant", "tool_calls": [{"function": {"name": SECRET}}]}]},
    "tool": {"messages": PLAIN, "tools": [{"type": "function", "function": {"name": "f", "description": SECRET}}]},
}


def scanned(row: dict[str, Any], template: str | ChatTemplate = CHATML, **rules: Any) -> Scan:
    return scan([row, {"messages": PLAIN}], RULES | rules, chat_template=template, key=DataKey(bytes(32)))


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_found_in_every_part_of_a_conversation(place: str) -> None:
    result = scanned(PLACES[place])
    assert result.incidence.num_entries == 1
    template = ChatTemplate.load(CHATML)
    text = next(read_corpus([PLACES[place]], template=template).texts())
    [(begin, end)] = result.spans.of_example(0)
    assert text[begin:end] == SECRET
    assert SECRET not in result.spans.skeleton(0, text)


def test_a_secret_that_the_template_escapes_makes_its_example_secret_as_a_whole() -> None:
    quoted = r"x\9" + '"'
    rule = {"name": "odd", "find": "literals", "values": [quoted], "whole_words": False, "hides": "span"}
    call = {"function": {"name": "f", "arguments": {"password": f"it is {quoted}"}}}
    row = {"messages": [PLAIN[0], {"role": "assistant", "tool_calls": [call]}]}
    result = scanned(row, rules=[rule])
    assert result.incidence.num_entries == 1
    assert not len(result.slots)
    reasons = [reason.reason for reason in result.why(example=0)]
    assert any("the chat template writes in another form" in reason for reason in reasons)
    assert not any(quoted in reason for reason in reasons)


def test_where_the_template_looks_at_what_is_said_the_example_is_secret_as_a_whole() -> None:
    row = {"messages": [PLAIN[0], {"role": "assistant", "content": f"<think>hm</think>It is {SECRET}"}]}
    result = scanned(row, ChatTemplate(source=THINKING))
    assert result.incidence.num_entries == 1
    assert not len(result.slots)
    dropped = {"messages": [PLAIN[0], {"role": "assistant", "content": f"<think>{SECRET}</think>hello"}]}
    assert scanned(dropped, ChatTemplate(source=THINKING)).incidence.num_entries == 1  # it might be in the text


def test_the_rendered_texts_are_saved_with_the_scan_and_are_what_later_stages_read(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps(row) for row in (*PLACES.values(), {"messages": PLAIN})))
    key = DataKey(bytes(32))
    chunks = {"chunks": {"lines": 3}}
    for rules in (RULES, RULES | chunks):
        result = scan(tmp_path / "chats.jsonl", rules, chat_template=CHATML, key=key, workers=1)
        result.save(tmp_path / "found")
        corpus = read_corpus(tmp_path / "found" / "owner" / "data.parquet")
        assert corpus.rendering is not None
        assert key.fingerprint_rows(corpus.texts()) == result.data_fingerprint
        template = ChatTemplate.load(CHATML)
        made = list(read_corpus(tmp_path / "chats.jsonl", template=template).texts_with_answers())
        assert "".join(corpus.texts()) == "".join(text for text, _ in made)
        spoken = [text[begin:end] for text, ranges in made for begin, end in ranges or ()]
        read = [text[begin:end] for text, ranges in corpus.texts_with_answers() for begin, end in ranges or ()]
        assert "".join(read) == "".join(spoken)
        redact(Scan.load(tmp_path / "found"), corpus, tmp_path / "redacted.jsonl", key=key)
        assert SECRET not in (tmp_path / "redacted.jsonl").read_text()
        with pytest.raises(InvalidInput, match="texts of an earlier scan"):
            scan(tmp_path / "found" / "owner" / "data.parquet", RULES)


def test_prompts_completions_and_columns_are_scanned_in_all_their_parts() -> None:
    pairs = [{"prompt": f"say {SECRET}", "completion": "no"}, {"prompt": "say it", "completion": f"{SECRET}"}]
    assert scan(pairs, RULES).slots.has_slots_N.tolist() == [True, True]
    rows = [{"title": SECRET, "body": "b", "id": 1}, {"title": "a", "body": SECRET, "id": 2}]
    assert scan(rows, RULES, columns=["title", "body"]).slots.has_slots_N.tolist() == [True, True]
    assert scan(rows, RULES, columns=["body"]).incidence.num_entries == 1
