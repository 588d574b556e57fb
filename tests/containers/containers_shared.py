"""What tests of containers share."""

from __future__ import annotations

import pytest
from docker import DockerClient
from levelfield.run.runtimes.engine import OWNER_LABEL

# One process for all that use the engine: they list, prune and remove what is on it.
ON_THE_ENGINE = [pytest.mark.containers, pytest.mark.xdist_group("engine")]
IN_CONTAINERS = ("--runtime", "docker")


def kept(engine: DockerClient, runs: list[str]) -> list[str]:
    """Names of containers and networks of these runs that are on the engine."""
    marked: dict[str, str | list[str] | bool] = {"label": OWNER_LABEL}
    names = [str(c.name) for c in engine.containers.list(all=True, filters=marked)]
    names += [str(n.name) for n in engine.networks.list(filters=marked)]
    return [name for name in names if any(run in name for run in runs)]
