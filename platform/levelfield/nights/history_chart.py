"""A series' history in lines of at most 80 columns, with an optional chart of characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from levelfield.nights.series_history import FigureHistory, SegmentSummary
from levelfield.report.escapes import one_line
from levelfield.report.words import wrapped
from levelfield.series.finding_formats import figure_value, percent_change
from levelfield.series.findings import FIGURES, short
from levelfield.specs.record import StoreEvent

_ROWS, _COLUMNS = 9, 60


def history_lines(history: FigureHistory, chart: bool) -> list[str]:
    """Return level, what it shows, segments and, if asked for, the chart of the last nights."""
    name, figure = FIGURES[history.figure], history.figure
    lines = [f"{name}, {len(history.nights)} nights"]
    if history.level is None:
        lines.append("  level      none before 7 nights")
    else:
        level, accepted = (figure_value(value, figure) for value in (history.level, history.accepted))
        lines.append(f"  level      {level} of {history.level_nights} nights since {history.level_since}")
        lines.append(f"  accepted   {accepted} since {history.accepted_since}")
        lines.append(f"  scatter    {history.scatter:.2%} from night to night")
        lines.append(f"  it shows   {history.shows:.1%} in one night, {history.shows_in_three:.1%} in three")
    lines += ["  segments", *(f"    {line}" for segment in history.segments for line in _segment(segment, history))]
    if chart:
        lines += ["", *_chart([value for *_, value in history.nights], history)]
    return [wrapped(line, 13) if "|" not in line else line for line in lines]


def event_lines(events: Iterable[StoreEvent]) -> list[str]:
    """Return one paragraph for each event: when, what, who, why, and until when."""
    lines = []
    for event in events:
        until = f", until {event.until}" if event.until else ""
        levels = "".join(f"; {FIGURES[name]} {figure_value(value, name)}" for name, value in event.level.items())
        text = f"  {event.at[:10]}  {event.kind} by {event.who}{until}: {event.why}{levels}"
        lines.append(wrapped("  " + one_line(text), 6))
    return lines


def _segment(segment: SegmentSummary, history: FigureHistory) -> list[str]:
    median = figure_value(segment.median, history.figure)
    step = f", step {percent_change(segment.step)}" if segment.step is not None else ""
    fields = f": {', '.join(segment.fields)}" if segment.fields else ""
    nights = f"{segment.nights} night{'s' * (segment.nights > 1)}"
    return [f"{segment.first} to {segment.last}  {nights}, median {median}{step}{fields} ({short(segment.conditions)})"]


def _chart(values: Sequence[float], history: FigureHistory) -> list[str]:
    """Return rows of characters, one column for each of the last nights: `*` a night, `-` the level."""
    shown = values[-_COLUMNS:]
    marks = [*shown, *([history.level] if history.level is not None else [])]
    low, high = min(marks), max(marks)
    height = (high - low) or 1.0
    rows = [round((value - low) / height * (_ROWS - 1)) for value in shown]
    level = None if history.level is None else round((history.level - low) / height * (_ROWS - 1))
    lines = []
    for row in range(_ROWS - 1, -1, -1):
        edge = figure_value(low + height * row / (_ROWS - 1), history.figure) if row in (0, _ROWS - 1) else ""
        blank = "-" if row == level else " "
        lines.append(f"{edge:>16} |" + "".join("*" if place == row else blank for place in rows).rstrip())
    return lines
