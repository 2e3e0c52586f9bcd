"""What an audit came to in a few sentences: never more than was tried. Loads nothing heavy."""

from collections.abc import Mapping, Sequence
from typing import Any

from hush.numbers import counted, is_number

__all__ = ["STYLES", "headline", "what_counts"]


STYLES = {"failed": "bold white on red", "kept": "green"}  # on a terminal; every other verdict is a caution
COUNTS = ("kept", "failed")  # rows that could have failed
_SAID = {
    "failed": "FAILED: an attack did better than was certified. Do not release this model, and find the mistake.",
    "kept": "No attack did better than was certified by more than chance explains. That none was found is no proof "
    "that there is none.",
    "model not judged": "Plan simulated, model not judged: the simulation keeps to what was certified, but nothing "
    "tried on the model itself could have shown a broken promise. This says nothing about what training did.",
    "nothing to compare": "Nothing was compared: nothing that was tried could have shown a broken promise. This is not "
    "a pass.",
}


def headline(record: Mapping[str, Any]) -> str:
    """The verdict of an audit's record, and what it rests on."""
    return f"{_SAID[record['verdict']]} {what_counts(record)}"


def what_counts(record: Mapping[str, Any]) -> str:
    """How many of an audit's rows could have failed, and what a reader would not expect of them."""
    rows: Sequence[Mapping[str, Any]] = record["rows"]
    count = [row for row in rows if row.get("status") in COUNTS]
    said = [f"Comparisons that count: {len(count):,} of {len(rows):,}."]
    on_model = [row for row in count if row.get("attack") != "mechanism"]
    if on_model and all(row.get("canaries") is True for row in on_model):
        said.append("Those on the model are about planted canaries alone, none about a secret of the data.")
    if on_model and record.get("data_checked") is False:
        said.append("Nobody checked that the model was trained on what it was attacked with.")
    beyond = sum(_is_beyond(row) for row in rows)
    if beyond:
        said.append(
            f"In {counted(beyond, 'row')} a larger share came out than was certified: from so few tries that may be "
            "chance, but look into it before you release the model."
        )
    return " ".join(said)


def _is_beyond(row: Mapping[str, Any]) -> bool:
    """Whether more came out than the bound allows on average, and yet not enough to fail."""
    hits, runs, certified = (row.get(name) for name in ("hits", "runs", "certified"))
    known = all(is_number(value) for value in (hits, runs, certified))
    return known and row.get("status") != "failed" and hits > runs * certified  # pyright: ignore[reportOptionalOperand]
