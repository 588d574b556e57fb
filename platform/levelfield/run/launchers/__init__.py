"""The launchers: ways to reach nodes, and a table of Levelfield's own with what the folder of each has.

The command line's help reads the table. So nothing of a launcher, and nothing slow, is imported before it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from levelfield.errors import UsageError

if TYPE_CHECKING:
    from levelfield.contracts.execution import Launcher, RemoteLauncher, Runtime, Say
    from levelfield.run.launchers.site_findings import SiteFinding
    from levelfield.specs.plan import Plan
    from levelfield.specs.site import LaunchPlan

LOCAL = "local"
ENTRY_POINT_GROUP = "levelfield.launchers"
SITE_CLASS = "SiteLauncher"  # in launchers/NAME/launcher.py of a folder of plugins


class LauncherParts(NamedTuple):
    """What a launcher of Levelfield has. Its class and functions are named as module:name, below this folder."""

    launcher_class: str
    findings_function: str  # takes the LaunchPlan and what reports a wait, and makes the checks of `site check`
    checks_help: str  # what these checks try, for the help of `site check`
    takes_hosts: bool = False  # whether it reaches the hosts of a hosts file, and needs one
    # takes the plan, and names the nodes that share one peak; without it the peak is that of the first host
    probed_nodes_function: str | None = None
    # takes the plan, and says why two runs may meet on one node; without it each run has devices of its own
    shared_nodes_function: str | None = None


LAUNCHERS = {
    "ssh": LauncherParts(
        "ssh.ssh_launcher:SshLauncher",
        "ssh.checks:ssh_findings",
        "every host, its Python, folder, room, clock and package index, and whether all reach each other",
        takes_hosts=True,
    ),
    "slurm": LauncherParts(
        "slurm.slurm_launcher:SlurmLauncher",
        "slurm.checks:slurm_findings",
        "its commands, a test submission, and a job of one second that looks for modules and folders",
        probed_nodes_function="slurm.slurm_launcher:probed_nodes",
        shared_nodes_function="slurm.slurm_launcher:shared_nodes_reason",
    ),
    "kubernetes": LauncherParts(
        "kubernetes.kubernetes_launcher:KubernetesLauncher",
        "kubernetes.checks:kubernetes_findings",
        "rights, kind, queue, claim and devices; nothing is created",
    ),
}


def runtime_and_launcher(plan: Plan) -> tuple[Runtime, Launcher]:
    """Return the runtime of the plan, and the launcher for it. Raises UsageError for a launcher that is not here."""
    if plan.launch:
        launcher = _load_launcher(plan.launch.launcher, plan.launch.code)
        keys = tuple(getattr(launcher, "own_keys", ()))
        if unexpected := sorted(plan.launch.site.own.keys() - set(keys)):
            expected = f"one of {', '.join(keys)}" if keys else f"none, as launcher {launcher.name} has none"
            raise UsageError(f"site, own: found {', '.join(unexpected)}, expected {expected}")
        return launcher.runtime(plan), launcher
    if plan.runtime == "docker":
        from levelfield.run.launchers.container_launcher import ContainerLauncher
        from levelfield.run.runtimes.docker import DockerRuntime

        return DockerRuntime(), ContainerLauncher()
    from levelfield.run.launchers.local import LocalLauncher
    from levelfield.run.runtimes.process_runtime import InsideRuntime, ProcessRuntime

    return InsideRuntime() if plan.runtime == "inside" else ProcessRuntime(), LocalLauncher()


def bind_say(launcher: Launcher, say: Say) -> Launcher:
    """Return the launcher that reports by `say`, for example about a queue; one that reports nothing is unchanged."""
    bind: Callable[[Say], Launcher] | None = getattr(launcher, "saying", None)
    return bind(say) if bind else launcher


def launcher_findings(launch: LaunchPlan, say: Say) -> Iterator[SiteFinding]:
    """Return what the launcher's checks find, as they find it. A site's own launcher has no checks.

    say: gets sentences about what is waited for.
    """
    if launch.launcher in LAUNCHERS:
        return _import_part(LAUNCHERS[launch.launcher].findings_function)(launch, say)  # type: ignore[no-any-return]
    from levelfield.run.launchers.site_findings import ok_finding

    return iter((ok_finding("launcher", f"{launch.launcher} is a site's own, which has no checks here"),))


def probed_nodes(plan: Plan, launch: LaunchPlan) -> str | None:
    """Return the name of the nodes whose peak the launcher's probe measures; None where no probe can run on a node."""
    parts = LAUNCHERS.get(launch.launcher)
    if parts and parts.probed_nodes_function:
        return _import_part(parts.probed_nodes_function)(plan)  # type: ignore[no-any-return]
    return launch.hosts[0].name if launch.hosts else None


def shared_nodes_reason(plan: Plan, launch: LaunchPlan) -> str | None:
    """Return why the launcher may place two runs on one node, and what to change; None where it does not."""
    parts = LAUNCHERS.get(launch.launcher)
    if parts and parts.shared_nodes_function:
        return _import_part(parts.shared_nodes_function)(plan)  # type: ignore[no-any-return]
    return None


def launcher_file(name: str, plugins: Sequence[Path]) -> str | None:
    """Return the file of a site's own launcher in a folder of plugins; None for the other launchers."""
    files = (folder / "launchers" / name / "launcher.py" for folder in plugins)
    return next((str(file.absolute()) for file in files if file.is_file()), None)


def launcher_names(plugins: Sequence[Path]) -> list[str]:
    """Return the launchers of many machines by name: the built-in ones, those of packages, and those of plugins."""
    from importlib.metadata import entry_points

    plugin_names = (file.parent.name for folder in plugins for file in folder.glob("launchers/*/launcher.py"))
    return sorted({*LAUNCHERS, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP)), *plugin_names})


def _import_part(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def _load_launcher(name: str, code: str | None) -> RemoteLauncher:
    from importlib.metadata import entry_points

    if code is not None:
        path = Path(code)
        spec = importlib.util.spec_from_file_location(f"levelfield_launcher_{path.parent.name}", path)
        module: Any = importlib.util.module_from_spec(spec) if spec else None
        try:
            spec.loader.exec_module(module)  # type: ignore[union-attr]
            return getattr(module, SITE_CLASS)()  # type: ignore[no-any-return]
        except Exception as error:  # a site's file may raise anything
            raise UsageError(
                f"{path}: {type(error).__name__}: {error}; expected a class {SITE_CLASS}, as "
                "docs/writing-a-launcher.md says"
            ) from None
    if name in LAUNCHERS:
        return _import_part(LAUNCHERS[name].launcher_class)()  # type: ignore[no-any-return]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return point.load()()  # type: ignore[no-any-return]
    raise UsageError(f"launcher {name}: found none here; known: {', '.join(launcher_names([]))}")
