"""What an audit came to in a few sentences: never more than was tried. Loads nothing heavy."""

from typing import Any

__all__ = ["STYLES", "headline"]

STYLES = {"failed": "bold white on red", "kept": "green"}  # on a terminal; every other verdict is a caution
_SAID = {
    "failed": "FAILED: an attack did better than was certified. Do not release this model, and find the mistake.",
    "kept": "No attack did better than was certified. That none was found is no proof that there is none.",
    "model not judged": "Plan simulated, model not judged: the simulation keeps to what was certified, but nothing "
    "tried on the model itself could have shown a broken promise. This says nothing about what training did.",
    "nothing to compare": "Nothing was compared: nothing that was tried could have shown a broken promise. This is not "
    "a pass.",
}


def headline(record: dict[str, Any]) -> str:
    """The verdict of an audit's record, and how many of its rows it rests on: those that could have failed."""
    rows = record["rows"]
    could_fail = sum(row["status"] in ("kept", "failed") for row in rows)
    return f"{_SAID[record['verdict']]} Comparisons that count: {could_fail} of {len(rows)}."
