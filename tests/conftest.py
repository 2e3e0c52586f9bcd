"""Hypothesis profiles: the same examples on every run in continuous integration, fresh ones at the desk.

Lets the tests of this directory import ``command_line``, ``slotted`` and ``warm_start``.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A shell lets what it starts in the background ignore Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Several test processes share the cores; OpenMP threads that wait for each other by spinning would take them all. Set
# before torch is imported, and inherited by every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent))

# No deadline: a first call may pay for a lazy import.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "desk")


@pytest.fixture(scope="module")
def warm_public_process() -> Iterator[None]:
    """Public parts are learnt in processes that need not import torch: for tests of what follows from them."""
    from warm_start import warm_public_process

    with warm_public_process():
        yield
