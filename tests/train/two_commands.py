"""One of two processes that ``torchrun`` would start, for several commands in turn, for test_fit_ranks.py.

A program rather than a test. It imports what commands need once, and forks for each: python two_commands.py RANK FOLDER
"""

import atexit
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pandas  # noqa: F401 - the children need not import it again, nor what follows
import pyarrow.dataset  # noqa: F401
import pydantic  # noqa: F401
import torch
import yaml  # noqa: F401
from peft import get_peft_model  # noqa: F401
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: F401

import hush.train.fit
import hush.train.launch
import hush.train.noise
import hush.train.private_training
from hush.cli import main
from hush.train.private_training import PrivateTraining


def command(rank: int, scenario: dict, out: Path) -> NoReturn:
    """In a child: the command as if it had been started by itself, and its exit."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(out / f"{name}.{rank}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(scenario["port"])}
    if scenario.get("known_entropy"):
        for module in (hush.train.noise, hush.train.private_training):
            module.os = KnownEntropy()  # pyright: ignore[reportAttributeAccessIssue]
    if scenario.get("killed") == rank:
        PrivateTraining.step = lambda self: os.kill(os.getpid(), signal.SIGKILL)
    if "terminated" in scenario and scenario.get("which", rank) == rank:
        PrivateTraining.step = terminated_after(PrivateTraining.step, scenario["terminated"])
    sys.argv = ["hush", *scenario["commands"][rank]]
    code = 0
    try:
        main()
    except SystemExit as done:
        code = int(done.code or 0)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)  # taking down a forked interpreter that holds torch takes seconds


class KnownEntropy:
    """Stands for the module os where seeds and keys are taken from: the n-th is the same in every process."""

    def __init__(self) -> None:
        self.taken = 0

    def urandom(self, size: int) -> bytes:
        self.taken += 1
        return bytes([self.taken % 256]) * size


def terminated_after(step: Callable[..., None], round: int) -> Callable[..., None]:
    """The step, and after that of this round the signal with which torchrun ends its processes."""

    def stepped(self: PrivateTraining) -> None:
        step(self)
        if self.round == round:
            signal.raise_signal(signal.SIGTERM)

    return stepped


def run(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # children share what was imported
    codes: dict[str, int] = {}
    for name, scenario in json.loads((folder / "scenarios.json").read_text()).items():
        out = folder / "said" / name
        out.mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if not child:
            command(rank, scenario, out)
        codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (folder / f"codes.{rank}.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    run(int(sys.argv[1]), Path(sys.argv[2]))
