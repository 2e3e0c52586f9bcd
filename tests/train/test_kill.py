"""kill -9 at any moment: a training that is killed, again and again, completes with the plan's rounds and no more.

The tests start this file as a program. It imports torch once and forks the processes that train, so that a restart
costs milliseconds.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference import cross_entropy, small_data, small_model, small_plan, train

import hush
from hush.certificate import Certificate

ROUNDS = 320
KILLS = 30
RELEASES = (20, 60, 61, 100, 200)
STAGES = ("begin", "save", "release", "finish")


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check_complete(folder: Path, rounds: int, releases: tuple[int, ...]) -> None:
    from hush.train.run_folder import RunLog

    ledger = json.loads((folder / "owner" / "run.json").read_text())
    assert ledger["released"] == [*releases, rounds]
    assert ledger["finished"]
    assert {path.name for path in (folder / "release").iterdir()} == {
        *(f"round-{round:06d}" for round in releases), "model", "plan", "certificate.json", "certificate.md"
    }  # fmt: skip
    records = RunLog.read(folder / "owner" / "rounds.jsonl")
    assert [record.round for record in records] == list(range(1, rounds + 1))
    assert not [path for path in folder.rglob("*") if path.name.endswith((".tmp", ".old"))]
    certificate = Certificate.from_dict(json.loads((folder / "release" / "certificate.json").read_text()))
    assert certificate.is_real
    assert certificate.rounds == rounds
    assert (folder / "release" / "certificate.md").read_text() == certificate.to_markdown()
    assert hush.verify(folder / "release" / "plan").passed


def test_a_training_killed_30_times_completes_with_the_plans_rounds(tmp_path: Path) -> None:
    told = run("random", str(tmp_path / "run")).split()
    assert told.count("killed") == KILLS
    check_complete(tmp_path / "run", ROUNDS, RELEASES)


def test_a_kill_before_any_step_of_a_write_loses_nothing(tmp_path: Path) -> None:
    """Killed once before each call that flushes, renames, removes or makes a file or folder, a run for each of them."""
    told = [line.split() for line in run("boundary", str(tmp_path)).splitlines()]
    counts = {stage: int(places) for stage, places in told}
    assert {stage for stage, places in counts.items() if places >= 3} == {*STAGES}
    for stage, places in counts.items():
        for place in range(places):
            check_complete(tmp_path / stage / str(place), 4, (2,))


# --- the program


def main(kind: str, folder: str) -> None:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder_of_first:  # whatever is imported on first use
        whole_run(Path(folder_of_first), small_plan(rounds=2), save_every=1, releases=(1,))
    if kind == "random":
        random_kills(Path(folder))
    else:
        for stage in STAGES:
            boundary_kills(Path(folder) / stage, stage)


def random_kills(folder: Path) -> None:
    """Kill after a random number of rounds, every other time in a write; watch ledger and releases between lives."""
    plan = small_plan(rounds=ROUNDS)
    rng = random.Random(int.from_bytes(os.urandom(8)))  # every run of the test kills elsewhere
    seen: list[int] = []
    weights: dict[str, bytes] = {}
    status = 0
    for kill in range(KILLS + 1):
        child = forked(lambda: whole_run(folder, plan, save_every=5, releases=RELEASES))
        if kill < KILLS:
            goal = lines(folder) + rng.randrange(12)
            while lines(folder) < goal or (kill % 2 and not writing(folder)):
                if ended(child):
                    raise SystemExit(f"training ended by itself after {kill} kills")
            time.sleep(rng.uniform(0, 0.005) if rng.random() < 0.5 else 0)
            os.kill(child, signal.SIGKILL)
            sys.stdout.write("killed\n")
        status = os.waitpid(child, 0)[1]
        path = folder / "owner" / "run.json"
        now: list[int] = json.loads(path.read_text())["released"] if path.exists() else []
        if not set(seen) <= set(now) or max(now, default=0) > ROUNDS:
            raise SystemExit(f"the ledger went from {seen} to {now}")
        if any(released_weights(folder).get(name) != content for name, content in weights.items()):
            raise SystemExit("a round was released twice with other noise")
        seen, weights = now, released_weights(folder)
    if status:
        raise SystemExit("training failed")


def lines(folder: Path) -> int:
    path = folder / "owner" / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def writing(folder: Path) -> bool:
    """Whether a file or folder is half written just now."""
    places = (folder / "owner", folder / "owner" / "checkpoints", folder / "release")
    return any(name.startswith(".") for place in places if place.is_dir() for name in os.listdir(place))  # noqa: PTH208


def ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def boundary_kills(root: Path, stage: str) -> None:
    """For k = 0, 1, …: kill before the k-th call of the stage, then resume and complete."""
    plan = small_plan(rounds=4)
    for place in range(1000):
        folder = root / str(place)
        died = os.waitpid(forked(lambda: killed_run(folder, plan, stage, place)), 0)[1]  # noqa: B023
        if not os.WIFSIGNALED(died):
            if died:
                raise SystemExit("training failed")
            sys.stdout.write(f"{stage} {place}\n")
            return
        released = released_weights(folder)
        if os.waitpid(forked(lambda: whole_run(folder, plan, save_every=1, releases=(2,))), 0)[1]:  # noqa: B023
            raise SystemExit(f"the run killed in {stage} before call {place} did not resume")
        if any(released_weights(folder).get(name) != content for name, content in released.items()):
            raise SystemExit(f"killed in {stage} before call {place}, it released a round twice with other noise")


def killed_run(folder: Path, plan: hush.Plan, stage: str, place: int) -> None:
    """Train, and die before call number ``place`` to the file system within this stage."""
    armed, calls = [stage == "begin"], [0]

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            if armed[0]:
                if calls[0] == place:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls[0] += 1
            return call(*args, **more)

        return wrapped

    for name in ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))
    private = training(folder, plan, save_every=100)
    armed[0] = False
    train(private, small_data(), until=2)
    for name, call in (("save", private.save), ("release", private.release)):
        armed[0] = stage == name
        call()
        armed[0] = False
    train(private, small_data())
    private.save()
    armed[0] = stage == "finish"
    private.finish()


def whole_run(folder: Path, plan: hush.Plan, *, save_every: int, releases: tuple[int, ...]) -> None:
    """What an owner would start again after every crash."""
    private = training(folder, plan, save_every=save_every)
    for stop in releases:
        if private.round <= stop:
            train(private, small_data(), until=stop)
            private.release()
    train(private, small_data())
    private.finish()


def training(folder: Path, plan: hush.Plan, *, save_every: int) -> Any:
    import torch

    from hush.train.private_training import PrivateTraining

    model = small_model(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
    return PrivateTraining(
        model,
        optimizer,
        plan,
        loss=cross_entropy,
        scheduler=scheduler,
        folder=folder,
        save_every=save_every,
        micro_batch=8,
    )


def released_weights(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (folder / "release").glob("[rm]*/model.safetensors")}


def forked(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as error:
        import traceback

        traceback.print_exception(error)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
