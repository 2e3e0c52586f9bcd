"""The second routes, as a fixture: tests of this directory share them without importing each other."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load(path: Path) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location(f"hush_tests_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """Independent reference routines (references.py)."""
    return load(Path(__file__).with_name("references.py"))


@pytest.fixture(scope="session")
def soundness_sweep() -> ModuleType:
    """The sweep script, whose settings and checks the tests share."""
    return load(Path(__file__).parents[2] / "benchmarks" / "soundness_sweep.py")
