"""The real node's part as a process, with plain Python ranks, and what it wrote."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

AGENT = Path(__file__).resolve().parents[3] / "platform/levelfield/node/node_agent.py"
MARK = "LEVELFIELD_TEST_MARK"
SLEEP = "import time; time.sleep(600)"
BEATING = """
import itertools, pathlib, sys, time
for count in itertools.count():
    pathlib.Path('events/rank{rank}.alive').write_text(str(count))
    time.sleep(0.05)
"""


class Node:
    """A node's folder, and the work of its ranks."""

    def __init__(self, folder: Path) -> None:
        self.root, self.mark = folder / "run", uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []

    def work(self, *scripts: str, **changed: Any) -> dict[str, Any]:
        return {
            "schema": "levelfield.node/1",
            "run_id": "a_run",
            "node_rank": 0,
            "nodes": 1,
            "name": "host1",
            "root": str(self.root),
            "port": None,
            "first_node": "10.0.0.1",
            "processes": [self.process(rank, script) for rank, script in enumerate(scripts)],
            "events_dir": str(self.root / "events"),
            "limits": {"start_seconds": 60, "step_seconds": 60, "heartbeat_seconds": 60},
            **changed,
        }

    def process(self, rank: int, script: str) -> dict[str, Any]:
        prologue = f"import os\nos.chdir({str(self.root)!r})\n"
        argv = [sys.executable, "-S", "-c", prologue + script.replace("{rank}", str(rank))]
        return {"rank": rank, "argv": argv, "environment": {}, "log": str(self.root / f"logs/rank{rank}.log")}

    def start(self, work: dict[str, Any], *options: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start the node's part with the work on its standard input, which stays open."""
        argv = [sys.executable, str(AGENT), "run", "-", *options]
        environment = {**os.environ, MARK: self.mark, **more.pop("environment", {})}
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, **more)
        self.started.append(process)
        assert process.stdin
        process.stdin.write((json.dumps(work) + "\n").encode())
        process.stdin.flush()
        return process

    def run(self, work: dict[str, Any], *options: str, **more: Any) -> int:
        return self.start(work, *options, **more).wait(60)

    def record(self, node: int = 0) -> list[dict[str, Any]]:
        path = self.root / f"nodes/node{node}.record.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def ended(self) -> dict[str, Any]:
        last = self.record()[-1]
        assert last["event"] == "ended"
        return last

    def running(self) -> list[psutil.Process]:
        return list(self._marked())

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    yield process
            except psutil.Error:
                continue

    def ranks(self) -> list[psutil.Process]:
        return [process for process in self.running() if str(AGENT) not in process.cmdline()]

    def end(self) -> None:
        for process in self.started:
            for stream in (process.stdin, process.stdout):
                if stream:
                    with suppress(BrokenPipeError):  # of what is still unsent to a node's part that has ended
                        stream.close()
            process.kill()
            process.wait()
        for left in self.running():
            left.kill()


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> bool:
    """Whether the condition came true before long."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def send_many(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal for half a second again and again: it arrives while the process is still within its handler."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline and process.poll() is None:
        for _ in range(100):
            process.send_signal(number)


def frames(printed: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def received(sent: list[dict[str, Any]], name: str) -> bytes:
    """The file as its frames give it; a frame at a wrong offset fails."""
    content = b""
    for frame in sent:
        if frame.get("file") == name:
            assert frame["at"] == len(content)
            content += frame["data"].encode() if "data" in frame else base64.b64decode(frame["base64"])
    return content
