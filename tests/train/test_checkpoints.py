"""Checkpoint files: the newest is read, a damaged one never, and none runs code."""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.train.checkpoints import Checkpoints, check_storable


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
    with pytest.raises(InvalidInput, match="hush did not write it"):
        Checkpoints(tmp_path / "c").newest()
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Evil()))  # it would have
    assert (tmp_path / "ran").exists()


def test_a_state_that_could_not_be_read_back_is_refused_at_the_start() -> None:
    check_storable("it", {"a": [1, (2.0, "x", None)], "b": {"c": torch.zeros(2)}})
    for bad in (Path(), lambda: None):
        with pytest.raises(InvalidInput, match="the state of it"):
            check_storable("it", {"bad": bad})
