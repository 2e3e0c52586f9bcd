"""Lets the tests of this directory import ``small_repositories``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
