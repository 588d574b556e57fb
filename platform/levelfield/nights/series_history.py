"""A series over time, as lines and a chart: nights, segments, the level, and the least change that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from levelfield.nights.gate_input import GateInput, segment_index
from levelfield.report.escapes import one_line
from levelfield.report.words import wrapped
from levelfield.series.examination import era_of
from levelfield.series.findings import FIGURE_NAMES, figure_value, percent_change
from levelfield.series.level import MIN_LEVEL_NIGHTS, accepted_level, level_of
from levelfield.series.segments import (
    change_of,
    condition_changes,
    level_points,
    observations,
    segments_of,
    value_of,
)
from levelfield.series.trigger import detectable_excess
from levelfield.specs.record import GatedFigure, Point, StoreEvent
from levelfield.specs.short_names import short_digest

_END_OF_TIME = "~"  # sorts behind every time
_CHART_ROWS, _CHART_COLUMNS = 9, 60


@dataclass(frozen=True)
class SegmentSummary:
    """The nights of a series under the same conditions."""

    conditions: str
    first: str  # a date
    last: str  # a date
    nights: int
    median: float  # in the figure's unit
    step: float | None  # relative, from the segment before; None for the first
    fields: tuple[str, ...]  # of the conditions that changed


@dataclass(frozen=True)
class FigureHistory:
    """One figure of a series."""

    figure: GatedFigure
    nights: tuple[tuple[str, str, str, float], ...]  # date, node, run id and value
    segments: tuple[SegmentSummary, ...]
    level: float | None  # in the figure's unit
    level_since: str | None
    level_nights: int
    scatter: float | None  # the scale of the level, relative
    accepted: float | None  # in the figure's unit
    accepted_since: str | None
    shows: float | None  # the least relative change that one night shows
    shows_in_three: float | None  # the same, within three nights


def figure_histories(inputs: GateInput, series: str, time: str) -> list[FigureHistory]:
    """Return the history of every gated figure that the series has. time: the time at which events hold."""
    points = level_points(inputs.points.get(series, ()))
    events = [event for event in inputs.events if event.series == series]
    return [history for figure in FIGURE_NAMES if (history := _history(inputs, points, events, figure, time))]


def _history(
    inputs: GateInput, points: Sequence[Point], events: Sequence[StoreEvent], figure: GatedFigure, time: str
) -> FigureHistory | None:
    points = [point for point in points if getattr(point, figure)]
    nights = observations(points, figure)
    if not nights:
        return None
    segments, summaries = segments_of(points), []
    for segment in segments:
        of_segment = observations(segment.points, figure)
        middle = median(night.cost for night in of_segment)
        step, fields = None, tuple[str, ...]()
        if segment.previous_index is not None:
            before = segments[segment.previous_index]
            step = change_of(middle - median(n.cost for n in observations(before.points, figure)), figure)
            fields = condition_changes(
                inputs.find_conditions(before.conditions), inputs.find_conditions(segment.conditions)
            )
        summaries.append(
            SegmentSummary(
                segment.conditions, of_segment[0].began[:10], of_segment[-1].began[:10], len(of_segment),
                value_of(middle, figure), step, fields,
            )
        )  # fmt: skip
    # the level that the next night on the last node is compared with, and the accepted one
    last = nights[-1]
    era = era_of(segments, segment_index(segments, last.run_id), events, time, last.run_id)
    since, earlier = era.current_nights(figure, _END_OF_TIME), era.earlier_nights(figure)
    joined = sorted((*earlier, *since), key=lambda night: night.began)
    level = level_of(since, last.node) or level_of(joined, last.node)
    accepted = accepted_level(joined, figure, era.baseline)
    return FigureHistory(
        figure=figure,
        nights=tuple((n.began[:10], n.node, n.run_id, value_of(n.cost, figure)) for n in nights),
        segments=tuple(summaries),
        level=value_of(level.cost, figure) if level else None,
        level_since=level.since if level else None,
        level_nights=level.night_count if level else 0,
        scatter=level.scale if level else None,
        accepted=value_of(accepted.cost_on(last.node), figure) if accepted else None,
        accepted_since=accepted.since if accepted else None,
        shows=abs(change_of(detectable_excess(level), figure)) if level else None,
        shows_in_three=abs(change_of(detectable_excess(level, 3), figure)) if level else None,
    )


def history_lines(history: FigureHistory, chart: bool) -> list[str]:
    """Return lines: the level, the least change that it shows, the segments. chart: also of the last nights."""
    name, figure = FIGURE_NAMES[history.figure], history.figure
    lines = [f"{name}, {len(history.nights)} nights"]
    if history.level is None:
        lines.append(
            "  level      none before 7 nights" + (" of one state" if len(history.nights) >= MIN_LEVEL_NIGHTS else "")
        )
        if history.accepted is not None:
            accepted = figure_value(history.accepted, figure)
            lines.append(f"  accepted   {accepted} since {history.accepted_since}, with which nights are compared")
    else:
        level, accepted = (figure_value(value, figure) for value in (history.level, history.accepted))
        lines.append(f"  level      {level} of {history.level_nights} nights since {history.level_since}")
        lines.append(f"  accepted   {accepted} since {history.accepted_since}")
        lines.append(f"  scatter    {history.scatter:.2%} from night to night")
        lines.append(f"  it shows   {history.shows:.1%} in one night, {history.shows_in_three:.1%} in three")
    lines.append("  segments")
    for segment in history.segments:
        step = f", step {percent_change(segment.step)}" if segment.step is not None else ""
        fields = f": {', '.join(segment.fields)}" if segment.fields else ""
        nights = f"{segment.nights} night{'s' * (segment.nights > 1)}, median {figure_value(segment.median, figure)}"
        period, conditions = f"{segment.first} to {segment.last}", short_digest(segment.conditions)
        lines.append(f"    {period}  {nights}{step}{fields} ({conditions})")
    if chart:
        lines += ["", *_chart([value for *_, value in history.nights], history)]
    return [wrapped(line, 13) if "|" not in line else line for line in lines]


def event_lines(events: Iterable[StoreEvent]) -> list[str]:
    """Return one paragraph for each event: when, what, who, why, and until when."""
    lines = []
    for event in events:
        until = f", until {event.until}" if event.until else ""
        levels = "".join(f"; {FIGURE_NAMES[name]} {figure_value(value, name)}" for name, value in event.level.items())
        text = f"  {event.at[:10]}  {event.kind} by {event.who}{until}: {event.why}{levels}"
        lines.append(wrapped("  " + one_line(text), 6))
    return lines


def _chart(values: Sequence[float], history: FigureHistory) -> list[str]:
    """Return rows of characters, one column for each of the last nights: `*` a night, `-` the level."""
    latest = values[-_CHART_COLUMNS:]
    marks = [*latest, *([history.level] if history.level is not None else [])]
    low, high = min(marks), max(marks)
    height = (high - low) or 1.0
    rows = [round((value - low) / height * (_CHART_ROWS - 1)) for value in latest]
    level = None if history.level is None else round((history.level - low) / height * (_CHART_ROWS - 1))
    lines = []
    for row in range(_CHART_ROWS - 1, -1, -1):
        edge = (
            figure_value(low + height * row / (_CHART_ROWS - 1), history.figure) if row in (0, _CHART_ROWS - 1) else ""
        )
        blank = "-" if row == level else " "
        lines.append(f"{edge:>16} |" + "".join("*" if place == row else blank for place in rows).rstrip())
    return lines
