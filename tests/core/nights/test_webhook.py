"""A delivery to a real server on loopback: taken, refused, redirected, slow and failing; the URL is in no message."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from levelfield.errors import UsageError
from levelfield.nights.webhook import WEBHOOK_VARIABLE, deliver, webhook_url

SECRET = "s3cret-t0ken"
QUICK = (0.0, 0.0)


@dataclass
class Receiver:
    """A server. answers: of the next requests, the last one for all further; got: the documents with their headers."""

    answers: list[int] = field(default_factory=lambda: [200])
    got: list[tuple[dict[str, str], Any]] = field(default_factory=list)
    slow: Callable[[Any], None] = lambda handler: None
    url: str = ""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    target = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            target.got.append(({k.lower(): v for k, v in self.headers.items()}, json.loads(content)))
            target.slow(self)
            self.send_response(target.answers.pop(0) if len(target.answers) > 1 else target.answers[0])
            self.send_header("Location", f"{target.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            target.got.append(({}, "a redirect was followed"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        target.url = f"http://127.0.0.1:{server.server_port}/{SECRET}"
        yield target
        server.shutdown()
        thread.join()


def test_a_document_arrives_once_as_it_is(receiver: Receiver) -> None:
    assert deliver(receiver.url, json.dumps({"verdict": "ä"}), QUICK) is None
    ((headers, document),) = receiver.got
    assert document == {"verdict": "ä"} and headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("levelfield/")


@pytest.mark.parametrize("answers", [[500, 503, 200], [429, 200]])
def test_a_failing_server_is_tried_again(receiver: Receiver, answers: list[int]) -> None:
    receiver.answers = list(answers)
    assert deliver(receiver.url, "{}", QUICK) is None and len(receiver.got) == len(answers)


@pytest.mark.parametrize(
    ("answer", "tries", "reason"),
    [
        (500, 3, "the server answered 500 (3 tries)"),
        (403, 1, "the server answered 403"),
        (302, 1, "the server answered 302; redirects are not followed, so name the last URL"),
        (307, 1, "the server answered 307; redirects are not followed, so name the last URL"),
    ],
)
def test_what_is_not_taken_is_said_and_tried_a_bounded_number_of_times(
    receiver: Receiver, answer: int, tries: int, reason: str
) -> None:
    receiver.answers = [answer]
    assert deliver(receiver.url, "{}", QUICK) == reason and len(receiver.got) == tries


def test_a_server_that_is_not_there_is_said_without_the_url() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reason = deliver(f"http://127.0.0.1:{port}/{SECRET}", "{}", QUICK)
    assert reason is not None and "refused" in reason and reason.endswith(" (3 tries)")


def test_a_server_that_does_not_answer_is_left(receiver: Receiver) -> None:
    done = threading.Event()

    def hang(handler: Any) -> None:
        done.wait(30)

    receiver.slow = hang
    reason = deliver(receiver.url, "{}", (0.0,), answer_seconds=0.1)
    done.set()
    assert reason is not None and "in time" in reason and reason.endswith(" (2 tries)")


def test_a_server_that_answers_byte_by_byte_is_left(receiver: Receiver) -> None:
    """Each byte comes in time, and the answer never ends."""
    done = threading.Event()

    def trickle(handler: Any) -> None:
        while not done.wait(0.02):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    receiver.slow = trickle
    reason = deliver(receiver.url, "{}", (), answer_seconds=5, all_seconds=0.3)
    done.set()
    assert reason is not None and "whole answer" in reason and reason.endswith(" 0 s")


@pytest.mark.parametrize("url", [f"http://[{SECRET}", f"https://{SECRET}.invalid:99999/x", f"http://a b/{SECRET}"])
def test_no_error_has_the_url(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    reason = deliver(url, "{}", ())
    assert reason and SECRET not in reason


class TestSecret:
    def test_it_comes_from_a_file_or_a_variable_that_no_run_inherits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(WEBHOOK_VARIABLE, f" https://x/{SECRET}\n")
        assert webhook_url(None) == f"https://x/{SECRET}" and WEBHOOK_VARIABLE not in os.environ
        assert webhook_url(None) is None
        (tmp_path / "url").write_text(f"https://y/{SECRET}\n")
        monkeypatch.setenv(WEBHOOK_VARIABLE, "https://x")
        assert webhook_url(tmp_path / "url") == f"https://y/{SECRET}" and WEBHOOK_VARIABLE not in os.environ

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "found no URL"),
            (f"ftp://x/{SECRET}".encode(), "found no URL"),
            (f"{SECRET}".encode(), "found no URL"),
            (f"https://x/{SECRET}\nhttps://y".encode(), "found no URL"),
            (f"https:///{SECRET}".encode(), "found no URL"),
            (f"https://[{SECRET}".encode(), "found no URL"),
            (b"\xff" + SECRET.encode(), "found bytes that are no text"),
            (b"https://x/" + b"a" * 9000, "cannot be read"),
            (None, "cannot be read: No such file"),
        ],
    )
    def test_a_wrong_file_is_said_without_its_text(self, content: bytes | None, reason: str, tmp_path: Path) -> None:
        if content is not None:
            (tmp_path / "url").write_bytes(content)
        with pytest.raises(UsageError, match=reason) as error:
            webhook_url(tmp_path / "url")
        assert SECRET not in str(error.value)
