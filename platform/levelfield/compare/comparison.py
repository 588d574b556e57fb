"""The comparison of two or more sides: comparability first, then every figure with its interval and its ratio."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from levelfield.compare.comparability import (
    CAUTION_REASONS,
    NO_VALUE,
    Comparability,
    ComparedField,
    check_comparability,
    cost_cautions,
)
from levelfield.compare.deciding import deciding_commands
from levelfield.compare.ratios import DuelArm, HistoricNoise, Ratio, SideValues, compute_ratio, historic_noise
from levelfield.compare.sides import QUANTITIES, RATE, ComparedSide, Quantity, cost_quantity, exclusion_reason
from levelfield.errors import UsageError
from levelfield.measure.series import Interval, median_interval
from levelfield.report.costs import price_lines
from levelfield.report.sheets import Sheet
from levelfield.specs.prices import Prices
from levelfield.specs.record import DuelConclusion, Point, RunRecord, StoreEvent
from levelfield.specs.short_names import short_value

_CONSTANT_TOLERANCE = 1e-9  # of logarithms: how far a constant may differ by rounding
_MAX_MEDIAN_GAP = 0.02  # where the ratio of medians is farther from the ratio, a note has both
MAX_NOISE_NIGHTS = 45  # nights of a history that show its noise
Histories = Mapping[str, Sequence[Point]]  # by the digest of a series
Duels = Sequence[DuelConclusion]  # the newest last

SCHEMA = "levelfield.comparison/1"


@dataclass(frozen=True)
class SideFigure:
    """One figure of one side: the median over its runs with its interval."""

    values: tuple[float, ...]
    interval: Interval | None
    reason: str | None  # why one of its runs lacks it


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of all sides."""

    quantity: Quantity
    sides: tuple[SideFigure, ...]
    ratios: tuple[Ratio, ...]  # of every side after the first against the first


@dataclass(frozen=True)
class Comparison:
    """Two or more sides, whether they may be compared, and their figures."""

    sides: tuple[ComparedSide, ...]
    comparability: Comparability
    figures: tuple[ComparedFigure, ...]  # empty where the sides are not comparable
    prices: Prices | None = None


def compare(
    sides: Sequence[ComparedSide],
    histories: Histories | None = None,
    across_precision: bool = False,
    prices: Prices | None = None,
    duels: Duels = (),
) -> Comparison:
    """Compare sides with the first. histories: stored runs of their series. duels: the stored conclusions.

    Raises UsageError below two sides, and for a run of two sides: it would be compared with itself.
    """
    if len(sides) < 2:
        raise UsageError(f"compare: found {len(sides)} side, expected at least 2: compare A B")
    owners: dict[str, str] = {}
    for side in sides:
        for run in side.runs:
            if other := owners.get(run.run_id):
                raise UsageError(f"compare: found run {run.run_id} on sides {other} and {side.name}; expected it once")
        owners |= {run.run_id: side.name for run in side.runs}
    field_groups = check_comparability(sides, across_precision)
    counted = [run for side in sides for run in side.counted]
    quantities = [
        quantity
        for quantity in QUANTITIES
        if not quantity.is_optional
        or any(quantity.read(run) is not None or quantity.missing_reason(run) for run in counted)
    ]
    quantities += [cost_quantity(prices)] if prices else []
    figures = []
    for quantity in quantities if field_groups.is_comparable else ():
        base_values, *other_values = [side_values(quantity, side, histories or {}, duels) for side in sides]
        basis_values = dict.fromkeys(str(value) for run in counted if (value := quantity.basis(run)) is not None)
        ratios = tuple(side_ratio(quantity, side, base_values) for side in other_values)
        if len(basis_values) > 1:
            no_ratio = Ratio(
                None, None, None, "no ratio", f"the figure rests on different values: {', '.join(basis_values)}"
            )
            ratios = tuple(no_ratio for _ in other_values)
        side_figures = tuple(side_figure(quantity, side.counted) for side in sides)
        figures.append(ComparedFigure(quantity, side_figures, ratios))
    if prices:
        field_groups = replace(
            field_groups, cautions=(*field_groups.cautions, *cost_cautions(cost_quantity(prices), sides))
        )
    return Comparison(tuple(sides), field_groups, tuple(figures), prices)


def side_figure(quantity: Quantity, records: Sequence[RunRecord]) -> SideFigure:
    """Return the figure over runs. The median and its interval are those of `report` over repeats."""
    figures = [(record, quantity.read(record)) for record in records]
    values = tuple(value for _, value in figures if value is not None)
    runs_without_value = [record for record, value in figures if value is None]
    reason = (
        quantity.missing_reason(runs_without_value[0]) or "result.json has no reason" if runs_without_value else None
    )
    return SideFigure(values, median_interval(values, quantity.column.largest_possible) if values else None, reason)


def side_values(quantity: Quantity, side: ComparedSide, histories: Histories, duels: Duels = ()) -> SideValues:
    """Return the figures of a side with what every ratio needs: the noise of its history, and its duels."""
    points = histories.get(side.first.series.fingerprint(), ()) if histories else ()
    noise = _night_noise(quantity, side, points) if points and side.counted else None
    values = tuple(value for run in side.counted if (value := quantity.read(run)) is not None)
    return SideValues(values, noise, tuple(_duel_arms(quantity, side, duels)))


def _duel_arms(quantity: Quantity, side: ComparedSide, duels: Duels) -> Iterator[DuelArm]:
    """Yield the side's part in each duel of which it has all runs. A disturbed run counts there, as in the duel.

    Yields nothing where the figure is more than a constant and the speed: it has energy or another peak in it.
    """
    logarithms = dict[str, tuple[float, float]]()  # of the speed and of the figure
    for run in side.runs if quantity.speed_exponent and duels else ():
        rate, value = RATE.read(run) or 0.0, quantity.read(run) or 0.0
        if exclusion_reason(run) is None and rate > 0 and 0 < value < math.inf:
            logarithms[run.run_id] = math.log(rate), math.log(value)
    for duel in duels:
        for is_b, ids in enumerate(zip(*duel.pairs, strict=True)):
            if logarithms.keys() >= set(ids) and quantity.speed_exponent:
                speeds, values = zip(*(logarithms[run] for run in ids), strict=True)
                log_constants = [
                    value - quantity.speed_exponent * speed for speed, value in zip(speeds, values, strict=True)
                ]
                if max(log_constants) - min(log_constants) <= _CONSTANT_TOLERANCE:
                    yield DuelArm(duel, bool(is_b), _mean(speeds), _mean(values), quantity.speed_exponent)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def duel_conclusions(events: Iterable[StoreEvent]) -> Duels:
    """Return the conclusions among events, in their order."""
    return tuple(DuelConclusion.model_validate(event.data) for event in events if event.kind == "duel")


def side_ratio(quantity: Quantity, side: SideValues, base: SideValues) -> Ratio:
    """Return side over base."""
    if not side.values or not base.values:
        return Ratio(None, None, None, "no ratio", "a side has no such figure")
    computed = compute_ratio(side, base)
    if quantity.is_noisy or computed.value is None:
        return computed
    reason = "a loss differs by arithmetic, which statistics over repeats do not show; see the alignment verdict"
    return Ratio(computed.value, None, None, "see alignment", reason)


def _night_noise(quantity: Quantity, side: ComparedSide, points: Sequence[Point]) -> HistoricNoise | None:
    """Return the noise of the side's series: its newest good nights on the same node, under the same conditions.

    A night counts once, by its last run: the repeats of one night do not show how far nights differ. A change of level
    within these nights makes the noise larger.
    """
    record, own_runs = side.counted[0], {run.run_id for run in side.runs}
    conditions = record.conditions.fingerprint()
    nights: dict[str, tuple[str, float]] = {}
    for p in reversed(points):  # of a long history only the newest nights are read
        night = p.night or p.began[:10]
        is_usable = (p.node, p.conditions) == (record.node, conditions) and p.is_comparable and p.is_trend_point
        if night in nights or not is_usable or p.run_id in own_runs:
            continue
        if (value := quantity.read_stored_night(record, p)) is not None:
            nights[night] = p.began[:10], value
        if len(nights) == MAX_NOISE_NIGHTS:
            break
    dated_values = [*nights.values()]
    return historic_noise([value for _, value in dated_values], dated_values[-1][0]) if dated_values else None


def comparison_sheets(comparison: Comparison) -> Iterator[Sheet]:
    """Yield the sides, the fields by what they mean for the comparison, the figures and their ratios."""
    field_groups, names = comparison.comparability, tuple(side.name for side in comparison.sides)
    rows = []
    for side in comparison.sides:
        first, counted = side.first, str(len(side.counted))
        runs = f"{counted} of {len(side.runs)}" if side.excluded else counted
        build = f"{first.series.framework} {first.subject.framework_version}"
        rows.append((side.name, first.series.label, build, runs + (", disturbed" if side.is_disturbed else "")))
    left_out = defaultdict[tuple[str, str], list[str]](list)  # by side and reason
    for side in comparison.sides:
        for run, reason in side.left_out:
            left_out[side.name, reason].append(run.run_id)
    notes = tuple(f"{name} leaves out {', '.join(ids)}: {reason}" for (name, reason), ids in left_out.items())
    yield Sheet("", ("side", "series", "build", "runs"), tuple(rows), notes)
    if field_groups.unequal:
        yield _field_sheet(
            "NOT COMPARABLE: these fields must be equal, so no ratio is printed", field_groups.unequal, names
        )
    equal = "; ".join(f"{field.name} {short_value(field.values[0][0])}" for field in field_groups.equal)
    yield Sheet("equal on all sides", notes=(equal or NO_VALUE,))
    if field_groups.deliberate:
        yield _field_sheet("differs on purpose", field_groups.deliberate, names)
    if field_groups.cautions:
        reasons = tuple(
            f"{field.name}: {CAUTION_REASONS[field.name]}"
            for field in field_groups.cautions
            if field.name in CAUTION_REASONS
        )
        yield _field_sheet("cautions", field_groups.cautions, names, reasons)
    if comparison.figures:
        yield _figure_sheet(comparison)
        yield _ratio_sheet(comparison)
    if comparison.figures and comparison.prices:
        chips = [side.first.series.chip for side in comparison.sides]
        yield Sheet(f"prices, {comparison.prices.currency}", notes=tuple(price_lines(comparison.prices, chips)))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as a JSON object, in full precision."""
    field_groups, sides = comparison.comparability, comparison.sides
    return {
        "schema": SCHEMA,
        "comparable": field_groups.is_comparable,
        "sides": [
            {
                "name": side.name,
                "series": side.first.series.model_dump(mode="json"),
                "label": side.first.series.label,
                "runs": [record.run_id for record in side.counted],
                "left_out": [
                    {"run": record.run_id, "reason": reason} for record, reason in (*side.excluded, *side.left_out)
                ],
                "disturbed": side.is_disturbed,
                "verdicts": [record.verdict for record in side.counted],
            }
            for side in sides
        ],
        "unequal": _fields_json(field_groups.unequal, sides),
        "equal": _fields_json(field_groups.equal, sides),
        "on_purpose": _fields_json(field_groups.deliberate, sides),
        "with_caution": _fields_json(field_groups.cautions, sides),
        "figures": [_figure_json(figure, sides) for figure in comparison.figures],
        **({"prices": comparison.prices.model_dump(mode="json")} if comparison.prices else {}),
    }


def _field_sheet(
    heading: str, fields: Iterable[ComparedField], names: tuple[str, ...], notes: tuple[str, ...] = ()
) -> Sheet:
    return Sheet(heading, ("field", *names), tuple((field.name, *field.cells) for field in fields), notes)


def _figure_sheet(comparison: Comparison) -> Sheet:
    """Return the medians with their intervals, and the verdicts on the training."""
    rows = []
    for figure in comparison.figures:
        if not any(entry.values for entry in figure.sides):
            continue
        column = figure.quantity.column
        for number, (side, entry) in enumerate(zip(comparison.sides, figure.sides, strict=True)):
            median = column.text(entry.interval.median if entry.interval else None)
            ends = column.interval_text(entry.interval) if entry.interval else ""
            rows.append((column.heading if number == 0 else "", side.name, str(len(entry.values)), median, ends))
    verdicts = [", ".join(dict.fromkeys(record.verdict for record in side.counted)) for side in comparison.sides]
    pairs = zip(comparison.sides, verdicts, strict=True)
    rows += [
        ("alignment" if i == 0 else "", s.name, str(len(s.counted)), verdict, "")
        for i, (s, verdict) in enumerate(pairs)
    ]
    intervals = [entry.interval for figure in comparison.figures for entry in figure.sides]
    methods = [f"interval of {i.n} values: {i.coverage:.0%}, {i.method}" for i in intervals if i and i.coverage]
    missing = []
    for figure in comparison.figures:  # equal reasons in one sentence
        names: dict[str, list[str]] = {}
        for side, entry in zip(comparison.sides, figure.sides, strict=True):
            if entry.reason:
                names.setdefault(entry.reason, []).append(side.name)
        heading = figure.quantity.column.heading
        missing += [f"{heading}: missing on {', '.join(names[reason])}: {reason}" for reason in names]
    notes = tuple(dict.fromkeys([*methods, *missing]))
    return Sheet("figures", ("figure", "side", "runs", "median", "interval"), tuple(rows), notes)


def _ratio_sheet(comparison: Comparison) -> Sheet:
    base, *others = comparison.sides
    rows, reasons = [], defaultdict[str, list[str]](list)
    commands = dict[tuple[str, str], None]()
    for figure in comparison.figures:
        if not any(entry.values for entry in figure.sides):
            continue
        name = figure.quantity.column.heading.split(",")[0]  # without the unit: a ratio has none
        digits = 4 if figure.quantity.is_noisy else 7  # a loss is compared far below the noise of a speed
        for side_index, (side, entry) in enumerate(zip(others, figure.ratios, strict=True), 1):
            value = NO_VALUE if entry.value is None else f"{entry.value:.{digits}f}"
            interval = "" if entry.low is None or entry.high is None else f"[{entry.low:.4f}, {entry.high:.4f}]"
            rows.append((name, f"{side.name}/{base.name}", value, interval, entry.difference))
            reasons[f"{entry.standing}: {entry.reason}" if entry.low is None else entry.reason].append(name)
            ours, theirs = figure.sides[side_index].interval, figure.sides[0].interval
            if ours and theirs and entry.value and theirs.median > 0:
                median_ratio = ours.median / theirs.median
                if not abs(median_ratio / entry.value - 1) <= _MAX_MEDIAN_GAP:
                    reasons[
                        f"{name}: the medians divide to {median_ratio:.4f}; the ratio is of geometric means, which "
                        "count every run, so few runs far from the others move it"
                    ] = []
            if entry.standing == "inconclusive":
                for command in deciding_commands(side, base):
                    commands[f"to decide {side.name}/{base.name}, on {command.machine}", command.text] = None
    header = ("ratio of", "sides", "ratio", "95 % interval", "difference")
    figure_count = len({row[0] for row in rows})
    notes = []
    for note, figure_names in reasons.items():  # behind the names of its figures, where it is not of all or of none
        figures = dict.fromkeys(figure_names)
        notes.append(note if len(figures) in (0, figure_count) else f"{', '.join(figures)}: {note}")
    return Sheet(f"against {base.name}", header, tuple(rows), tuple(notes), tuple(commands))


def _fields_json(fields: Iterable[ComparedField], sides: Sequence[ComparedSide]) -> dict[str, dict[str, list[str]]]:
    """Return for each field the different values of each side, digests in full."""
    names = [side.name for side in sides]
    return {f.name: {name: list(values) for name, values in zip(names, f.values, strict=True)} for f in fields}


def ratio_json(ratio: Ratio, side: ComparedSide, base: ComparedSide) -> dict[str, Any]:
    """Return a ratio as JSON; an inconclusive one with the commands that decide it, one a line."""
    commands = deciding_commands(side, base) if ratio.standing == "inconclusive" else ()
    return asdict(ratio) | ({"decided_by": "\n".join(command.text for command in commands)} if commands else {})


def _figure_json(figure: ComparedFigure, sides: Sequence[ComparedSide]) -> dict[str, Any]:
    base, *others = sides
    column = figure.quantity.column
    return {
        "name": column.name,
        "unit": column.unit,
        "sides": {
            side.name: {
                "values": list(entry.values),
                "reason": entry.reason,
                **(asdict(entry.interval) if entry.interval else {}),
            }
            for side, entry in zip(sides, figure.sides, strict=True)
        },
        "ratios": {
            side.name: {"against": base.name, **ratio_json(ratio, side, base)}
            for side, ratio in zip(others, figure.ratios, strict=True)
        },
    }
