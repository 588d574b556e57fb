"""What a night has no figure of: runs that are not valid, other trainings, missing entries, quarantined nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from levelfield.nights.gate_input import GateInput, quarantined
from levelfield.series.findings import FIGURES, Finding, FindingWord, short
from levelfield.series.segments import in_history, is_evidence, night_of
from levelfield.specs.record import Point, Series

_STILL_THERE = 14  # days: without a list of the night, a series that ran within them is expected
_OFTEN = 7  # nights that had a figure before it counts as missing


def expected_series(given: GateInput) -> set[str]:
    """Return the series of the night: of its list, else every series that ran lately. An entry stands for itself."""
    if given.expected:
        return {_series_of(given, entry, series) or entry for entry, series in given.expected.items()}
    return {series for series in given.points if given.tonight(series) or _ran_lately(given, series)}


def findings_about_runs(given: GateInput) -> Iterator[Finding]:
    """Return what is said of tonight's runs themselves: training differs, invalid run, node in quarantine."""
    for series in given.points:
        tonight = given.tonight(series)
        for point in tonight:
            if point.verdict in ("different", "diverged"):
                yield _about(given, series, "training differs", f"alignment: {point.verdict}", point)
        if tonight and not any(map(is_evidence, tonight)):
            yield from (
                _about(given, series, "invalid run", _reason(p), p)
                for p in tonight[-1:]
                if p.verdict not in ("different", "diverged")
            )
        for point in tonight[-1:]:
            if event := quarantined(given, point):
                detail = f"node {short(point.node)} is in quarantine since {event.at[:10]}: {event.why}"
                yield _about(given, series, "bad night", detail, point)


def missing_findings(given: GateInput) -> Iterator[Finding]:
    """Return what was expected and is not there: entries, and figures that the series always had."""
    for entry, known in given.expected.items():
        series = _series_of(given, entry, known)
        if series is None:
            yield Finding(series=known or "", label=entry, figure=None, word="missing", detail="expected, not run")
        elif known and series != known and known in given.series and series in given.series:
            fields = _differing(given.series[known], given.series[series])
            detail = f"tonight's run is of another series: {', '.join(fields)}"
            yield Finding(series=known, label=entry, figure=None, word="incomparable", detail=detail, fields=fields)
    if not given.expected:
        for series in sorted(expected_series(given)):
            if not given.tonight(series):
                yield _about(given, series, "missing", f"expected, not run; last run {_last(given, series)}", None)
    yield from _missing_figures(given)


def _missing_figures(given: GateInput) -> Iterator[Finding]:
    for series in given.points:
        tonight = [p for p in given.tonight(series) if is_evidence(p)]
        for figure in FIGURES if tonight else ():
            if any(getattr(point, figure) is not None for point in tonight):
                continue
            earlier = [p for p in in_history(given.points[series]) if night_of(p) != given.night][-_OFTEN:]
            if len(earlier) == _OFTEN and all(getattr(point, figure) is not None for point in earlier):
                found = _about(
                    given, series, "missing", "not measured tonight, as it was in the last 7 runs", tonight[-1]
                )
                yield found.model_copy(update={"figure": figure})


def _series_of(given: GateInput, entry: str, known: str | None) -> str | None:
    """Return the series that ran for the entry tonight: the known one if it ran; None when none did."""
    if known and given.tonight(known):
        return known
    return given.series_by_entry.get(entry)


def _about(given: GateInput, series: str, word: FindingWord, detail: str, point: Point | None) -> Finding:
    return Finding(
        series=series, label=given.label(series), figure=None, word=word, detail=detail,
        run_id=point.run_id if point else None, node=point.node if point else None,
    )  # fmt: skip


def _reason(point: Point) -> str:
    return point.evidence if point.word == "valid" else point.word


def _differing(one: Series, other: Series) -> tuple[str, ...]:
    """Return the fields in which two series differ, with both values."""
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in type(one).model_fields)
    return tuple(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)


def _last(given: GateInput, series: str) -> str:
    return max((p.began[:10] for p in given.points[series]), default="never")


def _ran_lately(given: GateInput, series: str) -> bool:
    """Whether a nightly ran the series in the days before this night. Runs by hand are not expected again."""
    nights = [p.began[:10] for p in given.points[series] if p.purpose == "nightly" and night_of(p) < given.night]
    try:
        age = (date.fromisoformat(given.night[:10]) - date.fromisoformat(max(nights, default=""))).days
    except ValueError:
        return False
    return age <= _STILL_THERE
