"""Lets these tests import their helper modules; one thread, since tiny models gain nothing from more."""

import sys
from pathlib import Path

import pytest
import torch

import hush

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def plan() -> hush.Plan:
    """What all tests of HushTrainer train under."""
    from trainers import trainer_plan  # needs transformers, which most tests do without

    return trainer_plan()
