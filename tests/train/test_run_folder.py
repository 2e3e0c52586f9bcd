"""The folder of a run: what its ledger refuses, who may write in it, and what is released."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from private_runs import DATA, PLAN, ledger, payload, training
from reference import train
from safetensors.torch import load_file

import hush
from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.storage import FolderLock
from hush.train.run_folder import RunLog, tensors_of
from limits import no_file_above

# --- the ledger


def test_lost_checkpoints_are_refused_once_a_later_round_was_released(tmp_path: Path) -> None:
    private = training(tmp_path)
    train(private, DATA, until=6)
    private.release()
    private.close()
    newest = tmp_path / "owner" / "checkpoints" / "round-000006.ckpt"
    backup = newest.read_bytes()
    newest.unlink()
    with pytest.raises(InvalidInput, match=r"round 6 was released, but .* is of round 4"):
        training(tmp_path)
    shutil.rmtree(tmp_path / "owner" / "checkpoints")
    with pytest.raises(InvalidInput, match=r"round 6 was released, but .* is of round 0"):
        training(tmp_path)
    newest.parent.mkdir()
    newest.write_bytes(backup)
    private = training(tmp_path)
    assert private.round == 6
    train(private, DATA)
    private.finish()
    assert ledger(tmp_path)["released"] == [6, 12]


def test_lost_checkpoints_cost_only_time_as_long_as_nothing_was_released(tmp_path: Path) -> None:
    private = training(tmp_path)
    draws = train(private, DATA, until=6)
    private.close()
    shutil.rmtree(tmp_path / "owner" / "checkpoints")
    private = training(tmp_path)
    assert private.round == 0
    assert all(np.array_equal(*pair) for pair in zip(draws, train(private, DATA, until=6), strict=True))


def test_an_owner_folder_older_than_the_releases_is_refused(tmp_path: Path) -> None:
    private = training(tmp_path)
    train(private, DATA, until=4)
    shutil.copytree(tmp_path / "owner", tmp_path / "backup")
    train(private, DATA, until=6)
    private.release()
    private.close()
    shutil.rmtree(tmp_path / "owner")
    with pytest.raises(InvalidInput, match=r"run\.json is missing, but .*round-000006 exists"):
        training(tmp_path)
    shutil.rmtree(tmp_path / "owner")
    (tmp_path / "backup").rename(tmp_path / "owner")
    with pytest.raises(InvalidInput, match=r"round-000006 exists, but .* does not list its release"):
        training(tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        private = training(tmp_path / name)
        train(private, DATA, until=4)
        private.close()
    stranger = tmp_path / "other" / "owner" / "checkpoints" / "round-000004.ckpt"
    shutil.copy(stranger, tmp_path / "one" / "owner" / "checkpoints" / "round-000008.ckpt")
    (tmp_path / "one" / "owner" / "checkpoints" / "round-000004.ckpt").unlink()
    shutil.copy(stranger, tmp_path / "one" / "owner" / "checkpoints" / "round-000004.ckpt")
    with pytest.raises(InvalidInput, match="another run"):
        training(tmp_path / "one")


def test_a_release_that_a_crash_prevented_is_carried_out_by_the_next_start(tmp_path: Path) -> None:
    def crash(folder: Path) -> None:
        assert ledger(tmp_path)["released"] == [3]  # written down before anything appears
        assert not (tmp_path / "release" / "round-000003").exists()
        (folder / "half").write_bytes(b"x")
        raise MemoryError

    private = training(tmp_path, export=crash)
    train(private, DATA, until=3)
    with pytest.raises(MemoryError):
        private.release()
    private.close()
    resumed = training(tmp_path)
    assert resumed.round == 3
    released = load_file(tmp_path / "release" / "round-000003" / "model.safetensors")
    assert all(torch.equal(value, released[name]) for name, value in resumed.model.state_dict().items())
    assert [path.name for path in (tmp_path / "release").iterdir()] == ["round-000003"]


def test_a_model_that_finds_no_room_is_an_error_of_the_system_that_names_its_place(tmp_path: Path) -> None:
    def export(folder: Path) -> None:
        with no_file_above(64):
            tensors_of(private.model)(folder)

    private = training(tmp_path, export=export)
    train(private, DATA, until=3)
    with pytest.raises(OSError, match="large") as caught:
        private.release()
    assert caught.value.filename == str(tmp_path / "release" / "round-000003")


def test_finishing_again_after_a_crash_comes_to_the_same(tmp_path: Path) -> None:
    private = training(tmp_path)
    train(private, DATA)
    certificate = private.finish()
    weights = (tmp_path / "release" / "model" / "model.safetensors").read_bytes()
    for name in ("certificate.json", "certificate.md"):
        (tmp_path / "release" / name).unlink()
    shutil.rmtree(tmp_path / "release" / "plan")
    again = training(tmp_path)
    assert list(again.rounds()) == []
    assert again.finish() == certificate
    assert (tmp_path / "release" / "model" / "model.safetensors").read_bytes() == weights
    assert hush.verify(tmp_path / "release" / "plan").passed


# --- one process at a time


def test_a_folder_belongs_to_one_training_at_a_time(tmp_path: Path) -> None:
    private = training(tmp_path)
    with pytest.raises(InvalidInput, match="this process already has"):
        training(tmp_path)
    code = "import sys, pathlib, hush.storage as lock; lock.FolderLock(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "owner" / "lock")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another process has" in refused.stderr
    private.close()
    assert subprocess.run(command, check=False).returncode == 0
    training(tmp_path).close()
    with pytest.raises(InvalidInput, match="was closed"):
        private.save()


def test_a_copy_made_by_the_process_itself_lets_nobody_in_unseen(tmp_path: Path) -> None:
    """The system lifts a lock when the process that holds it closes the file anywhere."""
    command = [
        sys.executable,
        "-c",
        "import pathlib, sys; from hush.storage import FolderLock; FolderLock(pathlib.Path(sys.argv[1]))",
        str(tmp_path / "run" / "owner" / "lock"),
    ]
    private = training(tmp_path / "run")
    train(private, DATA, until=3)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    private.save()  # nobody came
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    shutil.copytree(tmp_path / "run", tmp_path / "another")
    assert subprocess.run(command, check=False).returncode == 0
    with pytest.raises(InvalidInput, match=r"another process had .* open since"):
        private.release()
    assert ledger(tmp_path / "run")["released"] == []


def test_a_fork_does_not_write_in_its_parents_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FolderLock(tmp_path / "lock")
    lock.check()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(InvalidInput, match="fork"):
            lock.check()
    lock.release()
    lock.release()


# --- what is released


def test_the_owners_files_are_readable_by_the_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "run" / "owner").mkdir(parents=True)
    (tmp_path / "run" / "owner").chmod(0o755)
    private = training(tmp_path / "run")
    train(private, DATA)
    private.finish()
    owner = tmp_path / "run" / "owner"
    assert stat.S_IMODE(owner.stat().st_mode) == 0o700
    for path in owner.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_release_holds_model_plan_and_certificate_and_nothing_of_the_draw(tmp_path: Path) -> None:
    private = training(tmp_path)
    train(private, DATA, until=5)
    private.release()
    train(private, DATA)
    certificate = private.finish()
    release = tmp_path / "release"
    files = {str(path.relative_to(release)) for path in release.rglob("*") if path.is_file()}
    copies = {f"plan/{path.name}" for path in (release / "plan").iterdir()}
    weights = {"model/model.safetensors", "round-000005/model.safetensors"}
    assert files == {"certificate.json", "certificate.md", *weights, *copies}
    seed = bytes.fromhex(ledger(tmp_path)["draw_seed"])
    state = torch.load(payload(tmp_path / "owner" / "checkpoints" / "round-000012.ckpt"), weights_only=True)
    randomness = state["random"][0]["torch"].numpy().tobytes()
    records = RunLog.read(tmp_path / "owner" / "rounds.jsonl")
    losses = [repr(record.loss).encode() for record in records if record.loss is not None]  # None: nothing was drawn
    assert losses
    patterns = [seed, seed.hex().encode(), ledger(tmp_path)["run"].encode(), randomness[64:128], *losses]
    patterns += [b"draw_seed", b"clipped_share", b"exp_avg", b"norm_quantiles", b"optimizer", b"MT19937"]
    contents = {path: path.read_bytes() for path in release.rglob("*") if path.is_file()}
    found = [(path, pattern) for path, content in contents.items() for pattern in patterns if pattern in content]
    assert found == []
    owners = b"".join(path.read_bytes() for path in (tmp_path / "owner").rglob("*") if path.is_file())
    assert all(pattern in owners for pattern in patterns[1:])  # where they are, the search finds them
    times = {path.stat().st_mtime for path in (release, *release.rglob("*"))}
    assert len(times) == 1  # not when the rounds ended
    assert hush.Plan.load(release / "plan") == PLAN
    assert hush.verify(release / "plan").passed
    assert Certificate.from_dict(json.loads((release / "certificate.json").read_text())) == certificate
    assert certificate.is_real
    assert (release / "certificate.md").read_text() == certificate.to_markdown()
    released = load_file(release / "model" / "model.safetensors")
    assert all(torch.equal(value, released[name]) for name, value in private.model.state_dict().items())


def test_beside_the_model_of_a_marked_run_lies_no_certificate_without_the_mark(tmp_path: Path) -> None:
    private = training(tmp_path, marks=["the data was not checked"])
    train(private, DATA, until=5)
    private.save()
    private.close()
    private = training(tmp_path)  # a mark stays, also when it is not said again
    train(private, DATA)
    assert private.finish().marks == ("the data was not checked",)
    assert not (tmp_path / "release" / "plan").exists()
    assert "NOT A CERTIFICATE" in (tmp_path / "release" / "certificate.md").read_text()


def test_a_model_may_be_written_by_its_own_library(tmp_path: Path) -> None:
    private = training(tmp_path, export=lambda folder: (folder / "weights.bin").write_bytes(b"mine"))
    train(private, DATA, until=2)
    assert (private.release() / "weights.bin").read_bytes() == b"mine"
