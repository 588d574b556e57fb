#!/usr/bin/env python3
"""Rehearse every plan of a list, and write docs/verified/rehearsed.json: `make rehearse`.

    .venvs/dev/bin/python tools/rehearse_all.py [TEXT ...] [--again] [--list]

TEXT: only rows whose words have it. What is recorded of the same code and the same plan is not run again, so that a
list that was stopped goes on. A rehearsal with findings (rehearsal/judgement.py) is not recorded. Rows that the whole
list has no more are left out. Exit code 4 where one failed or had findings.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import rehearsed_code_digest
from levelfield.specs.base import dump, load
from levelfield.specs.layout import Layout
from levelfield.specs.rehearsed_runs import RehearsedRow, RehearsedRuns
from levelfield.testing.framework_kit.layout_checks import changed_code_fault, row_provenance
from rehearsal.judgement import findings
from rehearsal.needs import default_python
from rehearsal.plans import CHECKOUT, RehearsalError, make_plan, planned_bytes, telling_ranks, world_size
from rehearsal.rows import ROWS, Row
from rehearsal.start import rehearse
from rehearsal.text import attention_names, cause
from standin.build import BuildError, Standin, build

EVIDENCE = CHECKOUT / "docs" / "verified" / "rehearsed.json"
GIB = 2**30
SMALLEST_TIMEOUT = 300


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", help="only rows whose words have it")
    parser.add_argument("--again", action="store_true", help="also what is recorded of the same code")
    parser.add_argument("--list", action="store_true", help="only print the rows")
    parser.add_argument("--python", type=Path, default=default_python("torch"), help="one with a CUDA build of torch")
    options = parser.parse_args(argv)
    rows = [row for row in ROWS if all(text in str(row) for text in options.text)]
    if options.list:
        print("\n".join(map(str, rows)))
        return 0
    try:
        evidence = Evidence(options.python, build(options.python))
        code = evidence.rehearse_all(rows, options.again)
        if rows == list(ROWS) and not code:
            evidence.keep_seen()
        return code
    except BuildError as error:
        print(f"rehearse: {error}", file=sys.stderr)
        return 2


class Evidence:
    """The recorded rows, written after each one."""

    def __init__(self, python: Path, standin: Standin) -> None:
        self.python, self.standin, self.registry = python, standin, Registry()
        old = load(RehearsedRuns, EVIDENCE) if EVIDENCE.exists() else None
        self.rows = {plan_key(row): row for row in old.rows} if old else {}
        self.seen: set[tuple[Any, ...]] = set()

    def rehearse_all(self, rows: list[Row], again: bool) -> int:
        bad = 0
        for row in rows:
            began = time.monotonic()
            try:
                result = self.rehearse_one(row, again)
            except RehearsalError as error:
                print(f"{row}: FAILED: {error}", flush=True)
                bad += 1
                continue
            failed = result.failed_allocations or result.flushes
            bad += bool(failed)
            print(f"{row}: {summary(result)} ({time.monotonic() - began:.0f} s)", flush=True)
        print(f"{len(rows) - bad} of {len(rows)} rehearsals passed")
        return 4 if bad else 0

    def rehearse_one(self, row: Row, again: bool) -> RehearsedRow:
        """The row's evidence: what is recorded of the same code, or a rehearsal of its plan."""
        entry = make_plan(row.case, list(row.options))
        self.seen.add(plan_key(facts_of(entry)))
        recorded = self.rows.get(plan_key(facts_of(entry)))
        code = self.code(entry)
        failed = recorded is not None and (recorded.failed_allocations or recorded.flushes)
        if recorded is not None and not again and not failed and recorded.code == code:
            self.rows[plan_key(recorded)] = recorded.model_copy(update={"planned_bytes": planned_bytes(entry)})
            self.write()
            return self.rows[plan_key(recorded)]
        ranks = list(range(world_size(entry["job"]))) if row.delivered else telling_ranks(entry["job"])
        reports = rehearse(entry, self.python, self.standin, ranks, 2, SMALLEST_TIMEOUT)
        broken = [report for report in reports if report.get("error") or report["exit_code"]]
        if broken:
            raise RehearsalError(f"rank {broken[0]['rank']}: {cause(broken[0])}"[:400])
        wrong = findings(entry, reports)
        if wrong:
            raise RehearsalError(f"not recorded: {'; '.join(wrong)}")
        if fault := changed_code_fault(code, self.code(entry)):
            raise RehearsalError(f"not recorded: {fault}")
        rehearsed = RehearsedRow.model_validate({**facts_of(entry), **figures(reports), **row_provenance(code)})
        self.rows[plan_key(rehearsed)] = rehearsed
        self.write()
        return rehearsed

    def keep_seen(self) -> None:
        """Leave out what is no plan of the list any more."""
        self.rows = {key: row for key, row in self.rows.items() if key in self.seen}
        self.write()

    def code(self, entry: dict[str, Any]) -> str:
        plan = entry["plan"]
        return rehearsed_code_digest(
            self.registry, plan["implementation"]["framework"], plan["hardware"]["device_kind"]
        )

    def write(self) -> None:
        rows = tuple(self.rows[key] for key in sorted(self.rows))
        EVIDENCE.write_text(dump(RehearsedRuns(rows=rows)))


def facts_of(entry: dict[str, Any]) -> dict[str, Any]:
    """What a row says of its plan."""
    plan, hardware = entry["plan"], entry["plan"]["hardware"]
    return {
        "case": plan["case"]["name"] if isinstance(plan["case"], dict) else plan["case"],
        "framework": plan["implementation"]["framework"],
        "chip": hardware["chip"]["name"],
        "nodes": hardware["nodes"],
        "devices": hardware["devices_per_node"],
        "layout": str(Layout.model_validate(plan["tuning"]["layout"])),
        "micro_batch": plan["tuning"]["micro_batch"],
        "virtual_pipeline": plan["tuning"]["virtual_pipeline"],
        "recompute": plan["tuning"]["recompute"],
        "recompute_layers": plan["tuning"]["recompute_layers"],
        "planned_bytes": planned_bytes(entry),
    }


def plan_key(row: RehearsedRow | dict[str, Any]) -> tuple[Any, ...]:
    names = ("case", "framework", "chip", "nodes", "devices", "layout", "micro_batch", "virtual_pipeline", "recompute")
    values = row if isinstance(row, dict) else row.model_dump()
    return *(values[name] for name in names), values["recompute_layers"] or 0


def figures(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the last step: the largest of all ranks."""
    steps = [report["steps"][-1] for report in reports]

    def most(pick: Any) -> Any:
        return max(pick(step) for step in steps)

    def sent(kind: str) -> int:
        return int(most(lambda step: sum(v["bytes"] for k, v in step["collectives"].items() if k.startswith(kind))))

    return {
        "allocated_bytes": max(s["allocated_peak_bytes"] for report in reports for s in report["steps"]),
        "reserved_bytes": max(s["reserved_peak_bytes"] for report in reports for s in report["steps"]),
        "failed_allocations": sum(s["failed_allocations"] for report in reports for s in report["steps"]),
        "flushes": most(lambda step: step["allocator_retries"]),
        "ranks": len(reports),
        "delivered": not reports[0]["alone"],
        "product_flops": most(lambda step: step["product_flops"]),
        "gathered_bytes": sent("all_gather"),
        "scattered_bytes": sent("reduce_scatter"),
        "all_reduced_bytes": sent("all_reduce"),
        "sent_bytes": sent("send"),
        "waits": most(lambda step: sum(step["synchronisations"].values())),
        "copies_to_host": most(lambda step: step["copies"].get("device to host", {"count": 0})["count"]),
        "kernels_a_layer": most(lambda step: step["kernels_a_layer"] or 0),
        "attention": ", ".join(sorted({name for report in reports for name in attention_names(report)})) or None,
        "layers": reports[0].get("layers"),
    }


def summary(row: RehearsedRow) -> str:
    planned = "-" if row.planned_bytes is None else f"{row.planned_bytes / GIB:.2f}"
    return (
        f"{row.layout} micro {row.micro_batch} {row.tuning.recomputation}: planned {planned}, "
        f"allocated {row.allocated_bytes / GIB:.2f}, reserved {row.reserved_bytes / GIB:.2f} GiB, "
        f"{row.failed_allocations} failed, {row.flushes} flushes, {row.waits} waits"
    )


if __name__ == "__main__":
    raise SystemExit(main())
