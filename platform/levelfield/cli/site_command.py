"""`site` (machines and environments): try how machines are reached, and measure them
`site check`: try what a site's file says, and print what is missing
`site preflight`: measure nodes and their collectives, name one out of line
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from textwrap import fill
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    add_chips_option,
    add_json_option,
    add_python_option,
    add_quiet_option,
    registry_of,
    runs_folder,
)
from levelfield.cli.site_options import (
    add_runtime_option,
    add_site_options,
    base_image,
    launch_plan,
    load_site,
    node_power_site,
)
from levelfield.cli.terminal import Terminal
from levelfield.errors import INTERRUPTED, GateFailed, RunFailed, UsageError
from levelfield.report.escapes import one_line, printable
from levelfield.report.sheets import labelled_line
from levelfield.report.words import wrapped
from levelfield.run.launchers import LAUNCHERS, launcher_findings
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.run.launchers.site_findings import SiteFinding
    from levelfield.specs.site import LaunchPlan, NodePowerSite

SCHEMA = "levelfield.site-check/1"
_PREFLIGHT_HELP = """\
Measure what the nodes of a case reach before an hour is lost on a bad one:
matmuls, then the collectives of the very process group that the run
would have. Settings and load are compared. Nothing is trained.

A node is compared with the other nodes; no limit is a constant of a machine,
but for a network that carries less than 100 Mbit/s.
Exit code 4 when a node is out of line, 3 when the preflight could not run or
a collective gave wrong values.

examples:
  run_benchmarks.py site preflight --case gpt3_6.7B:torch:cpu:1:2
  run_benchmarks.py site preflight --case gpt3_6.7B:torch:cpu:2:1 --pairs \\
      --runtime docker
  run_benchmarks.py site preflight --case llama3_8b:torch:H100:4:8 --pairs \\
      --launcher ssh --hosts hosts.yaml
"""
_SITE_HELP = """\
Try how machines are reached, and measure them before an hour is lost on one.
docs/many-machines.md describes the site's file.

examples:
  run_benchmarks.py site check --launcher ssh --hosts hosts.yaml
  run_benchmarks.py site preflight --case gpt3_6.7B:torch:cpu:1:2
"""
_CHECK_SUMMARY = (
    "Try what a site's file says, and print what is missing and what to do, line by line. "
    + "".join(f"{name}: {parts.checks_help}. " for name, parts in LAUNCHERS.items())
    + "node_power: one reading of each node (docs/node-power.md)."
)
_CHECK_HELP = f"""\
{fill(_CHECK_SUMMARY, 79)}

Exit code 4 when something is missing without which a run fails.

examples:
  run_benchmarks.py site check
  run_benchmarks.py site check --launcher ssh --hosts hosts.yaml
  run_benchmarks.py site check --site site.yaml --json
"""


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    add_site_options(parser)
    add_json_option(parser)


def _check(options: argparse.Namespace) -> int:
    """Return 0 when nothing is missing, else 4. Raises UsageError for a site with neither launcher nor node power."""
    launch, power_site = (
        launch_plan(options.launcher, options.site, options.hosts, options.plugins),
        node_power_site(options.site),
    )
    if launch is None and power_site is None:
        launcher = load_site(options.site).launcher
        raise UsageError(
            f"site check: found launcher {launcher or 'none'}, expected ssh, slurm or kubernetes; give --launcher, or "
            "`launcher` or `node_power` in the site's file"
        )
    say = Terminal(quiet=options.json).say
    findings = []
    for finding in chain(
        launcher_findings(launch, say) if launch else (), _power_findings(launch, power_site) if power_site else ()
    ):
        findings.append(finding)
        if not options.json:
            print("\n".join(_finding_lines(finding)), flush=True)
    missing_count = sum(finding.word == "missing" for finding in findings)
    if options.json:
        content = {"schema": SCHEMA, "launcher": launch and launch.launcher, "missing": missing_count}
        print(json_text({**content, "findings": [asdict(finding) for finding in findings]}))
    else:
        print(f"{missing_count} missing" if missing_count else "nothing is missing")
    return GateFailed.exit_code if missing_count else 0


def _power_findings(launch: LaunchPlan | None, power_site: NodePowerSite) -> Iterator[SiteFinding]:
    """Return what the site's command for node power printed for this machine, or for each host.

    A launcher without hosts names its nodes only when a run starts.
    """
    from levelfield.run.launchers.site_findings import unknown_finding
    from levelfield.run.node_power import node_power_findings

    if launch and not launch.hosts:
        return iter((unknown_finding("node power", f"launcher {launch.launcher} names its nodes when a run starts"),))
    return node_power_findings(power_site, [host.name for host in launch.hosts] if launch else [platform.node()])


def _finding_lines(finding: SiteFinding) -> Iterator[str]:
    says, do, subject = (printable(one_line(text)) for text in (finding.says, finding.do, finding.subject))
    yield labelled_line(finding.word, f"{subject}: {says}", 9)
    if do:
        yield wrapped(f"         do: {do}", 13)


def _add_preflight_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--case", required=True, metavar="STRING", help="case:framework:vendor-or-chip:nodes:devices")
    option("--short", action="store_true", help="less time for each check, as before a run")
    option("--pairs", action="store_true", help="also messages between every two nodes")
    option("--quiet-machine", action="store_true", help="exit code 4 where others use a device or the CPUs")
    add_site_options(parser)
    add_runtime_option(parser)
    option("--base-image", metavar="IMAGE", help="base of the image, with --runtime docker")
    add_python_option(parser, "measure with this Python; default: the framework's own")
    option("--offline", action="store_true", help="fetch neither wheels nor images from a network")
    add_chips_option(parser)
    add_json_option(parser)
    add_quiet_option(parser)


def _preflight(options: argparse.Namespace) -> int:
    """Run the preflight and print its report. Return 0, 3 or 4 as the description says, 130 when interrupted."""
    from levelfield.plan.request import UserRequest
    from levelfield.preflight.preflight_lines import preflight_lines
    from levelfield.run import runner, scheduler
    from levelfield.run.interruption import interrupt_once
    from levelfield.specs.base import dump
    from levelfield.specs.plan import PreflightPlan

    terminal, registry = Terminal(quiet=options.quiet or options.json), registry_of(options)
    request = UserRequest(
        python=options.python,
        runtime=options.runtime,
        base_image=base_image(options.base_image, options.runtime),
        offline=options.offline,
        launch=launch_plan(options.launcher, options.site, options.hosts, options.plugins),
    )
    job = next(scheduler.plan_jobs(registry, scheduler.list_entries(registry, [options.case], [], request), None))
    preflight = PreflightPlan(short=options.short, pairs=options.pairs, quiet=options.quiet_machine)
    plan = job.plan.model_copy(update={"preflight": preflight})
    try:
        with interrupt_once():  # a launcher then ends what it started elsewhere
            report = runner.preflight(plan, job.vendor, runs_folder(options), terminal.say)
    except KeyboardInterrupt:
        terminal.say("interrupted; nothing is kept")
        return INTERRUPTED
    print(dump(report) if options.json else "\n".join([*preflight_lines(report), ""]), end="")
    if report.was_interrupted:
        return INTERRUPTED
    if report.word == "failed":
        return RunFailed.exit_code
    fails_gate = report.word in ("out of line", "incomplete") or (options.quiet_machine and report.other_use_findings)
    return GateFailed.exit_code if fails_gate else 0


COMMANDS = {
    "site": Command(_SITE_HELP),
    "site check": Command(_CHECK_HELP, _add_check_options, _check),
    "site preflight": Command(_PREFLIGHT_HELP, _add_preflight_options, _preflight),
}
