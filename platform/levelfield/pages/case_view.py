"""The page of a case: its series with latest figures, scaling, losses and memory, findings of gates and stated events.

Its charts are numbers for an SVG that needs no script.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from levelfield.compare.ranking import Contender
from levelfield.pages.content import NightFinding, PagesContent
from levelfield.pages.first_view import TrainingContenders
from levelfield.pages.series_history import SeriesRuns, SeriesSummary, epoch_seconds
from levelfield.series.findings import FINDING_WORDS
from levelfield.specs.record import StoreEvent
from levelfield.specs.run_figures import STORED_FIGURES

SCALING_WIDTH, SCALING_HEIGHT = 360.0, 240.0
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 44.0, 12.0, 12.0, 34.0  # room for the axes' numbers
LOSS_WIDTH, LOSS_HEIGHT = 360.0, 200.0
MAX_CURVE_POINTS = 120  # of a loss curve
MEMORY_PARTS = ("allocated", "reserved", "device")  # each contains the one before it
LONG_TABLE_ROWS = 12  # a table of more series is longer than a screen
# Columns of the stored table, by the names of their figures in scripts.
COLUMN_BY_FIGURE = {figure.page_key: column for column, figure in STORED_FIGURES.items()}
SummarisedSeries = tuple[SeriesRuns, SeriesSummary]
# The points of one chart have these in common.
_CHART_KEY_FIELDS = ("framework_label", "chip", "scale", "precision", "work", "corpus", "runtime")
_UNIT_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0.0, ""))  # ends of a number on an axis, such as 12.5k


# -- strong scaling


@dataclass(frozen=True)
class ScalingPoint:
    """One number of devices: the fastest of its series."""

    slug: str
    nodes: int
    devices: int
    layout: str
    tokens_per_second_per_device: float
    speed_up: float
    efficiency: float
    x: float  # its place in the chart
    y: float
    is_disturbed: bool


@dataclass(frozen=True)
class ScalingChart:
    """A framework and chip at one scale, on several numbers of devices."""

    framework: str
    chip: str
    setting: str
    points: tuple[ScalingPoint, ...]
    ideal_y: float  # of the ideal line at the last point
    ticks: tuple[tuple[str, float], ...]  # numbers of the vertical axis with their places
    token_ticks: tuple[tuple[str, float], ...]  # the same lines in tokens/s of all devices


def scaling_charts(summarised: Sequence[SummarisedSeries]) -> tuple[ScalingChart, ...]:
    """Return a chart for each training, framework and chip with at least two numbers of devices."""
    groups: dict[tuple[str, ...], dict[int, tuple[float, SeriesRuns]]] = defaultdict(dict)
    for runs, summary in summarised:
        series, tokens = runs.series, summary.tokens_per_second_per_device
        if tokens is not None and 0 < tokens < math.inf and series.devices >= 1 and series.nodes >= 1:
            fastest = groups[tuple(getattr(series, name) for name in _CHART_KEY_FIELDS)]
            if series.devices not in fastest or fastest[series.devices][0] < tokens:
                fastest[series.devices] = (tokens, runs)
    return tuple(_scaling_chart([group[n] for n in sorted(group)]) for group in groups.values() if len(group) > 1)


def _scaling_chart(members: Sequence[tuple[float, SeriesRuns]]) -> ScalingChart:
    """Return the chart of series with their speeds, the smallest number of devices first: it is the base."""
    (base_tokens, smallest), (_, largest) = members[0], members[-1]
    fewest, most = smallest.series.devices, largest.series.devices
    speed_ups = [tokens / base_tokens * runs.series.devices / fewest for tokens, runs in members]
    largest_speed_up = max(most / fewest, *speed_ups)

    def y_of(speed_up: float) -> float:
        """Return the place on the logarithmic axis; a speed-up below 1 is below the axis' first number."""
        fraction = math.log(speed_up) / math.log(largest_speed_up) if speed_up > 0 else 0.0
        return SCALING_HEIGHT - MARGIN_BOTTOM - max(-0.1, fraction) * (SCALING_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)

    plot_width = SCALING_WIDTH - MARGIN_LEFT - MARGIN_RIGHT
    log_range = math.log(most / fewest)  # the devices' axis is logarithmic, too
    points = tuple(
        ScalingPoint(
            slug=runs.slug,
            nodes=runs.series.nodes,
            devices=runs.series.devices,
            layout=str(runs.series.layout),
            tokens_per_second_per_device=tokens,
            speed_up=speed_up,
            efficiency=tokens / base_tokens,
            x=MARGIN_LEFT + math.log(runs.series.devices / fewest) / log_range * plot_width,
            y=y_of(speed_up),
            is_disturbed=runs.is_disturbed,
        )
        for (tokens, runs), speed_up in zip(members, speed_ups, strict=True)
    )
    ticks, token_ticks = [], []
    for power in range(int(math.log2(largest_speed_up) + 1e-9) + 1):
        tokens = 2**power * base_tokens * fewest
        unit, end = next((unit or 1.0, end) for unit, end in _UNIT_SUFFIXES if tokens >= unit)
        ticks.append((f"{2.0**power:g}", y_of(2**power)))
        token_ticks.append((f"{tokens / unit:.3g}{end}", y_of(2**power)))
    return ScalingChart(
        framework=smallest.series.framework_label,
        chip=smallest.series.chip,
        setting=f"{smallest.series.scale} {smallest.series.precision}",
        points=points,
        ideal_y=y_of(most / fewest),
        ticks=tuple(ticks),
        token_ticks=tuple(token_ticks),
    )


# -- losses against the reference, and memory against the device


@dataclass(frozen=True)
class LossLine:
    """The losses of the last run of a side, or of the reference: then `contender` is None."""

    contender: Contender | None
    losses: tuple[float, ...]
    polyline: str  # points of an SVG polyline
    largest_difference: float | None  # relative, from the reference; None without a reference


@dataclass(frozen=True)
class MemoryBar:
    """Memory of the fullest device of the last run of a side."""

    contender: Contender
    peak_bytes: float | None  # the headline peak; None with its reason
    capacity_bytes: float | None
    parts: tuple[tuple[str, float, float], ...]  # name, bytes and percent of the device that each adds to those before
    reason: str


@dataclass(frozen=True)
class TrainingFigures:
    """The losses and the memory of one training."""

    training: TrainingContenders
    reference_name: str | None  # of the stored reference
    loss_lines: tuple[LossLine, ...]
    loss_ticks: tuple[tuple[str, float], ...]  # of the vertical axis of the losses
    step_ticks: tuple[tuple[str, float], ...]  # of their horizontal axis
    memory_bars: tuple[MemoryBar, ...]


def training_figures(
    training: TrainingContenders, references: Mapping[tuple[str, str], tuple[str, list[float]]]
) -> TrainingFigures:
    """Return the charts of one training, of the last run of each contender, as the table of the case has."""
    series = training.example.series
    name, reference = references.get((series.work, series.corpus), (None, []))
    curves: list[tuple[Contender | None, tuple[float, ...]]] = [(None, tuple(reference))] if reference else []
    for contender in training.contenders:  # a loss after the first that is no number would stand at a wrong step
        numbers = takewhile(lambda loss: loss is not None and math.isfinite(loss), contender.side.last.losses)
        curves.append((contender, tuple(loss for loss in numbers if loss is not None)))
    all_losses = [loss for _, losses in curves for loss in losses]
    low, high = min(all_losses, default=0.0), max(all_losses, default=1.0)
    longest = max((len(losses) for _, losses in curves), default=1)

    def y_of(loss: float) -> float:
        return 10 + (LOSS_HEIGHT - 20) * (1 - (loss - low) / ((high - low) or 1))

    lines, step_width = [], (LOSS_WIDTH - MARGIN_LEFT) / max(1, longest - 1)
    for contender_or_none, losses in curves:
        stride = max(1, math.ceil(len(losses) / MAX_CURVE_POINTS))  # of a long curve every n-th step and the last one
        steps = sorted({*range(0, len(losses), stride), len(losses) - 1} - {-1})
        polyline = " ".join(f"{MARGIN_LEFT + step * step_width:.1f},{y_of(losses[step]):.1f}" for step in steps)
        pairs = zip(losses, reference, strict=False) if contender_or_none else ()
        difference = max((abs(loss / expected - 1) for loss, expected in pairs if expected), default=None)
        lines.append(LossLine(contender_or_none, losses, polyline, difference))
    ticks = tuple((f"{value:g}", y_of(value)) for value in round_ticks(low, high))
    marked_steps = [int(step) for step in round_ticks(1, longest) if step == int(step)]
    steps_axis = tuple((f"{step}", MARGIN_LEFT + (step - 1) * step_width) for step in marked_steps)
    bars = tuple(map(_memory_bar, training.contenders))
    return TrainingFigures(training, name, tuple(lines), ticks, steps_axis, bars)


def round_ticks(low: float, high: float) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten from low to high, at least three where these differ."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = next(power * digit for digit in (5, 2, 1) if (high - low) / (power * digit) >= 3 or digit == 1)
    return [float(f"{number * step:.12g}") for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _memory_bar(contender: Contender) -> MemoryBar:
    """Return the bar of a side. A part that is unknown, or not within the next, is drawn as one with it."""
    record = contender.side.last
    memory, peak = record.result.memory, record.memory_bytes
    if peak is None:
        return MemoryBar(contender, None, memory.capacity_bytes, (), memory.device_used_peak.reason or "")
    parts, drawn_bytes, capacity = [], 0.0, memory.capacity_bytes
    for name in MEMORY_PARTS if capacity else ():
        value = peak if name == MEMORY_PARTS[-1] else getattr(memory, f"{name}_peak").value
        if capacity and value is not None and drawn_bytes <= value <= peak:
            parts.append((name, value - drawn_bytes, round(min(100.0, (value - drawn_bytes) / capacity * 100), 1)))
            drawn_bytes = value
    return MemoryBar(contender, peak, capacity, tuple(part for part in parts if part[1] > 0), "")


# -- the page


@dataclass(frozen=True)
class SeriesView:
    """One series of the case."""

    runs: SeriesRuns
    summary: SeriesSummary
    findings: tuple[NightFinding, ...]
    events: tuple[StoreEvent, ...]
    night_word: str | None  # the most urgent finding of the last night; None without a gate
    detectable_changes: Mapping[str, float]  # the smallest change that the gate could see, by figure

    def latest_figure(self, name: str) -> float | None:
        """Return a figure of the last valid run; None without one."""
        latest = self.summary.latest
        return getattr(latest, COLUMN_BY_FIGURE[name]) if latest else None


@dataclass(frozen=True)
class CaseView:
    """The page of a case."""

    name: str
    slug: str
    series_views: tuple[SeriesView, ...]
    scaling_charts: tuple[ScalingChart, ...]
    run_count: int
    figure_names: tuple[str, ...]  # that the last valid run of any series has; all where no series has such a run
    has_long_table: bool  # whether the groups of series come first, because the table of all is longer than a screen
    has_night_words: bool  # whether a gate said something about any series

    def script_data(self) -> dict[str, Any]:
        """Return the findings and events of each series for the scripts, by slug."""
        names = ("until", "who", "why", "level")
        return {
            view.runs.slug: {
                "findings": [asdict(finding) for finding in view.findings],
                "events": [
                    {"kind": event.kind, "time": epoch_seconds(event.at)}
                    | {name: getattr(event, name) for name in names}
                    for event in view.events
                ],
            }
            for view in self.series_views
        }


def case_view(
    case: str, series: Sequence[SeriesRuns], summaries: Mapping[str, SeriesSummary], content: PagesContent
) -> CaseView:
    """Return the view of a case."""
    views = []
    for runs in series:
        findings = tuple(finding for finding in content.findings if finding.series == runs.digest)
        events = sorted((e for e in content.events if e.series == runs.digest), key=lambda event: event.at)
        night = max((finding.night for finding in findings), default=None)
        last_findings = [finding for finding in findings if finding.night == night]
        word = min((finding.word for finding in last_findings), key=FINDING_WORDS.index, default=None)
        detectable = {f.figure: f.detectable for f in last_findings if f.figure and f.detectable is not None}
        views.append(SeriesView(runs, summaries[runs.digest], findings, tuple(events), word, detectable))
    figures = tuple(name for name in COLUMN_BY_FIGURE if any(view.latest_figure(name) is not None for view in views))
    return CaseView(
        name=case,
        slug=series[0].case_slug,
        series_views=tuple(views),
        scaling_charts=scaling_charts([(view.runs, view.summary) for view in views]),
        run_count=sum(view.summary.run_count for view in views),
        figure_names=figures or tuple(COLUMN_BY_FIGURE),
        has_long_table=len(views) > LONG_TABLE_ROWS,
        has_night_words=any(view.night_word for view in views),
    )
