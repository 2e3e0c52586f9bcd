"""The local engine: results in order, errors as the task raised them, and no process left behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any

import pytest
from toys import Held, killed_on_text, process_of, refusing

import hush
from hush.scan.engines import LocalEngine

SERVICES = re.compile(rb"resource_tracker|forkserver")


def shards(*texts: str) -> list[Held]:
    return [Held(((text, None),), 1) for text in texts]


def children() -> set[int]:
    """Processes that were started here and have not ended, but for those of multiprocessing itself."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if int(state[1]) == os.getpid() and not SERVICES.search(command):
            found.add(int(entry.name))
    return found


def test_one_worker_is_this_process_and_two_are_two_others() -> None:
    work = shards(*"abcdefgh")
    assert set(LocalEngine(workers=1).map(process_of, work)) == {os.getpid()}
    others = list(LocalEngine(workers=2).map(process_of, work))
    assert len(others) == 8
    assert os.getpid() not in others
    assert list(LocalEngine(workers=2).map(process_of, [])) == []
    assert not children() & set(others)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_in_order_comes_through_unchanged(workers: int) -> None:
    work = shards("a", "refuse one", "refuse two", *"bcdefgh")
    results = LocalEngine(workers=workers).map(refusing, work)
    assert next(results) == 1
    with pytest.raises(hush.InvalidInput, match=r"^refuse one$"):
        next(results)
    assert not children()


def test_a_process_that_dies_is_a_clear_error() -> None:
    with pytest.raises(hush.HushError, match=r"one of the 2 processes died.*set workers to 1"):
        list(LocalEngine(workers=2).map(killed_on_text, shards("a", "kill", "b", "c")))
    assert not children()


@pytest.mark.parametrize("end", [lambda results: results.close(), lambda results: results.throw(KeyboardInterrupt)])
def test_whoever_stops_early_leaves_no_process_behind(end: Callable[[Any], Any]) -> None:
    results: Any = LocalEngine(workers=2).map(process_of, shards(*"abcdefghijkl"))
    next(results)
    assert children()
    with contextlib.suppress(KeyboardInterrupt):
        end(results)
    assert not children()


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_ends_every_process(tmp_path: Path) -> None:
    """Ctrl-C as a terminal sends it: to all processes of the group."""
    script = tmp_path / "main.py"
    script.write_text(
        "import os, signal, sys, threading\n"
        "from toys import Held, process_of\n"
        "from hush.scan.engines import LocalEngine\n"
        "if __name__ == '__main__':\n"
        "    results = LocalEngine(workers=2).map(process_of, [Held((('a', None),), 1)] * 10**6)\n"
        "    print(next(results), flush=True)\n"
        "    threading.Timer(0.3, os.killpg, (0, signal.SIGINT)).start()\n"
        "    for _ in results: pass\n"
    )
    search_path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search_path)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, start_new_session=True, timeout=60
    )
    assert "KeyboardInterrupt" in done.stderr
    worker = int(done.stdout.split()[0])
    for _ in range(50):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_between_the_birth_of_a_process_and_its_orders_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It reaches the process through any thread, and Python raises it in the main one, though that blocks it."""
    born: list[int] = []
    spawn, now = util.spawnv_passfds, threading.Event()

    def hear() -> None:
        now.wait()
        signal.raise_signal(signal.SIGINT)  # in this thread, which began before and blocks nothing

    other = threading.Thread(target=hear)

    def interrupted(*args: Any) -> int:
        born.append(spawn(*args))
        now.set()
        other.join()
        return born[-1]

    resource_tracker.ensure_running()  # which is started the same way
    monkeypatch.setattr(util, "spawnv_passfds", interrupted)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(workers=2).map(process_of, shards(*"abcd")))
    for process in born:
        with contextlib.suppress(ChildProcessError):  # it has been waited for
            os.waitpid(process, 0)
    assert len(born) == 1
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize("started", [0, 1])
def test_an_interrupt_is_not_lost_to_an_error_while_a_process_starts(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    spawn, born = util.spawnv_passfds, []

    def failing(*args: Any) -> int:
        if len(born) == started:
            signal.raise_signal(signal.SIGINT)
            raise OSError("no more processes")
        born.append(spawn(*args))
        return born[-1]

    resource_tracker.ensure_running()  # which is started the same way
    monkeypatch.setattr(util, "spawnv_passfds", failing)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(workers=2).map(process_of, shards(*"abcd")))
    assert signal.getsignal(signal.SIGINT) is before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert len(born) == started
    assert not children()


def test_a_process_whose_start_is_followed_by_an_error_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(pool: ProcessPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ProcessPoolExecutor, "_start_executor_manager_thread", failing)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(LocalEngine(workers=2).map(process_of, shards(*"abcd")))
    assert not children()


def test_a_ctrl_c_that_is_ignored_stays_ignored_while_processes_start() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        results = LocalEngine(workers=2).map(process_of, shards(*"abcd"))
        next(results)
        signal.raise_signal(signal.SIGINT)
        assert len(list(results)) == 3
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_workers_are_counted(workers: Any) -> None:
    with pytest.raises(hush.InvalidInput, match="pass a number of processes, 1 or more"):
        LocalEngine(workers=workers)
