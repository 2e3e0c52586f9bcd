"""The verdict of an audit in a few sentences, claiming no more than the attacks tested.

Loads nothing heavy, so that commands can show the verdict of a finished audit quickly.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hush.numbers import counted, is_number

__all__ = ["STYLES", "comparison_summary", "headline"]


STYLES = {"failed": "bold white on red", "kept": "green"}  # on a terminal; every other verdict is a caution
COMPARED_STATUSES = ("kept", "failed")  # of rows that could have failed
_SENTENCES = {
    "failed": "FAILED: an attack did better than was certified. Do not release this model, and find the mistake.",
    "kept": "No attack did better than was certified by more than chance explains. This is no proof that no better "
    "attack exists.",
    "model not judged": "Plan simulated, model not judged: the simulated attack stays within what was certified, but "
    "no attack on the model itself could have shown a broken promise. This says nothing about what training did.",
    "nothing to compare": "Nothing was compared: no attack could have shown a broken promise. This is not a pass.",
}


def headline(record: Mapping[str, Any]) -> str:
    """The verdict of an audit's record, and the comparisons that it rests on."""
    return f"{_SENTENCES[record['verdict']]} {comparison_summary(record)}"


def comparison_summary(record: Mapping[str, Any]) -> str:
    """How many rows of an audit could have failed, and the limitations that a reader would not expect."""
    rows: Sequence[Mapping[str, Any]] = record["rows"]
    compared = [row for row in rows if row.get("status") in COMPARED_STATUSES]
    sentences = [f"Comparisons that count: {len(compared):,} of {len(rows):,}."]
    on_model = [row for row in compared if row.get("attack") != "mechanism"]
    if on_model and all(row.get("canaries") is True for row in on_model):
        sentences.append("Those on the model concern planted canaries only, not the secrets of the data.")
    if on_model and record.get("data_checked") is False:
        sentences.append("It was not checked that the model was trained on the data it was attacked with.")
    exceeding = sum(_exceeds_on_average(row) for row in rows)
    if exceeding:
        sentences.append(
            f"In {counted(exceeding, 'row')} the attack succeeded more often than certified: with so few tries this "
            "may be chance, but investigate it before you release the model."
        )
    return " ".join(sentences)


def _exceeds_on_average(row: Mapping[str, Any]) -> bool:
    """Whether the hits exceed the bound's expectation, and yet not by enough to fail."""
    hits, runs, certified = (row.get(name) for name in ("hits", "runs", "certified"))
    known = all(is_number(value) for value in (hits, runs, certified))
    return known and row.get("status") != "failed" and hits > runs * certified  # pyright: ignore[reportOptionalOperand]
