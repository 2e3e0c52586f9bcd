"""Running the programs of the studies inside the tests, which have paid for the imports of torch and transformers."""

import runpy
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def run_program(path: str, *arguments: str) -> None:
    """What ``python experiments/PATH ARGUMENTS`` does, from the first line of the file to the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *arguments])
        runpy.run_path(str(EXPERIMENTS / path), run_name="__main__")
