"""How nodes are reached. Each module offers a class that keeps the Launcher contract."""

from __future__ import annotations

from levelfield.contracts.execution import Launcher, Runtime
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runtimes.process import InsideRuntime, ProcessRuntime
from levelfield.specs.plan import Plan


def means(plan: Plan) -> tuple[Runtime, Launcher]:
    """The runtime that the plan names, and the launcher that reaches it."""
    if plan.runtime == "docker":
        # here, as the SDK takes a third of a second to load, which a run without containers need not wait for
        from levelfield.run.launchers.containers import ContainerLauncher
        from levelfield.run.runtimes.docker import DockerRuntime

        return DockerRuntime(), ContainerLauncher()
    return InsideRuntime() if plan.runtime == "inside" else ProcessRuntime(), LocalLauncher()
