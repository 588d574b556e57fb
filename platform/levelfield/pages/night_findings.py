"""A gate's stored findings as the pages show them. They are JSON of any version: each field is checked when read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.series.findings import WORDS, FindingWord

_NO_CHANGES = ("missing", "new series", "no change")  # each has its place elsewhere on the page
CHANGES = tuple(word for word in WORDS if word not in _NO_CHANGES)
CALM = ("no change", "new series")
UNKNOWN: FindingWord = "inconclusive"  # a word of a later version
LONGEST = 400  # characters of a text


@dataclass(frozen=True)
class NightFinding:
    """One finding of a night. change, low, high: relative. detectable: the smallest change that could be seen."""

    night: str
    series: str
    label: str
    figure: str | None
    word: FindingWord
    change: float | None
    low: float | None
    high: float | None
    level: float | None
    level_since: str | None
    nights: int | None
    detectable: float | None
    run_id: str | None
    detail: str
    fields: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def finding_of(night: str, content: Mapping[str, Any]) -> NightFinding:
    """Return a finding from its JSON. What is absent or of a wrong type is None or an empty text."""
    word = next((word for word in WORDS if word == content.get("word")), UNKNOWN)
    nights = _number(content.get("nights"))
    fields = content.get("fields")
    return NightFinding(
        night=night,
        series=_text(content.get("series")) or "",
        label=_text(content.get("label")) or "",
        figure=_text(content.get("figure")),
        word=word,
        change=_number(content.get("change")),
        low=_number(content.get("low")),
        high=_number(content.get("high")),
        level=_number(content.get("level")),
        level_since=_text(content.get("level_since")),
        nights=None if nights is None else int(nights),
        detectable=_number(content.get("detectable")),
        run_id=_text(content.get("run_id")),
        detail=_text(content.get("detail")) or "",
        fields=tuple(str(each)[:LONGEST] for each in fields) if isinstance(fields, (list, tuple)) else (),
    )


def in_order(findings: Sequence[NightFinding]) -> list[NightFinding]:
    """Return the findings in order of urgency, the larger change first."""
    return sorted(findings, key=lambda f: (WORDS.index(f.word), -abs(f.change or 0.0), f.label))


def latest_of_each(findings: Iterable[NightFinding]) -> list[NightFinding]:
    """Return the last finding of each series and figure: findings are only added, and a later one replaces."""
    return list({(f.night, f.series, f.figure, f.label): f for f in findings}.values())


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
