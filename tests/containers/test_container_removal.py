"""The removal of what killed runs left, while other runs start and end containers on the same engine."""

from __future__ import annotations

import os
import threading

import pytest
from docker import DockerClient
from levelfield.run.runtimes.engine import OWNER_LABEL, owner_label, remove_leftovers

pytestmark = pytest.mark.containers


def test_containers_that_end_meanwhile_are_no_error(engine: DockerClient) -> None:
    """Nearly half of the lists had an error while three threads did this."""
    ended, sentences = threading.Event(), list[str]()

    def start_and_end() -> None:
        other = DockerClient.from_env()
        while not ended.is_set():
            image = os.environ["LEVELFIELD_BASE_IMAGE"]
            other.containers.create(image, ["true"], labels={OWNER_LABEL: owner_label()}).remove(force=True)
        other.close()

    threads = [threading.Thread(target=start_and_end) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            remove_leftovers(engine, sentences.append)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert sentences == []  # their owner lives
