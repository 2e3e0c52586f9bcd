"""What a finder takes along to another process: its settings, and nothing that it built from them."""

from dataclasses import fields
from typing import Any

__all__ = ["fields_only"]


def fields_only(finder: Any) -> dict[str, Any]:
    """The fields of a dataclass, without what its cached properties keep beside them."""
    return {field.name: getattr(finder, field.name) for field in fields(finder)}
