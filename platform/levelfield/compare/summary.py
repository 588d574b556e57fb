"""One page for a decision: which side is faster, by how much and how surely, in a sentence, and what it rests on.

The figures and ratios are those of a comparison. The sentence names the faster of the first two sides first.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from levelfield.compare.comparability import NOTHING, WHY, chip_of, comparability
from levelfield.compare.comparison import ComparedFigure, Comparison, Histories, deciding_command, side_values
from levelfield.compare.ratios import Ratio, own_interval
from levelfield.compare.sides import RATE, ComparedSide, exclusion, side_of
from levelfield.errors import UsageError
from levelfield.report.sheets import Sheet
from levelfield.specs.record import RunRecord

# What one sheet of paper has room for: sides, cautions, and characters of a line, a side's runs and its name.
MOST_SIDES, MOST_CAUTIONS, LONGEST, LONGEST_IDS, LONGEST_NAME = 6, 5, 160, 104, 36
_CLOSE = 1.1  # a ratio below it is said in percent


@dataclass(frozen=True)
class SummaryBar:
    """One side in the picture. part, low, high: of the largest value; low and high None without an interval."""

    name: str
    shown: str
    part: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Summary:
    """title, sentence: what is compared, and the verdict. certainty: what it rests on, a line each.

    header, rows: a side in each row. bars: of tokens/s/device. runs: of each side, by their ids.
    """

    title: str
    sentence: str
    certainty: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[SummaryBar, ...]
    runs: tuple[str, ...]

    def sheets(self) -> Iterator[Sheet]:
        """Yield the page as tables and notes."""
        yield Sheet(self.title, notes=(self.sentence,))
        yield Sheet("figures", self.header, self.rows)
        yield Sheet("how sure", notes=self.certainty)
        yield Sheet("runs", notes=self.runs)


def sides_of_case(records: Iterable[RunRecord]) -> tuple[list[ComparedSide], int]:
    """Return the fastest series of each chip and framework, the fastest first, and how many are left out.

    records: of a case. Only sides count that did the work of the fastest one. Raises UsageError for fewer than two.
    """
    by_series: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        if exclusion(record) is None and RATE.read(record) is not None:
            by_series[record.series.fingerprint()].append(record)
    groups = sorted(by_series.values(), key=_speed, reverse=True)
    best: dict[tuple[str, str], list[RunRecord]] = {}
    for group in groups:
        first = group[0].series
        if not best or _did_same_work(next(iter(best.values())), group):
            best.setdefault((chip_of(first), first.framework_label), group)
    if len(best) < 2:
        raise UsageError(
            f"report summary --case: found {len(best)} chip and framework with valid, sealed runs of one work, "
            "expected at least 2; `compare --matrix framework --case CASE` shows what there is"
        )
    kept = list(best.values())[:MOST_SIDES]
    return [side_of(chr(ord("A") + i), group) for i, group in enumerate(kept)], len(best) - len(kept)


def _did_same_work(runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> bool:
    return comparability([side_of("A", runs), side_of("B", others)]).holds


def _speed(runs: Sequence[RunRecord]) -> float:
    return math.fsum(RATE.read(run) or 0.0 for run in runs) / len(runs)


def summary(comparison: Comparison, histories: Histories, left_out: int = 0) -> Summary:
    """Return the page of a comparison. histories: as they were given to it. Raises UsageError for too many sides."""
    sides = comparison.sides
    if len(sides) > MOST_SIDES:
        raise UsageError(f"report summary: found {len(sides)} sides, expected at most {MOST_SIDES} on one page")
    names, first = names_of(sides), sides[0].first.series
    figures = [figure for figure in comparison.figures if any(found.values for found in figure.sides)]
    more = (f"{left_out} slower chips or frameworks are left out; `compare --matrix` has all.",) if left_out else ()
    return Summary(
        title=f"{first.case}, {first.scale} scale, {first.precision}",
        sentence=_sentence(comparison, names),
        certainty=tuple(map(_short, (*_certainty(comparison, names), *more))),
        header=("side", *(f.quantity.column.heading for f in figures), f"speed against {names[0]}"),
        rows=tuple(_row(i, comparison, figures, names) for i in range(len(sides))),
        bars=tuple(_bars(comparison, histories, names)),
        runs=tuple(_short(_ids(*pair), LONGEST_IDS) for pair in zip(names, sides, strict=True)),
    )


def _ids(name: str, side: ComparedSide) -> str:
    return f"{name}: {', '.join(run.run_id for run in side.counted) or NOTHING}"


def names_of(sides: Sequence[ComparedSide]) -> list[str]:
    """Return a name of each side: chip and framework where these tell the sides apart, else with its letter."""
    plain = [_short(f"{s.first.series.chip} with {s.first.series.framework_label}", LONGEST_NAME) for s in sides]
    if len(set(plain)) == len(plain):
        return plain
    return [f"{side.name} ({text})" for side, text in zip(sides, plain, strict=True)]


def _sentence(comparison: Comparison, names: Sequence[str]) -> str:
    """Return the verdict on the first two sides."""
    if unequal := comparison.comparability.unequal:
        differ = ", ".join(field.name for field in unequal)
        return f"Not comparable: {differ} must hold or be equal on both sides, so no ratio is stated."
    found = next(f for f in comparison.figures if f.quantity is RATE).ratios[0]
    if found.value is None:
        return f"No ratio: {found.reason}."
    winner, loser, value, low, high = _oriented(found, names[0], names[1])
    if low is None or high is None:
        return f"Inconclusive: {winner} measured {_times(value)} {loser}, but {found.reason}."
    ends = f"tokens per second and device, 95 % interval {_ends(value, low, high)}"
    if found.standing == "within noise":
        return f"No difference between {winner} and {loser} can be told from noise: {ends}."
    return f"{winner} is {_times(value)} {loser}: {ends}."


def _oriented(found: Ratio, base: str, side: str) -> tuple[str, str, float, float | None, float | None]:
    """Return faster and slower side, and the ratio of the faster one with its interval."""
    value, low, high = found.value or 1.0, found.low, found.high
    if value >= 1:
        return side, base, value, low, high
    return base, side, 1 / value, None if high is None else 1 / high, None if low is None else 1 / low


def _times(value: float) -> str:
    return f"{value:.2f} times as fast as" if value >= _CLOSE else f"{(value - 1) * 100:.1f} % faster than"


def _ends(value: float, low: float, high: float) -> str:
    if value >= _CLOSE:
        return f"{low:.2f} to {high:.2f}"
    return f"{(low - 1) * 100:+.1f} % to {(high - 1) * 100:+.1f} %"


def _certainty(comparison: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield what the verdict rests on, and what asks for caution."""
    counted = "; ".join(f"{name}: {_runs(side)}" for name, side in zip(names, comparison.sides, strict=True))
    yield f"Valid, sealed runs. {counted}."
    if comparison.figures:
        found = next(f for f in comparison.figures if f.quantity is RATE).ratios[0]
        if found.standing == "inconclusive":
            yield f"To decide: {deciding_command(comparison.sides[1], comparison.sides[0])}"
        elif found.low is not None:
            yield f"Interval: {found.reason}."
    cautions = comparison.comparability.with_caution
    for field in cautions[:MOST_CAUTIONS]:
        why = WHY.get(field.name)
        yield f"Caution, {field.name}: {' | '.join(field.cells)}" + (f" ({why})" if why else "")
    if len(cautions) > MOST_CAUTIONS:
        yield f"{len(cautions) - MOST_CAUTIONS} further fields ask for caution; `compare` names them."
    if comparison.figures and not cautions:
        yield "No field asks for caution: conditions, sources, dates and trainings agree."


def _runs(side: ComparedSide) -> str:
    verdicts = ", ".join(dict.fromkeys(run.verdict for run in side.counted)) or NOTHING
    left = f" of {len(side.runs)}" if side.excluded else ""
    return f"{len(side.counted)}{left}, training {verdicts}"


def _row(
    place: int, comparison: Comparison, figures: Sequence[ComparedFigure], names: Sequence[str]
) -> tuple[str, ...]:
    cells = [_figure(figure, place) for figure in figures]
    if place == 0 or not comparison.figures:
        return (names[place], *cells, "1" if comparison.figures else NOTHING)
    found = next(f for f in comparison.figures if f.quantity is RATE).ratios[place - 1]
    value = NOTHING if found.value is None else f"{found.value:.3f}"
    return (names[place], *cells, f"{value} {found.ends} {found.standing}".replace("  ", " "))


def _figure(figure: ComparedFigure, place: int) -> str:
    found, column = figure.sides[place], figure.quantity.column
    if found.interval is None:
        return NOTHING
    middle, ends = column.shown(found.interval.median), column.ends(found.interval)
    return middle if ends == f"[{middle}, {middle}]" else f"{middle} {ends}".strip()


def _bars(comparison: Comparison, histories: Histories, names: Sequence[str]) -> Iterator[SummaryBar]:
    """Yield a bar of each side with a speed. The intervals are of each side alone, by its runs or its history."""
    values = [side_values(RATE, side, histories) for side in comparison.sides]
    usable = [(name, v) for name, v in zip(names, values, strict=True) if v.values and min(v.values) > 0]
    means = [statistics.geometric_mean(v.values) for _, v in usable]
    ends = [own_interval(v) for _, v in usable]
    top = max([*means, *(end[1] for end in ends if end)], default=1.0)
    for (name, _), mean, end in zip(usable, means, ends, strict=True):
        low, high = (end[0] / top, end[1] / top) if end else (None, None)
        yield SummaryBar(name, RATE.column.shown(mean), mean / top, low, high)


def _short(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
