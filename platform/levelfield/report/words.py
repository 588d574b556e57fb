"""Numbers as text: the rounding and the words of all tables."""

from __future__ import annotations

import math
import textwrap
from datetime import timedelta

GIB = 2**30
NONE = "-"
WIDTH = 80


def wrapped(line: str, indent: int, width: int = WIDTH) -> str:
    """Return the line broken at spaces to `width` columns, with indented following lines. Names are not broken."""
    text = line.lstrip(" ")
    return textwrap.fill(
        text,
        width,
        initial_indent=" " * (len(line) - len(text)),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def duration(seconds: float) -> str:
    """Return such as 0:07, 12:30 or 2:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age_in_words(age: timedelta) -> str:
    """Return such as 3 days, 1 hour or less than an hour."""
    hours = round(age.total_seconds() / 3600)
    if not hours:
        return "less than an hour"
    count, unit = (age.days, "day") if age.days > 1 else (hours, "hour")
    return f"{count} {unit}{'s' if count > 1 else ''}"


def format_number(value: float | None, digits: int | None = 1, divisor: float = 1) -> str:
    """Return a value over `divisor` with so many decimals; with four significant digits where `digits` is None."""
    if value is None or digits is None:
        return NONE if value is None else significant(value / divisor)
    return f"{value / divisor:,.{digits}f}"


def significant(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits, and never with an exponent."""
    if value is None or value == 0:
        return NONE if value is None else "0"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def parameters_in_words(total: int, active: int) -> str:
    """Return `46,702,792,704 parameters, 12,879,925,248 active`; without the second number where all are active."""
    return f"{total:,} parameters" + (f", {active:,} active" if active != total else "")


def gib(value: float | None) -> str:
    """Return a number of bytes in GiB."""
    return NONE if value is None else f"{format_number(value, 2, GIB)} GiB"
