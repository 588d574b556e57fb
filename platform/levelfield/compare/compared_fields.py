"""Fields of runs side by side: what each side has of a field, and whether the sides agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from levelfield.compare.evidence import ComparedSide
from levelfield.specs.record import RunRecord, Series

NOTHING = "-"
Reader = Callable[[RunRecord], object]
_DIGEST = 12  # characters of a digest that a table shows
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class ComparedField:
    """A field with its different values on each side, in the order of the sides."""

    name: str
    values: tuple[tuple[str, ...], ...]

    @property
    def is_equal(self) -> bool:
        """Whether every run of every side has the same value."""
        return len({value for side in self.values for value in side}) == 1

    @property
    def cells(self) -> tuple[str, ...]:
        """Return a text for each side."""
        return tuple(", ".join(shortened(value) for value in side) or NOTHING for side in self.values)


def field_of(name: str, sides: Sequence[ComparedSide], read: Reader) -> ComparedField:
    """Return a field of the runs that count; of a side without any, of all its runs."""
    return ComparedField(name, tuple(_distinct(map(read, side.counted or side.runs)) for side in sides))


def fields_of(sides: Sequence[ComparedSide], readers: Mapping[str, Reader]) -> Iterator[ComparedField]:
    """Yield a field for each reader, under its name."""
    yield from (field_of(name, sides, read) for name, read in readers.items())


def shortened(value: str) -> str:
    """Return a digest or a commit by its beginning, and any other value as it is."""
    if _COMMIT.fullmatch(value):
        return value[:_DIGEST]
    return value[: len("sha256:") + _DIGEST] if value.startswith("sha256:") else value


def chip_of(series: Series) -> str:
    """Return vendor and chip; one of them where both have the same name."""
    return series.chip if series.vendor == series.chip else f"{series.vendor} {series.chip}"


def _distinct(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(NOTHING if value is None else str(value) for value in values))
