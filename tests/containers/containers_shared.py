"""What tests of containers share."""

from __future__ import annotations

from docker import DockerClient
from levelfield.run.runtimes.engine import OWNER_LABEL

IN_CONTAINERS = ("--runtime", "docker")


def kept(engine: DockerClient, runs: list[str]) -> list[str]:
    """Names of containers and networks of these runs that are on the engine."""
    marked: dict[str, str | list[str] | bool] = {"label": OWNER_LABEL}
    names = [str(c.name) for c in engine.containers.list(all=True, filters=marked, ignore_removed=True)]
    names += [str(n.name) for n in engine.networks.list(filters=marked)]
    return [name for name in names if any(run in name for run in runs)]
