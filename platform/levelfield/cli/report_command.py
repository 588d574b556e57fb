"""`report`: one run in full or many side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.cli.publishing import publish
from levelfield.cli.terminal import result_lines
from levelfield.collect import collect
from levelfield.errors import UsageError
from levelfield.report.markdown import run_report
from levelfield.report.tables import as_csv, as_json, as_markdown, as_text
from levelfield.rundir import default_runs, find_run, read_plan, write_atomically


def execute(options: argparse.Namespace) -> int:
    """Results are computed from the raw files, so that an edited result.json changes no report."""
    paths = [find_run(options.runs or default_runs(), name) for name in options.run]
    results = [collect(p) for p in paths]
    if options.withhold or options.bundle or options.reveal:
        print(publish(options, results, [read_plan(p) for p in paths]), end="")
        return 0
    alone = len(results) == 1
    writers = {
        "table": lambda: "\n".join(result_lines(results[0])) + "\n" if alone else as_text(results),
        "markdown": lambda: run_report(results[0], read_plan(paths[0])) if alone else as_markdown(results),
        "csv": lambda: as_csv(results),
        "json": lambda: as_json(results),
    }
    text = writers[options.format]()
    if options.output:
        _write(options.output, text)
    else:
        print(text, end="")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror}") from None
