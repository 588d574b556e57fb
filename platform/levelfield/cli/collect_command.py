"""`collect`: computes the result of a run again from its raw files."""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.cli.named_runs import NamedRuns
from levelfield.errors import GateFailed
from levelfield.judge.collector import collect
from levelfield.node.regular_files import read_regular_text
from levelfield.run.runner import finish
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths


def execute(options: argparse.Namespace) -> int:
    """Collect every run that can be. Raises the error of one that goes on, is damaged or differs, after the others."""
    named = NamedRuns(options)
    for paths in named.over():
        with named.kept_error():
            _check(paths) if options.check else _collect(paths)
    named.raise_error()
    return 0


def _collect(paths: RunPaths) -> None:
    """Write result and report. Raises GateFailed for a tampered run, whose result then says so."""
    result = finish(paths)
    print(f"{result.run_id}: {result.status.word}")
    if result.seal and result.seal.word == "tampered":
        raise GateFailed(f"{result.run_id} is tampered: {result.seal.reason}")


def _check(paths: RunPaths) -> None:
    if _text(paths.result) != dump(collect(paths)):
        raise GateFailed(f"{paths.result} is not what its raw files give; `collect` without --check writes it again")
    print(f"{paths.result}: the raw files give the same result")


def _text(path: Path) -> str:
    """Return a file's text; an empty one where there is no regular file."""
    try:
        return read_regular_text(path, "replace")
    except OSError:
        return ""
