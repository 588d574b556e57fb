"""The page of a case: its series with their latest figures, their scaling, and what gates and people stated."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.pages.content import NightFinding, PagesContent
from levelfield.pages.series_history import SeriesRuns, SeriesSummary, seconds_of
from levelfield.series.findings import WORDS
from levelfield.specs.record import StoreEvent
from levelfield.specs.run_figures import STORED

# A chart of scaling is drawn here, as numbers for an SVG: it needs no script, and prints.
WIDTH, HEIGHT = 360.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 12.0, 34.0  # room for the axes' numbers
MANY = 12  # series, in a table as long as a screen
FIGURES = {figure.page: column for column, figure in STORED.items()}  # columns of the table, by their names in scripts
Latest = tuple[SeriesRuns, SeriesSummary]
_ALIKE = ("framework_label", "chip", "scale", "precision", "work", "corpus", "runtime")  # of the points of one chart


@dataclass(frozen=True)
class ScalingPoint:
    """One number of devices: the fastest of its series. tokens: per second and device. x, y: its place in the chart."""

    slug: str
    nodes: int
    devices: int
    layout: str
    tokens: float
    speed_up: float
    efficiency: float
    x: float
    y: float
    is_disturbed: bool = False


@dataclass(frozen=True)
class ScalingChart:
    """A framework and chip at one scale, on several numbers of devices. ideal_y: of the ideal line at the last point.

    ticks: numbers of the vertical axis with their places; token_ticks: the same lines in tokens/s of all devices.
    """

    framework: str
    chip: str
    setting: str
    points: tuple[ScalingPoint, ...]
    ideal_y: float
    ticks: tuple[tuple[str, float], ...]
    token_ticks: tuple[tuple[str, float], ...]

    @property
    def line(self) -> str:
        """The `points` of an SVG polyline."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


def scaling_charts(latest: Sequence[Latest]) -> tuple[ScalingChart, ...]:
    """Return a chart for each training, framework and chip with at least two numbers of devices."""
    groups: dict[tuple[str, ...], dict[int, Latest]] = defaultdict(dict)
    for runs, summary in latest:
        if _speed(summary) is not None and runs.series.devices >= 1 and runs.series.nodes >= 1:
            found, devices = groups[tuple(getattr(runs.series, name) for name in _ALIKE)], runs.series.devices
            if devices not in found or (_speed(found[devices][1]) or 0) < (_speed(summary) or 0):
                found[devices] = (runs, summary)
    return tuple(_chart([group[n] for n in sorted(group)]) for group in groups.values() if len(group) > 1)


def _speed(summary: SeriesSummary) -> float | None:
    tokens = summary.tokens
    return tokens if tokens is not None and math.isfinite(tokens) and tokens > 0 else None


def _chart(members: Sequence[Latest]) -> ScalingChart:
    """Return the chart of one group, the smallest number of devices first: it is the base."""
    first = members[0][0].series
    base, fewest, most = _speed(members[0][1]) or 1.0, first.devices, members[-1][0].series.devices
    ratios = [(_speed(summary) or 0.0) / base for _, summary in members]
    speed_ups = [ratio * runs.series.devices / fewest for ratio, (runs, _) in zip(ratios, members, strict=True)]
    top = max(most / fewest, *speed_ups)
    points = tuple(
        ScalingPoint(
            slug=runs.slug,
            nodes=runs.series.nodes,
            devices=runs.series.devices,
            layout=str(runs.series.layout),
            tokens=_speed(summary) or 0.0,
            speed_up=speed_up,
            efficiency=ratio,
            x=_x(runs.series.devices, fewest, most),
            y=_y(speed_up, top),
            is_disturbed=runs.is_disturbed,
        )
        for (runs, summary), ratio, speed_up in zip(members, ratios, speed_ups, strict=True)
    )
    powers = [2.0**power for power in range(int(math.log2(top) + 1e-9) + 1)]
    ticks = tuple((f"{value:g}", _y(value, top)) for value in powers)
    token_ticks = tuple((_in_brief(value * base * fewest), _y(value, top)) for value in powers)
    setting = f"{first.scale} {first.precision}"
    return ScalingChart(first.framework_label, first.chip, setting, points, _y(most / fewest, top), ticks, token_ticks)


def _in_brief(value: float) -> str:
    """Return a number for an axis, such as 12.5k."""
    power, end = next(
        ((power, end) for power, end in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= power), (1.0, "")
    )
    return f"{value / power:.3g}{end}"


def _x(devices: int, fewest: int, most: int) -> float:
    part = math.log(devices / fewest) / math.log(most / fewest)
    return LEFT + part * (WIDTH - LEFT - RIGHT)


def _y(speed_up: float, top: float) -> float:
    """Return the height of a speed-up on a logarithmic axis; one below 1 stands below the axis' first number."""
    part = math.log(speed_up) / math.log(top) if speed_up > 0 else 0.0
    return HEIGHT - BOTTOM - max(-0.1, part) * (HEIGHT - TOP - BOTTOM)


@dataclass(frozen=True)
class SeriesView:
    """One series of the case. word, tonight: the most urgent word of the last night; None without a gate.

    detectable: by figure, the smallest change that the gate could see.
    """

    runs: SeriesRuns
    summary: SeriesSummary
    findings: tuple[NightFinding, ...]
    events: tuple[StoreEvent, ...]

    def latest(self, name: str) -> float | None:
        """Return a figure of the last valid run; None without one."""
        latest = self.summary.latest
        return getattr(latest, FIGURES[name]) if latest else None

    @property
    def _last(self) -> list[NightFinding]:
        last = max((finding.night for finding in self.findings), default=None)
        return [finding for finding in self.findings if finding.night == last]

    @property
    def word(self) -> str | None:
        return min((finding.word for finding in self._last), key=WORDS.index, default=None)

    @property
    def detectable(self) -> dict[str, float]:
        return {f.figure: f.detectable for f in self._last if f.figure and f.detectable is not None}

    def statements(self) -> dict[str, Any]:
        """Return findings and events for the scripts."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "events": [_event(event) for event in self.events],
        }


@dataclass(frozen=True)
class CaseView:
    name: str
    slug: str
    series: tuple[SeriesView, ...]
    scaling: tuple[ScalingChart, ...] = ()

    @property
    def has_many(self) -> bool:
        """Whether the groups of series come first, because the table of all is longer than a screen."""
        return len(self.series) > MANY

    @property
    def runs(self) -> int:
        return sum(each.summary.runs for each in self.series)

    @property
    def has_words(self) -> bool:
        """Whether a gate said something about any series."""
        return any(each.word for each in self.series)

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that the last valid run of any series has; all where no series has such a run."""
        found = tuple(name for name in FIGURES if any(each.latest(name) is not None for each in self.series))
        return found or tuple(FIGURES)

    def statements(self) -> dict[str, Any]:
        """Return by series what was stated about it."""
        return {each.runs.slug: each.statements() for each in self.series}


def case_view(
    case: str, series: Sequence[SeriesRuns], summaries: Mapping[str, SeriesSummary], content: PagesContent
) -> CaseView:
    """Return the view of a case."""
    views = [_series_view(runs, summaries[runs.digest], content) for runs in series]
    charts = scaling_charts([(view.runs, view.summary) for view in views])
    return CaseView(case, series[0].case_slug, tuple(views), charts)


def _series_view(runs: SeriesRuns, summary: SeriesSummary, content: PagesContent) -> SeriesView:
    events = [e for e in content.events if e.series == runs.digest]
    findings = [finding for finding in content.findings if finding.series == runs.digest]
    return SeriesView(runs, summary, tuple(findings), tuple(sorted(events, key=lambda event: event.at)))


def _event(event: StoreEvent) -> dict[str, Any]:
    stated = {name: getattr(event, name) for name in ("until", "who", "why", "level")}
    return {"kind": event.kind, "time": seconds_of(event.at), **stated}
