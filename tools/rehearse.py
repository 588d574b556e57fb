#!/usr/bin/env python3
"""Rehearse a training on devices that are not here: the project's own code at full scale, on a stand-in for CUDA.

    .venvs/dev/bin/python tools/rehearse.py CASE[:framework[:chip[:nodes[:devices]]]]

Options that it does not know go to run_benchmarks.py, such as --layout DP2PP4, --micro-batch 1 or --compile.
Exit codes: 2 it cannot begin, 3 a rank failed, 4 its books are not what the plan needs (rehearsal/judgement.py), 130
interrupted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rehearsal.judgement import findings
from rehearsal.needs import check_needs, default_python
from rehearsal.plans import CHECKOUT, RehearsalError, framework_of, make_plan, planned_bytes, telling_ranks, world_size
from rehearsal.start import rehearse
from rehearsal.text import finding_lines, launch_lines, lines_of
from standin.build import BuildError, build

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    options, further = arguments().parse_known_args(argv)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        options.python = options.python or default_python(framework_of(options.case))
        if options.check:
            check_needs(options.case, options.python)
            return 0
        return report(*run(options, further), options.json)
    except (RehearsalError, BuildError) as error:
        print(f"rehearse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rehearse: interrupted", file=sys.stderr)
        return INTERRUPTED


def interrupt(number: int, frame: object) -> None:
    """End as by Ctrl-C: ranks and folders go too."""
    raise KeyboardInterrupt


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, action="append", help="this rank alone; may be repeated")
    which.add_argument("--all", action="store_true", help="all ranks, with their messages delivered")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--python", type=Path, help="one with a CUDA build of torch")
    parser.add_argument(
        "--check",
        action="store_true",
        help="only whether this chip and framework can be rehearsed here; starts nothing",
    )
    parser.add_argument("--timeout", type=int, default=120, help="seconds without any work that end a hang")
    parser.add_argument(
        "--checkout", type=Path, help="the code of another checkout, such as of an older commit, and its plan"
    )
    parser.add_argument("--parts", action="store_true", help="one step more, and which part each launch falls into")
    parser.add_argument("--json", action="store_true")
    return parser


def run(options: argparse.Namespace, further: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    older = options.checkout and options.checkout.resolve()
    entry = make_plan(options.case, further, older or CHECKOUT)
    world = world_size(entry["job"])
    ranks = list(range(world)) if options.all else options.rank or telling_ranks(entry["job"])
    outside = [rank for rank in ranks if not 0 <= rank < world]
    if outside:
        raise RehearsalError(f"--rank {outside[0]}: the layout has ranks 0 to {world - 1}")
    standin = build(options.python)
    reports = rehearse(entry, options.python, standin, ranks, options.steps, options.timeout, older, options.parts)
    return entry, reports


def report(entry: dict[str, Any], reports: list[dict[str, Any]], as_json: bool) -> int:
    planned, faults = planned_bytes(entry), findings(entry, reports)
    if as_json:
        facts = {"asked": entry["plan"]["asked"], "planned_bytes": planned, "findings": faults, "ranks": reports}
        print(json.dumps(facts, indent=1))
    else:
        print("\n".join([*lines_of(entry, planned, reports), *launch_lines(reports), *finding_lines(faults)]))
    failed = any(rank.get("error") or rank["exit_code"] for rank in reports)
    return 3 if failed else 4 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
