"""A finished run for several files of tests; makes the helpers beside them importable."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny models gain nothing from more
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("desk")


@pytest.fixture(scope="session")
def finished(desk: Path) -> Path:
    """A run that is never changed."""
    from small_runs import NO_CANARIES, small_config

    from hush.run import run_pipeline

    assert list(run_pipeline(small_config(desk), output=desk / "finished").ran) == NO_CANARIES
    return desk / "finished"


@pytest.fixture
def own(finished: Path, desk: Path, tmp_path: Path) -> Path:
    """A finished run for a test to change, moved to a desk of its own with its data and key."""
    shutil.copytree(finished, tmp_path / "run")
    for name in ("data.txt", "my.key"):
        shutil.copy2(desk / name, tmp_path / name)
    return tmp_path
