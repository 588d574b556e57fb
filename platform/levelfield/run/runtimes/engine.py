"""The container engine: connecting, errors, and removing the containers of killed runs. Only by the docker SDK."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from levelfield.errors import RunFailed
from levelfield.node import process_identity

if TYPE_CHECKING:  # the SDK loads slowly, and most commands need no engine
    from docker import DockerClient

RUN_LABEL = "levelfield.run"
OWNER_LABEL = "levelfield.owner"
IMAGE_LABEL = "levelfield.image"
PATIENCE_SECONDS = 60
LAST_SECONDS = 5  # for each answer after an interrupt; a second one is waited for less long
SILENT_SECONDS = 1
Say = Callable[[str], None]


class EngineError(Exception):
    """The engine does not respond any more, or it responds with an error that a retry cannot solve."""


@contextmanager
def connect() -> Iterator[DockerClient]:
    """Connect to the engine of DOCKER_HOST, else to the local one. Raises RunFailed with what to do."""
    from docker import DockerClient
    from docker.errors import DockerException

    try:
        client = DockerClient.from_env(timeout=PATIENCE_SECONDS)
        client.ping()
    except (DockerException, OSError):
        place = os.environ.get("DOCKER_HOST", "the usual socket of Docker's")
        raise RunFailed(
            f"no container engine answers at {place}: start one, or set DOCKER_HOST. A run without --runtime docker "
            "needs none"
        ) from None
    with closing(client):
        yield client


@contextmanager
def answers() -> Iterator[None]:
    """Turn every error of the engine or its connection into EngineError, with the first line of its message."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException, OSError) as error:
        raise EngineError(first_line(error)) from None


def hurry(client: DockerClient, seconds: int = LAST_SECONDS) -> None:
    """Wait for each later answer of the engine only so long: the user has interrupted the command."""
    client.api.timeout = seconds


def hurry_if_lost(client: DockerClient, error: OSError) -> None:
    """Wait less for an engine that did not answer. One that answers with an error still removes its containers."""
    from docker.errors import APIError

    if not isinstance(error, APIError):
        hurry(client, SILENT_SECONDS)


def first_line(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    text = str(explanation or error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def owner() -> str:
    """Return a label of this process, which `is_alive` reads."""
    identity = process_identity.own_identity()
    return identity.to_text() if identity else ""


def is_alive(owner_text: str) -> bool:
    """Return whether the process of a label still runs. One of another machine, or of an unknown label, counts so."""
    identity = process_identity.identity_from(owner_text)
    return identity is None or process_identity.is_alive(identity) is not False


def reap(client: DockerClient, say: Say) -> None:
    """Remove containers and networks of runs whose platform was killed. A failure to remove one is ignored."""
    from docker.errors import APIError

    marked: dict[str, str | list[str] | bool] = {"label": OWNER_LABEL}
    dead = [
        c
        for c in client.containers.list(all=True, filters=marked, ignore_removed=True)
        if not is_alive(c.labels[OWNER_LABEL])
    ]
    for container in dead:
        say(f"removing {container.name}, which a killed run left")
        with suppress(APIError):
            container.remove(force=True, v=True)
    for network in client.networks.list(filters=marked):
        if not is_alive(network.attrs["Labels"][OWNER_LABEL]):
            with suppress(APIError):
                network.remove()
