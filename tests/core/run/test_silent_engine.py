"""A container engine that answers until the training runs, and then hangs: a server on a socket, without containers."""

from __future__ import annotations

import errno
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from levelfield.contracts.execution import ContainerWork, NodeWork, ProcessWork, Request
from levelfield.errors import RunFailed
from levelfield.run.launchers.container_launcher import ContainerLauncher
from levelfield.run.runtimes.docker import DockerRuntime
from levelfield.specs.plan import Plan
from levelfield.specs.vendor import ContainerOptions


class Engine(socketserver.ThreadingUnixStreamServer):
    """Answers as Docker's does. `is_silent`: it accepts requests and answers none. `is_gone`: it closes connections."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, socket: Path) -> None:
        super().__init__(str(socket), Answers)
        self.is_silent = threading.Event()
        self.is_gone = threading.Event()
        self.complaint: str | None = None
        self.is_closed = threading.Event()
        self.state: dict[str, object] = {"Running": True, "ExitCode": 0, "Pid": 1, "OOMKilled": False}


class Answers(BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if self.server.is_gone.is_set():
            self.close_connection = True
            return
        if self.server.is_silent.is_set():
            self.server.is_closed.wait(120)
            return
        if self.server.complaint and not path.endswith(("/_ping", "/version")):
            return self._send({"message": self.server.complaint}, 500)
        if path.endswith("/attach"):
            self.send_response(101)
            self.end_headers()
            self.server.is_closed.wait(120)
            return
        container = {"Id": "c0", "Name": "/node0", "State": self.server.state, "Config": {"Tty": True}}
        self._send({**container, "ApiVersion": "1.43", "Warnings": []})

    do_POST = do_DELETE = do_GET  # noqa: N815

    def _send(self, content: Any, code: int = 200) -> None:
        body = b"" if self.path.partition("?")[0].endswith(("/start", "/logs")) else json.dumps(content).encode()
        self.send_response(code if body else 204)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    server = Engine(tmp_path / "engine.sock")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    yield server
    server.is_closed.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def request_of_one(tmp_path: Path) -> Request:
    work = ContainerWork("node0", "image", ("python",), "0:0", {}, {}, "none", {}, ContainerOptions())
    ranks = (ProcessWork(0, (), {}, str(tmp_path / "logs" / "rank0.log")),)
    node = NodeWork(
        0, "127.0.0.1", ranks, work, file=str(tmp_path / "nodes" / "node0.json"), ends=str(tmp_path / "ends.json")
    )
    return Request("containers", "docker", (node,), str(tmp_path), 60, 60, 60)


def test_an_engine_that_fails_before_the_training_gives_a_result(engine: Engine, plan_for: Callable[..., Plan]) -> None:
    engine.complaint = "write /var/lib: no space left on device"
    plan = plan_for("tiny:fake:F1:1:1", may_lack_hardware=True)
    runtime, failed = DockerRuntime(), pytest.raises(RunFailed, match=engine.complaint)
    with failed, runtime.in_use(plan, print):
        pytest.fail("it is in use")


@pytest.mark.drill
def test_an_interrupt_of_a_silent_engine_ends_within_seconds(request_of_one: Request, engine: Engine) -> None:
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    def watch() -> None:
        engine.is_silent.set()
        threading.Timer(0.5, press).start()

    outcome = ContainerLauncher().execute(request_of_one, watch)
    assert time.monotonic() - pressed[0] < 15
    assert outcome.cause == "interrupted"
    assert "an interrupt" in outcome.warnings[0]
    assert " node0, " in outcome.warnings[1] and "--force node0`" in outcome.warnings[1]
    assert [(end.rank, end.exit_code, end.signal) for end in outcome.ends] == [(0, None, None)]


FIRST = """import json, pathlib, signal, sys, time
work = json.loads(pathlib.Path(sys.argv[1]).read_text())
def end(number, frame):
    ends = [{"rank": 0, "exit_code": None, "signal": 15, "stopped_by_us": True}]
    pathlib.Path(work["ends"]).write_text(json.dumps(ends))
    sys.exit(0)
signal.signal(signal.SIGTERM, end if PLAYS else signal.SIG_IGN)
pathlib.Path(sys.argv[1] + ".ready").touch()
time.sleep(120)
"""


@pytest.mark.drill
@pytest.mark.parametrize("plays", [True, False])
@pytest.mark.parametrize("lost", ["gone", "silent"])
def test_the_processes_of_a_lost_engine_are_ended(
    plays: bool, lost: str, request_of_one: Request, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of this machine plays the container's first one; `plays`: it ends on SIGTERM and writes its ends."""
    monkeypatch.setattr("levelfield.run.runtimes.engine.TIMEOUT_SECONDS", 2)
    monkeypatch.setattr("levelfield.run.launchers.container_launcher.STOP_SECONDS", 1)
    node = request_of_one.nodes[0]
    script, file = tmp_path / "first.py", Path(str(node.file))
    script.write_text(FIRST.replace("PLAYS", str(plays)))
    assert node.container is not None
    container = replace(node.container, argv=("python", str(script), str(file)))
    started: list[subprocess.Popen[bytes]] = []

    def watch() -> None:
        if started:
            return
        started.append(subprocess.Popen([sys.executable, str(script), str(file)]))
        while not Path(f"{file}.ready").exists():
            time.sleep(0.02)
        if lost == "silent":
            engine.is_silent.set()
        else:
            engine.is_gone.set()

    try:
        request = replace(request_of_one, nodes=(replace(node, container=container),))
        outcome = ContainerLauncher().execute(request, watch)
        assert started[0].wait(timeout=1) == (0 if plays else -signal.SIGKILL)
    finally:
        started[0].kill()
        started[0].wait()
    assert outcome.cause == "engine"
    expected = signal.SIGTERM if plays else signal.SIGKILL
    assert [(end.exit_code, end.signal, end.stopped_by_us) for end in outcome.ends] == [(None, expected, True)]
    assert " node0: no process" in outcome.warnings[0]


def test_a_file_that_cannot_be_read_is_no_fault_of_the_engine(request_of_one: Request, engine: Engine) -> None:
    def watch() -> None:
        engine.state["Running"] = False
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/runs/events")

    outcome = ContainerLauncher().execute(request_of_one, watch)
    assert (outcome.cause, outcome.evidence) == ("storage", f"/runs/events: {os.strerror(errno.ESTALE)}")
