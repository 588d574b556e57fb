"""The page of a case: its series with their latest figures, and what gates and people stated about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.pages.gathering import PagesContent
from levelfield.pages.history_columns import SeriesRuns, seconds_of
from levelfield.pages.night_findings import NightFinding
from levelfield.pages.scaling_chart import ScalingChart, scaling_charts
from levelfield.pages.series_summary import SeriesSummary
from levelfield.series.findings import WORDS
from levelfield.specs.record import StoreEvent


@dataclass(frozen=True)
class SeriesView:
    """One series of the case. word, tonight: the most urgent word of the last night; None without a gate.

    detectable: by figure, the smallest change that the gate could see.
    """

    runs: SeriesRuns
    summary: SeriesSummary
    findings: tuple[NightFinding, ...]
    events: tuple[StoreEvent, ...]

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
            "findings": [finding.to_dict() for finding in self.findings],
            "events": [_event(event) for event in self.events],
        }


@dataclass(frozen=True)
class CaseView:
    name: str
    slug: str
    series: tuple[SeriesView, ...]
    scaling: tuple[ScalingChart, ...] = ()

    @property
    def runs(self) -> int:
        return sum(each.summary.runs for each in self.series)

    def statements(self) -> dict[str, Any]:
        """Return by series what was stated about it."""
        return {each.runs.slug: each.statements() for each in self.series}


def case_view(
    case: str, series: Sequence[SeriesRuns], summaries: Mapping[str, SeriesSummary], content: PagesContent
) -> CaseView:
    """Return the view of a case. Events of a node belong to every series that ran on it."""
    views = [_series_view(runs, summaries[runs.digest], content) for runs in series]
    charts = scaling_charts([(view.runs, view.summary) for view in views])
    return CaseView(case, series[0].case_slug, tuple(views), charts)


def _series_view(runs: SeriesRuns, summary: SeriesSummary, content: PagesContent) -> SeriesView:
    nodes = {point.node for point in runs.points}
    events = [e for e in content.events if e.series == runs.digest or (e.series is None and e.node in nodes)]
    findings = [finding for finding in content.findings if finding.series == runs.digest]
    return SeriesView(runs, summary, tuple(findings), tuple(sorted(events, key=lambda event: event.at)))


def _event(event: StoreEvent) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "time": seconds_of(event.at),
        "until": event.until,
        "node": event.node,
        "who": event.who,
        "why": event.why,
        "level": event.level,
    }
