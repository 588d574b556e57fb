"""Many processes write to one store, and are killed at any moment: no stored run is lost, none is there twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store
from levelfield.store.upkeep import find_faults, row_counts
from plans import ROOT

WRITER = Path(__file__).with_name("writer.py")


class Writers:
    """Writing processes. Each writes into a file of its own, which outlives it. running: their numbers."""

    def __init__(self, url: str, folder: Path, record: RunRecord) -> None:
        self._folder, self._names = folder, 0
        file = folder / "record.json"
        file.write_text(record.model_dump_json())
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
        argv = [sys.executable, str(WRITER), url, str(file), str(folder)]
        self._parent = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running: list[int] = []

    def start(self) -> None:
        name, self._names = f"w{self._names}", self._names + 1
        assert self._parent.stdin and self._parent.stdout
        self._parent.stdin.write(f"{name}\n")
        self._parent.stdin.flush()
        self.running.append(int(self._parent.stdout.readline()))

    def kill(self, process: int) -> None:
        self.running.remove(process)
        with suppress(ProcessLookupError):  # one that ended by itself must not keep the others alive
            os.kill(process, signal.SIGKILL)
        while Path(f"/proc/{process}").exists():
            time.sleep(0.001)

    def end(self) -> None:
        for process in list(self.running):
            self.kill(process)
        self._parent.communicate(timeout=30)

    def acknowledged(self) -> list[str]:
        """The runs that a writer was told are stored. A killed writer may have cut its last line off."""
        texts = (path.read_text() for path in sorted(self._folder.glob("w*.out")))
        return [line for text in texts for line in text.split("\n")[:-1]]

    def errors(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("w*.err")))


@contextmanager
def writers(url: str, folder: Path, record: RunRecord, number: int) -> Iterator[Writers]:
    folder.mkdir()
    started = Writers(url, folder, record)
    try:
        for _ in range(number):
            started.start()
        yield started
    finally:
        started.end()


def whole(url: str, acknowledged: list[str]) -> int:
    """Check that every acknowledged run is in the store once, and that the store is whole. Return its runs."""
    with Store.open(url) as store:
        stored = store.run_ids()
        assert len(stored) == len({*stored}) and {*acknowledged} <= {*stored}
        assert find_faults(store) == []
        rows = row_counts(store)
        assert rows["raw"] == rows["run"] == len(stored) and rows["aside"] == 0
        return len(stored)


def is_acknowledged(writing: Writers, least: int) -> bool:
    return len(writing.acknowledged()) >= least


def until(condition: Callable[[], object], writing: Writers, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, writing.errors()
        time.sleep(0.02)


def test_writers_that_are_killed_lose_nothing_that_was_stored(url: str, tmp_path: Path, record: RunRecord) -> None:
    """Four on a store that is not there yet: they make its tables as well. Each is killed at a random moment."""
    generator = random.Random(1)
    with writers(url, tmp_path / "writers", record, 4) as writing:
        for _ in range(2):
            least = len(writing.acknowledged()) + 8
            until(partial(is_acknowledged, writing, least), writing)
            time.sleep(generator.random() / 20)
            writing.kill(generator.choice(writing.running))
        until(lambda: len(writing.acknowledged()) >= 30, writing)
        writing.end()
        assert writing.errors() == ""
        stored = whole(url, writing.acknowledged())
        assert stored <= len(writing.acknowledged()) + 4  # of each writer one that it was not told of


@pytest.mark.thorough
def test_an_interrupted_import_is_finished_by_the_next(url: str, tmp_path: Path, record: RunRecord) -> None:
    """The same runs again after a kill: those that were stored are known, the others are added."""
    with writers(url, tmp_path / "writers", record, 1) as writing:
        until(lambda: len(writing.acknowledged()) >= 5, writing)
        writing.kill(writing.running[0])
        done = writing.acknowledged()
    with Store.open(url) as store:
        again = [stored for stored in store.records() if stored.run_id in {*done}]
        assert store.add(again).existing_count == len(done)


@pytest.mark.thorough
def test_twenty_writers_for_a_minute(url: str, tmp_path: Path, record: RunRecord) -> None:
    """One is killed and replaced about every half second. The figures are in docs/store.md."""
    generator, killed, began = random.Random(2), 0, time.monotonic()
    with writers(url, tmp_path / "writers", record, 20) as writing:
        until(lambda: writing.acknowledged(), writing)
        while time.monotonic() < began + 60:
            time.sleep(generator.expovariate(2))
            writing.kill(generator.choice(writing.running))
            writing.start()
            killed += 1
        writing.end()
        assert writing.errors() == ""
        acknowledged = writing.acknowledged()
        stored = whole(url, acknowledged)
    figures = {"killed": killed + 20, "acknowledged": len(acknowledged), "stored": stored}
    print(json.dumps(figures))
    assert stored <= len(acknowledged) + killed + 20
