"""What says whether data is the data of last time: every file, its name and its content count, and nothing else."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small_config, small_texts

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.run import job, run_pipeline
from hush.run.folder import RunPaths, RunRecord
from hush.run.job import RunJob, file_rows, files_of, unread_files
from hush.run.pipeline import _input_files, stages_from
from hush.run.stages import ScanStage

KEY = DataKey(bytes(32))
FOLDERS = st.dictionaries(st.sampled_from(["a", "b", "ab", "sub/a"]), st.binary(max_size=7), min_size=1)


def fingerprint(files: dict[str, bytes]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        return KEY.fingerprint_rows(file_rows(files_of(folder, code=False)))


@settings(max_examples=60, deadline=None)
@given(one=FOLDERS, other=FOLDERS, chunk=st.integers(1, 4))
def test_two_folders_have_one_fingerprint_only_if_they_hold_the_same(
    one: dict[str, bytes], other: dict[str, bytes], chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "READ_BYTES", chunk)  # so that contents end within pieces and at their ends
        assert (fingerprint(one) == fingerprint(other)) == (one == other)
        assert fingerprint(dict(reversed(one.items()))) == fingerprint(one)


def test_of_a_code_base_hidden_files_count_and_of_git_only_where_it_stands(tmp_path: Path) -> None:
    for name in ("main.py", ".github/CODEOWNERS", ".git/HEAD", ".git/refs/heads/main", ".git/objects/aa/bb"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    assert [name for name, _ in files_of(str(tmp_path), code=False)] == ["main.py"]
    assert [name for name, _ in files_of(str(tmp_path), code=True)] == [
        ".git/HEAD", ".git/refs/heads/main", ".github/CODEOWNERS", "main.py"
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "hush run 2"}', '{"format": "hush run 1", "key": 1}'])
def test_a_damaged_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "stages.json").write_text(content)
    with pytest.raises(InvalidInput, match="is not the record of a run; restore it, or name a new folder"):
        RunRecord.load(tmp_path / "stages.json", KEY.id)


def test_a_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    record = RunRecord.load(tmp_path / "stages.json", KEY.id)
    record.finish("data", "in", {"fingerprint": "out"})
    record.repeat(stages_from("plan"))
    found = RunRecord.load(tmp_path / "stages.json", KEY.id)
    assert found == record
    assert found.attempts == {"plan": 1, "train": 1, "audit": 1, "report": 1}


def test_files_that_nothing_reads_are_told_by_their_number(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("a.txt", "b.TXT.gz", ".hidden"):
        (folder / name).write_bytes(b"a")
    assert unread_files(str(folder)) == []
    for name in ("QX-1000.log", "picture.png"):
        (folder / name).write_bytes(b"a")
    (said,) = unread_files(str(folder))
    assert said.endswith(": 2 files")
    assert "QX-1000" not in said  # a name may be a secret
    assert unread_files(str(folder / "a.txt")) == []
    (folder / "dataset_info.json").write_text("{}")
    assert unread_files(str(folder)) == []


def test_a_run_says_that_files_were_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for number, text in enumerate(small_texts()):
        (folder / f"{number}.txt").write_text(text)
    (folder / "more.log").write_text("QX-1000")
    config = small_config(tmp_path, data={"source": "notes"})
    notices = run_pipeline(config, output=tmp_path / "run").outputs["scan"]["notices"]
    assert [said for said in notices if said.endswith(": 1 file")]


def test_a_run_says_what_was_set_aside_and_which_literals_are_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("detect_secrets")
    rules = [
        {"name": "keys", "find": "credentials"},
        {"name": "names", "find": "literals", "values": ["Nobody", "QX-1000"]},
    ]
    config = small_config(tmp_path, rules=rules)
    with (tmp_path / "data.txt").open("a") as file:
        file.write('password = "changeme"\npassword = "48213"\n')
    notices = run_pipeline(config, output=tmp_path / "run").outputs["scan"]["notices"]
    aside = next(said for said in notices if said.startswith("texts found but set aside, so not protected: "))
    assert "1 of rule keys (detector Secret Keyword: a placeholder)" in aside
    assert "1 of rule keys (detector Secret Keyword: too short for its promise)" in aside
    assert "changeme" not in aside
    assert any(said.startswith("WARNING: Rule keys found 1 text in 1 example that cannot hold") for said in notices)
    assert any("names" in said and "in no example" in said for said in notices)


def test_every_file_that_a_rule_reads_counts_for_the_scan_and_is_kept(tmp_path: Path) -> None:
    rule = "[[rules]]\nid = 'a'\nregex = 'QX-{}'\n"
    (tmp_path / "leaks.toml").write_text("[extend]\npath = 'base.toml'\n")
    config = small_config(tmp_path, rules=[{"name": "leaks", "find": "gitleaks", "file": "leaks.toml"}])
    record = RunRecord(path=tmp_path / "s.json", key=KEY.id)
    run_job = RunJob(config=config, paths=RunPaths(tmp_path / "run"), key=KEY, record=record)
    seen = []
    for number in "121":
        (tmp_path / "base.toml").write_text(rule.format(number))
        seen.append(ScanStage().settings(run_job))
    assert seen[0] == seen[2] != seen[1]
    kept = _input_files(config)
    assert {"gitleaks-0.toml", "gitleaks-0-extended-1.toml"} < set(kept)
    assert kept["gitleaks-0-extended-1.toml"] == rule.format(1).encode()
