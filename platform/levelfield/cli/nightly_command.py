"""`nightly` (every night): run a suite, compare with baselines, find what broke
`nightly run`: run a suite within a budget, confirm candidate regressions, gate
`nightly gate`: compare a nightly run with the baselines; 4 when worse
`nightly bisect`: the first commit that made a case worse
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    add_chips_option,
    add_detach_option,
    add_json_option,
    add_python_option,
    add_quiet_option,
    registry_of,
    runs_folder,
)
from levelfield.cli.site_options import add_container_options, add_site_options, base_image, launch_plan
from levelfield.cli.store_options import add_store_option, last_night_findings, open_store, results_for_pages
from levelfield.cli.terminal import NoteTaker, Terminal
from levelfield.errors import INTERRUPTED, RunFailed, UsageError
from levelfield.report.sheets import labelled_line
from levelfield.report.words import wrapped
from levelfield.rundir.detached_calls import FOLDER_VARIABLE, new_call_id
from levelfield.rundir.directory import write_atomically
from levelfield.specs.readable_json import json_text
from levelfield.specs.run_figures import GATED_COLUMN_BY_OPTION

if TYPE_CHECKING:
    from levelfield.nights.night_session import NightSession
    from levelfield.run.detaching import Detachment
    from levelfield.series.findings import FindingPage
    from levelfield.series.pairs import BuildVerdict
    from levelfield.specs.site import LaunchPlan
    from levelfield.store.database import Store

_NIGHTLY_HELP = """\
Run a suite every night, compare each series with its accepted baseline, and
find what made it worse. Until somebody accepts a new baseline, the old one
stays: a regression fails every night, and a gain of less than seven nights can
be lost unseen. Each event says who, when, why, and on which runs. SERIES is a
case with one series, a part of a label, or the start of a digest; `nightly
history CASE` prints them.

examples:
  run_benchmarks.py nightly run --suite smoke
  run_benchmarks.py nightly gate
  run_benchmarks.py nightly accept SERIES --reason "flash kernels, merge 12"
"""
_RUN_HELP = """\
Run a suite, store each result and compare each series with its baseline. A
candidate regression is confirmed by interleaved pairs of the accepted build and
tonight's. Under a new driver or kernel both builds run in pairs, too: it may
hide a slower build. What exceeds --pairs is inconclusive. A killed nightly run
continues when it is started again: no finished run is repeated. docs/nightly.md
has templates for GitHub Actions, GitLab CI, cron, systemd and Slurm.

Without a terminal nothing is printed before the end, so that a mail begins with
the verdict; --progress prints it all. LEVELFIELD_WEBHOOK, or the file of
--webhook-file, has a URL that gets the end as JSON.

Exit code: that of `nightly gate`, or 130 when interrupted.

examples:
  run_benchmarks.py nightly run --suite smoke
  run_benchmarks.py nightly run --suite nightly --budget 3h --html site
  run_benchmarks.py nightly run --suite mine.yaml --markdown n.md --junit n.xml
"""
_GATE_HELP = """\
Compare a nightly run with the accepted baselines of its series, without running
anything. Metrics: tokens/s/device, memory, J/token; a training that differs
fails by itself. Pairs that `nightly run` made in that night count; without them
a candidate becomes a regression when a second night shows it.

Exit code 4 for a regression, a training that differs or an environment step
that nobody accepted; 3 for what is missing, invalid or incomparable; else 0.
docs/gate.md explains every status, the rule, and how often it is wrong.

examples:
  run_benchmarks.py nightly gate
  run_benchmarks.py nightly gate --format markdown --output gate.md
  run_benchmarks.py nightly gate --format junit --output gate.xml --advisory
"""
_BISECT_HELP = """\
Find the first commit with which a case got worse. Each one that is tried runs
beside the good one, in ABBA order on this machine, three to seven pairs, until
the difference is proven or excluded. A build that cannot be decided is left
out, and the answer names the two builds that it lies between.

examples:
  run_benchmarks.py nightly bisect v1.0 HEAD --case gpt3_6.7B:torch:cpu:1:1
  run_benchmarks.py nightly bisect v1.0 HEAD --case tiny:jax --figure memory
"""
FORMATS = ("text", "markdown", "junit", "json", "webhook")
_NIGHT_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[0-9A-Za-z.-]{0,53})")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--suite", required=True, metavar="NAME|FILE", help="the list of cases")
    option("--budget", type=_parse_duration, metavar="TIME", help="such as 90m or 3h (default: no limit)")
    option("--night", type=_parse_night_name, metavar="NAME", help="name of the night (default: today in UTC)")
    option(
        "--branch",
        type=_parse_branch_name,
        metavar="NAME",
        help="a night of this branch: compared with the levels, in none",
    )
    add_store_option(parser)
    add_container_options(parser)
    add_site_options(parser)
    option("--parallel", type=int, metavar="N", help="with --launcher: run N entries at once, on nodes of their own")
    add_python_option(parser, "train with this Python")
    add_chips_option(parser)
    option("--no-control", action="store_true", help="do not measure first whether the machine is in line")
    option(
        "--pairs",
        type=_parse_pair_count,
        default=100,
        metavar="N",
        help="pairs of the night, likeliest first (default: 100)",
    )
    option("--no-confirm", action="store_true", help="run no pairs: two nights running decide")
    option(
        "--bisect-budget",
        type=_parse_duration,
        metavar="TIME",
        help="search the commits of a regression, as long as this",
    )
    option("--html", type=Path, metavar="DIR", help="write the pages there")
    _add_page_url_option(parser)
    option("--markdown", type=Path, metavar="FILE", help="write the findings for a merge request")
    option("--junit", type=Path, metavar="FILE", help="write the findings for a CI system")
    option("--webhook-file", type=Path, metavar="FILE", help="send the end as JSON to the URL in this file (a secret)")
    option("--json", action="store_true", help="print the findings as JSON")
    add_detach_option(parser)
    option("--progress", action="store_true", help="print what is done also without a terminal")
    option("--quiet", action="store_true", help="print nothing before the end")
    _add_strictness_options(parser)


def _add_strictness_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="4 also for what is open: inconclusive, new, improved")
    parser.add_argument("--advisory", action="store_true", help="report everything and end with 0")


def _add_page_url_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page-url", metavar="URL", help="where these pages are published: findings link to them")


def _parse_duration(text: str) -> float:
    """Return the seconds of `90m`, `3h`, `45s` or `3600`. Raises ArgumentTypeError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a time such as 90m or 3h")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]


def _parse_pair_count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a whole number from 1 to 10000")
    return int(text)


def _parse_night_name(text: str) -> str:
    """Return the name of a night. Nights are sorted by name, so one without a date would hide all later ones."""
    match = _NIGHT_NAME.fullmatch(text)
    try:
        date.fromisoformat(match[1] if match else "")
    except ValueError:
        expected = "expected a date, such as 2026-11-22 or 2026-11-22.b"
        raise argparse.ArgumentTypeError(f"found '{text}', {expected}") from None
    return text


def _parse_branch_name(text: str) -> str:
    """Return the branch as a part of a night's name. Raises ArgumentTypeError."""
    name = re.sub(r"[^0-9A-Za-z._]+", "-", text)[:60].strip("-")
    if not name:
        raise argparse.ArgumentTypeError(f"found '{text}', expected the name of a branch with a letter or a digit")
    return name


def _run(options: argparse.Namespace) -> int:
    """Run the night. Where the checkout has changed, this process continues as one of the night's checkout."""
    from levelfield.cli.run_control_command import show_call
    from levelfield.nights.night_code import CheckoutMoved
    from levelfield.run.detaching import fork_platform
    from levelfield.specs.record import BRANCH_MARK

    name = options.night or datetime.now(timezone.utc).date().isoformat()
    night = f"{name}{BRANCH_MARK}{options.branch}" if options.branch else name
    variables = {name: text for name, text in os.environ.items() if name != "LEVELFIELD_ROOT"}  # with the webhook's
    detachment = fork_platform(partial(show_call, runs_folder(options), options.json)) if options.detach else None
    try:
        return _run_here(options, night, detachment)
    except CheckoutMoved as moved:
        if detachment:
            call = detachment.leave_shell(runs_folder(options), new_call_id(f"night-{night}"), plugins=options.plugins)
            variables[FOLDER_VARIABLE] = str(call.folder)
        program = [sys.executable, str(moved.build.folder / "run_benchmarks.py")]
        # it has left the shell; what it prints is still read by `run log`
        build_arguments = ["--progress" if a in ("--det", "--deta", "--detac", "--detach") else a for a in sys.argv[1:]]
        arguments = _arguments_for_build(moved.build.folder, options, build_arguments)
        night_and_runs = ["--night", name, "--runs", str(runs_folder(options).absolute())]
        sys.stdout.flush()
        os.execve(sys.executable, [*program, *arguments, *night_and_runs], variables)


def _arguments_for_build(build: Path, options: argparse.Namespace, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, with the suite's file and the plugin folders of this checkout replaced by the build's."""
    named_files = {str(path) for path in (Path(options.suite), *options.plugins) if path.exists()}
    for argument in arguments:
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        path = Path(value).absolute()
        is_inside = str(Path(value)) in named_files and path.is_relative_to(checkout())
        build_path = build / path.relative_to(checkout()) if is_inside else path
        yield f"{option}{equals}{build_path}" if is_inside and build_path.exists() else argument


def _run_here(options: argparse.Namespace, night: str, detachment: Detachment | None) -> int:
    """Run the night, print its findings and return the gate's exit code, or that of an interrupted command.

    detachment: leaves the shell once the night is open.

    Raises CheckoutMoved.
    """
    from levelfield.nights.night_session import NightRequest, NightSession
    from levelfield.nights.tickets import night_tickets
    from levelfield.nights.webhook import deliver, webhook_url
    from levelfield.plan.request import UserRequest
    from levelfield.series.finding_forms import FORMATTERS
    from levelfield.series.findings import FindingPage
    from levelfield.specs.record import night_options

    image = base_image(options.base_image, options.runtime)
    launch = _launch_plan(options)
    request = NightRequest(
        suite=options.suite,
        night=night,
        runs=runs_folder(options),
        store=options.store,
        request=UserRequest(runtime=options.runtime, base_image=image, python=options.python, launch=launch),
        plugins=tuple(options.plugins),
        budget=options.budget,
        runs_control=not options.no_control and launch is None,
        runs_pairs=not options.no_confirm,
        max_pairs=options.pairs,
        at_once=options.parallel or 1,
    )
    # A terminal for people who watch, else one for those who read the end in the morning.
    is_watched = options.progress or options.detach or (sys.stderr.isatty() and not (options.quiet or options.json))
    output, webhook = Terminal() if is_watched else NoteTaker(), webhook_url(options.webhook_file)
    with NightSession.open(request, registry_of(options), output) as session:
        if detachment:
            detachment.leave_shell(request.runs, new_call_id(f"night-{night}"), plugins=options.plugins)
        try:
            report = session.judge() if session.run_entries() else None
        except KeyboardInterrupt:  # between two runs of pairs
            report = None
        if report is None:
            print(f"levelfield: interrupted; start it again with {night_options(night)}: it goes on", file=sys.stderr)
            return INTERRUPTED
        tickets = night_tickets(session, report, options.page_url, options.bisect_budget)
        index = str(options.html / "index.html") if options.html else None
        page = FindingPage(
            report.first_line, night, report.findings, options.strict, options.advisory, tickets,
            _index_url(options.page_url), session.suite, index, (*getattr(output, "notes", ()), *report.notes),
            _named_file(session.store, options.store), report.order_problem,
        )  # fmt: skip
        # The findings come first: a full disk must not take them.
        print(FORMATTERS["json" if options.json else "text"](page), end="", flush=True)
        problems = list(_write_finding_files(page, {"markdown": options.markdown, "junit": options.junit}))
        if options.html:
            try:
                _write_site(session, options.html, page)
            except UsageError as error:
                problems.append(str(error))
    for problem in problems:
        print(wrapped(f"levelfield: error: {problem}", 12), file=sys.stderr)
    if webhook and (reason := deliver(webhook, FORMATTERS["webhook"](page))):
        print(wrapped(f"levelfield: the webhook did not take the night: {reason}", 12), file=sys.stderr)
    return page.exit_code or (UsageError.exit_code if problems else 0)


def _launch_plan(options: argparse.Namespace) -> LaunchPlan | None:
    """Return how the night's entries reach other machines; None where they run on this one, as without these options.

    Raises UsageError for what needs one machine, and for entries at once on this one.
    """
    is_launched = options.launcher or options.site or options.hosts
    launch = launch_plan(options.launcher, options.site, options.hosts, options.plugins) if is_launched else None
    if options.parallel is not None and options.parallel < 1:
        raise UsageError(f"--parallel: found {options.parallel}, expected how many entries run at once, such as 4")
    if launch is None and (options.parallel or 1) > 1:
        raise UsageError(
            "--parallel: found no --launcher, expected one: entries that run at once on one machine slow each other "
            "down, and the night would judge that; add --launcher slurm or kubernetes"
        )
    if launch and not options.no_confirm:
        raise UsageError(
            f"--launcher {launch.launcher}: found no --no-confirm, expected it: pairs compare two builds on one "
            "machine, one run after another, and these entries run on others. Two nights running then decide"
        )
    if launch and options.bisect_budget:
        raise UsageError(
            f"--bisect-budget: found it with --launcher {launch.launcher}; leave it out: a bisection runs pairs on "
            "one machine"
        )
    return launch


def _write_site(session: NightSession, folder: Path, page: FindingPage) -> None:
    """Write the static site, with this night's findings and their commits; for a night of a branch as it stands."""
    from levelfield.pages.page_building import build_pages
    from levelfield.specs.record import branch_of

    findings, tickets = page.findings, page.tickets
    if branch_of(page.night):
        findings, tickets = last_night_findings(session.store, session.store.nights(), session.request.runs)
    with session.output.bytes_progress("writing pages") as progress:
        results = results_for_pages(session.store, session.request.store, session.request.runs)
        content = [finding.model_dump(mode="json") for finding in findings]
        build_pages(results, folder, session.registry, content, progress, tickets=tickets)


def _write_finding_files(page: FindingPage, files: Mapping[str, Path | None]) -> Iterator[str]:
    """Write the findings into files by their format. Yield why a file cannot be written; the others are written."""
    from levelfield.series.finding_forms import FORMATTERS

    for form, path in files.items():
        try:
            if path:
                write_atomically(path, FORMATTERS[form](page), through_link=True)
        except OSError as error:
            problem = f"{path}: cannot be written: {error.strerror}"
            yield f"{problem}; the night is stored, `nightly gate --output` writes it"


def _add_gate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--night", metavar="N", help="the night, such as 2026-11-22 (default: the newest)")
    parser.add_argument("--suite", metavar="NAME", help="only the entries of this suite")
    forms = f"{', '.join(FORMATS)} (default: text)"
    parser.add_argument("--format", choices=FORMATS, default="text", metavar="FORMAT", help=forms)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to FILE, and the first line to stderr")
    _add_page_url_option(parser)
    _add_strictness_options(parser)
    add_store_option(parser)


def _gate(options: argparse.Namespace) -> int:
    """Return the exit code of the night's findings, which the store keeps."""
    from levelfield.nights.gate import judge_night, new_findings
    from levelfield.nights.stored_nights import find_night, gate_input
    from levelfield.nights.tickets import NightTickets
    from levelfield.series.finding_forms import FORMATTERS
    from levelfield.series.findings import FindingPage, restore_explanations

    with open_store(options.store) as store:
        inputs = gate_input(store, find_night(store, options.night), options.suite)
        report = judge_night(inputs, inputs.stored_pairs)
        report = replace(report, findings=restore_explanations(report.findings, inputs.past_findings))
        for finding in new_findings(report.findings, inputs):
            store.add_finding(report.night, finding.model_dump(mode="json"))
        tickets = NightTickets(store, inputs, runs_folder(options), options.page_url).tickets(report.findings)
        store_file = _named_file(store, options.store)
    page = FindingPage(
        report.first_line, report.night, report.findings, options.strict, options.advisory, tickets,
        _index_url(options.page_url), options.suite, notes=report.notes, store=store_file,
        order_problem=report.order_problem,
    )  # fmt: skip
    if options.output:
        write_atomically(options.output, FORMATTERS[options.format](page), through_link=True)
        print(page.first_line, file=sys.stderr)
    else:
        print(FORMATTERS[options.format](page), end="")
    return page.exit_code


def _named_file(store: Store, option: str | None) -> str | None:
    """Return the store's file for printed commands, where --store named it: a URL may hold a password."""
    return str(store.address.path) if option and store.address.path else None


def _index_url(page_url: str | None) -> str | None:
    return f"{page_url.rstrip('/')}/index.html" if page_url else None


def _add_bisect_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("good", metavar="GOOD", help="a good commit")
    option("bad", metavar="BAD", help="a bad one after it")
    option("--case", required=True, metavar="STRING", help="the case string to run")
    option("--figure", choices=tuple(GATED_COLUMN_BY_OPTION), default="speed", help="what got worse (default: speed)")
    option("--scale", choices=("auto", "smoke", "full"), default="auto", help="default: auto")
    add_container_options(parser)
    add_python_option(parser, "train every build with this Python")
    add_chips_option(parser)
    add_json_option(parser)
    add_quiet_option(parser, "answer")


def _bisect(options: argparse.Namespace) -> int:
    """Print the first bad commit and return 0. Raises RunFailed where the last commit is not worse than the first."""
    from levelfield.nights.bisection import BuildComparison, find_first_bad
    from levelfield.plan.request import Entry, UserRequest
    from levelfield.run import scheduler
    from levelfield.run.builds import checkout_build, commit_log, commits_between

    try:
        commits = commits_between(options.good, options.bad)
    except RunFailed as error:
        raise UsageError(f"nightly {error}") from None
    terminal, image = Terminal(quiet=options.quiet or options.json), base_image(options.base_image, options.runtime)
    request = UserRequest(
        scale=options.scale, runtime=options.runtime, base_image=image, python=options.python, repeats=1
    )
    (job,) = scheduler.plan_jobs(registry_of(options), [Entry(options.case, request)], None)
    good, figure = checkout_build(commits[0], say=terminal.say), GATED_COLUMN_BY_OPTION[options.figure]
    comparison = BuildComparison(job.plan, good, figure, runs_folder(options), options.plugins, terminal.say)

    def judge_commit(commit: str) -> BuildVerdict:
        build = checkout_build(commit, say=terminal.say)
        terminal.say(f"trying {build}")
        verdict = comparison.judge(build)
        terminal.say(f"{build} is {verdict}")
        return verdict

    search = find_first_bad(commits, judge_commit)
    short_commits = [commit[:12] for commit in commits]
    undecided = [short_commits[place] for place in search.undecided]
    if options.json:
        trials_content = [{"build": short_commits[trial.index], "answer": trial.verdict} for trial in search.trials]
        content = {
            "last_good": short_commits[search.last_good],
            "first_bad": short_commits[search.first_bad],
            "undecided": undecided,
        }
        print(json_text({"schema": "levelfield.bisect/1", **content, "trials": trials_content}))
        return 0
    print(f"first bad  {short_commits[search.first_bad]}\nlast good  {short_commits[search.last_good]}")
    if undecided:
        print(labelled_line("undecided", ", ".join(undecided), 11))
    print(f"tried      {len(search.trials)} of {len(short_commits)} builds")
    (first_bad_commit,), _ = commit_log(commits[search.last_good], commits[search.first_bad], 1)
    print(labelled_line("it says", f"{first_bad_commit.subject} ({first_bad_commit.author})", 11))
    return 0


COMMANDS = {
    "nightly": Command(_NIGHTLY_HELP),
    "nightly run": Command(_RUN_HELP, _add_run_options, _run, trains=True),
    "nightly gate": Command(_GATE_HELP, _add_gate_options, _gate),
    "nightly bisect": Command(_BISECT_HELP, _add_bisect_options, _bisect, trains=True),
}
