"""The tables of a run's report as values."""

from __future__ import annotations

from levelfield.report.one_run import result_lines, run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result


def report_rows(run: RunPaths, result: Result) -> dict[str, list[str]]:
    """The cells behind the first one of each row of the report's tables, by the first one."""
    lines = (line for line in run_report(result, read_plan(run)).splitlines() if line.startswith("| "))
    rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return {name: cells for name, *cells in rows}


def terminal_rows(result: Result) -> dict[str, str]:
    """What the terminal shows of a result, by the first word of a line; a continued line is part of its line."""
    rows: dict[str, str] = {}
    name = ""
    for line in result_lines(result):
        if not line.startswith(" ") and line.strip():
            name, _, line = line.partition(" ")
            rows[name] = ""
        rows[name] = " ".join((rows.get(name, "") + " " + line).split())
    return rows
