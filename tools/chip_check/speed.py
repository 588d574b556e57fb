"""What the speed part of `make gpu-check` measured, beside what was expected of it (speed_expected.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

EXPECTED = Path(__file__).with_name("speed_expected.json")
PEERS = ("transformers", "liger", "plain")
Row = dict[str, Any]


def read_expected() -> Row:
    content: Row = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return content


def speed_tables(records: dict[str, Row], expected: Row) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield heading, header and rows of each table that has any: steps, runs, parts alone, and the changes."""
    rows = [row for record in records.values() for row in record.get("rows", ())]
    steps, parts = [row for row in rows if "trainers" in row], [row for row in rows if "part" in row]
    if not rows:
        return
    head: tuple[str, ...] = (
        "step",
        "before, ms",
        "expected, ms",
        "ours, ms",
        "host, ms",
        "launches",
        *PEERS,
        "best",
        "expected",
    )
    yield "Steps: ours, and each peer's time over ours", head, [step_cells(row, expected["steps"]) for row in steps]
    runs = [run_cells(name, records[name], figures) for name, figures in expected["runs"].items() if name in records]
    yield "Runs, tokens/s of a device", ("entry", "before", "expected", "measured"), runs
    head = ("part", "ms", "rate", "expected rate", "loss off by", "gradient off by")
    yield "Parts alone", head, [part_cells(row, expected["ceilings"]) for row in parts]
    names = list(dict.fromkeys(name for change in expected["changes"] for name in change["ms"]))
    yield (
        "What each change was expected to be worth, ms of a step",
        ("change", *names),
        [[change["change"], *(number(change["ms"].get(name)) for name in names)] for change in expected["changes"]],
    )
    yield "Graphs: the same losses as eager?", ("step", "losses"), [*graph_cells(steps)]


def step_cells(row: Row, expected: Row) -> list[str]:
    predicted = expected.get(row["shape"], {})
    where = f" (host, on a pretended {row['pretended']})" if row.get("pretended") else ""
    first_cells = [row["shape"] + where, number(predicted.get("before")), number(predicted.get("ours_ms"))]
    if "failed" in row:
        return [*first_cells, f"failed: {row['failed']}", *["-"] * (len(PEERS) + 4)]
    ours = row["trainers"]["ours"]
    peers = [number(row["ratios"].get(who), 2) if who in row["ratios"] else row["left_out"][who] for who in PEERS]
    best = f"{row['best']['ratio']:.2f} ({row['best']['peer']})" if row["best"] else "-"
    ratio = predicted.get("transformers")
    hope = "-" if ratio is None else f"{ratio:.2f} to transformers"
    return [
        *first_cells,
        number(ours["ms"], 1),
        number(ours["host_ms"], 1),
        number(ours["launches"]),
        *peers,
        best,
        hope,
    ]


def run_cells(name: str, record: Row, predicted: Row) -> list[str]:
    figures = (predicted["before"], predicted["tokens_per_second"], record.get("tokens_per_second_per_device"))
    return [name, *(number(figure) for figure in figures)]


def part_cells(row: Row, expected: Row) -> list[str]:
    if "left_out" in row:
        return [row["name"], f"left out: {row['left_out']}", "-", "-", "-", "-"]
    unit = row.get("unit", "")
    rates = (f"{rate / 1e12:.1f} T{unit}/s" if rate else "-" for rate in (row.get("rate"), expected.get(row["name"])))
    errors = (f"{row[key]:.1e}" if key in row else "-" for key in ("loss_error", "gradient_error"))
    return [row["name"], number(row["ms"], 3), *rates, *errors]


def graph_cells(steps: Iterable[Row]) -> Iterator[list[str]]:
    """Each step with a graph, and whether its losses are bit for bit those of the same step without."""
    real = [row for row in steps if "failed" not in row and not row.get("pretended")]
    losses = {row["shape"]: row["trainers"]["ours"]["losses"] for row in real}
    for shape, graphed in losses.items():
        plain = losses.get(shape.replace("bf16 graph", "bf16 eager").replace("compiled+graph", "compiled"))
        if shape.endswith("graph") and plain is not None:
            pairs = enumerate(zip(plain, graphed, strict=False), 1)
            other = next((f"step {n} differs: {a} eager, {b} in the graph" for n, (a, b) in pairs if a != b), None)
            yield [shape, other or f"{min(len(plain), len(graphed))} equal"]


def number(value: float | None, digits: int = 0) -> str:
    if value is None:
        return "-"
    return f"{value:,.{digits}f}" if digits or float(value).is_integer() else f"{value:,.1f}"
