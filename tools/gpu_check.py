#!/usr/bin/env python3
"""What only a chip can show: `make gpu-check`, by hand, on a machine with accelerators. docs/first-hour.md explains it.

Runs the plan of check_plan.py, most valuable first, within a budget of minutes. What is done is recorded in gpu-check/
with digests of code and machine; another call goes on. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chip_check.plan import Entry, read_plan
from chip_check.python import found_in, given_python, sees_cuda
from chip_check.record import Records, code_digest, is_done, machine_digest, read_records, write_records
from chip_check.runs import ROOT, Machine, benchmark, run_entry
from chip_check.summary import energies, layout_text, read_rehearsed, summarise

NOT_AS_EXPECTED, USAGE, INTERRUPTED = 3, 2, 130
CUDA = "a device that torch calls cuda"
EXIT_CODES = (
    "exit codes: 0 as expected, 2 no accelerator or wrong usage, 3 an entry is not as expected, 130 interrupted"
)


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        plan = chosen(read_plan(options.plan), options)
        return check(plan, options)
    except ValueError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        say("interrupted; what is done is recorded, and the same command goes on")
        return INTERRUPTED


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__, epilog=EXIT_CODES)
    parser.add_argument("--list", action="store_true", help="print the plan and what is done; run nothing")
    parser.add_argument("--minutes", type=float, default=40, metavar="N", help="budget of this call (default: 40)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this entry or part; may be repeated"
    )
    parser.add_argument("--again", action="append", default=[], metavar="NAME", help="also run this done entry again")
    parser.add_argument("--vendor", metavar="NAME", help="default: the first accelerator here; cpu: a rehearsal")
    parser.add_argument("--python", metavar="PATH", help="train with this Python (default: see docs/first-hour.md)")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="another plan, as JSON")
    parser.add_argument("--plugins", action="append", default=[], metavar="DIR", help="more vendors and frameworks")
    parser.add_argument("--output", type=Path, default=ROOT / "gpu-check", metavar="DIR", help="default: gpu-check/")
    return parser.parse_args(arguments)


def chosen(plan: Sequence[Entry], options: argparse.Namespace) -> tuple[Entry, ...]:
    """Return the plan, or its entries and parts of --only. Raises ValueError for an unknown name."""
    entries, parts = [entry.name for entry in plan], {entry.part for entry in plan if entry.part}
    for valid_names, names in (([*entries, *sorted(parts)], options.only), (entries, options.again)):
        for name in names:
            if name not in valid_names:
                raise ValueError(
                    f"found no entry '{name}', expected one of: {', '.join(valid_names)}; --list shows the plan"
                )
    return tuple(e for e in plan if not options.only or e.name in options.only or e.part in options.only)


def check(plan: tuple[Entry, ...], options: argparse.Namespace) -> int:
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    (output / ".gitignore").write_text("runs/\npython/\nquestion.*\n.gitignore\n", encoding="utf-8")
    records = read_records(output)
    machine = machine_here(options, output)
    if machine is None:
        missing = f"no device of vendor {options.vendor}" if options.vendor else "no accelerator"
        plugin_options = "".join(f" --plugins {shlex.quote(folder)}" for folder in options.plugins)
        hint = "" if plugin_options else '; a chip of a folder of your own: ARGS="--plugins DIR"'
        return fail(
            f"found {missing} here; `run_benchmarks.py show vendors{plugin_options}` shows what is, "
            f"--vendor cpu rehearses{hint}"
        )
    modules = {entry.module for entry in plan if entry.module}
    has, releases = found_in(machine.python, modules) if machine.python else (dict.fromkeys(modules, True), {})
    if any(entry.is_program for entry in plan):
        has[CUDA] = sees_cuda(machine.python)
    digests = {
        "code": code_digest(ROOT),
        "machine": machine_digest(machine.vendor, machine.here, machine.python or sys.executable, releases),
    }
    left_out = {e.name: reason for e in plan if (reason := cannot_run(e, machine, has))}
    due = [
        e
        for e in plan
        if e.name not in left_out and not (is_done(records.get(e.name), digests) and e.name not in options.again)
    ]
    say(f"{machine.vendor}: {machine.here}; {len(plan)} entries, {len(due)} to do, {len(left_out)} left out")
    if options.list:
        print("\n".join(plan_lines(plan, records, digests, left_out)))
        return 0
    try:
        run_due(due, machine, digests, records, left_out, options.minutes)
    finally:
        done = {e.name: records[e.name] for e in plan if is_done(records.get(e.name), digests)}
        rows, rehearsed_state = read_rehearsed(ROOT / "docs" / "verified" / "rehearsed.json")
        summarise(done, left_out, rows, rehearsed_state, output)
    return end(done, left_out, output)


def machine_here(options: argparse.Namespace, output: Path) -> Machine | None:
    """Return the machine with the devices of --vendor, or of the first accelerator; None without any."""
    plugins = tuple(str(Path(p).resolve()) for p in options.plugins)
    bare = Machine("", 0, "", "", plugins, output)
    answer = benchmark(bare, ["show", "vendors", "--json", *(p for folder in plugins for p in ("--plugins", folder))])
    if answer.code != 0:
        raise ValueError(f"`show vendors` failed: {answer.err.strip() or answer.code}")
    vendors = json.loads(answer.out)["vendors"]
    names = [options.vendor] if options.vendor else [v["name"] for v in vendors if v["name"] != "cpu"]
    vendor = next((v for v in vendors if v["name"] in names and v["devices"]), None)
    if vendor is None:
        return None
    count = (os.cpu_count() or 1) if vendor["name"] == "cpu" else vendor["devices"]
    python = options.python or given_python(output)
    return Machine(vendor["name"], count, vendor["here"], python, plugins, output)


def cannot_run(entry: Entry, machine: Machine, has: dict[str, bool]) -> str | None:
    """Return why the entry cannot run here, or None."""
    if entry.chip_only and machine.vendor == "cpu":
        return "needs an accelerator; this is a rehearsal on a processor"
    if entry.devices > machine.devices:
        return f"needs {entry.devices} devices; found {machine.devices}"
    if entry.is_program and not machine.python:
        return "needs --python PATH, with torch, numpy, pydantic and PyYAML"
    if entry.is_program and not has[CUDA]:
        return f"needs {CUDA}; the torch of {machine.python} sees none"
    if entry.module and not has[entry.module]:
        return f"needs the module {entry.module}; {machine.python} has none"
    return None


def run_due(
    due: list[Entry],
    machine: Machine,
    digests: dict[str, str],
    records: Records,
    left_out: dict[str, str],
    minutes: float,
) -> None:
    """Run what fits into the minutes, in order; record each at its end; name what does not fit in left_out."""
    end_at = time.monotonic() + minutes * 60
    for entry in due:
        remaining = (end_at - time.monotonic()) / 60
        if entry.minutes > remaining:
            left_out[entry.name] = (
                f"needs about {entry.minutes:g} minutes; {max(0.0, remaining):.1f} of {minutes:g} remain"
            )
            continue
        say(f"{entry.name}: {entry.shows}; about {entry.minutes:g} of {remaining:.1f} minutes")
        record = run_entry(entry, machine)
        if "run_id" in record:
            record["energy"] = energies(machine.output / "runs" / record["run_id"] / "telemetry.jsonl")
            record["planned"] = planned(record, machine)
        records[entry.name] = {**record, **digests}
        write_records(machine.output, records)
        say(f"{entry.name}: {record['word']}" + ("" if record["as_expected"] else f"; {record['why_not']}"))


def planned(record: dict[str, Any], machine: Machine) -> dict[str, Any] | None:
    """Return the planner's row of the layout that ran at full scale; None where it has none."""
    if record["scale"] != "full" or record["chip"] is None or machine.vendor == "cpu":
        return None
    case = record["case"].partition("+")[0]
    options = {"chip": record["chip"], "nodes": record["nodes"], "devices": record["devices"]}
    options |= {
        "framework": record["framework"],
        "layout": layout_text(record["layout"]),
        "recompute": record["recompute"],
    }
    options |= {"micro-batch": record["micro_batch"], "virtual-pipeline": record["virtual_pipeline"]}
    argv = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    plugins = [part for folder in machine.plugins for part in ("--plugins", folder)]
    answer = benchmark(machine, ["plan", case, "--json", "--show-oom", "1", *argv, *plugins])
    content = json.loads(answer.out) if answer.code == 0 else {}
    return next(iter([*content.get("rows", ()), *content.get("beyond", ())]), None)


def plan_lines(
    plan: Sequence[Entry], records: Records, digests: dict[str, str], left_out: dict[str, str]
) -> Iterator[str]:
    for entry in plan:
        record = records.get(entry.name)
        state = "to do"
        if is_done(record, digests):
            state = f"done: {record['word']}" if record else ""
        elif record:
            state = "to do; it was done with other code or on another machine"
        state = f"left out: {left_out[entry.name]}" if entry.name in left_out else state
        yield f"{entry.name:<26}{entry.minutes:>5.1f} min  {entry.shows}"
        yield f"{'':<26}{state}"


def end(done: Records, left_out: dict[str, str], output: Path) -> int:
    """Print how each entry ended and what was left out; return the exit code."""
    for name, record in done.items():
        print(
            f"{name:<26}{record['word']}" + ("" if record["as_expected"] else f"  not as expected: {record['why_not']}")
        )
    for name, reason in left_out.items():
        print(f"{name:<26}left out: {reason}")
    print(f"the table is in {output / 'summary.md'}")
    return 0 if all(record["as_expected"] for record in done.values()) else NOT_AS_EXPECTED


def say(text: str) -> None:
    print(f"gpu-check: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> int:
    say(f"error: {text}")
    return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
