"""The launchers: ways to reach nodes. Their classes implement the Launcher contract."""

from __future__ import annotations

from levelfield.contracts.execution import Launcher, Runtime
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runtimes.process_runtime import InsideRuntime, ProcessRuntime
from levelfield.specs.plan import Plan


def means(plan: Plan) -> tuple[Runtime, Launcher]:
    """Return the runtime of the plan, and the launcher for it."""
    if plan.runtime == "docker":
        # imported here: the SDK loads in a third of a second, and only runs in containers need it
        from levelfield.run.launchers.container_launcher import ContainerLauncher
        from levelfield.run.runtimes.docker import DockerRuntime

        return DockerRuntime(), ContainerLauncher()
    return InsideRuntime() if plan.runtime == "inside" else ProcessRuntime(), LocalLauncher()
