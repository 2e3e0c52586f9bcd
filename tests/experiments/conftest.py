"""Makes the helpers beside these tests importable, and undoes what studies set for the whole process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def matmul_precision() -> Iterator[None]:
    """Studies trade precision for speed; what is tested next in this process must not."""
    import torch

    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
