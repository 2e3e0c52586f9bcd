"""Single numbers: checked when they come in, and rounded to the safe side when they are shown.

Below every stage. It loads no numerical library, so that ``hush --help`` stays fast; arrays are checked in
``hush.arrays``.
"""

import operator
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, SupportsIndex

from hush.errors import InvalidInput, Setting

__all__ = ["checked_number", "checked_positive", "checked_size", "counted", "is_number", "rounded_down", "rounded_up"]


def is_number(value: object) -> bool:
    """Whether a value read from a file is a finite number that a float can hold.

    >>> is_number(3), is_number(True), is_number(float("nan")), is_number(10**400)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def checked_number(name: str, value: Any) -> float:
    """The value of this setting as a float; the caller checks its range."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("pass a number that a float can hold", setting=name, value=value) from error


def checked_positive(name: str, value: Any) -> float:
    """The value of this setting as a finite float above 0."""
    number = checked_number(name, value)
    if not 0 < number <= sys.float_info.max:  # NaN fails
        raise InvalidInput("pass a finite number above 0", setting=name, value=number)
    return number


def checked_size(name: str, value: SupportsIndex) -> int:
    """A whole number >= 0."""
    try:
        size = operator.index(value)
    except TypeError as error:
        raise InvalidInput(Setting(name), f"={value!r} is not a whole number; pass an int", setting=name) from error
    if isinstance(value, bool) or size < 0:
        raise InvalidInput(Setting(name), f"={value!r} is not a size; pass a whole number >= 0", setting=name)
    return size


def rounded_up(value: float, digits: int = 4) -> str:
    """The value with this many significant digits, never below it: how an upper bound is shown.

    >>> rounded_up(0.00099621), rounded_up(30.9919), rounded_up(1e-10), rounded_up(1234.5)
    ('0.0009963', '31.00', '1.000e-10', '1235')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """The value with this many significant digits, never above it: how a lower bound is shown.

    >>> rounded_down(0.00099629)
    '0.0009962'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    shortest = Decimal(repr(float(value)))  # 1e-10 stays 1e-10, although the float is slightly larger
    if not shortest:
        return "0"
    step = Decimal(1).scaleb(shortest.adjusted() - digits + 1)
    return f"{float(shortest.quantize(step, rounding=direction)):#.{digits}g}".removesuffix(".")


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun, in the singular or the plural.

    >>> counted(1, "secret"), counted(2000, "secret"), counted(0, "canary", "canaries")
    ('1 secret', '2,000 secrets', '0 canaries')
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"
