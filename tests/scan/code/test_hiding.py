"""The finder reports what is hidden where it stands in each chunk; whole files stay whole where they must."""

import pickle
from pathlib import Path

import pytest
from small_repositories import ANA, BO, commit, new_repository, plain_folder

from hush.errors import InvalidInput
from hush.scan.code import (
    Chunks,
    CodeSecret,
    CodeSecrets,
    CodeSettings,
    Contributors,
    Imports,
    Repository,
    code_corpus,
)
from hush.scan.code.spread import containment
from hush.scan.rules import Rules
from hush.scan.scanner import prepare, scan

SHOP = "from billing import rates\n\n\n" + "".join(
    f"def f{number}():\n    return {'rates.total' if number == 7 else 'str'}({number})\n\n\n" for number in range(12)
)
FILES = {"billing/rates.py": "def total(hours):\n    return hours * 37\n", "shop.py": SHOP}
BILLING = CodeSecret(name="billing", paths=("billing/",))


def test_only_chunks_with_hidden_text_contain_the_secret_and_hits_say_where(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, FILES)
    settings = CodeSettings(secrets=(BILLING,), imports=Imports(depth=1), hides="definitions")
    finder = pickle.loads(pickle.dumps(CodeSecrets.of(repository, settings)))
    assert finder.columns == ("path", "offset")
    corpus = code_corpus(repository, Chunks(lines=8), [finder.contained.hidden])
    found: dict[str, str | None] = {}
    for shard in corpus.shards():
        for block in shard.blocks(("path", "id", "offset")):
            hits = finder.find(block)
            ids = block.columns["id"].to_pylist()
            for row, begin, end in zip(hits.example_H, hits.begin_H, hits.end_H, strict=True):
                found[ids[row]] = None if begin < 0 else block.strings[row][begin:end]
    assert list(found.values()) == [None, "def f7():\n    return rates.total(7)"]
    assert list(found) == ["billing/rates.py#L1-L2", "shop.py#L25-L32"]


def test_chunks_that_cut_what_is_hidden_are_refused(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, FILES)
    finder = CodeSecrets.of(repository, CodeSettings(secrets=(BILLING,), imports=Imports(depth=1), hides="lines"))
    cut = code_corpus(repository, Chunks(tokens=2))
    blocks = [block for shard in cut.shards() for block in shard.blocks(("path", "offset"))]
    with pytest.raises(InvalidInput, match=r"a chunk of shop\.py cuts text that a rule hides"):
        _ = [finder.find(block) for block in blocks]


@pytest.mark.parametrize("hides", ["definitions", "lines"])
def test_files_by_who_wrote_them_stay_hidden_as_a_whole(hides: str, tmp_path: Path) -> None:
    folder = new_repository(tmp_path, {"shop.py": SHOP})
    commit(folder, {"billing/rates.py": "x = 1\n", "tools/by_bo.py": "y = 2\n"}, author=BO)
    repository = Repository.open(folder)
    bo = CodeSecret(name="bo", authors=("bo@acme.com",))
    settings = CodeSettings(secrets=(bo,), imports=Imports(depth=1), hides=hides)  # pyright: ignore[reportArgumentType]
    found = containment(repository, settings)
    assert set(found.reasons) == {"billing/rates.py", "tools/by_bo.py", "shop.py"}
    assert set(found.spans) == {"shop.py"}
    spread = CodeSettings(secrets=(BILLING,), contributors=Contributors(), hides=hides)  # pyright: ignore[reportArgumentType]
    found = containment(repository, spread)
    assert set(found.reasons) == {"billing/rates.py", "tools/by_bo.py"}
    assert not found.spans
    assert ANA not in str(found.reasons)


def test_other_languages_are_refused_by_name_and_other_files_are_hidden_as_a_whole(tmp_path: Path) -> None:
    files = {**FILES, "billing/table.csv": "a,b\n"}
    settings = CodeSettings(secrets=(BILLING,), hides="definitions", public=("signatures",))
    found = containment(plain_folder(tmp_path / "a", files), settings)
    assert set(found.reasons) == {"billing/rates.py", "billing/table.csv"}
    assert set(found.spans) == {"billing/rates.py"}
    with pytest.raises(InvalidInput, match=r"in files of Kotlin \(billing/a\.kt\); use hides: file"):
        containment(plain_folder(tmp_path / "b", {**files, "billing/a.kt": "val x = 1\n"}), settings)


def rules(**further: object) -> dict[str, object]:
    secrets = [{"name": "billing", "paths": ["billing/"]}]
    rule = {"name": "projects", "find": "code", "secrets": secrets, "imports": {"depth": 1}, **further}
    return {"version": 1, "defaults": {"prior": 1e-6, "ceiling": 1e-2}, "chunks": {"lines": 8}, "rules": [rule]}


def test_a_scan_lists_fewer_pairs_the_less_a_rule_hides(tmp_path: Path) -> None:
    plain_folder(tmp_path, FILES)
    pairs = {
        hides: scan(tmp_path, rules(hides=hides)).incidence.num_entries for hides in ("file", "definitions", "lines")
    }
    assert pairs == {"file": 8, "definitions": 2, "lines": 2}


def test_a_rule_says_that_it_hides_spans(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, FILES)
    for hides in ("file", "definitions", "lines"):
        (prepared,) = prepare(Rules.of(rules(hides=hides)), repository=repository).rules
        assert prepared.hides_spans == (hides != "file")


def test_public_parts_are_for_definitions_only() -> None:
    with pytest.raises(InvalidInput, match="public is for hides: definitions"):
        Rules.of(rules(public=["imports"]))
    with pytest.raises(InvalidInput, match="public names parts"):
        CodeSettings(secrets=(BILLING,), hides="lines", public=("imports",))
    with pytest.raises(InvalidInput, match="hides"):
        Rules.of(rules(hides="words"))
