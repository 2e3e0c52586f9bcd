"""Hits gathered one by one, for finders that go through Python strings."""

from hush.scan.hits import Hits

__all__ = ["SpanList", "occurrences"]


class SpanList:
    """Hits so far; each distinct (example, span, key, reason) once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int, int, int], None] = {}
        self._keys: dict[str, int] = {}
        self._reasons: dict[str, int] = {}

    def add(self, example: int, begin: int, end: int, key: str, reason: str) -> None:
        key_number = self._keys.setdefault(key, len(self._keys))
        reason_number = self._reasons.setdefault(reason, len(self._reasons))
        self._rows[example, begin, end, key_number, reason_number] = None

    def hits(self) -> Hits:
        """All of them, by example, place, and in the order in which keys and reasons came up."""
        example, begin, end, key, reason = zip(*sorted(self._rows), strict=True) if self._rows else ((),) * 5
        keys, reasons = tuple(self._keys), tuple(self._reasons)
        return Hits.of(example, key, keys=keys, reasons=reasons, reason=reason, begin=begin, end=end)

    def __repr__(self) -> str:
        return f"SpanList({len(self._rows)} hits of {len(self._keys)} secrets)"


def occurrences(text: str, part: str, begin: int, end: int) -> list[int]:
    """Where ``part``, which is not empty, stands between two characters of the text, overlaps included."""
    found: list[int] = []
    at = text.find(part, begin, end)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1, end)
    return found
