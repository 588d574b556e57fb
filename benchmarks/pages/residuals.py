"""docs/data/planner_residuals.csv and docs/planner-residuals.svg: every published row beside its prediction."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable

from levelfield.predict import layout_search
from levelfield.specs.constants import Constants
from pages.points import SETS, Point, halves, memory, memory_off, percent, throughput, time_off

GIB = 2**30
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
SIDE, TOP = 380, 40


def left_out(points: list[Point], skipped: list[tuple[str, str, str]]) -> str:
    """Return the published rows that are in no fit, as CSV with the reason of each."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["set", "row", "reason"])
    table.writerows(skipped)
    table.writerows([p.set_name, p.row.name, p.left_out] for p in points if p.left_out)
    return written.getvalue()


def medians_table(points: list[Point], fitted: dict[str, Constants]) -> list[str]:
    lines = [
        "| | memory: median, max | rows | held-out speed: median, max | rows | fitted speed: median | rows |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [*fitted, "all"]:
        mine = [p for p in points if name in (p.framework, "all") and p.left_out is None]
        weighed = [abs(percent(memory_off(p, fitted[p.framework]))) for p in mine if p.memory_bytes is not None]
        timed = {p.row.name: p for p in mine if p.tokens_per_second is not None}
        fitted_names = {q.row.name for f in fitted for q in halves(points, f, throughput)}
        inside, outside = (
            [
                abs(percent(time_off(p, fitted[p.framework])))
                for n, p in timed.items()
                if (n in fitted_names) is is_fitted
            ]
            for is_fitted in (True, False)
        )
        lines.append(
            f"| {name} | {_worst(weighed)} | {len(weighed)} | {_worst(outside)} | {len(outside)} "
            f"| {statistics.median(inside):.1f} % | {len(inside)} |"
        )
    return lines


def _worst(errors: list[float]) -> str:
    return f"{statistics.median(errors):.1f} %, {max(errors):.1f} %" if errors else "-"


def rows(points: list[Point], fitted: dict[str, Constants]) -> str:
    """Return every row as CSV. Of a memory or a speed that is not published the cells of it are empty."""
    timed = {p.row.name for f in fitted for p in halves(points, f, throughput)}
    weighed = {p.row.name for f in fitted for p in halves(points, f, memory)}
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["set", "row", "status", "fits", *_columns("memory_gib"), *_columns("tokens_per_second_per_device")])
    for name in SETS:
        for point in (p for p in points if p.set_name == name):
            estimate = point.predicted(fitted[point.framework])
            table.writerow(
                [
                    *(name, point.row.name, point.row.status, "yes" if estimate.fits else "no"),
                    *_cells(point.memory_bytes, estimate.memory.total, GIB, 1, point.row.name in weighed),
                    *_cells(point.tokens_per_second, estimate.tokens_per_second, 1, 0, point.row.name in timed),
                ]
            )
    return written.getvalue()


def _columns(figure: str) -> list[str]:
    return [figure, f"predicted_{figure}", f"{figure}_off_percent", f"{figure}_fitted"]


def _cells(published: float | None, predicted: float, unit: int, digits: int, fit: bool) -> list[str]:
    """Return published and predicted in `unit`, the difference in percent, and whether it set the constants."""
    if published is None:
        return ["", f"{predicted / unit:.{digits}f}", "", ""]
    off = 100 * (predicted / published - 1)
    numbers = [f"{published / unit:.{digits}f}", f"{predicted / unit:.{digits}f}", f"{off:+.1f}"]
    return [*numbers, "yes" if fit else "no"]


def scatter(points: list[Point], fitted: dict[str, Constants]) -> str:
    """Two log-log panels, 420 pixels each: memory and throughput, predicted over published."""
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="500" font-family="sans-serif" font-size="12">',
            '<rect width="900" height="500" fill="white"/>',
            *_panel(points, fitted, 50, "memory, GiB", memory, _predicted_memory, GIB, (2.5, 110)),
            *_panel(points, fitted, 490, "tokens/s per device", throughput, _predicted_rate, 1, (80, 80000)),
            *_legend(fitted),
            "</svg>",
            "",
        ]
    )


def _predicted_memory(estimate: layout_search.LayoutEstimate) -> float:
    return estimate.memory.total


def _predicted_rate(estimate: layout_search.LayoutEstimate) -> float:
    return estimate.tokens_per_second


def _panel(
    points: list[Point],
    fitted: dict[str, Constants],
    left: int,
    title: str,
    published: Callable[[Point], float | None],
    predicted: Callable[[layout_search.LayoutEstimate], float],
    unit: float,
    span: tuple[float, float],
) -> list[str]:
    low, high = (math.log10(value) for value in span)

    def place(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIDE

    lines = [
        f'<text x="{left}" y="{TOP - 14}">{title}: predicted (up), published (right)</text>',
        f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>',
    ]
    for factor, dash in ((1.0, "0"), (1.2, "4"), (1 / 1.2, "4")):
        offset = place(span[0] * factor)
        start, end = (-offset, SIDE) if offset < 0 else (0, SIDE - offset)
        lines.append(
            f'<line x1="{left + start:.1f}" y1="{TOP + SIDE - start - offset:.1f}" x2="{left + end:.1f}" '
            f'y2="{TOP + SIDE - end - offset:.1f}" stroke="#888" stroke-dasharray="{dash}"/>'
        )
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = place(10.0**power)
        lines.append(f'<text x="{left + at - 8:.1f}" y="{TOP + SIDE + 16}">{10**power:,}</text>')
        lines.append(f'<text x="{left - 4}" y="{TOP + SIDE - at + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    names = list(fitted)
    for point in points:
        value = published(point)
        if value is None:
            continue
        prediction = predicted(point.predicted(fitted[point.framework])) / unit
        colour = COLOURS[names.index(point.framework)]
        fill = "none" if point.left_out else colour
        lines.append(
            f'<circle cx="{left + place(value / unit):.1f}" cy="{TOP + SIDE - place(prediction):.1f}" r="4" '
            f'fill="{fill}" fill-opacity="0.6" stroke="{colour}"><title>{point.row.name}</title></circle>'
        )
    return lines


def _legend(fitted: dict[str, Constants]) -> list[str]:
    lines = []
    for number, name in enumerate(fitted):
        at = 50 + 110 * number
        lines.append(f'<circle cx="{at}" cy="470" r="4" fill="{COLOURS[number]}" fill-opacity="0.6"/>')
        lines.append(f'<text x="{at + 10}" y="474">{name}</text>')
    lines.append(f'<text x="{50 + 110 * len(fitted)}" y="474">hollow: in no fit; dashed: 20 % off either way</text>')
    return lines
