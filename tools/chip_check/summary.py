"""Planned, rehearsed and measured figures side by side, to summary.md and summary.json."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from chip_check.record import Records, write_whole
from chip_check.speed import read_expected, speed_tables

GIB = 2**30
HEAD = (
    *("entry", "case", "framework", "devices", "layout", "micro", "planned GiB", "rehearsed GiB", "measured GiB"),
    *("planned tokens/s", "measured tokens/s", "alignment"),
)
ABSENT = "absent: no rehearsed figures stand beside the measured ones"


def read_rehearsed(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of rehearsed.json, and a sentence on them. Unknown fields and other schemas are tolerated."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for row in content["rows"] if isinstance(row, dict)]
    except FileNotFoundError:
        return [], f"{path.name} is {ABSENT}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [], f"{path.name} cannot be read ({error}): no rehearsed figures stand beside the measured ones"
    return rows, f"{path.name} has {len(rows)} row(s), schema {content.get('schema')}"


def layout_text(layout: dict[str, Any]) -> str:
    """Return a result's layout as in `DP4TP2PP1SH1SP4+seq`."""
    optional = {"CP": layout.get("context", 1), "EP": layout.get("expert", 1)}
    parts = "".join(f"{name}{size}" for name, size in optional.items() if size > 1)
    stage = layout.get("sharding_stage", 0)
    sharded = f"SH{stage}SP{layout.get('sharding_degree', 1)}" if stage else ""
    seq = "+seq" if layout.get("sequence_parallel") else ""
    return f"DP{layout['data']}{parts}TP{layout['tensor']}PP{layout['pipeline']}{sharded}{seq}"


def rehearsed_of(record: dict[str, Any], rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the rehearsed row of the same plan. Changed steps and batches have the same memory."""
    if record.get("scale") != "full":
        return None
    same_plan = {key: record[key] for key in ("framework", "chip", "nodes", "devices", "micro_batch", "recompute")}
    same_plan |= {"case": record["case"].partition("+")[0], "layout": layout_text(record["layout"])}
    return next((row for row in rows if all(row.get(k) == v for k, v in same_plan.items())), None)


def summarise(
    records: Records, left_out: dict[str, str], rows: list[dict[str, Any]], rehearsed_state: str, folder: Path
) -> None:
    """Write both files. left_out: why, by the entry's name."""
    table = [
        table_row(name, record, rehearsed_of(record, rows)) for name, record in records.items() if "layout" in record
    ]
    others = {name: record for name, record in records.items() if "layout" not in record}
    content = {"rows": table, "others": others, "left_out": left_out, "rehearsed": rehearsed_state}
    write_whole(folder / "summary.json", json.dumps(content, indent=1) + "\n")
    write_whole(folder / "summary.md", "\n".join(page(records, table, left_out, rehearsed_state)) + "\n")


def table_row(name: str, record: dict[str, Any], rehearsed: dict[str, Any] | None) -> dict[str, Any]:
    planned = record.get("planned") or {}
    return {
        "entry": name,
        **{key: record[key] for key in ("case", "framework", "devices", "micro_batch", "recompute", "scale", "word")},
        "layout": layout_text(record["layout"]),
        "planned_bytes": record["planned_bytes"],
        "planned_tokens_per_second_per_device": planned.get("tokens_per_second_per_device"),
        "rehearsed_allocated_bytes": (rehearsed or {}).get("allocated_bytes"),
        "rehearsed_reserved_bytes": (rehearsed or {}).get("reserved_bytes"),
        "allocated_bytes": record["allocated_peak_bytes"],
        "reserved_bytes": record["reserved_peak_bytes"],
        "device_used_bytes": record["device_used_peak_bytes"],
        "tokens_per_second_per_device": record["tokens_per_second_per_device"],
        "verdict": record["verdict"],
        "energy": record.get("energy"),
        "used_before": record.get("used_before"),
    }


def page(
    records: Records, table: list[dict[str, Any]], left_out: dict[str, str], rehearsed_state: str
) -> Iterable[str]:
    yield "# gpu-check\n"
    yield f"Rehearsed figures: {rehearsed_state}. GiB: allocated / reserved; tokens/s of one device.\n"
    yield from markdown(HEAD, (cells(row) for row in table))
    expected = read_expected()
    speed = [table_of_speed for table_of_speed in speed_tables(records, expected) if table_of_speed[2]]
    if speed:
        yield f"\n## Speed\n\nExpected on {expected['chip']}: {expected['basis']}."
    for heading, head, rows in speed:
        yield f"\n### {heading}\n"
        yield from markdown(head, ([cell.replace("|", "\\|") for cell in row] for row in rows))
    yield "\n## Energy: counter beside sampled power\n"
    yield from energy_lines(table)
    yield "\n## Every entry\n"
    yield from markdown(("entry", "word", "as expected", "minutes"), (end_cells(n, r) for n, r in records.items()))
    if left_out:
        yield "\n## Left out\n"
        yield from (f"- {name}: {reason}" for name, reason in left_out.items())


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterable[str]:
    head = list(head)
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def cells(row: dict[str, Any]) -> list[str]:
    return [
        *(str(row[key]) for key in ("entry", "case", "framework", "devices", "layout", "micro_batch")),
        gib(row["planned_bytes"]),
        f"{gib(row['rehearsed_allocated_bytes'])} / {gib(row['rehearsed_reserved_bytes'])}",
        f"{gib(row['allocated_bytes'])} / {gib(row['reserved_bytes'])}",
        rate(row["planned_tokens_per_second_per_device"]),
        rate(row["tokens_per_second_per_device"]),
        row["verdict"] or "-",
    ]


def end_cells(name: str, record: dict[str, Any]) -> list[str]:
    as_expected = "yes" if record["as_expected"] else str(record["why_not"]).replace("|", "\\|").replace("\n", " ")
    return [name, record["word"], as_expected, f"{record['minutes']:.1f}"]


def gib(value: float | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f}"


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def energy_lines(table: list[dict[str, Any]]) -> Iterable[str]:
    readings = [(row["entry"], device) for row in table for device in row["energy"] or ()]
    if not readings:
        yield "No run has both readings."
        return
    rows = ([e, str(d["device"]), rate(d["counter_joules"]), rate(d["sampled_joules"])] for e, d in readings)
    yield from markdown(("entry", "device", "counter, J", "sampled, J"), rows)


def energies(telemetry: Path) -> list[dict[str, Any]]:
    """Return each device's energy between its first and last reading by its counter, and by its sampled power."""
    readings: dict[int, list[tuple[float, float, float]]] = {}
    try:
        lines = [json.loads(line) for line in telemetry.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
    for line in lines:
        for s in line.get("samples", ()):
            if s.get("power_watts") is not None and s.get("energy_joules") is not None:
                readings.setdefault(s["index"], []).append(
                    (line["time_ns"] / 1e9, s["power_watts"], s["energy_joules"])
                )
    return [
        {
            "device": device,
            "counter_joules": series[-1][2] - series[0][2],
            "sampled_joules": sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(series)),
        }
        for device, series in sorted(readings.items())
        if len(series) > 1
    ]
