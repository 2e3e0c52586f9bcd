"""kill -9 at any moment of a second release: it ends as one entry, one training, and a chain that verifies.

The test starts this file as a program, which imports everything once and forks the runs, as in test_kill_run.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as a program

from small_runs import ROUNDS, check_whole, small_config, small_texts
from test_kill_run import forked, with_calls

KILLS = 8  # at random times; as many again before calls
RELEASES = {"ledger": "ledger", "series": {"count": 3, "growth": 2.0}}


def test_a_second_release_killed_at_random_moments_is_one_release_of_the_chain(tmp_path: Path) -> None:
    command = [sys.executable, __file__, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sum(one["kills"] for one in told if one["how"] == "time") >= KILLS
    assert sum(one["kills"] for one in told if one["how"] == "call") >= KILLS
    assert any(one["entered"] for one in told)  # some died after the entry, and went on
    for one in told:
        check_chain(Path(one["desk"]))
        assert one["again"] == []


def check_chain(desk: Path) -> None:
    """Two releases, each trained once for its rounds, the second after the first; nothing half written."""
    import hush
    from hush.ledger import Ledger
    from hush.train.run_folder import RunLog

    check_whole(desk / "run")
    check_whole(desk / "ledger")
    ledger = Ledger.load(desk / "ledger")
    assert [entry.state for entry in ledger.entries] == ["released", "released"]
    trainings = sorted((desk / "run" / "owner" / "training").iterdir())
    assert {path.name for path in trainings} == {Path(entry.training).name for entry in ledger.entries}
    for training in trainings:
        assert json.loads((training / "owner" / "run.json").read_text())["released"] == [ROUNDS]
        rounds = [record.round for record in RunLog.read(training / "owner" / "rounds.jsonl")]
        assert rounds == list(range(1, ROUNDS + 1))
    plan = hush.Plan.load(desk / "run" / "release" / "plan")
    assert plan.chain is not None
    assert plan.chain.predecessors == (ledger.entries[0].plan,)
    assert hush.verify(desk / "run" / "release").passed


def main(root: Path) -> None:
    import torch

    torch.set_num_threads(1)
    first = root / "first"
    run_here(first)
    data = first / "data.txt"
    data.write_text("\n".join([*small_texts(), "more QX-1001", "new QX-7777"]) + "\n")
    whole = cloned(first, root / "whole")
    begin = time.perf_counter()
    run_here(whole)
    longest = time.perf_counter() - begin
    calls = counted_calls(cloned(first, root / "counted"))
    rng = random.Random(int.from_bytes(os.urandom(8)))  # every run of the test kills elsewhere
    for how in ("time", "call"):
        kills, number = 0, 0
        while kills < KILLS:
            desk = cloned(first, root / f"{how}-{number}")
            died, entered = killed_until_done(desk, how, rng, most=KILLS - kills, longest=longest, calls=calls)
            kills, number = kills + died, number + 1
            told = {"how": how, "kills": died, "desk": str(desk), "entered": entered, "again": run_here(desk)}
            sys.stdout.write(json.dumps(told) + "\n")


def run_here(desk: Path) -> list[str]:
    from hush.run import run_pipeline

    config = small_config(desk, data={"key": None}, plan={"keep": 0.5}, releases=RELEASES, audit=None)
    return list(run_pipeline(config, output=desk / "run", new_release=True).ran)


def cloned(desk: Path, copy: Path) -> Path:
    """The desk after the first release, at another place, as after a move."""
    shutil.copytree(desk, copy)
    entry = copy / "ledger" / "releases" / "0001" / "entry.json"
    entry.write_text(entry.read_text().replace(str(desk), str(copy)))
    return copy


def counted_calls(desk: Path) -> int:
    calls = [0]
    with_calls(lambda: calls.__setitem__(0, calls[0] + 1))
    try:
        run_here(desk)
    finally:
        with_calls(None)
    return calls[0]


def killed_until_done(
    desk: Path, how: str, rng: random.Random, *, most: int, longest: float, calls: int
) -> tuple[int, bool]:
    """How often it was killed, and whether that happened between its entry and its end."""
    from hush.ledger import Ledger

    kills, entered = 0, False
    while True:
        place = rng.randrange(calls) if how == "call" and kills < most else None
        child = forked(lambda: run_here(desk), place)
        if how == "time" and kills < most:
            time.sleep(rng.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        entries = Ledger.load(desk / "ledger").entries
        if len(entries) not in (1, 2):
            raise SystemExit(f"{len(entries)} entries after {kills} kills")
        if not os.WIFSIGNALED(status):
            if status:
                raise SystemExit(f"the run failed after {kills} kills")
            return kills, entered
        kills += 1
        entered = entered or (len(entries) == 2 and entries[1].state == "started")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
