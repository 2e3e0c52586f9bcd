"""Lets these tests, and the processes that they start, import ``toys``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
