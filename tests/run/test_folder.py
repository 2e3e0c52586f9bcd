"""The folder of a run: whose it is, one process at a time, and what it keeps of its inputs."""

import json
import stat
from pathlib import Path

import pytest
from small_runs import ran, small_config, small_desk

from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.run import run_pipeline
from hush.run.config import Config, load_config
from hush.run.folder import load_or_create_key, open_run
from hush.run.forecast import forecast
from hush.run.pipeline import run_folder


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_run(tmp_path / "run"), pytest.raises(InvalidInput, match="open"):
        ran(tmp_path)


@pytest.mark.parametrize("name", ["release/precious.txt", "owner/diary.txt", ".draft.tmp"])
def test_a_name_that_a_run_uses_does_not_make_a_folder_a_run(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "run" / name
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    with pytest.raises(InvalidInput, match="holds something other than a run"):
        ran(tmp_path)
    assert precious.read_text() == "years of work"


def test_a_run_that_was_killed_before_its_lock_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run" / "owner").mkdir(parents=True)
    with open_run(tmp_path / "run") as paths:
        assert paths.owner.is_dir()


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match="holds something other than a run"):
        ran(tmp_path)
    folder = {"source": "sub"}
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    with pytest.raises(InvalidInput, match="lies inside the data"):
        run_pipeline(small_config(tmp_path, data=folder), output=tmp_path / "sub" / "run")
    with pytest.raises(InvalidInput, match="nothing says where the run goes"):
        run_pipeline(small_config(tmp_path))


@pytest.mark.parametrize(("key", "code"), [("sub/key.txt", False), ("sub/my.key", True)])
def test_a_key_that_would_be_read_as_data_is_refused(tmp_path: Path, key: str, code: bool) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    projects = [{"name": "projects", "find": "code", "secrets": [{"name": "one", "paths": ["a.txt"]}]}]
    content = small_desk(tmp_path, data={"source": "sub", "key": key}, **({"rules": projects} if code else {}))
    config = Config.of(content, folder=tmp_path)
    for doing in (run_pipeline, forecast):
        with pytest.raises(InvalidInput, match=r"the key .* lies inside the data"):
            doing(config, output=tmp_path / "run")
    assert not (tmp_path / key).exists()


def test_a_key_of_a_kind_that_is_not_read_may_lie_beside_texts(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    config = small_config(tmp_path, data={"source": "sub", "key": "sub/my.key"})
    assert run_folder(config, tmp_path / "run") == tmp_path / "run"


def test_another_key_is_refused(own: Path) -> None:
    DataKey.create(own / "other.key")
    with pytest.raises(InvalidInput, match=r"was written under the key .* pass that key as data\.key"):
        ran(own, data={"key": "other.key"})


def test_a_key_is_made_once(tmp_path: Path) -> None:
    made = load_or_create_key(tmp_path / "a.key")
    assert load_or_create_key(tmp_path / "a.key") == made
    assert [path.name for path in tmp_path.iterdir()] == ["a.key"]
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


def test_the_record_holds_fingerprints_under_the_key_and_no_plain_hash(finished: Path, desk: Path) -> None:
    key = DataKey.load(desk / "my.key")
    record = json.loads((finished / "stages.json").read_text())
    assert record["key"] == key.id
    for name, done in record["stages"].items():
        assert done["inputs"].startswith(f"{key.id}:")
        assert done["outputs"]["fingerprint"].startswith(f"{key.id}:") or name == "train"  # a released model is public


def test_inputs_are_kept_for_a_repetition(tmp_path: Path) -> None:
    import yaml

    (tmp_path / "names.txt").write_text("Acme\n")
    rules = [{"name": "names", "find": "literals", "file": "names.txt"}]
    content = small_desk(tmp_path, rules=rules, report={"frontier": True, "methods": True})
    (tmp_path / "hush.yaml").write_text(yaml.safe_dump(content))
    config = load_config(tmp_path / "hush.yaml")
    run_pipeline(config, output=tmp_path / "run")
    kept = tmp_path / "run" / "owner" / "inputs"
    assert (kept / "config.yaml").read_bytes() == (tmp_path / "hush.yaml").read_bytes()
    assert (kept / "literals-0.txt").read_text() == "Acme\n"


def test_inputs_of_a_run_that_is_refused_replace_nothing(own: Path) -> None:
    """Whoever is told to undo a change can see what it was before."""
    ran(own, report={"title": "Another"})
    kept = own / "run" / "owner" / "inputs" / "config.yaml"
    before = kept.read_bytes()
    assert b"Another" in before
    with pytest.raises(InvalidInput, match="Undo the change"):
        ran(own, plan={"rounds": 9})
    assert kept.read_bytes() == before
