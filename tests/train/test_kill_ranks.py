"""One of two processes is killed in the middle of a round, a save or a release: the other one releases nothing more.

Afterwards one process or two go on in the same folder, and no round is released twice with other noise. The test starts
this file as a program, which imports torch once and forks the processes that train.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from reference import cross_entropy, small_data, small_model, small_plan, train
from test_kill import check_complete, forked, released_weights

ROUNDS, RELEASES = 4, (1, 2)
DEADLY = 2  # round, counted from 0: rounds 1 and 2 are released by then
PATIENCE = 60.0  # seconds for the surviving process to notice, on a busy machine

# What is called when a process is killed: before its call of this number within round DEADLY, in which rank.
PLACES = [
    (rank, place)
    for place in ("sum", "noise", "share", "shared", "gather", "save", "enter", "write", "written", "finish")
    for rank in ((0,) if place in ("noise", "save", "enter", "write", "written") else (0, 1))
]


def test_a_rank_that_is_killed_leaves_no_other_to_release_and_no_round_is_released_twice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-5000:]
    told = [tuple(line.split()) for line in done.stdout.splitlines()]
    assert told == [(str(rank), place, "killed") for rank, place in PLACES]
    for rank, place in PLACES:
        check_complete(tmp_path / f"{place}-{rank}", ROUNDS, (*RELEASES, DEADLY + 1))


# --- the program


def main(root: Path) -> None:
    import torch

    torch.set_num_threads(1)
    for number, (rank, place) in enumerate(PLACES):
        folder = root / f"{place}-{rank}"
        sharded = number % 3 == 2
        victims = [
            forked(lambda r=r: training(folder, root / f"meet-{number}", r, 2, sharded, (rank, place)))  # noqa: B023
            for r in range(2)
        ]
        status = [status_of(child) for child in victims]
        if status[rank] != -signal.SIGKILL or status[1 - rank] in (None, 0):
            raise SystemExit(f"killed rank {rank} at {place}: the processes ended with {status}")
        ledger = json.loads((folder / "owner" / "run.json").read_text())
        seen = released_weights(folder)
        if any(round_of(name) not in ledger["released"] for name in seen):
            raise SystemExit(f"killed rank {rank} at {place}: {sorted(seen)} lies there, the ledger lists less")
        world = 1 + number % 2
        after = [
            forked(lambda r=r: training(folder, root / f"again-{number}", r, world, False, None))  # noqa: B023
            for r in range(world)
        ]
        status = [status_of(child) for child in after]
        if any(status):
            raise SystemExit(f"killed rank {rank} at {place}: {world} processes could not go on ({status})")
        now = released_weights(folder)
        if any(now.get(name) != content for name, content in seen.items()):
            raise SystemExit(f"killed rank {rank} at {place}: a round was released twice with other noise")
        sys.stdout.write(f"{rank} {place} killed\n")


def round_of(path: str) -> int:
    name = Path(path).parent.name
    return ROUNDS if name == "model" else int(name.removeprefix("round-"))


def status_of(child: int) -> int | None:
    """The exit status, a signal as its negative number; None if it has to be killed."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def training(folder: Path, meeting: Path, rank: int, world: int, sharded: bool, killed: tuple[int, str] | None) -> None:
    """What every process runs; one of them dies at its place in the deadly round."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from hush.train.private_training import PrivateTraining

    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=PATIENCE)
        )
    model: Any = small_model(dropout=0.1)
    if sharded:
        fully_shard(model)
    private = PrivateTraining(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        small_plan(rounds=ROUNDS),
        loss=cross_entropy,
        folder=folder,
        save_every=1,
        micro_batch=8,
    )
    for stop in (*RELEASES, DEADLY, DEADLY + 1):
        if stop == DEADLY + 1 and killed is not None and killed[0] == rank:
            arm(killed[1])
        if private.round <= stop:
            train(private, small_data(), until=stop)
            if stop != DEADLY or stop in RELEASES:
                private.release()
    train(private, small_data())
    private.finish()
    if world > 1:
        dist.destroy_process_group()


def arm(place: str) -> None:
    """From now on this process is killed before it does this."""
    from hush.train import private_training, run_folder, run_keeper
    from hush.train.distributed import Ranks
    from hush.train.noise import Noise

    def deadly(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def after(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> None:
            call(*args, **more)
            deadly()

        return called

    match place:
        case "sum":
            setattr(Ranks, "sum", deadly)  # noqa: B010
        case "noise":
            setattr(Noise, "add_", deadly)  # noqa: B010
        case "share":
            setattr(Ranks, "share", deadly)  # noqa: B010
        case "shared":
            setattr(Ranks, "share", after(Ranks.share))  # noqa: B010
        case "gather":
            run_keeper.capture = deadly
        case "save":
            setattr(run_folder.Checkpoints, "write", deadly)  # noqa: B010
        case "enter":
            setattr(run_folder.Ledger, "store", deadly)  # noqa: B010
        case "write":
            setattr(run_folder.RunFolder, "_write", deadly)  # noqa: B010
        case "written":
            setattr(run_folder.RunFolder, "_write", after(run_folder.RunFolder._write))  # noqa: B010
        case _:
            private_training.RunKeeper.finish = deadly


if __name__ == "__main__":
    main(Path(sys.argv[1]))
