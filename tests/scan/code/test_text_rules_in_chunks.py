"""Text rules that hide spans in a code base: no cut of a file may depend on what a slot holds."""

import pytest

from hush.errors import InvalidInput
from hush.scan import scan

RULES = {
    "defaults": {"prior": 1e-6, "ceiling": 1e-2},
    "rules": [{"name": "codes", "find": "patterns", "patterns": ["K-[\\dx\\n]+-K"], "hides": "span"}],
}


def scanned(folder, code, **chunks):
    (folder / "a.py").write_text(f"one = 1\ntwo = 2\nkey = '{code}'\nfour = 4\nfive = 5\n")
    return scan(folder, {**RULES, "chunks": chunks})


def public_side(found, folder):
    texts = [text for shard in found.data.corpus.shards() for block in shard.blocks(()) for text in block.strings]
    return list(found.spans.public_rows(found.incidence, texts))


def test_a_code_of_any_length_within_a_line_leaves_all_skeletons_as_they_are(tmp_path):
    sides = [public_side(scanned(tmp_path, code, lines=2), tmp_path) for code in ("K-1-K", "K-" + "x" * 500 + "-K")]
    assert sides[0] == sides[1]
    assert sides[0][1] == "key = '[codes]'\nfour = 4\n"


def test_a_secret_over_several_lines_makes_its_examples_secret_as_a_whole(tmp_path):
    found = scanned(tmp_path, "K-1\n2-K", lines=4)
    assert len(found.slots) == 0
    assert found.slots.whole_examples(found.incidence).any()


def test_spans_in_chunks_of_tokens_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="would move their borders"):
        scanned(tmp_path, "K-1-K", tokens=8)
