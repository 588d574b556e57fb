"""The places of a run on a node that ssh reaches, and the commands that reach it. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.short_names import short_digest
from levelfield.specs.site import Host, LaunchPlan
from levelfield.user_folders import user_name

# What every connection has, whatever the user's ssh_config says. Host keys are checked and never written.
_OPTIONS = (
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
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
# Reads a program from standard input and runs it. An old Python says its version and stops before it reads one.
LOADER = (
    'import sys;v=sys.version_info;v<(3,8)and sys.exit("levelfield: found Python %d.%d"%v[:2]);i=sys.stdin.buffer;'
    'exec(compile(i.read(int(i.readline())),"node_setup.py","exec"),{"__name__":"node_setup"})'
)


@dataclass(frozen=True)
class NodePlaces:
    """The folders of one node. environment: its folder, or None where an interpreter is given."""

    host: Host
    folder: Path
    code: Path
    environment: Path | None
    python: str
    run: RunPaths

    @property
    def agent(self) -> str:
        return str(self.code / "platform/levelfield/node/node_agent.py")


def places_of(plan: Plan, node_rank: int) -> NodePlaces:
    """Return the places of a run on one of its nodes. Code and environment are named by their digests."""
    launch = launch_of(plan)
    host = launch.hosts[node_rank]
    folder = Path(launch.site.ssh.folder.replace("{user}", host.user or user_name()))
    is_made = plan.environment.folder and not launch.site.python
    made = folder / "environments" / f"{plan.environment.name}-{short_digest(plan.environment.digest, 16)}"
    given = plan.environment.python if plan.runtime == "docker" else launch.site.python or plan.environment.python
    return NodePlaces(
        host=host,
        folder=folder,
        code=folder / "code" / short_digest(plan.implementation.rests_on or plan.implementation.digest, 16),
        environment=made if is_made else None,
        python=str(made / "bin" / "python") if is_made else given,
        run=RunPaths(folder / "runs" / plan.run_id),
    )


def moved(plan: Plan, places: NodePlaces) -> Plan:
    implementation = str(places.code / "models" / Path(plan.implementation.folder).name)
    environment = {"folder": str(places.environment or ""), "python": places.python}
    return plan.model_copy(
        update={
            "implementation": plan.implementation.model_copy(update={"folder": implementation}),
            "environment": plan.environment.model_copy(update=environment),
        }
    )


def ssh_argv(launch: LaunchPlan, host: Host, command: list[str]) -> tuple[str, ...]:
    """Return the argv of ssh that runs a command on a host. The host's shell gets it quoted."""
    remote = shlex.join(with_modules(launch, command)) if launch.site.modules else f"exec {shlex.join(command)}"
    return (*launch.site.ssh.command, *ssh_options(launch, host), host.name, remote)


def ssh_options(launch: LaunchPlan, host: Host) -> tuple[str, ...]:
    site = launch.site.ssh
    config = ("-F", site.config) if site.config else ()
    options = (*_OPTIONS, f"ConnectTimeout={site.connect_seconds}")
    named = [word for option in options for word in ("-o", option)]
    return (*config, *named, *(("-p", str(host.port)) if host.port else ()), *(("-l", host.user) if host.user else ()))


def with_modules(launch: LaunchPlan, command: list[str]) -> list[str]:
    """Return the words that run a command after the site's modules were loaded."""
    modules = launch.site.modules
    if not modules:
        return command
    return ["bash", "-lc", f"module load {shlex.join(modules)} && exec {shlex.join(command)}"]
