"""What is sent with `ssh.engine: mpirun`: each node's work by ssh, and one mpirun that starts all nodes' parts. Pure.

Open MPI 5.0's standard input for all processes loses data and its end. So the work goes by ssh, and signals that mpirun
forwards take the place of the rest (node/mpi_part.py). What mpirun carries is neither encrypted nor checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from levelfield.contracts.execution import Submission
from levelfield.errors import UsageError
from levelfield.run.launchers.node_content import secrets_of
from levelfield.run.launchers.ssh.ssh_places import places_of, ssh_argv, ssh_options, with_modules
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.launch import LaunchPlan
from levelfield.specs.plan import Plan

MPIRUN = "mpirun"  # the submission's name
# What mpirun and its ssh need of this process's variables. Others could change mpirun (OMPI_MCA_...) or reach a node.
_NEEDED = (
    "HOME",
    "KRB5CCNAME",
    "LANG",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "PATH",
    "SHELL",
    "SSH_AUTH_SOCK",
    "TMPDIR",
    "USER",
)


def refuse_without_ssh(plan: Plan) -> None:
    """Raises UsageError for what only the engine ssh does."""
    launch = launch_of(plan)
    advice = "expected none with ssh.engine: mpirun. Use ssh.engine: ssh"
    if plan.runtime == "docker":
        raise UsageError(f"--runtime: found docker, {advice}")
    if names := sorted(secrets_of(plan)):
        raise UsageError(f"--env: found {', '.join(names)}, which look like secrets, {advice}: mpirun encrypts nothing")
    reached = {(host.port, host.user) for host in launch.hosts}
    if len(reached) > 1:
        raise UsageError(
            "the hosts file: found hosts with different 'port' or 'user', expected the same for all with ssh.engine: "
            "mpirun. Write them in your ssh_config"
        )
    if wrong := next((word for word in launch.site.ssh.command if ":" in word), None):
        why = f"found '{wrong}', expected no colon with ssh.engine: mpirun"
        raise UsageError(f"the site's file: key 'ssh.command': {why}")


def mpirun_submissions(plan: Plan, contents: Mapping[int, str]) -> tuple[Submission, ...]:
    """Return the work of each node, by its rank, and the command of mpirun last."""
    works = [_work(plan, rank, content) for rank, content in contents.items()]
    commands = [_command(plan, rank) for rank in contents]
    return (*works, Submission(MPIRUN, mpirun_argv(launch_of(plan), commands)))


def _work(plan: Plan, rank: int, content: str) -> Submission:
    places = places_of(plan, rank)
    argv = ssh_argv(launch_of(plan), places.host, [places.host.python, places.mpi_part, "keep"])
    return Submission(places.host.name, argv, stdin=content)


def _command(plan: Plan, rank: int) -> list[str]:
    places = places_of(plan, rank)
    file = str(places.run.root / f"nodes/node{rank}.json")
    return with_modules(launch_of(plan), [places.host.python, places.mpi_part, "run", file])


def mpirun_argv(launch: LaunchPlan, commands: Sequence[list[str]]) -> tuple[str, ...]:
    """Return the command that starts one process on each host. Each has its own part of it: their order is certain."""
    site = launch.site.ssh
    each = zip(launch.hosts, commands, strict=False)  # a run may take the first hosts only
    parts = [["--host", host.name, "-np", "1", *command] for host, command in each]
    return (
        *("setpriv", "--pdeathsig", "TERM"),  # when the platform is killed, mpirun ends
        *(site.mpirun, "--allow-run-as-root"),  # as ssh does
        *("--prtemca", "plm_ssh_agent", " ".join(site.command)),
        *("--prtemca", "plm_ssh_args", " ".join(ssh_options(launch, launch.hosts[0]))),
        *("--prtemca", "plm_ssh_no_tree_spawn", "1"),  # no node needs a key for another
        *("--stdin", "none", "--bind-to", "none"),
        *parts[0],
        *(word for part in parts[1:] for word in (":", *part)),
    )


def mpirun_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of mpirun itself: a closed list."""
    return {name: variables[name] for name in _NEEDED if name in variables}
