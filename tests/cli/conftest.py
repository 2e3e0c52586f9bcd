"""What several files of tests work on; makes the helpers beside them importable."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from training_desk import Desk


@pytest.fixture
def mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some mail and rules, where the command runs."""
    from some_mail import write_mail

    monkeypatch.chdir(tmp_path)
    write_mail()
    return tmp_path


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Desk"]:
    """Models, data, keys and plans to train from, which no test changes."""
    import torch
    from training_desk import set_up_desk

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny models gain nothing from more
    yield set_up_desk(tmp_path_factory.mktemp("desk"))
    torch.set_num_threads(threads)
