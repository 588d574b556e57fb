"""Runtime `process`: a rank is a process of this machine, in the framework's own Python environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from levelfield.contracts.execution import PORT_CHOSEN_AT_START, ProcessWork
from levelfield.registry import checkout
from levelfield.runtimes.environments import environment_in_use
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan


class ProcessRuntime:
    """Builds argv and environment of each rank; the environment itself is made by `environments`."""

    name = "process"

    def in_use(self, plan: Plan, say: Callable[[str], None]) -> AbstractContextManager[None]:
        return environment_in_use(plan.environment, say)

    def process(self, plan: Plan, paths: RunPaths, rank: int) -> ProcessWork:
        """The work of one rank: argv filled in, and all variables it gets beside the user's own."""
        per_node = plan.hardware.devices_per_node
        values = {
            "python": plan.environment.python,
            "folder": plan.implementation.folder,
            "rank": rank,
            "local_rank": rank % per_node,
            "node_rank": rank // per_node,
            "world_size": plan.world_size,
        }
        own = {key: text.format_map(values) for key, text in plan.implementation.environment.items()}
        return ProcessWork(
            rank=rank,
            argv=tuple(text.format_map(values) for text in plan.implementation.argv),
            environment={
                **_ranks(plan, rank),
                **_threads(plan),
                **plan.hardware.visible,
                **own,
                **plan.hardware.environment,
                **plan.tuning.environment,
            }
            | {"LEVELFIELD_JOB": str(paths.job), "PYTHONPATH": str(checkout() / "platform")},
            log=str(paths.logs / f"rank{rank}.log"),
        )


def _ranks(plan: Plan, rank: int) -> dict[str, str]:
    per_node = plan.hardware.devices_per_node
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "NODE_RANK": str(rank // per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": PORT_CHOSEN_AT_START,
        "PYTHONUNBUFFERED": "1",
    }


def _threads(plan: Plan) -> dict[str, str]:
    threads = plan.tuning.threads
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads)}


def inherited(environment: dict[str, str] | None = None) -> dict[str, str]:
    """The user's own variables, less those that would lead the training's Python astray or pose as a launcher's."""
    given = dict(os.environ) if environment is None else environment
    return {key: value for key, value in given.items() if key not in REMOVED_VARIABLES}


REMOVED_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
    "LEVELFIELD_BOOTSTRAPPED",
    "GROUP_RANK",
    "TORCHELASTIC_RUN_ID",
)
