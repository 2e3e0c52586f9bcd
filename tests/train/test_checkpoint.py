"""Checkpoints and the folder of a run: what survives, what is refused, and what is released."""

import hashlib
import io
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import cross_entropy, small_data, small_model, small_plan, train
from safetensors.torch import load_file
from torch import nn

import hush
from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.train.checkpoint import Checkpoints, check_storable
from hush.train.lock import FolderLock
from hush.train.private import PrivateTraining
from hush.train.release import tensors_of
from hush.train.run_log import RunLog
from limits import no_file_above

PLAN = small_plan()
DATA = small_data()


def training(folder: Path, *, model: nn.Module | None = None, **more: Any) -> PrivateTraining:
    """Dropout, momentum and a schedule: everything that has a state."""
    model = small_model(dropout=0.3) if model is None else model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    options: dict[str, Any] = {"plan": PLAN, "save_every": 4, "micro_batch": 8} | more
    plan = options.pop("plan")
    return PrivateTraining(model, optimizer, plan, loss=cross_entropy, scheduler=scheduler, folder=folder, **options)


def parameters(private: PrivateTraining) -> torch.Tensor:
    return nn.utils.parameters_to_vector(private.model.parameters()).detach().clone()


def ledger(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "owner" / "run.json").read_text())


# --- one file


def test_the_newest_checkpoints_are_kept_and_the_last_is_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    assert checkpoints.newest() is None
    for round in (3, 7, 11):
        checkpoints.write(round, {"value": torch.full((2,), round)})
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["round-000007.ckpt", "round-000011.ckpt"]
    newest = checkpoints.newest()
    assert newest is not None
    assert newest["round"] == 11
    assert newest["value"].tolist() == [11, 11]
    with pytest.raises(InvalidInput, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_checkpoint_is_never_taken(tmp_path: Path, place: float, change: int, cut: bool) -> None:
    checkpoints = Checkpoints(tmp_path / "c")
    for round in (1, 2):
        checkpoints.write(round, {"value": torch.randn(50)})
    path = tmp_path / "c" / "round-000002.ckpt"
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    content[at] ^= change
    path.write_bytes(content[:at] if cut else content)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest["round"] == 1
    checkpoints.keep = 1
    checkpoints.write(2, {"value": torch.zeros(1)})
    newest = checkpoints.newest()
    assert newest is not None
    assert newest["round"] == 2


def test_a_damaged_later_checkpoint_does_not_push_out_a_whole_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=1)
    checkpoints.write(9, {})
    (tmp_path / "c" / "round-000009.ckpt").write_bytes(b"")
    checkpoints.write(5, {})
    newest = checkpoints.newest()
    assert newest is not None
    assert newest["round"] == 5


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    buffer = io.BytesIO()
    torch.save({"round": 1, "evil": Evil()}, buffer)
    (tmp_path / "c").mkdir()
    content = hashlib.sha256(buffer.getvalue()).hexdigest().encode() + buffer.getvalue()
    (tmp_path / "c" / "round-000001.ckpt").write_bytes(b"hush checkpoint 1\n" + content)
    with pytest.raises(InvalidInput, match="somebody else wrote it"):
        Checkpoints(tmp_path / "c").newest()
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Evil()))  # it would have
    assert (tmp_path / "ran").exists()


def test_a_state_that_could_not_be_read_back_is_refused_at_the_start() -> None:
    check_storable("it", {"a": [1, (2.0, "x", None)], "b": {"c": torch.zeros(2)}})
    for bad in (Path(), lambda: None):
        with pytest.raises(InvalidInput, match="the state of it"):
            check_storable("it", {"bad": bad})


# --- resuming


@pytest.mark.parametrize("stops", [[5], [1, 2, 9], [4, 8, 12]])
def test_with_a_fixed_seed_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, stops: list[int]
) -> None:
    finals = []
    for folder, pauses in ((tmp_path / "whole", []), (tmp_path / "parts", stops)):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        private = training(folder, insecure_seed=7)
        for stop in pauses:
            train(private, DATA, until=stop)
            private.save()
            private.close()
            torch.manual_seed(99)  # another process
            private = training(folder, insecure_seed=7)
            assert private.round == stop
        train(private, DATA)
        private.finish()
        assert isinstance(private.scheduler, torch.optim.lr_scheduler.OneCycleLR)
        states = private.optimizer.state_dict()["state"].values()
        moments = torch.cat([state[name].flatten() for state in states for name in ("exp_avg", "exp_avg_sq", "step")])
        finals.append((parameters(private), moments, torch.tensor(private.scheduler.get_last_lr())))
        records = RunLog.read(folder / "owner" / "rounds.jsonl")
        assert [record.round for record in records] == list(range(1, 13))
        finals[-1] += (torch.tensor([record.loss or 0.0 for record in records]),)
    assert all(torch.equal(*pair) for pair in zip(*finals, strict=True))


def test_draws_repeat_after_a_crash_and_noise_never_does(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        private = training(tmp_path, model=small_model(), save_every=100)
        start = parameters(private)
        draws = train(private, DATA, until=4)
        runs.append((start, parameters(private), draws))
        private.close()  # nothing was saved
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(np.array_equal(*pair) for pair in zip(runs[0][2], runs[1][2], strict=True))
    assert (runs[0][1] != runs[1][1]).all()
    other = training(tmp_path / "other", model=small_model())
    assert any(not np.array_equal(*pair) for pair in zip(train(other, DATA, until=4), runs[0][2], strict=True))


def test_another_plan_is_refused_and_both_are_named(tmp_path: Path) -> None:
    training(tmp_path).close()
    for other, named in (
        (small_plan(rounds=13), "rounds 12 against 13"),
        (small_plan(clip_norm=0.8), "clip_norm 0.7 against 0.8"),
        (small_plan(ceiling=2e-2), "noise_multiplier .* against .*, promises"),
    ):
        with pytest.raises(InvalidInput, match=named):
            training(tmp_path, plan=other)
    training(tmp_path).close()  # and the folder is still good


def test_seeding_cannot_change_on_the_way(tmp_path: Path) -> None:
    training(tmp_path / "secure").close()
    training(tmp_path / "fixed", insecure_seed=1).close()
    for folder, seed in (("secure", 1), ("fixed", None), ("fixed", 2)):
        with pytest.raises(InvalidInput, match="insecure_seed"):
            training(tmp_path / folder, insecure_seed=seed)


def test_another_model_optimizer_or_base_is_refused(tmp_path: Path) -> None:
    def frozen(seed: int) -> nn.Sequential:
        model = small_model(seed=seed)
        model[0].requires_grad_(False)
        return model

    private = training(tmp_path, model=frozen(0))
    train(private, DATA, until=1)
    private.save()
    private.close()
    with pytest.raises(InvalidInput, match="frozen tensors"):
        training(tmp_path, model=frozen(1))
    with pytest.raises(InvalidInput, match=r"frozen tensors|another model"):
        training(tmp_path, model=small_model())
    model = frozen(0)
    with pytest.raises(InvalidInput, match="began with a scheduler"):
        PrivateTraining(
            model,
            torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]),
            PLAN,
            loss=cross_entropy,
            folder=tmp_path,
        )
    assert training(tmp_path, model=frozen(0)).round == 1


def test_a_buffer_that_training_changed_is_neither_saved_nor_released(tmp_path: Path) -> None:
    model = small_model()
    model.register_buffer("seen", torch.zeros(1))
    model.register_buffer("cache", torch.zeros(1), persistent=False)
    private = training(tmp_path, model=model)
    train(private, DATA, until=1)
    model.get_buffer("cache").add_(1)
    private.save()
    train(private, DATA, until=2)
    model.get_buffer("seen").add_(1)
    with pytest.raises(InvalidInput, match="changed a buffer"):
        private.release()
    assert not (tmp_path / "release").exists()


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
    with pytest.raises(InvalidInput, match=r"round-000006 exists, but .* knows nothing"):
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
    code = "import sys, pathlib, hush.train.lock as lock; lock.FolderLock(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "owner" / "lock")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another process has" in refused.stderr
    private.close()
    assert subprocess.run(command, check=False).returncode == 0
    training(tmp_path).close()
    with pytest.raises(InvalidInput, match="was closed"):
        private.save()


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
    state = torch.load(_payload(tmp_path / "owner" / "checkpoints" / "round-000012.ckpt"), weights_only=True)
    randomness = state["random"][0]["torch"].numpy().tobytes()
    losses = [repr(record.loss).encode() for record in RunLog.read(tmp_path / "owner" / "rounds.jsonl")]
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


def _payload(path: Path) -> io.BytesIO:
    return io.BytesIO(path.read_bytes()[len(b"hush checkpoint 1\n") + 64 :])
