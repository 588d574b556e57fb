"""`nightly` (every night): run a suite, judge it by its levels, find what broke
`nightly run`: run a suite within a budget, confirm suspicions, end with the gate
`nightly gate`: compare a night with its levels; 4 when something got worse
`nightly bisect`: the first commit that made a case worse
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import chips_option, json_option, python_option, quiet_option, registry_of, runs_of
from levelfield.cli.site_options import base_image, container_options
from levelfield.cli.store_options import opened_store, store_option
from levelfield.cli.terminal import NoteTaker, Terminal
from levelfield.errors import INTERRUPTED, RunFailed, UsageError
from levelfield.report.sheets import labelled
from levelfield.report.words import wrapped
from levelfield.rundir.directory import write_atomically
from levelfield.specs.readable_json import json_text
from levelfield.specs.run_figures import GATED_BY_OPTION

if TYPE_CHECKING:
    from levelfield.nights.bisection import FirstBad
    from levelfield.nights.gate import GateReport
    from levelfield.nights.gate_input import GateInput
    from levelfield.nights.night_session import NightSession
    from levelfield.series.findings import Finding, FindingPage
    from levelfield.series.pairs import Side

NIGHTLY = """\
Run a suite every night, compare each series with the level that somebody
accepted, and find what made it worse. Until somebody accepts a level, the old
one stays: a regression fails every night, and a gain of less than seven nights
can be lost unseen. Each event says who, when, why, and on which runs. SERIES is
a case with one series, a part of a label, or the start of a digest; `nightly
history CASE` prints them.

examples:
  run_benchmarks.py nightly run --suite smoke
  run_benchmarks.py nightly gate
  run_benchmarks.py nightly accept SERIES --why "flash kernels, merge 12"
"""
RUN = """\
Run a suite, store each result, compare each series with its accepted level,
and confirm a suspicion by pairs of the accepted build and tonight's, before it
is called a regression. Under a new driver or kernel both builds run in pairs,
too: it may hide a slower build. What --pairs does not hold is inconclusive. A
nightly that was killed goes on when it is started again: no run that has ended
is made again. docs/nightly.md has templates for GitHub Actions, GitLab CI,
cron, systemd and Slurm.

Without a terminal nothing is printed before the end, so that a mail begins with
the verdict; --progress prints it all. LEVELFIELD_WEBHOOK, or the file of
--webhook-file, has a URL that gets the end as JSON.

Exit code: that of `nightly gate`, or 130 when interrupted.

examples:
  run_benchmarks.py nightly run --suite smoke
  run_benchmarks.py nightly run --suite nightly --budget 3h --html site
  run_benchmarks.py nightly run --suite mine.yaml --markdown n.md --junit n.xml
"""
GATE = """\
Compare a night with the accepted levels of its series, without running
anything. Figures: tokens/s/device, memory, J/token; a training that differs
fails by itself. Pairs that `nightly run` made in that night count; without them
a suspicion becomes a regression when a second night shows it.

Exit code 4 for a regression, a training that differs or an environment step
that nobody accepted; 3 for what is missing, invalid or incomparable; else 0.
docs/gate.md explains every word, the rule, and how often it is wrong.

examples:
  run_benchmarks.py nightly gate
  run_benchmarks.py nightly gate --format markdown --output gate.md
  run_benchmarks.py nightly gate --format junit --output gate.xml --advisory
"""
BISECT = """\
Find the first commit with which a case got worse. Each one that is tried runs
beside the good one, in ABBA order on this machine, three to seven pairs, until
the difference is proven or excluded. A build that cannot be decided is left
out, and the answer names the two builds that it lies between.

examples:
  run_benchmarks.py nightly bisect v1.0 HEAD --case gpt3_6.7B:torch:cpu:1:1
  run_benchmarks.py nightly bisect v1.0 HEAD --case tiny:jax --figure memory
"""
FORMATS = ("text", "markdown", "junit", "json", "webhook")
_NIGHT = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[0-9A-Za-z.-]{0,53})")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", required=True, metavar="NAME|FILE", help="the list of cases")
    parser.add_argument("--budget", type=_duration, metavar="TIME", help="such as 90m or 3h (default: no limit)")
    parser.add_argument("--night", type=_night, metavar="NAME", help="name of the night (default: today in UTC)")
    store_option(parser)
    container_options(parser)
    python_option(parser, "train with this Python")
    chips_option(parser)
    parser.add_argument("--no-control", action="store_true", help="do not measure first whether the machine is in line")
    parser.add_argument(
        "--pairs", type=_count, default=100, metavar="N", help="pairs of the night, likeliest first (default: 100)"
    )
    parser.add_argument("--no-confirm", action="store_true", help="run no pairs: two nights running decide")
    parser.add_argument(
        "--bisect-budget", type=_duration, metavar="TIME", help="search the commits of a regression, as long as this"
    )
    parser.add_argument("--html", type=Path, metavar="DIR", help="write the pages there")
    _page_url(parser)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the findings for a merge request")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the findings for a CI system")
    parser.add_argument(
        "--webhook-file", type=Path, metavar="FILE", help="send the end as JSON to the URL in this file (a secret)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--progress", action="store_true", help="print what is done also without a terminal")
    parser.add_argument("--quiet", action="store_true", help="print nothing before the end")
    _strictness(parser)


def _strictness(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="4 also for what is open: inconclusive, new, improved")
    parser.add_argument("--advisory", action="store_true", help="report everything and end with 0")


def _page_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page-url", metavar="URL", help="where these pages are published: findings link to them")


def _duration(text: str) -> float:
    """Return the seconds of `90m`, `3h`, `45s` or `3600`. Raises ArgumentTypeError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a time such as 90m or 3h")
    return float(found[1]) * _UNITS[found[2]]


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a whole number from 1 to 10000")
    return int(text)


def _night(text: str) -> str:
    """Return the name. Nights are in the order of their names, so one without a date would hide all later ones."""
    named = _NIGHT.fullmatch(text)
    try:
        date.fromisoformat(named[1] if named else "")
    except ValueError:
        wanted = "a date, such as 2026-11-22 or 2026-11-22.b"
        raise argparse.ArgumentTypeError(f"found '{text}', expected {wanted}") from None
    return text


def _run(options: argparse.Namespace) -> int:
    """Run the night, print its findings and return the gate's exit code, or that of an interrupted command."""
    from levelfield.nights.night_session import NightRequest, NightSession
    from levelfield.nights.tickets import night_tickets
    from levelfield.nights.webhook import delivered, webhook_url
    from levelfield.plan.request import UserRequest
    from levelfield.series.finding_forms import written
    from levelfield.series.findings import FindingPage

    asked = NightRequest(
        suite=options.suite,
        night=options.night or datetime.now(timezone.utc).date().isoformat(),
        runs=runs_of(options),
        store=options.store,
        request=UserRequest(runtime=options.runtime, base_image=base_image(options), python=options.python),
        plugins=tuple(options.plugins),
        budget=options.budget,
        has_control=not options.no_control,
        has_pairs=not options.no_confirm,
        most_pairs=options.pairs,
    )
    night, output, url = asked.night, _output(options), webhook_url(options.webhook_file)
    with NightSession.opened(asked, registry_of(options), output) as session:
        try:
            report = session.judged() if session.run_entries() else None
        except KeyboardInterrupt:  # between two runs of pairs
            report = None
        if report is None:
            print(f"levelfield: interrupted; start it again with --night {night}: it goes on", file=sys.stderr)
            return INTERRUPTED
        found = night_tickets(session, report, options.page_url, options.bisect_budget)
        page = FindingPage(
            report.first_line, night, report.findings, options.strict, options.advisory, found, _link(options),
            session.suite, str(options.html / "index.html") if options.html else None, getattr(output, "notes", ()),
        )  # fmt: skip
        # The findings come first: a full disk must not take them.
        print(written(page, "json" if options.json else "text"), end="", flush=True)
        problems = list(_unwritten(options, session, report, page))
    for problem in problems:
        print(wrapped(f"levelfield: error: {problem}", 12), file=sys.stderr)
    if url and (why := delivered(url, written(page, "webhook"))):
        print(wrapped(f"levelfield: the webhook did not take the night: {why}", 12), file=sys.stderr)
    return page.exit_code or (UsageError.exit_code if problems else 0)


def _unwritten(
    options: argparse.Namespace, session: NightSession, report: GateReport, page: FindingPage
) -> Iterator[str]:
    """Write the files and pages of a night. Yield why one cannot be; the others are written all the same."""
    from levelfield.series.finding_forms import written

    for form, path in (("markdown", options.markdown), ("junit", options.junit)):
        if path:
            try:
                with _named(path):
                    write_atomically(path, written(page, form), through_link=True)
            except UsageError as error:
                yield str(error)
    if options.html:
        try:
            session.write_pages(options.html, report)
        except UsageError as error:
            yield str(error)


def _output(options: argparse.Namespace) -> Terminal:
    """Return a terminal for people who watch, else one for those who read the end in the morning."""
    if options.progress:
        return Terminal()
    return Terminal() if sys.stderr.isatty() and not (options.quiet or options.json) else NoteTaker()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn an error of a file that the user named into UsageError. The night's results are stored by then."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}; the night is stored, `nightly gate --output` writes it"
        ) from None


def _gate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--night", metavar="N", help="the night, such as 2026-11-22 (default: the newest)")
    parser.add_argument("--suite", metavar="NAME", help="only the entries of this suite")
    says = f"{', '.join(FORMATS)} (default: text)"
    parser.add_argument("--format", choices=FORMATS, default="text", metavar="FORMAT", help=says)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to FILE, and the first line to stderr")
    _page_url(parser)
    _strictness(parser)
    store_option(parser)


def _gate(options: argparse.Namespace) -> int:
    """Return the exit code of the night's findings, which the store keeps."""
    from levelfield.nights.gate import compared
    from levelfield.nights.stored_nights import chosen_night, gate_input
    from levelfield.nights.tickets import NightTickets
    from levelfield.series.finding_forms import written
    from levelfield.series.findings import FindingPage, with_explanations

    with opened_store(options) as store:
        given = gate_input(store, chosen_night(store, options.night), options.suite)
        found = compared(given, given.stored_pairs)
        found = replace(found, findings=with_explanations(found.findings, given.past))
        for finding in _new(found.findings, given):
            store.add_finding(found.night, finding.model_dump(mode="json"))
        tickets = NightTickets(store, given, runs_of(options), options.page_url).all(found.findings)
    page = FindingPage(
        found.first_line,
        found.night,
        found.findings,
        options.strict,
        options.advisory,
        tickets,
        _link(options),
        options.suite,
    )
    if options.output:
        write_atomically(options.output, written(page, options.format), through_link=True)
        print(page.first_line, file=sys.stderr)
    else:
        print(written(page, options.format), end="")
    return page.exit_code


def _link(options: argparse.Namespace) -> str | None:
    return f"{options.page_url.rstrip('/')}/index.html" if options.page_url else None


def _new(findings: Sequence[Finding], given: GateInput) -> list[Finding]:
    """Return the findings that the store does not have: no plain `no change`, unless it replaces another word, or ends
    a regression."""
    last = {(f.night, f.series, f.figure, f.label): f for f in given.past}
    found = []
    for finding in findings:
        before = last.get((finding.night, finding.series, finding.figure, finding.label))
        is_plain = finding.word == "no change" and not finding.pairs
        is_end = (finding.series, finding.figure) in given.named_regressions
        if finding != before and (before is not None or not is_plain or is_end):
            found.append(finding)
    return found


def _bisect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("good", metavar="GOOD", help="a good commit")
    parser.add_argument("bad", metavar="BAD", help="a bad one after it")
    parser.add_argument("--case", required=True, metavar="STRING", help="the case string to run")
    parser.add_argument(
        "--figure", choices=tuple(GATED_BY_OPTION), default="speed", help="what got worse (default: speed)"
    )
    parser.add_argument("--scale", choices=("auto", "smoke", "full"), default="auto", help="default: auto")
    container_options(parser)
    python_option(parser, "train every build with this Python")
    chips_option(parser)
    json_option(parser)
    quiet_option(parser, "answer")


def _bisect(options: argparse.Namespace) -> int:
    """Print the first bad commit and return 0. Raises RunFailed where the last commit is not worse than the first."""
    from levelfield.nights.bisection import BuildTrials, first_bad
    from levelfield.plan.request import Entry, UserRequest
    from levelfield.run import scheduler
    from levelfield.run.builds import build_of, commit_log, commits_between

    try:
        commits = commits_between(options.good, options.bad)
    except RunFailed as error:
        raise UsageError(f"nightly {error}") from None
    terminal = Terminal(quiet=options.quiet or options.json)
    request = UserRequest(
        scale=options.scale, runtime=options.runtime, base_image=base_image(options), python=options.python, repeat=1
    )
    (job,) = scheduler.jobs(registry_of(options), [Entry(options.case, request)], None)
    good = build_of(commits[0], say=terminal.say)
    figure = GATED_BY_OPTION[options.figure]
    trials = BuildTrials(job.plan, good, figure, runs_of(options), options.plugins, terminal.say)

    def answer(commit: str) -> Side:
        build = build_of(commit, say=terminal.say)
        terminal.say(f"trying {build}")
        found = trials.answer(build)
        terminal.say(f"{build} is {found}")
        return found

    found = first_bad(commits, answer)
    _print_bisected([commit[:12] for commit in commits], found, options.json)
    if not options.json:
        (last,), _ = commit_log(commits[found.good], commits[found.bad], 1)
        print(labelled("it says", f"{last.subject} ({last.author})", 11))
    return 0


def _print_bisected(names: list[str], found: FirstBad, as_json: bool) -> None:
    undecided = [names[place] for place in found.undecided]
    if as_json:
        trials = [{"build": names[trial.place], "answer": trial.answer} for trial in found.trials]
        content = {"last_good": names[found.good], "first_bad": names[found.bad], "undecided": undecided}
        print(json_text({"schema": "levelfield.bisect/1", **content, "trials": trials}))
        return
    print(f"first bad  {names[found.bad]}")
    print(f"last good  {names[found.good]}")
    if undecided:
        print(labelled("undecided", ", ".join(undecided), 11))
    print(f"tried      {len(found.trials)} of {len(names)} builds")


COMMANDS = {
    "nightly": Command(NIGHTLY),
    "nightly run": Command(RUN, _run_options, _run, trains=True),
    "nightly gate": Command(GATE, _gate_options, _gate),
    "nightly bisect": Command(BISECT, _bisect_options, _bisect, trains=True),
}
