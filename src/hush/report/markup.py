"""HTML building blocks of the page: escaped text, numbers rounded to the safe side, small tables.

Every text reaches the page through ``shown`` or ``embedded``: ids, titles and reasons come from files that anyone may
have written.
"""

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from html import escape
from typing import Any

from hush.numbers import rounded_down, rounded_up

__all__ = [
    "at_least",
    "at_most",
    "embedded",
    "percent_at_least",
    "percent_at_most",
    "printable",
    "shown",
    "table",
]


def printable(text: str) -> str:
    """Text without control characters: line breaks, terminal codes, marks that reverse the writing direction."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shown(text: object) -> str:
    """Text escaped for HTML, without control characters.

    >>> shown('<img src=x onerror="alert(1)">')
    '&lt;img src=x onerror=&quot;alert(1)&quot;&gt;'
    """
    return escape(printable(str(text)), quote=True)


def embedded(data: Any) -> str:
    """Data as JSON that cannot end the script element it stands in.

    >>> embedded(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def at_most(value: float, digits: int = 4) -> str:
    """An upper bound, rounded up, without trailing zeros.

    >>> at_most(1e-3), at_most(0.00099621), at_most(1.0)
    ('0.001', '0.0009963', '1')
    """
    return _trimmed(rounded_up(value, digits))


def at_least(value: float, digits: int = 4) -> str:
    """A lower bound, or a prior up to which something holds, rounded down, without trailing zeros.

    >>> at_least(1e-10), at_least(0.00099629)
    ('1e-10', '0.0009962')
    """
    return _trimmed(rounded_down(value, digits))


def percent_at_most(share: float, digits: int = 4) -> str:
    """A share in percent, rounded up.

    >>> percent_at_most(0.07), percent_at_most(3.52341e-7)
    ('7 %', '3.524e-05 %')
    """
    return f"{at_most(_percent(share), digits)} %"


def percent_at_least(share: float, digits: int = 4) -> str:
    """A share in percent, rounded down."""
    return f"{at_least(_percent(share), digits)} %"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """A table whose first column is text and whose others are numbers, in its own scrollable box."""
    heads = "".join(f'<th scope="col">{shown(column)}</th>' for column in columns)
    lines = "".join(
        f'<tr><th scope="row">{shown(first)}</th>' + "".join(f"<td>{shown(cell)}</td>" for cell in rest) + "</tr>\n"
        for first, *rest in rows
    )
    title = f"<caption>{shown(caption)}</caption>" if caption else ""
    name = shown(caption or columns[0])
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {name}"><table>{title}'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{lines}</tbody></table></div>\n"
    )


def _percent(share: float) -> float:
    """The decimal point moved by two digits: multiplying by 100 adds an error that rounding would show."""
    return float(Decimal(repr(float(share))).scaleb(2))


def _trimmed(number: str) -> str:
    mantissa, mark, exponent = number.partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}{mark}{exponent}"
