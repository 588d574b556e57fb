"""The ranks of pods: their image has the framework, and nothing of it is made or started on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import FIRST_NODE
from levelfield.run.runtimes.node_runtime import NodeRuntime, launch_of
from levelfield.run.runtimes.rank_work import NodeFolders
from levelfield.specs.plan import Plan

LOCAL = Path("/levelfield/local")  # a pod's own folder
CODE = LOCAL / "code"


class PodRuntime(NodeRuntime):
    """The ranks of pods. The image's Python runs them, with Levelfield's code from the folder that start.py fills."""

    def __init__(self, plan: Plan) -> None:
        implementation = CODE / "models" / Path(plan.implementation.folder).name
        super().__init__(FIRST_NODE, NodeFolders(CODE, str(implementation), python_of(plan)))

    @contextmanager
    def in_use(self, plan: Plan, say: Callable[[str], None]) -> Iterator[PodRuntime]:
        yield self

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        """Raises OSError: a peak, for example, is not measured on this machine for the machines of a cluster."""
        raise OSError("no command runs in the image outside of the run")

    def identity(self, plan: Plan) -> dict[str, Any]:
        return {"environment_packages": None, "image": image_of(plan)}


def python_of(plan: Plan) -> str:
    """Return the interpreter of the image: Levelfield's own images have it where the plan says."""
    site = launch_of(plan).site
    return site.python or (plan.environment.python if plan.container else "python3")


def image_of(plan: Plan) -> str | None:
    """Return the image of the pods; None where neither the site's file nor the plan names one."""
    given = launch_of(plan).site.kubernetes.image
    return given or (plan.container.image.name if plan.container else None)
