"""Numbers as people read them: an upper bound is rounded up, a lower bound down, so that what is shown is true."""

import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

__all__ = ["counted", "is_number", "rounded_down", "rounded_up"]


def rounded_up(value: float, digits: int = 4) -> str:
    """So many significant digits, never below the value.

    >>> rounded_up(0.00099621), rounded_up(30.9919), rounded_up(1e-10), rounded_up(1234.5)
    ('0.0009963', '31.00', '1.000e-10', '1235')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """So many significant digits, never above the value.

    >>> rounded_down(0.00099629)
    '0.0009962'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def counted(number: int, what: str, several: str | None = None) -> str:
    """A number of things, in words that fit it.

    >>> counted(1, "secret"), counted(2000, "secret"), counted(0, "canary", "canaries")
    ('1 secret', '2,000 secrets', '0 canaries')
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def is_number(value: object) -> bool:
    """Whether this can be shown as a number: a file may hold NaN, and whole numbers that no float holds.

    >>> is_number(3), is_number(True), is_number(float("nan")), is_number(10**400)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _rounded(value: float, digits: int, direction: str) -> str:
    shortest = Decimal(repr(float(value)))  # 1e-10 stays 1e-10, though the float is a little more
    if not shortest:
        return "0"
    step = Decimal(1).scaleb(shortest.adjusted() - digits + 1)
    return f"{float(shortest.quantize(step, rounding=direction)):#.{digits}g}".removesuffix(".")
