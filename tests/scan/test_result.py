"""The result of a scan: reasons, a folder that loads unchanged, and a public side without any text."""

import json
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Capitals, Memory, Rare, Teams, content, prepared

import hush
from hush.data import read_corpus
from hush.keys import DataKey
from hush.scan import reasons as owner_files
from hush.scan.assemble import run_scan
from hush.scan.copy_inheritance import inherited_pairs
from hush.scan.engines import LocalEngine
from hush.scan.result import Scan

HERE = LocalEngine(workers=1)
KEY = DataKey(bytes(range(32)))
ROWS = [
    ("The XQ code", "team hidden"),
    ("no more", None),
    ("XQ again, X", "team open"),
    ("no more", "team open"),
]


def scanned(rows: list[tuple[str, str | None]] = ROWS, **options: Any) -> Scan:
    return run_scan(Memory(rows, (1, 3)), prepared(Capitals(), Teams()), engine=HERE, **options)


def everything(folder: Path) -> bytes:
    """All bytes of the files below a folder, and what Parquet files hold once decompressed."""
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            parts.append(path.read_bytes())
            if path.suffix == ".parquet":
                table = pq.read_table(path)
                parts.append(json.dumps(table.to_pylist(), default=str, ensure_ascii=False).encode())
                parts.append(repr(table.schema.metadata).encode())
    return b"\n".join(parts)


@pytest.mark.parametrize("key", [None, KEY])
def test_what_is_saved_comes_back(tmp_path: Path, key: DataKey | None) -> None:
    scan = scanned(key=key)
    scan.save(tmp_path / "scan")
    loaded = Scan.load(tmp_path / "scan")
    assert content(loaded) == content(scan)
    assert loaded.data_fingerprint == (None if key is None else key.fingerprint_rows(text for text, _ in ROWS))
    loaded.save(tmp_path / "scan")  # over itself
    loaded.save(tmp_path / "again")
    assert content(Scan.load(tmp_path / "scan")) == content(Scan.load(tmp_path / "again")) == content(scan)
    assert (
        repr(scan)
        == repr(loaded)
        == f"Scan(4 examples, {len(scan.secrets)} secrets, {scan.incidence.num_entries} pairs)"
    )


def test_the_public_side_holds_no_text_and_the_owners_side_is_the_owners(tmp_path: Path) -> None:
    scan = scanned(key=KEY)

    def review(folder: Path) -> None:
        (folder / "review.html").write_text("review")

    scan.save(tmp_path / "scan", also=review)
    public = everything(tmp_path / "scan" / "public")
    private = everything(tmp_path / "scan" / "owner")
    for text in (b"team hidden", b"hidden", b"team open"):
        assert text in private
        assert text not in public
    assert b"again" not in public + private  # texts of examples are in neither
    assert KEY.fingerprint_row("no more").hex().encode() not in public
    assert stat.S_IMODE((tmp_path / "scan" / "owner").stat().st_mode) == 0o700
    for path in (tmp_path / "scan" / "owner").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    names = {path.name for path in (tmp_path / "scan").rglob("*") if path.is_file()}
    assert names == {"incidence.parquet", "secrets.parquet", "summary.json", "reasons.parquet", "examples.parquet",
                     "counts.json", "texts.parquet", "review.html", "set_aside.parquet",
                     "identities.parquet"}  # fmt: skip


def test_the_public_side_alone_can_be_loaded_and_says_what_it_lacks(tmp_path: Path) -> None:
    scan = scanned()
    scan.save(tmp_path / "scan")
    (tmp_path / "scan" / "owner").rename(tmp_path / "kept")
    loaded = Scan.load(tmp_path / "scan")
    assert loaded.incidence == scan.incidence
    assert loaded.secrets.texts is None
    own = {"pairs_from_copies", "skipped", "skipped_by_file", "set_aside", "unfound_literals", "secret_text"}
    assert loaded.summary() == {name: value for name, value in scan.summary().items() if name not in own}
    with pytest.raises(hush.InvalidInput, match="the reasons are in owner/ of a scan"):
        list(loaded.why(example=0))
    loaded.save(tmp_path / "copy")
    assert not (tmp_path / "copy" / "owner").exists()
    assert Scan.load(tmp_path / "copy").summary() == loaded.summary()


@settings(max_examples=25)
@given(st.sampled_from(["incidence.parquet", "secrets.parquet", "summary.json"]), st.data())
def test_a_flipped_bit_anywhere_in_the_public_files_is_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any") / "scan"
    scanned().save(folder)
    path = folder / "public" / name
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    with pytest.raises(hush.InvalidInput):
        Scan.load(folder)


@pytest.mark.parametrize("name", ["reasons.parquet", "examples.parquet"])
def test_damage_to_the_owners_files_is_refused_by_name(tmp_path: Path, name: str) -> None:
    scanned().save(tmp_path / "scan")
    path = tmp_path / "scan" / "owner" / name
    whole = path.read_bytes()
    at = whole.index(bytes.fromhex("28b52ffd"))  # where zstd begins
    for damaged in (whole[:-20], whole[: at + 4] + bytes(20) + whole[at + 24 :]):
        path.write_bytes(damaged)
        owner = Scan.load(tmp_path / "scan").owner
        assert owner is not None
        with pytest.raises(hush.InvalidInput, match=f"{name} is not a readable Parquet file; scan again$"):
            list(owner.reasons() if name == "reasons.parquet" else owner.examples())


def test_why_is_asked_by_number_or_id_of_example_or_secret() -> None:
    scan = scanned()
    everything_said = list(scan.why())
    for example in range(4):
        said = [reason for reason in everything_said if reason.example == example]
        assert list(scan.why(example=example)) == list(scan.why(example=f"memory:{example}")) == said
        for secret, name in enumerate(scan.secrets.ids):
            both = [reason for reason in said if reason.secret == secret]
            assert list(scan.why(example=example, secret=name)) == both
    for secret, name in enumerate(scan.secrets.ids):
        said = [reason for reason in everything_said if reason.secret == secret]
        assert {reason.example for reason in said} == set(scan.incidence.examples_of(secret).tolist())
        assert list(scan.why(secret=secret)) == list(scan.why(secret=name)) == said
    assert [(span.begin, span.end) for span in scan.spans_of(2)] == [(0, 1), (0, 2), (1, 2), (10, 11)]
    assert scan.spans_of(3) == []


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"example": 4}, r"example 4 is outside \[0, 4\)"),
        ({"example": -1}, "example -1 is outside"),
        ({"secret": 99}, "secret 99 is outside"),
        ({"secret": "hidden"}, "no secret of this scan has that id"),
        ({"example": "hidden"}, "no example of this scan has that id"),
    ],
)
def test_questions_about_nobody_are_refused_and_not_repeated(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(hush.InvalidInput, match=words) as caught:
        list(scanned().why(**asked))
    assert "hidden" not in str(caught.value)


def test_one_question_reads_the_row_groups_that_can_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_files, "ROW_GROUP", 10)
    scan = run_scan(Memory([("A", None)] * 200, (20, 90)), prepared(Capitals()), engine=HERE)
    read: list[int] = []
    iterate = pq.ParquetFile.iter_batches

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        read.extend(options["row_groups"])
        return iterate(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    assert [reason.example for reason in scan.why(example=105)] == [105]
    assert 1 <= len(read) <= 2
    assert len(list(scan.why())) == 200


def test_the_summary_counts_what_is_there() -> None:
    summary = scanned().summary()
    assert summary["examples"] == 4
    assert summary["examples_with_secrets"] == 4
    assert summary["secrets"] == 6  # T, X, XQ, Q; two teams
    assert summary["pairs"] == 4 + 3 + 4  # capitals of 0 and 2, teams, and what the copy inherits
    assert summary["pairs_from_copies"] == 1
    assert [(rule["rule"], rule["secrets"], rule["pairs"]) for rule in summary["rules"]] == [
        ("capitals", 4, 7),
        ("teams", 2, 4),
    ]
    assert summary["most_widespread"][0] == {"secret": "teams-000001", "examples": 3}
    assert summary["most_secrets"][0] == {"example": 0, "secrets": 5}
    assert summary["examples_per_secret"] == {
        "0": 1, "0.25": 1, "0.5": 2, "0.75": 2, "0.9": 3, "0.99": 3, "1": 3}  # fmt: skip
    assert summary["skipped"] == 0


def test_rows_passed_over_leave_their_own_data_to_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "A"}\nbroken\n{"text": "é B"}\n')
    corpus = read_corpus(path)
    scan = run_scan(corpus, prepared(Capitals(), Rare(most=1)), engine=HERE, key=KEY, skip_bad=True)
    scan.save(tmp_path / "scan")
    rest = read_corpus(tmp_path / "scan" / "owner" / "data.parquet")
    assert list(rest.texts()) == ["A", "é B"]
    assert KEY.fingerprint_rows(rest.texts()) == scan.data_fingerprint
    assert stat.S_IMODE((tmp_path / "scan" / "owner" / "data.parquet").stat().st_mode) == 0o600
    Scan.load(tmp_path / "scan").save(tmp_path / "copy")
    assert list(read_corpus(tmp_path / "copy" / "owner" / "data.parquet").texts()) == ["A", "é B"]
    path.write_text('{"text": "A"}\n')
    with pytest.raises(hush.InvalidInput, match="2 readable rows when it was scanned and has 1 now"):
        scan.save(tmp_path / "late")
    assert not (tmp_path / "late").exists()


def test_nothing_but_a_scan_is_replaced(tmp_path: Path) -> None:
    scan = scanned()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("other", "file"):
        with pytest.raises(hush.InvalidInput, match="name a"):
            scan.save(tmp_path / name)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"
    with pytest.raises(hush.InvalidInput, match="does not exist; pass a folder that hush scan wrote"):
        Scan.load(tmp_path / "other")


def test_the_temporary_side_goes_away_with_the_scan() -> None:
    scan = scanned()
    assert scan.owner is not None
    folder = scan.owner.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {"reasons.parquet", "examples.parquet", "set_aside.parquet", "counts.json"}
    assert {path.name for path in folder.iterdir()} == names
    del scan
    assert not folder.exists()


PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=12).map(lambda pairs: sorted(set(pairs)))


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8), PAIRS)
def test_inheritance_is_what_a_loop_over_groups_gives(group: list[int], pairs: list[tuple[int, int]]) -> None:
    import numpy as np

    first_N = np.array([group.index(name) for name in group])
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    made = inherited_pairs(first_N, columns[:, 0], columns[:, 1], num_secrets=4)
    expected = []
    for example in range(8):
        for secret in range(4):
            holders = [other for other in range(8) if group[other] == group[example] and (other, secret) in pairs]
            if holders and (example, secret) not in pairs:
                expected.append((example, secret, holders[0]))
    found = zip(made.example_H.tolist(), made.secret_H.tolist(), made.origin_H.tolist(), strict=True)
    assert list(found) == expected


def test_a_scan_whose_parts_do_not_belong_together_is_refused() -> None:
    incidence = hush.Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1)
    with pytest.raises(hush.InvalidInput, match="the incidence has 1 secrets, the table 0 and the rules 2"):
        Scan(incidence=incidence, secrets=hush.Secrets([]), rules=(("a", 2),))


def test_what_hush_plan_reads_is_there(tmp_path: Path) -> None:
    scan = scanned()
    scan.save(tmp_path / "scan")
    assert hush.Incidence.from_parquet(tmp_path / "scan" / "public" / "incidence.parquet") == scan.incidence
    assert hush.Secrets.from_parquet(tmp_path / "scan" / "public" / "secrets.parquet") == scan.secrets
    assert pa.types.is_int64(pq.read_schema(tmp_path / "scan" / "owner" / "reasons.parquet").field("example").type)
