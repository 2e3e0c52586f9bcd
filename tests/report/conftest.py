"""Lets these tests import ``made_plans`` and ``chromium``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
