"""A container engine that answers until the training runs, and then hangs: a server on a socket, without containers."""

from __future__ import annotations

import errno
import json
import os
import signal
import socketserver
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from levelfield.contracts.execution import ContainerWork, NodeWork, ProcessWork, Request
from levelfield.run.launchers.container_launcher import ContainerLauncher
from levelfield.specs.container import ContainerOptions


class Engine(socketserver.ThreadingUnixStreamServer):
    """Answers as Docker's does. Once `is_silent` is set it accepts requests and answers none of them."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, socket: Path) -> None:
        super().__init__(str(socket), Answers)
        self.is_silent = threading.Event()
        self.is_closed = threading.Event()
        self.state: dict[str, object] = {"Running": True, "ExitCode": 0, "Pid": 1, "OOMKilled": False}


class Answers(BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if self.server.is_silent.is_set():
            self.server.is_closed.wait(120)
            return
        if path.endswith("/attach"):
            self.send_response(101)
            self.end_headers()
            self.server.is_closed.wait(120)
            return
        container = {"Id": "c0", "Name": "/node0", "State": self.server.state, "Config": {"Tty": True}}
        self._send({**container, "ApiVersion": "1.43", "Warnings": []})

    def _send(self, content: Any) -> None:
        body = b"" if self.path.partition("?")[0].endswith(("/start", "/logs")) else json.dumps(content).encode()
        self.send_response(200 if body else 204)
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
    assert "node0 may still run; the next run removes it" in outcome.warnings[0]
    assert [(end.rank, end.exit_code, end.signal) for end in outcome.ends] == [(0, None, None)]


def test_a_file_that_cannot_be_read_is_no_fault_of_the_engine(request_of_one: Request, engine: Engine) -> None:
    def watch() -> None:
        engine.state["Running"] = False
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/runs/events")

    outcome = ContainerLauncher().execute(request_of_one, watch)
    assert (outcome.cause, outcome.evidence) == ("storage", "/runs/events: Stale file handle")
