"""Commented configs to begin with, one for each kind of data; ``hush init`` writes them."""

from pathlib import Path
from typing import Literal

__all__ = ["Kind", "template"]

Kind = Literal["text", "code"]


def template(kind: Kind) -> str:
    """A config that is whole but for the path of the data."""
    return Path(__file__).with_name(f"{kind}.yaml").read_text(encoding="utf-8")
