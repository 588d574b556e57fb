"""`plan sweep`: run the best layouts of a plan, prediction beside measurement"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    chips_option,
    intake,
    json_option,
    python_option,
    quiet_option,
    recording_options,
    registry_of,
    runs_of,
    scale_option,
)
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.report.sheets import padded
from levelfield.report.words import GIB, NONE, status, wrapped

if TYPE_CHECKING:
    from levelfield.studies.variations import PredictedRun

DESCRIPTION = """\
Run the best layouts of the plan on this machine's devices, one after another.
The table shows prediction beside measurement: tokens/s of one device, and the
memory of the fullest device in GiB. Layouts with equal predictions run once.

examples:
  run_benchmarks.py plan sweep gpt3_6.7B:torch:cpu:1:2 --top 4
  run_benchmarks.py plan sweep llama3_8b:megatron --top 3
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="a case string: case:framework[:chip[:nodes[:devices]]]")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="number of layouts to run (default: 3)")
    scale_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the predictions and run nothing")
    python_option(parser)
    recording_options(parser)
    chips_option(parser)
    json_option(parser)
    quiet_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the layouts and print the table. Return the exit code as `run` does."""
    from levelfield.catalog import lookup
    from levelfield.catalog.stored_references import reference_of
    from levelfield.cli.run_entries import exit_code, run_jobs
    from levelfield.plan.decision import Decision
    from levelfield.plan.request import UserRequest
    from levelfield.plan.scale import choose_scale
    from levelfield.predict.layout_search import answer
    from levelfield.run import scheduler
    from levelfield.specs.selector import parse_selector
    from levelfield.studies.variations import PredictedRun, distinct, entries_of, question_here

    if options.top < 1:
        raise UsageError(f"--top: found {options.top}, expected 1 or more")
    terminal = Terminal(quiet=options.quiet or options.json, recorded=intake(options))
    registry, selector = registry_of(options), parse_selector(options.case)
    if selector.layout or selector.nodes > 1:
        raise UsageError(
            f"sweep {options.case}: found a layout or several nodes; leave both out, sweep chooses layouts on one node"
        )
    found = lookup.find(registry, selector)
    request = UserRequest(scale=options.scale, python=options.python)
    chosen, _ = choose_scale(Decision(options.case, selector, found, request, options.scale))
    devices = selector.devices or found.default_devices
    question = question_here(registry, found, chosen.work, devices, terminal.say)
    rows = distinct(answer(question).rows)[: options.top]
    if not rows:
        raise UsageError(f"sweep {options.case}: no layout fits; `plan` shows what the smallest needs")
    pairs = [PredictedRun(row) for row in rows]
    if not options.dry_run:
        work = entries_of(rows, selector, found.vendor.name, devices, request, chosen.scale)
        jobs = scheduler.jobs(registry, work, None)
        results = run_jobs(jobs, runs_of(options), terminal, partial(reference_of, registry))
        pairs = [PredictedRun(row, result) for row, result in zip_longest(rows, results)]
    if options.json:
        content = {"schema": "levelfield.sweep/1", "rows": [_content(pair) for pair in pairs]}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(pairs)))
    return exit_code([pair.result for pair in pairs if pair.result])


def _lines(pairs: Sequence[PredictedRun]) -> Iterator[str]:
    yield padded(("", "tokens/s/device", "GiB"), (37, -21, -14), gap="")
    widths = (21, -5, 8, -10, -9, -5, -6, -6)
    yield padded(("layout", "micro", "again", "predicted", "measured", "off", "pred.", "meas."), widths, " ")
    for pair in pairs:
        row, rate, memory = pair.row, pair.measured_rate, pair.measured_memory
        measured = (
            f"{rate:,.0f}" if rate else NONE,
            f"{100 * (row.tokens_per_second / rate - 1):+.0f}%" if rate else NONE,
            f"{row.memory.total / GIB:.2f}",
            f"{memory / GIB:.2f}" if memory else NONE,
        )
        predicted = (row.layout, row.tuning.micro_batch, row.tuning.recompute, f"{row.tokens_per_second:,.0f}")
        yield padded((*predicted, *measured), widths, " ")
    for pair in pairs:
        if pair.result and pair.result.status.word != "valid":
            yield wrapped(f"{pair.row.layout}: {status(pair.result)}: {pair.result.status.evidence or ''}", 4)


def _content(pair: PredictedRun) -> dict[str, object]:
    row = pair.row
    return {
        "layout": str(row.layout),
        "micro_batch": row.tuning.micro_batch,
        "recompute": row.tuning.recompute,
        "virtual_pipeline": row.tuning.virtual_pipeline,
        "predicted_tokens_per_second_per_device": row.tokens_per_second,
        "measured_tokens_per_second_per_device": pair.measured_rate,
        "predicted_memory_bytes": row.memory.total,
        "measured_memory_bytes": pair.measured_memory,
        "run": pair.result.run_id if pair.result else None,
        "status": pair.result.status.word if pair.result else "not-run",
    }


COMMANDS = {"plan sweep": Command(DESCRIPTION, arguments, execute, trains=True)}
