"""Numbers as reports print them: reading them exactly in SI units, and writing them to the same digit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Cut = Literal["rounded", "truncated"]
# One of each unit, in SI units or in pieces (tokens, samples). A percentage is a fraction of 1.
UNITS: dict[str, Fraction] = {
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
    "B": Fraction(1),
    "MB": Fraction(10**6),
    "GB": Fraction(10**9),
    "MiB": Fraction(2**20),
    "GiB": Fraction(2**30),
    "%": Fraction(1, 100),
    "FLOP/s": Fraction(1),
    "TFLOP/s": Fraction(10**12),
    "PFLOP/s": Fraction(10**15),
    "samples/s": Fraction(1),
    "tokens/s": Fraction(1),
    "M tokens": Fraction(10**6),
    "pieces": Fraction(1),
    "nats": Fraction(1),
}
_NUMBER = re.compile(r"(?P<before>[↓↑]?)(?P<sign>[-+]?)(?P<number>\d+(?:\.(?P<decimals>\d+))?)(?P<after>[↓↑]?)%?")


@dataclass(frozen=True)
class PrintedNumber:
    """A printed number, exactly, and the number of printed decimals."""

    value: Fraction
    decimals: int


def read_number(text: str) -> PrintedNumber:
    """Read a number: `41`, `-1754`, `40%`, `↓31.3%` or `11.4↓%`. An arrow down is a minus. Raises ValueError."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match["before"] and match["after"]):
        raise ValueError(f"found '{text}', expected one number as printed: 41, 40%, -1754 or ↓31.3%")
    minus = (match["sign"] == "-") != ("↓" in match["before"] + match["after"])
    number = Fraction(match["number"])
    return PrintedNumber(-number if minus else number, len(match["decimals"] or ""))


def cut(value: Fraction, decimals: int, how: Cut) -> Fraction:
    """Return the value with so many decimals, rounded (halves away from zero) or truncated."""
    scaled = abs(value) * 10**decimals
    whole = int(scaled) if how == "truncated" else int(scaled + Fraction(1, 2))
    return Fraction(whole if value >= 0 else -whole, 10**decimals)


def written(value: Fraction, decimals: int, sign: bool = False) -> str:
    """Return a value as text with so many decimals; with `sign`, positive values have a plus."""
    return f"{float(cut(value, decimals, 'rounded')):{'+' if sign else ''}.{decimals}f}"
