"""Lets these tests import their helpers; one thread, since tiny models gain nothing from more. And what many attack."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from audited import Desk

    from hush.audit.folders import AuditedRun

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Models load without a bar."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture
def desk(tmp_path: Path, quiet: None) -> "Desk":
    """Texts with secrets and where they stand, and a model that never saw them."""
    from audited import COUNT, TOKENIZER, Desk, write_texts
    from memorising import byte_model

    texts, _ = write_texts(tmp_path, COUNT)
    byte_model(seed=3).save_pretrained(tmp_path / "base")
    TOKENIZER.save_pretrained(tmp_path / "base")
    return Desk(root=tmp_path, texts=texts)


@pytest.fixture
def run(tmp_path: Path) -> "AuditedRun":
    """A run with three secrets, and a model that never saw them."""
    from audited import THREE, TOKENIZER, plan_for, release
    from memorising import byte_model

    return release(tmp_path / "run", plan_for(THREE), byte_model(), TOKENIZER)
