"""`nightly` (every night): run a suite, judge it by its levels, find what broke
`nightly run`: run a suite within a budget, confirm suspicions, end with the gate
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import base_image, chips_option, container_options, registry_of, store_option
from levelfield.errors import INTERRUPTED, UsageError

NIGHTLY = """\
Run a suite every night, compare each series with the level that somebody
accepted, and find what made it worse. Until somebody accepts a level, the old
one stays: a regression fails every night, and after a gain that nobody accepted
a fall to the old level is not seen. Each event says who, when, why, and on
which runs. SERIES is a case with one series, a part of a label, or the start of
a digest; `nightly history CASE` prints them.

examples:
  run_benchmarks.py nightly run --suite smoke
  run_benchmarks.py nightly gate
  run_benchmarks.py nightly accept SERIES --why "flash kernels, merge 12"
"""

if TYPE_CHECKING:
    from levelfield.nights.night_session import NightRequest
_HELP = """\
Run a suite, store each result, compare each series with its accepted level,
and confirm a suspicion by pairs of the accepted build and tonight's, before it
is called a regression. A nightly that was killed goes on when it is started
again: no run that has ended is made again. docs/nightly.md has templates for
GitHub Actions, GitLab CI, cron, systemd and Slurm.

Exit code: that of `nightly gate`, or 130 when interrupted.

examples:
  run_benchmarks.py nightly run --suite smoke
  run_benchmarks.py nightly run --suite nightly --budget 3h --html site
  run_benchmarks.py nightly run --suite mine.yaml --markdown n.md --junit n.xml
"""
_NIGHT = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{0,63}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", required=True, metavar="NAME|FILE", help="the list of cases")
    parser.add_argument("--budget", type=duration, metavar="TIME", help="such as 90m or 3h (default: no limit)")
    parser.add_argument("--night", type=_night, metavar="NAME", help="name of the night (default: today in UTC)")
    store_option(parser)
    container_options(parser)
    parser.add_argument("--python", metavar="PATH", help="train with this Python")
    chips_option(parser)
    parser.add_argument("--no-control", action="store_true", help="do not measure first whether the machine is in line")
    parser.add_argument("--no-confirm", action="store_true", help="run no pairs: two nights running decide")
    parser.add_argument("--html", type=Path, metavar="DIR", help="write the pages there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the findings for a merge request")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the findings for a CI system")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--quiet", action="store_true", help="print only the findings")
    parser.add_argument("--strict", action="store_true", help="4 also for what is open: inconclusive, new, improved")
    parser.add_argument("--advisory", action="store_true", help="report everything and end with 0")


def duration(text: str) -> float:
    """Return the seconds of `90m`, `3h`, `45s` or `3600`. Raises ArgumentTypeError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a time such as 90m or 3h")
    return float(found[1]) * _UNITS[found[2]]


def _night(text: str) -> str:
    if not _NIGHT.fullmatch(text):
        raise argparse.ArgumentTypeError(f"found '{text}', expected letters, digits, dots and dashes")
    return text


def execute(options: argparse.Namespace) -> int:
    """Run the night, print its findings and return the gate's exit code, or that of an interrupted command."""
    from levelfield.cli.terminal import Terminal
    from levelfield.nights.night_session import NightSession
    from levelfield.rundir.directory import write_atomically
    from levelfield.series.findings import FindingPage, written

    asked = _asked(options)
    night, output = asked.night, Terminal(quiet=options.quiet or options.json)
    with NightSession.opened(asked, registry_of(options), output) as session:
        if not session.run_entries():
            print(f"levelfield: interrupted; start it again with --night {night}: it goes on", file=sys.stderr)
            return INTERRUPTED
        report = session.judged()
        page = FindingPage(report.first_line, night, report.findings, options.strict, options.advisory)
        for form, path in (("markdown", options.markdown), ("junit", options.junit)):
            if path:
                with _named(path):
                    write_atomically(path, written(page, form))
        if options.html:
            session.write_pages(options.html, report)
    print(written(page, "json" if options.json else "text"), end="")
    return page.exit_code


def _asked(options: argparse.Namespace) -> NightRequest:
    from levelfield.nights.night_session import NightRequest
    from levelfield.plan.request import UserRequest
    from levelfield.rundir.directory import default_runs

    return NightRequest(
        suite=options.suite,
        night=options.night or datetime.now(timezone.utc).date().isoformat(),
        runs=options.runs or default_runs(),
        store=options.store,
        request=UserRequest(runtime=options.runtime, base_image=base_image(options), python=options.python),
        plugins=tuple(options.plugins),
        budget=options.budget,
        has_control=not options.no_control,
        has_pairs=not options.no_confirm,
    )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn an error of a file that the user named into UsageError. The night's results are stored by then."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}; the night is stored, `nightly gate --output` writes it"
        ) from None


COMMANDS = {
    "nightly": Command(NIGHTLY),
    "nightly run": Command(_HELP, arguments, execute, trains=True),
}
