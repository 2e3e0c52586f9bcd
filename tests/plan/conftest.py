"""Lets the tests of this directory import ``plan_instances``: strategies are needed before any fixture exists."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from plan_instances import office

import hush


@pytest.fixture(scope="session")
def plan() -> hush.Plan:
    """A small plan with several points per secret, several binding secrets and ids of its own."""
    instance = office()
    ids = [f"key-{secret}" for secret in range(instance.incidence.num_secrets)]
    return hush.make_plan(instance.incidence, **instance.promises, batch_size=12, secret_ids=ids)
