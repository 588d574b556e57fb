"""A node that ssh reaches: where a run's files are on it, and the command that reaches it. No side effects."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from levelfield.run.runtimes.process_runtime import require_launch
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.short_names import short_digest
from levelfield.specs.site import Host, LaunchPlan
from levelfield.user_folders import user_name

# The options of every connection, whatever the user's ssh_config says. Host keys are checked and never written.
_SSH_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ControlMaster=no",  # a connection of the user's own would end the run with it
    "ControlPath=none",
    "LogLevel=INFO",  # a quiet one would hide why a connection failed
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
# Reads a program from standard input and runs it. An old Python, or one without input, says so and stops before that.
LOADER_SCRIPT = (
    'import sys;v=sys.version_info;v<(3,8)and sys.exit("levelfield: found Python %d.%d"%v[:2]);i=sys.stdin.buffer;'
    'n=i.readline();n or sys.exit("levelfield: standard input is closed");'
    'exec(compile(i.read(int(n)),"node_setup.py","exec"),{"__name__":"node_setup"})'
)


@dataclass(frozen=True)
class RemoteNode:
    """One node of a run: its host, and where code, environment and run are on it."""

    host: Host
    folder: Path  # Levelfield's folder on the node: the others are below it
    code: Path
    environment: Path | None  # None where the site or the image names an interpreter
    python: str  # the interpreter of the ranks
    run: RunPaths


def remote_node(plan: Plan, node_rank: int) -> RemoteNode:
    """Return a node of a run. The folders of code and environment are named by their digests."""
    launch = require_launch(plan)
    host = launch.hosts[node_rank]
    folder = Path(launch.site.ssh.folder.replace("{user}", host.user or user_name()))
    has_environment = plan.environment.folder and not launch.site.python
    environment = folder / "environments" / f"{plan.environment.name}-{short_digest(plan.environment.digest, 16)}"
    python = plan.environment.python if plan.runtime == "docker" else launch.site.python or plan.environment.python
    return RemoteNode(
        host=host,
        folder=folder,
        code=folder / "code" / short_digest(plan.implementation.rests_on or plan.implementation.digest, 16),
        environment=environment if has_environment else None,
        python=str(environment / "bin" / "python") if has_environment else python,
        run=RunPaths(folder / "runs" / plan.run_id),
    )


def plan_for_node(plan: Plan, remote: RemoteNode) -> Plan:
    """Return the plan with the folders and the interpreter as the node has them."""
    implementation = str(remote.code / "models" / Path(plan.implementation.folder).name)
    environment = {"folder": str(remote.environment or ""), "python": remote.python}
    return plan.model_copy(
        update={
            "implementation": plan.implementation.model_copy(update={"folder": implementation}),
            "environment": plan.environment.model_copy(update=environment),
        }
    )


def ssh_argv(launch: LaunchPlan, host: Host, command: list[str]) -> tuple[str, ...]:
    """Return the argv of ssh that runs a command on a host, after the site's modules. The host's shell gets it quoted.

    The options precede the host, and the last word is the command.
    """
    site, remote_command = launch.site.ssh, f"exec {shlex.join(command)}"
    if modules := launch.site.modules:
        remote_command = shlex.join(["bash", "-lc", f"module load {shlex.join(modules)} && {remote_command}"])
    config = ("-F", site.config) if site.config else ()
    options = (word for option in (*_SSH_OPTIONS, f"ConnectTimeout={site.connect_seconds}") for word in ("-o", option))
    port, user = (("-p", str(host.port)) if host.port else ()), (("-l", host.user) if host.user else ())
    return (*site.command, *config, *options, *port, *user, host.name, remote_command)
