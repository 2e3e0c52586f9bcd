"""``hush train`` by torchrun on two hosts, each in a network of its own and with its own copies of all inputs.

They share nothing but the cable: no loopback, no folder. The first host writes the run; the other one writes nothing.
"""

import json
import shutil
import sys
from pathlib import Path

from test_fit_ranks import PUBLIC, ROUNDS, alone, assert_close, environment, prepare, train

from two_hosts import two_hosts

INPUTS = ("model", "plan", "data.txt", "my.key")
PORT = 29500


def test_two_hosts_release_the_model_of_one_process(tmp_path: Path) -> None:
    prepare(tmp_path)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        for name in INPUTS:
            copy = shutil.copytree if (tmp_path / name).is_dir() else shutil.copy2
            copy(tmp_path / name, folder / name)
    with two_hosts() as hosts:
        meeting = ["--nnodes", 2, "--nproc-per-node", 1, "--master-addr", hosts[0].address, "--master-port", PORT]
        processes = [
            host.start(
                [
                    *(sys.executable, "-m", "torch.distributed.run", *meeting, "--node-rank", number),
                    *("-m", "hush", *train(Path(), "run", *PUBLIC, "--json")),
                ],
                cwd=folder,
                env=environment() | {"PYTHONPATH": ":".join(sys.path)},
            )
            for number, (host, folder) in enumerate(zip(hosts, folders, strict=True))
        ]
        said = [process.communicate(timeout=300) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said
    assert json.loads(said[0][0])["rounds"] == ROUNDS
    assert said[1][0] == ""
    assert sorted(path.name for path in folders[1].iterdir()) == sorted(INPUTS)
    assert alone(*train(tmp_path, "one", *PUBLIC)).exit_code == 0
    assert_close(folders[0] / "run", tmp_path / "one")
