"""`nightly gate`: compare a night with its levels; 4 when something got worse"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import store_option
from levelfield.rundir.directory import write_atomically
from levelfield.series.findings import FORMATS, Finding, FindingPage, written

_HELP = """\
Compare a night with the accepted levels of its series, without running
anything. Figures: tokens/s/device, memory, J/token; a training that differs
fails by itself. Without pairs of runs a suspicion becomes a regression when a
second night shows it; `nightly` confirms it in the same night.

Exit code 4 for a regression, a training that differs or an environment step
that nobody accepted; 3 for what is missing, invalid or incomparable; else 0.
docs/gate.md explains every word, the rule, and how often it is wrong.

examples:
  run_benchmarks.py nightly gate
  run_benchmarks.py nightly gate --format markdown --output gate.md
  run_benchmarks.py nightly gate --format junit --output gate.xml --advisory
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--night", metavar="N", help="the night, such as 2026-11-22 (default: the newest)")
    parser.add_argument("--suite", metavar="NAME", help="only the entries of this suite")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to FILE, and the first line to stderr")
    parser.add_argument("--strict", action="store_true", help="4 also for what is open: inconclusive, new, improved")
    parser.add_argument("--advisory", action="store_true", help="report everything and end with 0")
    store_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Return the exit code of the night's findings, which the store keeps."""
    from levelfield.nights.gate import compared
    from levelfield.nights.stored_nights import chosen_night, gate_input
    from levelfield.store.database import Store

    with Store.open(options.store) as store:
        given = gate_input(store, chosen_night(store, options.night), options.suite)
        found = compared(given)
        for finding in _new(found.findings, given.past):
            store.add_finding(found.night, finding.model_dump(mode="json"))
    page = FindingPage(found.first_line, found.night, found.findings, options.strict, options.advisory)
    _print(written(page, options.format), page, options.output)
    return page.exit_code


def _new(findings: Sequence[Finding], past: Sequence[Finding]) -> list[Finding]:
    """Return the findings that the store does not have: no plain `no change`, unless it replaces another word."""
    last = {(f.night, f.series, f.figure, f.label): f for f in past}
    found = []
    for finding in findings:
        before = last.get((finding.night, finding.series, finding.figure, finding.label))
        if finding != before and (before is not None or finding.word != "no change" or finding.pairs):
            found.append(finding)
    return found


def _print(text: str, page: FindingPage, output: Path | None) -> None:
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text)
        print(page.first_line, file=sys.stderr)


COMMANDS = {
    "nightly gate": Command(_HELP, arguments, execute),
}
