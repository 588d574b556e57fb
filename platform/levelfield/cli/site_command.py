"""`site`: tries what a site's file says and prints what is missing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from levelfield.cli.launch_options import launch_of, site_of
from levelfield.errors import GateFailed, UsageError
from levelfield.report.escapes import one_line, printable
from levelfield.report.words import wrapped
from levelfield.run.site_checks.site_findings import SiteFinding, ok
from levelfield.specs.launch import LaunchPlan

SCHEMA = "levelfield.site-check/1"
_HELP = """\
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
_WIDTH = 17


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    parser.add_argument("action", choices=("check",), help="check: try what the site's file says")
    parser.add_argument("--launcher", metavar="NAME", help="ssh, slurm or kubernetes (default: the site's own)")
    parser.add_argument(
        "--site", metavar="NAME|FILE", help="the site's file (default: ~/.config/levelfield/site.yaml, if it exists)"
    )
    parser.add_argument("--hosts", type=Path, metavar="FILE", help="hosts.yaml, or FlagPerf's cluster_conf.py")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def execute(options: argparse.Namespace) -> int:
    """Return 0 when nothing is missing, else 4. Raises UsageError for a site without a launcher."""
    launch = launch_of(options)
    if launch is None:
        named = site_of(options.site).launcher
        raise UsageError(
            f"site check: found launcher {named or 'none'}, expected ssh, slurm or kubernetes; give --launcher, or "
            "`launcher` in the site's file"
        )
    found = []
    for finding in findings(launch):
        found.append(finding)
        if not options.json:
            print("\n".join(lines(finding)), flush=True)
    lacking = sum(each.word == "missing" for each in found)
    if options.json:
        content = {"schema": SCHEMA, "launcher": launch.launcher, "missing": lacking}
        print(json.dumps({**content, "findings": [each.to_dict() for each in found]}, indent=2))
    else:
        print(f"{lacking} missing" if lacking else "nothing is missing")
    return GateFailed.exit_code if lacking else 0


def findings(launch: LaunchPlan) -> Iterator[SiteFinding]:
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


def lines(finding: SiteFinding) -> Iterator[str]:
    """Yield a finding in lines of at most 80 columns."""
    says, do = (printable(one_line(text)) for text in (finding.says, finding.do))
    subject = printable(one_line(finding.subject))
    yield wrapped(f"{finding.word:<8} {subject + ':'} {says}", 9)
    if do:
        yield wrapped(f"{'':9}do: {do}", 13)
