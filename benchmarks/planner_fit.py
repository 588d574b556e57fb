#!/usr/bin/env python3
"""The planner against every published figure: fit its constants on half of the rows, report on all.

    python benchmarks/planner_fit.py            fit, write configs/planner/*.yaml, docs/planner-residuals.md and .svg
    python benchmarks/planner_fit.py --check    the same without writing; exit 4 when what is written is not this

One set of constants for each framework: the share of a chip's matrix rate and the share of a link's rate, from every
second row that has a throughput; the reserve, from every second row that has a memory. Least absolute error of
logarithms, by a grid and a finer one about its best, so that one odd row moves little. All other rows are predictions.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield import machines, planner
from levelfield.catalog import find_chip
from levelfield.measure.converted import rate
from levelfield.registry import Registry
from levelfield.specs.constants import Constants, Pace
from levelfield.specs.figures import Row, Setting
from levelfield.specs.tuning import Recompute, Tuning

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30
SETS = ("flagperf_llama3", "flagperf_gpt3_paddle", "oneflow_gpt", "osdi_gpt2")
MATMUL = [n / 100 for n in range(20, 111)]
COMMUNICATION = [n / 100 for n in range(10, 111, 2)]
RESERVES = [round(n * GIB / 10) for n in range(0, 161)]
ABLATION, ABLATION_CHIP = "flagperf_llama3", "A800-SXM4-80GB"
EVERYTHING = planner.Offer(frozenset(), ("none", "selective", "full"))


class LeftOut(Exception):
    """Why a row cannot be predicted."""


@dataclass(frozen=True)
class Point:
    """A published row and the question that it answers. memory_bytes, tokens_per_second: published, None where not.
    left_out: why it is in no fit."""

    set_name: str
    row: Row
    question: planner.Question
    tuning: Tuning
    memory_bytes: float | None
    tokens_per_second: float | None
    left_out: str | None

    @property
    def framework(self) -> str:
        return self.row.setting.framework

    def predicted(self, constants: Constants) -> planner.Row:
        return planner.predict(replace(self.question, constants=constants), self.tuning)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 4 when the files differ")
    options = parser.parse_args()
    registry = Registry()
    points, skipped = points_of(registry)
    fitted = {name: _fitted(registry, name, points) for name in sorted({p.framework for p in points})}
    files = {ROOT / "configs" / "planner" / f"{n}.yaml": _written(n, c) for n, c in fitted.items()}
    files[ROOT / "docs" / "planner-residuals.md"] = _report(points, skipped, fitted)
    files[ROOT / "docs" / "planner-residuals.svg"] = _scatter(points, fitted)
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale if not options.check else ():
        path.write_text(files[path])
    for path in stale:
        print(f"{'differs' if options.check else 'written'}: {path.relative_to(ROOT)}")
    print(_summary(points, fitted))
    return 4 if options.check and stale else 0


def points_of(registry: Registry) -> tuple[list[Point], list[tuple[str, str, str]]]:
    """Every row that can be predicted, and the others as set, row and reason."""
    points, skipped = [], []
    for name in SETS:
        for row in registry.figures(name).rows:
            try:
                points.append(_point(registry, name, row))
            except LeftOut as error:
                skipped.append((name, row.name, str(error)))
    return points, skipped


def _point(registry: Registry, name: str, row: Row) -> Point:
    """Raises LeftOut for a row that says too little to be planned."""
    setting = row.setting
    if setting.chip is None or setting.case is None:
        raise LeftOut("the report withholds the chip")
    if not row.figures:
        raise LeftOut("no figures were published")
    _, chip = find_chip(registry, setting.chip)
    case = registry.case(setting.case)
    network = setting.network.bytes_per_second if setting.network else None
    assumed = machines.ASSUMED_PORT_BYTES_PER_SECOND * setting.devices_per_node
    machine = machines.machine_of(chip, setting.precision, setting.devices_per_node, network or assumed)
    constants = registry.constants(setting.framework)
    assert constants is not None
    question = planner.Question(
        case.work("full"), machine, constants, EVERYTHING, "accelerator", setting.devices, chip.memory_bytes
    )
    return Point(
        name,
        row,
        question,
        _tuning(setting),
        row.figure("memory_bytes"),
        rate(row).tokens_per_second_per_device,
        _left_out(row),
    )


def _tuning(setting: Setting) -> Tuning:
    repeated: dict[str | None, Recompute] = {
        "selective-attention": "selective",
        "selective": "selective",
        "full": "full",
    }
    return Tuning(
        layout=setting.parallel, micro_batch=setting.micro_batch, recompute=repeated.get(setting.recompute, "none")
    )


def _left_out(row: Row) -> str | None:
    if row.setting.recompute is None:
        return "states neither recomputation nor attention kernel; another version of OneFlow"
    return None


def halves(points: Iterable[Point], framework: str, has: Callable[[Point], float | None]) -> list[Point]:
    """Every second row of the framework that has the figure, the first included: what is fitted on."""
    usable = [p for p in points if p.framework == framework and has(p) is not None and p.left_out is None]
    return usable[::2]


def _fitted(registry: Registry, framework: str, points: list[Point]) -> Constants:
    before = registry.constants(framework)
    assert before is not None
    timed, weighed = halves(points, framework, throughput), halves(points, framework, memory)
    pace = _best_pace(before, timed, MATMUL[::10], COMMUNICATION[::10])
    near = [n for n in MATMUL if abs(n - pace.matmul_efficiency) < 0.1]
    close = [n for n in COMMUNICATION if abs(n - pace.communication_efficiency) < 0.2]
    pace = _best_pace(before, timed, near, close)
    without = {id(p): p.predicted(before).memory.total - before.keeping.reserve_bytes for p in weighed}
    reserve = min(
        RESERVES, key=lambda size: sum(abs(math.log((without[id(p)] + size) / (memory(p) or 1))) for p in weighed)
    )
    keeping = before.keeping.model_copy(update={"reserve_bytes": reserve})
    return before.model_copy(
        update={
            "pace": pace,
            "keeping": keeping,
            "fitted": {
                "matmul_efficiency": f"{len(timed)} rows of {', '.join(sorted({p.set_name for p in timed}))}",
                "communication_efficiency": "the same rows",
                "reserve_bytes": f"{len(weighed)} rows with a memory",
            },
        }
    )


def _best_pace(before: Constants, timed: list[Point], matmul: list[float], communication: list[float]) -> Pace:
    paces = [
        Pace(matmul_efficiency=m, communication_efficiency=c, overlap=before.pace.overlap)
        for m in matmul
        for c in communication
    ]
    return min(paces, key=lambda pace: sum(abs(_off(p, before.model_copy(update={"pace": pace}))) for p in timed))


def throughput(point: Point) -> float | None:
    return point.tokens_per_second


def memory(point: Point) -> float | None:
    return point.memory_bytes


def _off(point: Point, constants: Constants) -> float:
    assert point.tokens_per_second is not None
    return math.log(point.predicted(constants).tokens_per_second / point.tokens_per_second)


def _memory_off(point: Point, constants: Constants) -> float:
    assert point.memory_bytes is not None
    return math.log(point.predicted(constants).memory.total / point.memory_bytes)


def _written(framework: str, constants: Constants) -> str:
    """The file with the fitted numbers put in; all else in it is somebody's words."""
    text = (ROOT / "configs" / "planner" / f"{framework}.yaml").read_text()
    for name, value in (
        ("matmul_efficiency", constants.pace.matmul_efficiency),
        ("communication_efficiency", constants.pace.communication_efficiency),
        ("reserve_bytes", constants.keeping.reserve_bytes),
    ):
        text = re.sub(rf"\b{name}: [\d.]+", f"{name}: {value}", text)
    lines = "".join(f"  {name}: {json.dumps(how)}\n" for name, how in constants.fitted.items())
    return re.sub(r"^fitted:.*\Z", f"fitted:\n{lines}", text, flags=re.MULTILINE | re.DOTALL)


def _report(points: list[Point], skipped: list[tuple[str, str, str]], fitted: dict[str, Constants]) -> str:
    lines = [
        "# The planner against published figures",
        "",
        "Written by `python benchmarks/planner_fit.py`; do not edit. *fit*: the row set the constants; all other rows",
        "are predictions. docs/planner.md says what the columns mean and what is missing where they differ.",
        "",
        *_constants_table(fitted),
        "",
        *_medians_table(points, fitted),
        "",
        "![predicted against published](planner-residuals.svg)",
    ]
    for name in SETS:
        lines += ["", f"## {name}", "", *_rows_table([p for p in points if p.set_name == name], points, fitted)]
    lines += ["", "## Left out", "", "| set | row | why |", "|---|---|---|"]
    lines += [f"| {name} | {row} | {why} |" for name, row, why in skipped]
    lines += [f"| {p.set_name} | {p.row.name} | not in a fit: {p.left_out} |" for p in points if p.left_out]
    return "\n".join(lines) + "\n"


def _constants_table(fitted: dict[str, Constants]) -> list[str]:
    head = ["| framework | matrix rate | link rate | overlap (stated) | reserve |", "|---|---|---|---|---|"]
    return head + [
        f"| {name} | {c.pace.matmul_efficiency:.2f} | {c.pace.communication_efficiency:.2f} | {c.pace.overlap:g} "
        f"| {c.keeping.reserve_bytes / GIB:.1f} GiB |"
        for name, c in fitted.items()
    ]


def _medians_table(points: list[Point], fitted: dict[str, Constants]) -> list[str]:
    lines = [
        "| | memory: median, largest | rows | tokens/s, rows held out: median, largest | rows "
        "| tokens/s, fitted rows: median | rows |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [*fitted, "all"]:
        mine = [p for p in points if name in (p.framework, "all") and p.left_out is None]
        weighed = [abs(_percent(_memory_off(p, fitted[p.framework]))) for p in mine if p.memory_bytes is not None]
        timed = {p.row.name: p for p in mine if p.tokens_per_second is not None}
        own = {q.row.name for f in fitted for q in halves(points, f, throughput)}
        inside, outside = (
            [abs(_percent(_off(p, fitted[p.framework]))) for n, p in timed.items() if (n in own) is wanted]
            for wanted in (True, False)
        )
        lines.append(
            f"| {name} | {_worst(weighed)} | {len(weighed)} | {_worst(outside)} | {len(outside)} "
            f"| {statistics.median(inside):.1f} % | {len(inside)} |"
        )
    return lines


def _worst(errors: list[float]) -> str:
    return f"{statistics.median(errors):.1f} %, {max(errors):.1f} %" if errors else "-"


def _rows_table(mine: list[Point], points: list[Point], fitted: dict[str, Constants]) -> list[str]:
    timed = {p.row.name for f in fitted for p in halves(points, f, throughput)}
    weighed = {p.row.name for f in fitted for p in halves(points, f, memory)}
    lines = [
        "| row | memory, GiB: published | predicted | off | tokens/s/device: published | predicted | off |",
        "|---|---|---|---|---|---|---|",
    ]
    for point in mine:
        found = point.predicted(fitted[point.framework])
        lines.append(
            f"| {point.row.name} | {_memory_cells(point, found, point.row.name in weighed)} "
            f"| {_time_cells(point, found, point.row.name in timed)} |"
        )
    return lines


def _memory_cells(point: Point, found: planner.Row, fit: bool) -> str:
    predicted = f"{found.memory.total / GIB:.1f}{'' if found.fits else ' (does not fit)'}"
    if point.memory_bytes is None:
        return f"{point.row.status} | {predicted} | "
    off = 100 * (found.memory.total / point.memory_bytes - 1)
    return f"{point.memory_bytes / GIB:.1f} | {predicted} | {off:+.1f} %{' fit' if fit else ''}"


def _time_cells(point: Point, found: planner.Row, fit: bool) -> str:
    if point.tokens_per_second is None:
        return f" | {found.tokens_per_second:,.0f} | "
    off = 100 * (found.tokens_per_second / point.tokens_per_second - 1)
    return f"{point.tokens_per_second:,.0f} | {found.tokens_per_second:,.0f} | {off:+.1f} %{' fit' if fit else ''}"


def _percent(logarithm: float) -> float:
    return 100 * (math.exp(logarithm) - 1)


def _summary(points: list[Point], fitted: dict[str, Constants]) -> str:
    lines = [line.replace("|", " ").strip() for line in _medians_table(points, fitted)[2:]]
    ablation = [p for p in points if p.set_name == ABLATION and p.row.setting.chip == ABLATION_CHIP]
    ablation = [p for p in ablation if p.tokens_per_second]
    pairs = [(p.predicted(fitted[p.framework]).tokens_per_second, p.tokens_per_second or 0.0) for p in ablation]
    fits = sum(p.predicted(fitted[p.framework]).fits == (p.row.status != "oom") for p in points)
    lines.append(f"rank correlation over the ablation's {len(pairs)} rows: {spearman(pairs):.3f}")
    lines.append(f"fits or not, as published: {fits} of {len(points)}")
    return "\n".join(lines)


def spearman(pairs: list[tuple[float, float]]) -> float:
    ranks = [[sorted(column).index(value) for value in column] for column in zip(*pairs, strict=True)]
    return statistics.correlation(*ranks)


def _scatter(points: list[Point], fitted: dict[str, Constants]) -> str:
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


def _predicted_memory(found: planner.Row) -> float:
    return found.memory.total


def _predicted_rate(found: planner.Row) -> float:
    return found.tokens_per_second


COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
SIDE, TOP = 380, 40


def _panel(
    points: list[Point],
    fitted: dict[str, Constants],
    left: int,
    title: str,
    published: Callable[[Point], float | None],
    predicted: Callable[[planner.Row], float],
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
        found = predicted(point.predicted(fitted[point.framework])) / unit
        colour = COLOURS[names.index(point.framework)]
        fill = "none" if point.left_out else colour
        lines.append(
            f'<circle cx="{left + place(value / unit):.1f}" cy="{TOP + SIDE - place(found):.1f}" r="4" '
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


if __name__ == "__main__":
    sys.exit(main())
