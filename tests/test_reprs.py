"""No object of hush shows the text of a secret in its repr, as a debugger or a traceback with local variables would.

Every function of hush is watched while texts with a secret are scanned, cut, redacted, tokenised and guessed: no local
variable that is an object of hush may show the secret when a function returns.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hush.audit.prior import measure_priors, stated_priors_of_scan
from hush.data import read_corpus
from hush.scan import scan
from hush.scan.redact import redact
from hush.train.slots.texts import tokenise_slots
from slotted import filled, made_tokenizer, slot_plan

SECRET = "Zanzibarov"
TEXTS = [f"note {number}: {SECRET} wrote to the office. Nothing else happened on that day." for number in range(6)]
OTHERS = ["the office wrote back", "nothing at all"] * 5


@contextmanager
def watched(*hidden: str) -> Iterator[set[str]]:
    """The classes of hush whose reprs show one of these texts while this runs."""
    shown, seen = set[str](), set[tuple[type, int]]()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event != "return" or "/hush/" not in frame.f_code.co_filename:
            return
        for value in list(frame.f_locals.values()):
            kind: Any = type(value)
            if not kind.__module__.startswith("hush.") or (kind, id(value)) in seen:
                continue
            if frame.f_code.co_name in ("__init__", "__repr__", "__new__", "__post_init__"):
                continue  # not complete yet
            seen.add((kind, id(value)))
            said = " ".join(repr(value).split())
            if any(text in said for text in hidden):
                shown.add(f"{kind.__module__}.{kind.__qualname__}")

    sys.setprofile(look)
    try:
        yield shown
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("hides", ["example", "span"])
def test_scans_show_no_secret(tmp_path: Path, hides: str) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, *OTHERS]))
    rules = {
        "defaults": {"prior": 0.1, "ceiling": 0.5},
        "chunks": {"characters": 40},
        "rules": [
            {"name": "names", "find": "literals", "values": [SECRET], "hides": hides},
            {"name": "rare", "find": "words", "documents": [2, 6], "hides": hides},
            {"name": "shapes", "find": "patterns", "patterns": [r"Zan\w+ov"], "hides": hides},
            {"name": "copies", "find": "copies", "similarity": 0.8},
        ],
    }
    with watched(SECRET, SECRET.lower()) as shown:
        found = scan(path, rules)
        found.save(tmp_path / "found")
        if hides == "span":
            corpus = read_corpus(tmp_path / "found" / "owner" / "data.parquet")
            redact(found, corpus, tmp_path / "skeletons.jsonl")
            stated = stated_priors_of_scan(found)
            measure_priors(found.spans, found.incidence, corpus.texts(), found.secrets, stated)
    assert found.incidence.num_secrets > 0
    assert not shown


def test_scans_of_code_show_no_secret(tmp_path: Path) -> None:
    (tmp_path / "code" / "billing").mkdir(parents=True)
    (tmp_path / "code" / "billing" / "rates.py").write_text(f"RATE = {SECRET!r}\n")
    (tmp_path / "code" / "shop.py").write_text(f"from billing.rates import RATE\n\nprint(RATE, {SECRET!r})\nx = 1\n")
    (tmp_path / "code" / "cart.js").write_text(f"import {{ a }} from './till.js';\nconst b = a + '{SECRET}';\n")
    (tmp_path / "code" / "till.js").write_text(f"export const a = '{SECRET}';\n")
    secrets = [{"name": "billing", "paths": ["billing/", "till.js"]}]
    rule = {"name": "code", "find": "code", "secrets": secrets, "hides": "definitions", "imports": {"depth": 1}}
    with watched(SECRET) as shown:
        found = scan(tmp_path / "code", {"defaults": {"prior": 1e-6, "ceiling": 0.1}, "rules": [rule]})
    assert len(found.slots) > 0
    assert not shown


@pytest.mark.parametrize("part", ["slot", "difference"])
def test_tokens_of_slots_are_not_shown(part: Any) -> None:
    texts, columns = filled([["we met ", " near the old ", "."], ["no slot"]], [["Ann", "mill"], []])
    plan, spans = slot_plan(texts, columns)
    tokenizer = made_tokenizer("bytes", special=True)
    tokens = (
        ", ".join(map(str, tokenizer(texts[0])["input_ids"][1:4])),
        " ".join(map(str, tokenizer(texts[0])["input_ids"][1:4])),
    )
    with watched("Ann", "mill", *tokens) as shown:
        tokenise_slots(texts, tokenizer, plan, spans, max_length=16, part=part)
    assert not shown
