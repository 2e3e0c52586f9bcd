"""Which columns a part of the data has, and which of their names may be shown.

Where a header is missing, a row of data stands in its place; where objects are keyed by customers, a key is a secret.
So a name is shown, or taken for the column of the text, only if it belongs to the form of the data for certain.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

__all__ = ["USUAL", "Column", "guessed", "is_identifier", "listed", "shown"]

TEXT = "text"  # the column of this name is the text, whatever others there are
_ABOUT = ("title", "subject", "author", "name", "id", "number", "index", "date", "time", "label", "category", "url")
_TEXTS = ("text", "texts", "content", "body", "document", "sentence", "message", "prompt", "completion", "code")
_NOTES = ("comment", "review", "note", "notes", "description", "summary", "abstract", "source", "language")
USUAL = frozenset((*_TEXTS, *_NOTES, *_ABOUT))  # names that are no document by themselves, in whatever case
_IDENTIFIER = re.compile(r"[^\W\d][\w.:/-]{0,39}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """is_text: it holds text. is_form: its name belongs to the form of the data, and is no data itself."""

    is_text: bool
    is_form: bool


def is_identifier(name: str) -> bool:
    """Whether a name looks like one that a program was given.

    >>> is_identifier("user_id"), is_identifier("Spoke to Ann today"), is_identifier("4711")
    (True, False, False)
    """
    return _IDENTIFIER.fullmatch(name) is not None


def shown(name: str) -> str:
    """A name that the user gave or that belongs to the form of the data, unless it is unlike any."""
    return name if is_identifier(name) else f"(a name of {len(name)} characters)"


def listed(table: Mapping[str, Column]) -> str:
    """The columns for a message, by name or by place.

    >>> listed({"id": Column(is_text=False, is_form=True), "bluefalcon": Column(is_text=True, is_form=False)})
    'id (no text), (column 2); names that may be data are not shown'
    """
    names = [
        (shown(name) if column.is_form else f"(column {place})") + ("" if column.is_text else " (no text)")
        for place, (name, column) in enumerate(table.items(), 1)
    ]
    hidden = "" if all(column.is_form for column in table.values()) else "; names that may be data are not shown"
    return ", ".join(names) + hidden


def guessed(table: Mapping[str, Column]) -> str | None:
    """The column of the text where none was named: "text", or the only one with text; None if that may be data."""
    texts = [name for name, column in table.items() if column.is_text]
    if TEXT in texts:
        return TEXT
    return texts[0] if len(texts) == 1 and table[texts[0]].is_form else None
