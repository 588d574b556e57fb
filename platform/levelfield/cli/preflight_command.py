"""`preflight`: measures the nodes of a case and their collectives, and names a node that is out of line."""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.cli import launch_options
from levelfield.cli.container_options import base_image
from levelfield.cli.plugins import registry_of
from levelfield.cli.terminal import Terminal
from levelfield.errors import INTERRUPTED, GateFailed, RunFailed
from levelfield.plan.request import UserRequest
from levelfield.report.preflight_lines import preflight_lines
from levelfield.run import scheduler
from levelfield.run.preflight_run import preflight
from levelfield.rundir.directory import default_runs
from levelfield.specs.base import dump
from levelfield.specs.plan import PreflightPlan
from levelfield.specs.preflight_report import PreflightReport

_HELP = """\
Measure what the nodes of a case reach before an hour is lost on a bad one:
memory, processors, disk, clock, matrix products, then the collectives of the
very process group that the run would have. Nothing is trained.

A node is compared with the other nodes and with its own earlier preflights;
no limit is a constant of a machine. Exit code 4 when a node is out of line, 3
when the preflight could not run or a collective gave wrong values.

examples:
  run_benchmarks.py preflight --case gpt3_6.7B:torch:cpu:1:2
  run_benchmarks.py preflight --case llama3_8b:torch:cpu:2:1 --runtime docker
  run_benchmarks.py preflight --case llama3_8b:torch:H100:4:8 --launcher ssh
      --hosts hosts.yaml --pairs
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    parser.add_argument("--case", required=True, metavar="STRING", help="case:framework:vendor-or-chip:nodes:devices")
    parser.add_argument("--short", action="store_true", help="less time for each check, as before a run")
    parser.add_argument("--pairs", action="store_true", help="also messages between every two nodes")
    parser.add_argument(
        "--quiet-machine", action="store_true", help="exit code 4 where others use a device or the processors"
    )
    parser.add_argument(
        "--launcher", metavar="NAME", help="ssh, slurm, kubernetes, or a site's own: measures other machines"
    )
    parser.add_argument(
        "--site",
        metavar="NAME|FILE",
        help="how these machines are reached (default: ~/.config/levelfield/site.yaml, if it exists)",
    )
    parser.add_argument("--hosts", type=Path, metavar="FILE", help="hosts.yaml, or FlagPerf's cluster_conf.py")
    parser.add_argument(
        "--runtime",
        choices=("process", "docker", "inside"),
        default="process",
        help="process: a Python environment; docker: containers; inside: this machine is a container",
    )
    parser.add_argument("--base-image", metavar="IMAGE", help="base of the image, with --runtime docker")
    parser.add_argument("--python", metavar="PATH", help="measure with this Python; default: the framework's own")
    parser.add_argument("--offline", action="store_true", help="fetch neither wheels nor images from a network")
    parser.add_argument("--chips", type=Path, metavar="FILE", help="private chips and corrections")
    parser.add_argument("--json", action="store_true", help="machine-readable output on stdout")
    parser.add_argument("--quiet", action="store_true", help="print only the result")


def execute(options: argparse.Namespace) -> int:
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
    return exit_code(report, options.quiet_machine)


def exit_code(report: PreflightReport, quiet_machine: bool) -> int:
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
        launch=launch_options.launch_of(options),
    )
