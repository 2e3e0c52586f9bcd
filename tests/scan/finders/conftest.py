"""Lets the tests of this directory import ``finder_cases``: strategies are needed before any fixture exists."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
