"""HushTrainer in two processes: what one process trains, public parts included, and one end for both.

The draw is the same to the bit, and so is the noise of replicas; gradients and their sums differ by rounding.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import two_trainers
from torch import Tensor
from trainers import ROUNDS, Stops, Watches, arguments, texts
from two_trainers import SCORED, STOP, trainer

import hush
from hush.errors import InvalidInput
from hush.train.hf.arguments import checked_settings
from hush.train.noise import Noise
from hush.train.run_folder import RunLog

SCENARIOS = (
    "replicas", "shards", "public_replicas", "public_shards", "one_is_stopped", "two_then_one", "one_then_two",
    "refused",
)  # fmt: skip
TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers")


@pytest.fixture(scope="module")
def found(root: Path) -> dict[str, list[Any]]:
    """What each process found, by scenario."""
    trainer(root / "one_then_two", callbacks=[Stops(STOP)]).train()
    done = started(root, *SCENARIOS)
    assert done.returncode == 0, done.stderr[-5000:]
    return {name: [torch.load(root / f"{name}.{rank}") for rank in range(2)] for name in SCENARIOS}


def started(root: Path, *scenarios: str, by: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """The program, started as it is (it forks two processes) or by a launcher."""
    command = [sys.executable, *by, two_trainers.__file__, str(root), *scenarios]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture
def noise_by_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process adds noise of its own to its shard; here one process adds both, shard by shard."""
    add_by_shard(monkeypatch, rounds=ROUNDS)


def add_by_shard(monkeypatch: pytest.MonkeyPatch, *, rounds: int) -> None:
    """In the first rounds the noise of two shards, afterwards that of one process."""
    add = Noise.add_

    def added(self: Noise, sums: dict[str, Tensor], *, scale: float, round: int, rank: int) -> None:
        parts = 2 if round < rounds else 1
        for shard in range(parts):
            part = {name: value.chunk(parts)[shard] for name, value in sums.items()}
            add(self, part, scale=scale, round=round, rank=shard)

    monkeypatch.setattr(Noise, "add_", added)


def assert_as_one(found: list[dict[str, Any]], one: Any) -> None:
    expected = two_trainers.values(one.model)
    for rank in found:
        assert rank["step"] == ROUNDS
        assert rank["marks"] == list(one.certificate.marks)
        assert rank["wrapped"].removeprefix("FSDP") == "LlamaForCausalLM"  # and nothing that averages gradients
        for name, value in rank["parameters"].items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=TOLERANCE)
            assert torch.equal(value, found[0]["parameters"][name])  # one model, to the bit


def assert_released_alike(two: Path, one: Path) -> None:
    """The same releases, the same draws, and the same losses up to rounding."""
    for folder in ("", "-hush"):
        names = [sorted(p.name for p in at.with_name(at.name + folder).iterdir()) for at in (two, one)]
        assert names[0] == names[1]
    logs = [RunLog.read(at.with_name(f"{at.name}-hush") / "owner" / "rounds.jsonl") for at in (two, one)]
    assert [record.examples for record in logs[0]] == [record.examples for record in logs[1]]
    assert [record.loss for record in logs[0]] == pytest.approx([record.loss for record in logs[1]], rel=1e-4)


def test_replicas_train_as_one_process_does(found: dict[str, list[Any]], root: Path, tmp_path: Path) -> None:
    watch = Watches()
    one = trainer(
        tmp_path / "one", settings=SCORED, eval_dataset=texts(1), eval_is_public=True, callbacks=[watch]
    )  # fmt: skip
    one.train()
    assert_as_one(found["replicas"], one)
    assert_released_alike(root / "replicas", tmp_path / "one")
    for rank in found["replicas"]:
        assert rank["scores"] == pytest.approx([row["eval_loss"] for row in watch.scores], rel=1e-3)
        assert not any("loss" in row or "total_flos" in row for row in rank["logs"])


@pytest.mark.usefixtures("noise_by_shard")
def test_shards_train_as_one_process_does(found: dict[str, list[Any]], root: Path, tmp_path: Path) -> None:
    one = trainer(tmp_path / "one", settings=SCORED, eval_dataset=texts(1))
    one.train()
    assert_as_one(found["shards"], one)
    assert_released_alike(root / "shards", tmp_path / "one")
    lines = (root / "shards-hush" / "owner" / "evaluations.jsonl").read_text().splitlines()
    assert len(lines) == 2  # by one process, not by both


def test_what_is_public_is_learnt_by_replicas_as_by_one_process(found: dict[str, list[Any]], tmp_path: Path) -> None:
    """First, beside the private rounds and as a metric; and the mean of the last models is released."""
    one = trainer(tmp_path / "one", public=True)
    one.train()
    assert_as_one(found["public_replicas"], one)
    assert one.learnt_first is not None
    assert [rank["first"] for rank in found["public_replicas"]] == [one.learnt_first.validation] * 2


@pytest.mark.usefixtures("noise_by_shard")
def test_what_is_public_is_learnt_by_shards_as_by_one_process(found: dict[str, list[Any]], tmp_path: Path) -> None:
    one = trainer(tmp_path / "one", public=True)
    one.train()
    assert_as_one(found["public_shards"], one)


def test_a_callback_that_stops_one_process_stops_all_and_they_go_on(
    found: dict[str, list[Any]], root: Path, tmp_path: Path
) -> None:
    one = trainer(tmp_path / "one")
    one.train()
    assert [rank["stopped"] for rank in found["one_is_stopped"]] == [STOP, STOP]
    assert_as_one(found["one_is_stopped"], one)
    assert (root / "one_is_stopped" / f"checkpoint-{STOP}").is_dir()


def test_one_process_goes_on_with_what_two_began_and_two_with_what_one_began(
    found: dict[str, list[Any]], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trainer(tmp_path / "one", callbacks=[Stops(STOP)])
    one.train()
    one = trainer(tmp_path / "one")
    one.train(resume_from_checkpoint=True)
    assert_as_one(found["one_then_two"], one)
    assert_released_alike(root / "one_then_two", tmp_path / "one")
    assert [rank["step"] for rank in found["two_then_one"]] == [STOP, STOP]
    resumed = trainer(root / "two_then_one")  # shards until here, whole from here on
    resumed.train(resume_from_checkpoint=True)
    add_by_shard(monkeypatch, rounds=STOP)
    whole = trainer(tmp_path / "whole", callbacks=[Stops(STOP)])
    whole.train()
    whole = trainer(tmp_path / "whole")
    whole.train(resume_from_checkpoint=True)
    for name, value in two_trainers.values(resumed.model).items():
        torch.testing.assert_close(value, two_trainers.values(whole.model)[name], rtol=0, atol=TOLERANCE)
    assert_released_alike(root / "two_then_one", tmp_path / "whole")


REFUSALS = {
    "settings": "process 1 has other settings than the first one",
    "offload": "cpu_offload of fsdp_config is not supported",
    "first version": "version 1 of FSDP reduces raw gradients",
    "optimizer": "pass optimizer_cls_and_kwargs=",
    "each node": "save_on_each_node=True writes releases that no ledger lists",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_several_processes_cannot_do_is_refused_by_all(found: dict[str, list[Any]], what: str) -> None:
    for rank in found["refused"]:
        assert REFUSALS[what] in rank[what]


def test_shards_of_one_process_and_launchers_with_the_first_fsdp_are_refused(
    plan: hush.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = arguments(tmp_path / "out")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    for version, message in (("1", "accelerate launch --fsdp_version 2"), ("2", "there is one; start them")):
        monkeypatch.setenv("FSDP_VERSION", version)
        with pytest.raises(InvalidInput, match=message):
            checked_settings(args, plan, callbacks=(), eval_is_public=False)


@pytest.mark.slow
def test_one_process_goes_on_where_another_was_killed_in_a_round_and_what_was_released_stays(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert started(tmp_path, "one_is_killed", by=torchrun).returncode != 0
    output, owner = tmp_path / "one_is_killed", tmp_path / "one_is_killed-hush"
    before = (output / "checkpoint-2" / "model.safetensors").read_bytes()
    assert [path.name for path in output.iterdir()] == ["checkpoint-2"]
    resumed = trainer(output)
    resumed.train(resume_from_checkpoint=True)
    assert (output / "checkpoint-2" / "model.safetensors").read_bytes() == before
    assert resumed.state.global_step == ROUNDS
    records = RunLog.read(owner / "owner" / "rounds.jsonl")
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--multi_gpu"], ["--use_fsdp", "--fsdp_version", "2"]])
def test_accelerate_launch_starts_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    """Replicas, or shards by the launcher's own option."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", *options, "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    program = [two_trainers.__file__, str(tmp_path), "public_replicas"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([*launch, *program], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    if "--use_fsdp" in options:
        add_by_shard(monkeypatch, rounds=ROUNDS)
    one = trainer(tmp_path / "one", public=True)
    one.train()
    assert_as_one([torch.load(tmp_path / f"public_replicas.{rank}") for rank in range(2)], one)
