"""`collect`: computes the result of a run again from its raw files."""

from __future__ import annotations

import argparse

from levelfield.errors import GateFailed
from levelfield.judge.collector import collect
from levelfield.run.runner import finish
from levelfield.rundir.directory import default_runs, find_run
from levelfield.specs.base import dump


def execute(options: argparse.Namespace) -> int:
    for name in options.run:
        paths = find_run(options.runs or default_runs(), name)
        if options.check:
            _check(paths.result.read_text() if paths.result.exists() else "", dump(collect(paths)), str(paths.result))
        else:
            result = finish(paths)
            print(f"{result.run_id}: {result.status.word}")
    return 0


def _check(found: str, expected: str, where: str) -> None:
    if found != expected:
        raise GateFailed(f"{where} is not what its raw files give; `collect` without --check writes it again")
    print(f"{where}: the raw files give the same result")
