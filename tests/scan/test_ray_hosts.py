"""A scan on a Ray cluster of two hosts, each in a network of its own: both work, and find what one process finds.

The test starts this file as a program on the first host: python test_ray_hosts.py ADDRESS FOLDER
"""

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from two_hosts import two_hosts

pytest.importorskip("ray")

PARTS = 12
PORT = 6379
RULES = {
    "defaults": {"prior": 1e-10, "ceiling": 1e-3},
    "rules": [
        {"name": "rare", "find": "words", "ranks": [10, 20]},
        {"name": "keys", "find": "patterns", "patterns": ["key-[0-9]{4}"]},
        {"name": "near", "find": "copies", "similarity": 0.6},
    ],
}


def test_a_scan_on_two_hosts_finds_what_one_process_finds(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [f"{a}{b}" for a in "bcdfghklmnpr" for b in ("ane", "ilo", "urt", "ess")]
    texts = [" ".join(rng.choices(words, k=40)) + f" key-{rng.randrange(30):04d}" for _ in range(60)]
    texts += [text.replace(words[0], "other", 1) for text in texts[:20]]
    (tmp_path / "data").mkdir()
    for part in range(PARTS):
        (tmp_path / "data" / f"part{part:02d}.txt").write_text("\n".join(texts[part::PARTS]) + "\n")
    sessions = tempfile.mkdtemp(prefix="hush-", dir="/tmp")  # paths of sockets must be short
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",  # nobody else joins
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus", "1", "--object-store-memory", "100000000"]
    try:
        with two_hosts() as (first, second):
            head = ["--head", "--port", PORT, "--include-dashboard", "false", "--temp-dir", sessions]
            silent = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            nodes = [first.start([*ray, "--block", "--node-ip-address", first.address, *head], **silent)]
            joining = ["--address", f"{first.address}:{PORT}", "--node-ip-address", second.address]
            nodes.append(second.start([*ray, "--block", *joining], **silent))
            program = [sys.executable, __file__, f"{first.address}:{PORT}", tmp_path / "data"]
            driver = first.start(program, env=environment)
            said, errors = driver.communicate(timeout=120)
            assert driver.returncode == 0, errors[-5000:]
            assert json.loads(said) == {"hosts": [first.address, second.address], "same": True}
        assert [node.wait() for node in nodes] == [-signal.SIGKILL] * 2
    finally:
        shutil.rmtree(sessions, ignore_errors=True)


# --- the program


def host_of(_: int) -> str:
    """The address of the host that works on a shard; long enough that both get some."""
    import ray

    time.sleep(0.3)
    return ray.util.get_node_ip_address()


def main(address: str, data: Path) -> None:
    import ray

    import hush.data.shards
    from hush.data import read_corpus
    from hush.errors import InvalidInput
    from hush.scan import scan
    from hush.scan.engine_ray import RayEngine
    from hush.scan.engines import LocalEngine

    hush.data.shards.MAX_FILES_PER_SHARD = 1  # a shard for each file, however small
    engine, until = RayEngine(address=address, workers=2), time.monotonic() + 60
    while True:  # until the first host listens
        try:
            with engine.connected():
                while sum(node["Alive"] for node in ray.nodes()) < 2:
                    time.sleep(0.1)
                from test_ray_hosts import host_of  # by a name that the other host can import

                hosts = sorted(set(engine.map(host_of, range(PARTS))))
                here, there = (scan(read_corpus(data), RULES, engine=e) for e in (LocalEngine(workers=1), engine))
            break
        except InvalidInput:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    same = there.incidence == here.incidence and there.secrets.texts == here.secrets.texts
    same = same and len(here.secrets) > 10 and list(there.why()) == list(here.why())
    sys.stdout.write(json.dumps({"hosts": hosts, "same": same}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
