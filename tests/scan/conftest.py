"""Lets these tests, and the processes that they start, import ``toys``; and the tokenizers of ``slotted``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "train"))
