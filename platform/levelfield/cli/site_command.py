"""`site` (machines and environments): try how machines are reached, and measure them
`site check`: try what a site's file says, and print what is missing
`site preflight`: measure nodes and their collectives, name one out of line
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from levelfield.cli.command_line import Command
from levelfield.cli.launch_options import launch_of, site_of
from levelfield.cli.options import (
    base_image,
    chips_option,
    json_option,
    python_option,
    quiet_option,
    registry_of,
    runtime_option,
    site_options,
)
from levelfield.cli.terminal import Terminal
from levelfield.errors import INTERRUPTED, GateFailed, RunFailed, UsageError
from levelfield.plan.request import UserRequest
from levelfield.report.escapes import one_line, printable
from levelfield.report.preflight_lines import preflight_lines
from levelfield.report.words import wrapped
from levelfield.run import scheduler
from levelfield.run.preflight_run import preflight
from levelfield.run.site_checks import SiteFinding, ok
from levelfield.rundir.directory import default_runs
from levelfield.specs.base import dump
from levelfield.specs.launch import LaunchPlan
from levelfield.specs.plan import PreflightPlan
from levelfield.specs.preflight_report import PreflightReport

SCHEMA = "levelfield.site-check/1"
PREFLIGHT = """\
Measure what the nodes of a case reach before an hour is lost on a bad one:
memory, processors, disk, clock, matrix products, then the collectives of the
very process group that the run would have. Nothing is trained.

A node is compared with the other nodes and with its own earlier preflights;
no limit is a constant of a machine. Exit code 4 when a node is out of line, 3
when the preflight could not run or a collective gave wrong values.

examples:
  run_benchmarks.py site preflight --case gpt3_6.7B:torch:cpu:1:2
  run_benchmarks.py site preflight --case llama3_8b:torch:cpu:2:1 --pairs
  run_benchmarks.py site preflight --case llama3_8b:torch:H100:4:8 --pairs \\
      --launcher ssh --hosts hosts.yaml
"""
SITE = """\
Try how machines are reached, and measure them before an hour is lost on one.
docs/many-machines.md describes the site's file.

examples:
  run_benchmarks.py site check --launcher ssh --hosts hosts.yaml
  run_benchmarks.py site preflight --case gpt3_6.7B:torch:cpu:1:2
"""
CHECK = """\
Try what a site's file says, and print what is missing and what to do, line by
line. ssh: every host, its Python, folder, room, clock and package index.
slurm: its commands, a test submission, and a job of one second that looks for
the shared folder. kubernetes: rights, kind, queue, claim and devices; nothing
is created.

Exit code 4 when something is missing without which a run fails.

examples:
  run_benchmarks.py site check
  run_benchmarks.py site check --launcher ssh --hosts hosts.yaml
  run_benchmarks.py site check --site site.yaml --json
"""


def _check_options(parser: argparse.ArgumentParser) -> None:
    site_options(parser)
    json_option(parser)


def _check(options: argparse.Namespace) -> int:
    """Return 0 when nothing is missing, else 4. Raises UsageError for a site without a launcher."""
    launch = launch_of(options)
    if launch is None:
        named = site_of(options.site).launcher
        raise UsageError(
            f"site check: found launcher {named or 'none'}, expected ssh, slurm or kubernetes; give --launcher, or "
            "`launcher` in the site's file"
        )
    found = []
    for finding in _findings(launch):
        found.append(finding)
        if not options.json:
            print("\n".join(_lines(finding)), flush=True)
    lacking = sum(each.word == "missing" for each in found)
    if options.json:
        content = {"schema": SCHEMA, "launcher": launch.launcher, "missing": lacking}
        print(json.dumps({**content, "findings": [each.to_dict() for each in found]}, indent=2))
    else:
        print(f"{lacking} missing" if lacking else "nothing is missing")
    return GateFailed.exit_code if lacking else 0


def _findings(launch: LaunchPlan) -> Iterator[SiteFinding]:
    """Return the findings of the launcher as they come. A site's own launcher has no checks."""
    if launch.launcher == "kubernetes":
        from levelfield.run.site_checks.kubernetes_checks import kubernetes_findings

        return kubernetes_findings(launch.site)
    if launch.launcher == "slurm":
        from levelfield.run.site_checks.slurm_checks import slurm_findings

        return slurm_findings(launch.site)
    if launch.launcher == "ssh":
        from levelfield.run.site_checks.ssh_checks import ssh_findings

        return ssh_findings(launch)
    return iter((ok("launcher", f"{launch.launcher} is a site's own, which has no checks here"),))


def _lines(finding: SiteFinding) -> Iterator[str]:
    """Yield a finding in lines of at most 80 columns."""
    says, do = (printable(one_line(text)) for text in (finding.says, finding.do))
    subject = printable(one_line(finding.subject))
    yield wrapped(f"{finding.word:<8} {subject + ':'} {says}", 9)
    if do:
        yield wrapped(f"{'':9}do: {do}", 13)


def _preflight_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", required=True, metavar="STRING", help="case:framework:vendor-or-chip:nodes:devices")
    parser.add_argument("--short", action="store_true", help="less time for each check, as before a run")
    parser.add_argument("--pairs", action="store_true", help="also messages between every two nodes")
    parser.add_argument(
        "--quiet-machine", action="store_true", help="exit code 4 where others use a device or the processors"
    )
    site_options(parser)
    runtime_option(parser)
    parser.add_argument("--base-image", metavar="IMAGE", help="base of the image, with --runtime docker")
    python_option(parser, "measure with this Python; default: the framework's own")
    parser.add_argument("--offline", action="store_true", help="fetch neither wheels nor images from a network")
    chips_option(parser)
    json_option(parser)
    quiet_option(parser)


def _preflight(options: argparse.Namespace) -> int:
    """Run the preflight and print its report. Return 0, 3 or 4 as the description says, 130 when interrupted."""
    terminal = Terminal(quiet=options.quiet or options.json)
    work = scheduler.entries(registry_of(options), [options.case], [], _request(options))
    job = next(scheduler.jobs(registry_of(options), work, None))
    chosen = PreflightPlan(short=options.short, pairs=options.pairs, quiet=options.quiet_machine)
    plan = job.plan.model_copy(update={"preflight": chosen})
    runs = options.runs or default_runs()
    try:
        report = preflight(plan, job.vendor, runs, terminal.say)
    except KeyboardInterrupt:
        terminal.say("interrupted; nothing is kept")
        return INTERRUPTED
    print(dump(report) if options.json else "\n".join(preflight_lines(report)), end="" if options.json else "\n")
    return _exit_code(report, options.quiet_machine)


def _exit_code(report: PreflightReport, quiet_machine: bool) -> int:
    """Return the exit code of a report."""
    if report.was_interrupted:
        return INTERRUPTED
    if report.word == "failed":
        return RunFailed.exit_code
    gated = report.word in ("out of line", "incomplete") or (quiet_machine and report.others)
    return GateFailed.exit_code if gated else 0


def _request(options: argparse.Namespace) -> UserRequest:
    return UserRequest(
        python=options.python,
        runtime=options.runtime,
        base_image=base_image(options),
        offline=options.offline,
        launch=launch_of(options),
    )


COMMANDS = {
    "site": Command(SITE),
    "site check": Command(CHECK, _check_options, _check),
    "site preflight": Command(PREFLIGHT, _preflight_options, _preflight),
}
