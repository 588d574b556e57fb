"""A connection that failed is told in words of the network, whichever library and however many wrappers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import requests
import urllib3
from levelfield.errors import connection_failure_text

Get = Callable[[str], object]


@pytest.fixture(params=["urllib3", "urllib3 with retries", "requests"])
def get(request: pytest.FixtureRequest) -> Get:
    if request.param == "requests":
        return lambda url: requests.get(url, timeout=0.3)
    retries = urllib3.Retry(1) if "retries" in request.param else False
    return lambda url: urllib3.PoolManager(retries=retries, timeout=0.3).request("GET", url)


@pytest.fixture(
    params=[b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", None], ids=["closed", "short", "silent"]
)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The address of a server on this machine, and the expected words for its answer."""
    server, answer = socket.create_server(("127.0.0.1", 0)), request.param
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connections.append(server.accept()[0])
            except OSError:
                return
            if answer is not None:
                connections[-1].recv(4096)
                connections[-1].sendall(answer)
                connections[-1].close()

    threading.Thread(target=serve, daemon=True).start()
    yield (
        f"127.0.0.1:{server.getsockname()[1]}",
        "no answer in time" if answer is None else "broke before the answer was whole",
    )
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for connection in connections:
        connection.close()


def reason(get: Get, url: str) -> str:
    with pytest.raises((urllib3.exceptions.HTTPError, OSError)) as raised:
        get(url)
    text = connection_failure_text(raised.value)
    assert not any(word in text for word in ("Pool", "object at", "Max retries", "Error("))
    return text


def test_a_server_that_gives_no_whole_answer(get: Get, served: tuple[str, str]) -> None:
    address, expected = served
    assert expected in reason(get, f"http://{address}/")


def test_a_server_that_is_not_there(get: Get) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for url, text in (
        (f"https://127.0.0.1:{port}/", "connection refused"),
        ("https://no-such-host.invalid/", "its name does not resolve"),
    ):
        assert reason(get, url) == text


def test_objects_of_a_library_are_left_out() -> None:
    pool = "HTTPSConnectionPool(host='a', port=1): Tunnel <x.Y object at 0x7f00>: failed"
    assert connection_failure_text(ValueError(pool)) == "tunnel failed"
    assert connection_failure_text(ValueError("")) == "ValueError"
    loop = ValueError("a", KeyError("b"))
    loop.__cause__ = loop
    assert connection_failure_text(loop).startswith("('a'")
