"""Makes the helpers beside it importable, and gives tiny models one thread."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level model of a few thousand parameters."""
    from hush.run.sections import SmallModel
    from hush.run.stage_train import base_model

    return base_model(tmp_path_factory.mktemp("model"), SmallModel(layers=1, width=16, heads=1, length=24))
