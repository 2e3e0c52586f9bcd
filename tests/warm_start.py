"""The process of the public part, forked from one that has imported torch and transformers.

It is a process of its own all the same, with standard streams, environment and exit code, but it begins in
milliseconds instead of seconds. That it starts as ``python -m`` is tested in test_public_process.py.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import IO, Any, final

import pytest

__all__ = ["warm_public_process"]

PROGRAM = "hush.train.public.process"
IMPORTED = [
    PROGRAM,
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.gpt2.modeling_gpt2",
]


@contextmanager
def warm_public_process() -> Iterator[None]:
    """Public parts are learnt in forked processes."""
    from hush.train.public import process

    forkserver.set_forkserver_preload(IMPORTED)
    forkserver.ensure_running()  # before a run puts temporary files, such as its socket, into a folder of its own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "subprocess", SimpleNamespace(Popen=_Forked, PIPE=subprocess.PIPE))
        yield


@final
class _Forked:
    """What the public part uses of ``subprocess.Popen``."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        python, _dash_p, _dash_m, program, folder = command
        assert (python, program) == (sys.executable, PROGRAM)
        pipes = [os.pipe() for _ in range(3)]
        theirs = [Connection(pipes[0][0], writable=False)]
        theirs += [Connection(writing, readable=False) for _, writing in pipes[1:]]
        self._process = get_context("forkserver").Process(target=_learn, args=(folder, dict(env), theirs))
        self._process.start()
        for end in theirs:
            end.close()
        self.stdin: IO[str] = os.fdopen(pipes[0][1], "w")
        self.stdout, self.stderr = (os.fdopen(reading, errors="replace") for reading, _ in pipes[1:])

    def wait(self) -> int:
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code


def _learn(folder: str, env: Mapping[str, str], streams: list[Connection]) -> None:
    from hush.train.public.process import main

    os.environ.update(env)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    main(folder)
