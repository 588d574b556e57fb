"""The page of a case: its series with their latest figures, scaling, losses, memory, and what gates and people stated.

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
from levelfield.pages.first_view import RankedTraining
from levelfield.pages.series_history import SeriesRuns, SeriesSummary, seconds_of
from levelfield.series.findings import WORDS
from levelfield.specs.record import StoreEvent
from levelfield.specs.run_figures import STORED

SCALING_WIDTH, SCALING_HEIGHT = 360.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 12.0, 34.0  # room for the axes' numbers
LOSS_WIDTH, LOSS_HEIGHT = 360.0, 200.0
MOST_POINTS = 120  # of a line of losses
MEMORY_PARTS = ("allocated", "reserved", "device")  # each contains the one before it
MANY = 12  # series, in a table as long as a screen
FIGURES = {figure.page: column for column, figure in STORED.items()}  # columns of the table, by their names in scripts
Latest = tuple[SeriesRuns, SeriesSummary]
_ALIKE = ("framework_label", "chip", "scale", "precision", "work", "corpus", "runtime")  # of the points of one chart
_BRIEF = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0.0, ""))  # ends of a number on an axis, such as 12.5k


# -- strong scaling


@dataclass(frozen=True)
class ScalingPoint:
    """One number of devices: the fastest of its series."""

    slug: str
    nodes: int
    devices: int
    layout: str
    tokens: float  # per second and device
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


def scaling_charts(latest: Sequence[Latest]) -> tuple[ScalingChart, ...]:
    """Return a chart for each training, framework and chip with at least two numbers of devices."""
    groups: dict[tuple[str, ...], dict[int, tuple[float, SeriesRuns]]] = defaultdict(dict)
    for runs, summary in latest:
        series, tokens = runs.series, summary.tokens
        if tokens is not None and 0 < tokens < math.inf and series.devices >= 1 and series.nodes >= 1:
            fastest = groups[tuple(getattr(series, name) for name in _ALIKE)]
            if series.devices not in fastest or fastest[series.devices][0] < tokens:
                fastest[series.devices] = (tokens, runs)
    return tuple(_scaling_chart([group[n] for n in sorted(group)]) for group in groups.values() if len(group) > 1)


def _scaling_chart(members: Sequence[tuple[float, SeriesRuns]]) -> ScalingChart:
    """Return the chart of series with their speeds, the smallest number of devices first: it is the base."""
    (base, first), (_, largest) = members[0], members[-1]
    fewest, most = first.series.devices, largest.series.devices
    speed_ups = [tokens / base * runs.series.devices / fewest for tokens, runs in members]
    top = max(most / fewest, *speed_ups)

    def height(speed_up: float) -> float:
        """Return a place on a logarithmic axis; a speed-up below 1 stands below the axis' first number."""
        part = math.log(speed_up) / math.log(top) if speed_up > 0 else 0.0
        return SCALING_HEIGHT - BOTTOM - max(-0.1, part) * (SCALING_HEIGHT - TOP - BOTTOM)

    width, whole = SCALING_WIDTH - LEFT - RIGHT, math.log(most / fewest)  # the devices' axis is logarithmic, too
    points = tuple(
        ScalingPoint(
            slug=runs.slug,
            nodes=runs.series.nodes,
            devices=runs.series.devices,
            layout=str(runs.series.layout),
            tokens=tokens,
            speed_up=speed_up,
            efficiency=tokens / base,
            x=LEFT + math.log(runs.series.devices / fewest) / whole * width,
            y=height(speed_up),
            is_disturbed=runs.is_disturbed,
        )
        for (tokens, runs), speed_up in zip(members, speed_ups, strict=True)
    )
    ticks, token_ticks = [], []
    for power in range(int(math.log2(top) + 1e-9) + 1):
        tokens = 2**power * base * fewest
        unit, end = next((unit or 1.0, end) for unit, end in _BRIEF if tokens >= unit)
        ticks.append((f"{2.0**power:g}", height(2**power)))
        token_ticks.append((f"{tokens / unit:.3g}{end}", height(2**power)))
    return ScalingChart(
        framework=first.series.framework_label,
        chip=first.series.chip,
        setting=f"{first.series.scale} {first.series.precision}",
        points=points,
        ideal_y=height(most / fewest),
        ticks=tuple(ticks),
        token_ticks=tuple(token_ticks),
    )


# -- losses against the reference, and memory against the device


@dataclass(frozen=True)
class LossLine:
    """The losses of the last run of a side, or of the reference: then `contender` is None."""

    contender: Contender | None
    losses: tuple[float, ...]
    points: str  # of an SVG polyline
    difference: float | None  # the largest relative one from the reference; None without one


@dataclass(frozen=True)
class MemoryBar:
    """Memory of the fullest device of the last run of a side."""

    contender: Contender
    whole: float | None  # the headline peak, in bytes; None with its reason
    capacity: float | None
    parts: tuple[tuple[str, float, float], ...]  # name, bytes and percent of the device that each adds to those before
    reason: str


@dataclass(frozen=True)
class TrainingFigures:
    """The losses and the memory of one training."""

    training: RankedTraining
    reference: str | None  # the name of the stored one
    lines: tuple[LossLine, ...]
    ticks: tuple[tuple[str, float], ...]  # of the vertical axis of the losses
    steps: tuple[tuple[str, float], ...]  # of their horizontal axis
    memory: tuple[MemoryBar, ...]


def training_figures(
    training: RankedTraining, references: Mapping[tuple[str, str], tuple[str, list[float]]]
) -> TrainingFigures:
    """Return the charts of one training, of the last run of each contender, as the table of the case has."""
    series = training.first.series
    name, reference = references.get((series.work, series.corpus), (None, []))
    curves: list[tuple[Contender | None, tuple[float, ...]]] = [(None, tuple(reference))] if reference else []
    for contender in training.contenders:  # a loss after the first that is no number would stand at a wrong step
        numbers = takewhile(lambda loss: loss is not None and math.isfinite(loss), contender.side.last.losses)
        curves.append((contender, tuple(loss for loss in numbers if loss is not None)))
    values = [loss for _, losses in curves for loss in losses]
    low, high = min(values, default=0.0), max(values, default=1.0)
    most = max((len(losses) for _, losses in curves), default=1)

    def height(loss: float) -> float:
        return 10 + (LOSS_HEIGHT - 20) * (1 - (loss - low) / ((high - low) or 1))

    lines, across = [], (LOSS_WIDTH - LEFT) / max(1, most - 1)
    for contender_or_none, losses in curves:
        every = max(1, math.ceil(len(losses) / MOST_POINTS))  # of a long curve every n-th step and the last one
        steps = sorted({*range(0, len(losses), every), len(losses) - 1} - {-1})
        polyline = " ".join(f"{LEFT + step * across:.1f},{height(losses[step]):.1f}" for step in steps)
        pairs = zip(losses, reference, strict=False) if contender_or_none else ()
        difference = max((abs(loss / expected - 1) for loss, expected in pairs if expected), default=None)
        lines.append(LossLine(contender_or_none, losses, polyline, difference))
    ticks = tuple((f"{value:g}", height(value)) for value in round_ticks(low, high))
    marked = [int(step) for step in round_ticks(1, most) if step == int(step)]
    steps_axis = tuple((f"{step}", LEFT + (step - 1) * across) for step in marked)
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
    memory, whole = record.result.memory, record.memory_bytes
    if whole is None:
        return MemoryBar(contender, None, memory.capacity_bytes, (), memory.device_used_peak.reason or "")
    parts, below, capacity = [], 0.0, memory.capacity_bytes
    for name in MEMORY_PARTS if capacity else ():
        value = whole if name == MEMORY_PARTS[-1] else getattr(memory, f"{name}_peak").value
        if capacity and value is not None and below <= value <= whole:
            parts.append((name, value - below, round(min(100.0, (value - below) / capacity * 100), 1)))
            below = value
    return MemoryBar(contender, whole, capacity, tuple(part for part in parts if part[1] > 0), "")


# -- the page


@dataclass(frozen=True)
class SeriesView:
    """One series of the case."""

    runs: SeriesRuns
    summary: SeriesSummary
    findings: tuple[NightFinding, ...]
    events: tuple[StoreEvent, ...]
    word: str | None  # the most urgent of the last night; None without a gate
    detectable: Mapping[str, float]  # the smallest change that the gate could see, by figure

    def latest(self, name: str) -> float | None:
        """Return a figure of the last valid run; None without one."""
        latest = self.summary.latest
        return getattr(latest, FIGURES[name]) if latest else None


@dataclass(frozen=True)
class CaseView:
    """The page of a case."""

    name: str
    slug: str
    series: tuple[SeriesView, ...]
    scaling: tuple[ScalingChart, ...]
    runs: int
    figures: tuple[str, ...]  # that the last valid run of any series has; all where no series has such a run
    has_many: bool  # whether the groups of series come first, because the table of all is longer than a screen
    has_words: bool  # whether a gate said something about any series

    def statements(self) -> dict[str, Any]:
        """Return by series the findings and events for the scripts."""
        names = ("until", "who", "why", "level")
        return {
            view.runs.slug: {
                "findings": [asdict(finding) for finding in view.findings],
                "events": [
                    {"kind": event.kind, "time": seconds_of(event.at)} | {name: getattr(event, name) for name in names}
                    for event in view.events
                ],
            }
            for view in self.series
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
        last = [finding for finding in findings if finding.night == night]
        word = min((finding.word for finding in last), key=WORDS.index, default=None)
        detectable = {f.figure: f.detectable for f in last if f.figure and f.detectable is not None}
        views.append(SeriesView(runs, summaries[runs.digest], findings, tuple(events), word, detectable))
    figures = tuple(name for name in FIGURES if any(view.latest(name) is not None for view in views))
    return CaseView(
        name=case,
        slug=series[0].case_slug,
        series=tuple(views),
        scaling=scaling_charts([(view.runs, view.summary) for view in views]),
        runs=sum(view.summary.runs for view in views),
        figures=figures or tuple(FIGURES),
        has_many=len(views) > MANY,
        has_words=any(view.word for view in views),
    )
