"""The container engine: reached, asked, and cleared of what killed runs left. Through the docker SDK alone."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

from levelfield.errors import RunFailed

if TYPE_CHECKING:  # the SDK takes a moment to load, and most commands need no engine
    from docker import DockerClient

RUN_LABEL = "levelfield.run"
OWNER_LABEL = "levelfield.owner"
IMAGE_LABEL = "levelfield.image"
PATIENCE_SECONDS = 60
Say = Callable[[str], None]


class EngineGone(Exception):
    """The engine no longer answers, or answers with an error that no retry mends."""


@contextmanager
def connect() -> Iterator[DockerClient]:
    """The engine that DOCKER_HOST names, else the local one. Raises RunFailed, saying how to get one."""
    from docker import DockerClient
    from docker.errors import DockerException

    try:
        client = DockerClient.from_env(timeout=PATIENCE_SECONDS)
        client.ping()
    except (DockerException, OSError):
        place = os.environ.get("DOCKER_HOST", "the usual socket of Docker's")
        raise RunFailed(
            f"no container engine answers at {place}: start one, set DOCKER_HOST, or leave out --runtime docker"
        ) from None
    with closing(client):
        yield client


@contextmanager
def answers() -> Iterator[None]:
    """Turns every way in which an engine fails to answer into EngineGone, with its first line."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException, OSError) as error:
        raise EngineGone(first_line(error)) from None


def first_line(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    text = str(explanation or error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def owner() -> str:
    """This process, so that another can tell whether it still lives: machine, process id, and when it started."""
    process = psutil.Process()
    return f"{platform.node()}/{process.pid}/{process.create_time():.2f}"


def is_alive(owner_text: str) -> bool:
    """Whether the process that a label names still runs. Another machine's is taken to be alive: it cannot be asked."""
    machine, _, rest = owner_text.rpartition("/")[0].partition("/")
    started = owner_text.rpartition("/")[2]
    if machine != platform.node():
        return True
    try:
        return f"{psutil.Process(int(rest)).create_time():.2f}" == started
    except (psutil.Error, ValueError):
        return False


def reap(client: DockerClient, say: Say) -> None:
    """Remove containers and networks of runs whose platform was killed. One that goes meanwhile is as good."""
    from docker.errors import APIError

    marked: dict[str, str | list[str] | bool] = {"label": OWNER_LABEL}
    dead = [c for c in client.containers.list(all=True, filters=marked) if not is_alive(c.labels[OWNER_LABEL])]
    for container in dead:
        say(f"removing {container.name}, which a killed run left")
        with suppress(APIError):
            container.remove(force=True, v=True)
    for network in client.networks.list(filters=marked):
        if not is_alive(network.attrs["Labels"][OWNER_LABEL]):
            with suppress(APIError):
                network.remove()
