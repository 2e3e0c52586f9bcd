"""kill -9 at any moment: a run that is killed, again and again, ends with the same plan and one training of it.

The tests start this file as a program. It imports everything once and forks the processes that run, so that a restart
costs milliseconds: some are killed after a random time, others before a random call that changes the file system.
"""

import faulthandler
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent))  # as a program

from small_runs import CANARIES, check_complete, check_whole, plan_fingerprint, small_config

KILLS = 12  # at random times; as many again before calls
CALLS = (
    (os, "replace"), (os, "rename"), (os, "fsync"), (os, "mkdir"), (os, "unlink"), (os, "link"), (os, "chmod"),
)  # fmt: skip


def test_a_run_killed_at_random_moments_ends_with_the_same_plan_and_one_training(tmp_path: Path) -> None:
    command = [sys.executable, __file__, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sum(one["kills"] for one in told if one["how"] == "time") >= KILLS
    assert sum(one["kills"] for one in told if one["how"] == "call") >= KILLS
    expected = plan_fingerprint(tmp_path / "reference" / "release" / "plan")
    for one in told:
        run = Path(one["run"])
        check_complete(run)
        assert one["again"] == []  # all is done: nothing is done twice
        if not one["canaries"]:
            assert plan_fingerprint(run / "release" / "plan") == expected


# --- the program


def main(root: Path) -> None:
    import threading

    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    # Its own lock lies in memory that forks share: one that is killed with it would stop all others.
    tqdm.set_lock(threading.RLock())
    reference = root / "reference"
    run_here(root, reference, canaries=True)  # whatever is imported on first use
    shutil.rmtree(reference)
    run_here(root, reference, canaries=False)
    rng = random.Random(int.from_bytes(os.urandom(8)))  # every run of the test kills elsewhere
    for how in ("time", "call"):
        kills, number = 0, 0
        while kills < KILLS:
            run, canaries = root / f"{how}-{number}", number % 2 == 1
            died = killed_until_done(root, run, how, rng, most=KILLS - kills, canaries=canaries)
            kills, number = kills + died, number + 1
            again = run_here(root, run, canaries=canaries)
            told = {"how": how, "kills": died, "run": str(run), "canaries": canaries, "again": again}
            sys.stdout.write(json.dumps(told) + "\n")


def run_here(root: Path, run: Path, *, canaries: bool) -> list[str]:
    from hush.run import run_pipeline

    audit = {"attacks": ["mechanism", "extraction", "exposure"], "candidates": 20, "canaries": CANARIES}
    config = small_config(root / "desk", **({"audit": audit} if canaries else {}))
    return list(run_pipeline(config, output=run).ran)


def killed_until_done(root: Path, run: Path, how: str, rng: random.Random, *, most: int, canaries: bool) -> int:
    """Start it, kill it, look at what is there; until one ends by itself, as it may after so many kills."""
    kills, plan, model, patience = 0, None, None, 0.5
    while True:
        # A place beyond what is left to do is never reached.
        place = rng.randrange(counted_calls(root, canaries=canaries)) if how == "call" and kills < most else None
        child = forked(lambda: run_here(root, run, canaries=canaries), place)
        if how == "time" and kills < most:
            time.sleep(rng.uniform(0, patience))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            if status:
                raise SystemExit(f"the run failed after {kills} kills")
            return kills
        kills, patience = kills + 1, patience * 1.2  # on a slow machine it needs more to get anywhere
        plan, model = looked_at(run, plan, model)


def looked_at(run: Path, plan: Any, model: bytes | None) -> tuple[Any, bytes | None]:
    """Between two lives: a plan that was made stays as it is, and what is released is whole and stays too."""
    if (run / "owner" / "plan" / "plan.json").exists():
        now = plan_fingerprint(run / "owner" / "plan")
        if plan is not None and plan != now:
            raise SystemExit("the plan changed")
        plan = now if "plan" in json.loads((run / "stages.json").read_text())["stages"] else None
    if (run / "release").exists():
        check_whole(run / "release")
        weights = (run / "release" / "model" / "model.safetensors").read_bytes()
        if model is not None and model != weights:
            raise SystemExit("another model was released")
        model = weights
    return plan, model


def counted_calls(root: Path, *, canaries: bool, known: dict[bool, int] = {}) -> int:  # noqa: B006
    """How many calls a whole run makes."""
    if canaries not in known:
        calls = [0]
        with_calls(lambda: calls.__setitem__(0, calls[0] + 1))
        try:
            run_here(root, root / f"counted-{canaries}", canaries=canaries)
        finally:
            with_calls(None)
        known[canaries] = calls[0]
    return known[canaries]


_REAL = {name: getattr(module, name) for module, name in CALLS}


def with_calls(before: Callable[[], object] | None) -> None:
    """Have this happen before each call that changes the file system; None: as it was."""
    for module, name in CALLS:
        real = _REAL[name]
        setattr(module, name, real if before is None else preceded(before, real))


def preceded(before: Callable[[], object], real: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **more: Any) -> Any:
        before()
        return real(*args, **more)

    return called


def forked(work: Callable[[], object], place: int | None) -> int:
    """A child that works, and dies before the call of this number."""
    child = os.fork()
    if child:
        return child
    ended(work, place)


def ended(work: Callable[[], object], place: int | None) -> NoReturn:
    left = [place]

    def count() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1

    with_calls(count if place is not None else None)
    faulthandler.dump_traceback_later(100, exit=True)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)  # taking down a forked interpreter that holds torch takes seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]))
