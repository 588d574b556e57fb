#!/usr/bin/env python3
"""Rehearse a training on devices that are not here: the project's own code at full scale, on a stand-in for CUDA.

    PYTHONPATH=platform .venvs/dev/bin/python tests/gpu/rehearse.py CASE[:framework[:chip[:nodes[:devices]]]]

Options that it does not know go to run_benchmarks.py, such as --layout DP2PP4 or --micro-batch 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rehearsal.plans import CHECKOUT, RehearsalError, make_plan, planned_bytes, telling_ranks, world_size
from rehearsal.start import rehearse
from rehearsal.text import lines_of
from standin.build import BuildError, build


def main(argv: list[str] | None = None) -> int:
    options, further = arguments().parse_known_args(argv)
    try:
        return report(*run(options, further), options.json)
    except (RehearsalError, BuildError) as error:
        print(f"rehearse: {error}", file=sys.stderr)
        return 2


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, action="append", help="this rank alone; may be repeated")
    which.add_argument("--all", action="store_true", help="all ranks, with their messages delivered")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--python", type=Path, default=default_python(), help="one with a CUDA build of torch")
    parser.add_argument("--timeout", type=int, default=120, help="seconds without any work that end a hang")
    parser.add_argument("--json", action="store_true")
    return parser


def default_python() -> Path:
    own = CHECKOUT / ".venvs" / "torch-nvidia" / "bin" / "python"
    given = os.environ.get("LEVELFIELD_CUDA_PYTHON")
    return Path(given) if given and not own.exists() else own


def run(options: argparse.Namespace, further: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    entry = make_plan(options.case, further)
    world = world_size(entry["job"])
    ranks = list(range(world)) if options.all else options.rank or telling_ranks(entry["job"])
    outside = [rank for rank in ranks if not 0 <= rank < world]
    if outside:
        raise RehearsalError(f"--rank {outside[0]}: the layout has ranks 0 to {world - 1}")
    standin = build(options.python)
    return entry, rehearse(entry, options.python, standin, ranks, options.steps, options.timeout)


def report(entry: dict[str, Any], reports: list[dict[str, Any]], as_json: bool) -> int:
    planned = planned_bytes(entry)
    if as_json:
        print(json.dumps({"asked": entry["plan"]["asked"], "planned_bytes": planned, "ranks": reports}, indent=1))
    else:
        print("\n".join(lines_of(entry, planned, reports)))
    return 3 if any(each.get("error") or each["exit_code"] for each in reports) else 0


if __name__ == "__main__":
    raise SystemExit(main())
