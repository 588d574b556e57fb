"""The server gives out the site's files and nothing else: methods, hosts, addresses, links, headers."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from levelfield.errors import UsageError
from levelfield.pages.page_server import PageServer, opened_server


@pytest.fixture
def site(seeded_pages: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(seeded_pages, tmp_path / "site"))


@pytest.fixture
def server(site: Path) -> Iterator[PageServer]:
    served = opened_server(site, "127.0.0.1", 0)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def ask(
    server: PageServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_port}" if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, {name.lower(): value for name, value in answer.getheaders()}


def test_pages_scripts_and_data_are_given_out_with_their_types(server: PageServer, site: Path) -> None:
    types = {"/": "text/html", "/zh/": "text/html", "/index.html": "text/html", "/assets/page.js": "text/javascript"}
    types |= {"/data/site.js": "text/javascript", "/assets/style.css": "text/css", "/assets/icon.svg": "image/svg+xml"}
    for path, kind in types.items():
        status, content, headers = ask(server, path)
        assert status == 200 and headers["content-type"].startswith(kind), path
        assert int(headers["content-length"]) == len(content) > 0
    assert ask(server, "/index.html?a=b#c")[1] == (site / "index.html").read_bytes()


def test_every_answer_carries_the_policy(server: PageServer) -> None:
    for path in ("/", "/nowhere"):
        headers = ask(server, path)[2]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_head_has_the_headers_alone(server: PageServer) -> None:
    status, content, headers = ask(server, "/", "HEAD")
    assert status == 200 and content == b"" and int(headers["content-length"]) > 1000


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get"])
def test_no_other_method_is_answered(server: PageServer, method: str) -> None:
    assert ask(server, "/", method)[0] == 501


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/data/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%252e%252e/secret.txt",
        "//127.0.0.1/../secret.txt",
        "/secret.txt%00.html",
        "/data/",
        "/data",
        "/assets/uplot/",
        "/site.json",
        "/own.html",
        "/data/link.js",
        "/data/.index.js",
        "/nowhere",
        "/zh",
        "/\\..\\secret.txt",
    ],
)
def test_what_is_no_file_of_the_site_is_not_found(server: PageServer, site: Path, path: str) -> None:
    (site.parent / "secret.txt").write_text("secret")
    (site / "own.html").write_text("secret")
    (site / "data/link.js").symlink_to(site.parent / "secret.txt")
    status, content, _ = ask(server, path)
    assert status == 404 and b"secret" not in content


def test_a_file_that_became_a_link_is_not_followed(server: PageServer, site: Path) -> None:
    (site.parent / "secret.txt").write_text("secret")
    (site / "guide.html").unlink()
    (site / "guide.html").symlink_to(site.parent / "secret.txt")
    assert ask(server, "/guide.html")[0] == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}", "", "localhost:1"]
)
def test_another_host_is_refused(server: PageServer, host: str) -> None:
    """A page of another name that resolves to this machine (DNS rebinding) reads nothing."""
    status, content, _ = ask(server, "/", host=host.format(port=server.server_port))
    assert status == 421 and b"Overview" not in content


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_this_machine_has_several_names(server: PageServer, host: str) -> None:
    assert ask(server, "/", host=host.format(port=server.server_port))[0] == 200


def test_a_request_without_a_host_is_refused(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 421 " in connection.recv(100)


def test_a_site_that_is_made_again_is_read_again(server: PageServer, site: Path) -> None:
    assert ask(server, "/guide.html")[0] == 200
    manifest = site / "site.json"
    content = json.loads(manifest.read_text())
    del content["files"]["guide.html"]
    manifest.write_text(json.dumps(content))
    assert ask(server, "/guide.html")[0] == 404


def test_a_site_that_is_gone_is_not_found(server: PageServer, site: Path) -> None:
    shutil.rmtree(site)
    assert ask(server, "/")[0] == 404


def test_it_listens_on_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1" and server.url.startswith("http://127.0.0.1:")


def test_a_folder_without_pages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this is no folder of pages; make one with `report pages"):
        opened_server(tmp_path, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [
        ("0.0.0.0", 0, "expected the one that browsers will name"),
        ("::", 0, "expected the one that browsers will name"),
        ("example.org", 0, "expected one such as 127.0.0.1"),
        ("203.0.113.7", 0, "cannot listen there"),
        ("127.0.0.1", 70000, "cannot listen there"),
    ],
)
def test_an_address_that_cannot_be_is_refused(site: Path, host: str, port: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        opened_server(site, host, port)


def test_a_port_in_use_is_named(server: PageServer, site: Path) -> None:
    with pytest.raises(UsageError, match=f"--port {server.server_port}: cannot listen there"):
        opened_server(site, "127.0.0.1", server.server_port)


def test_a_browser_that_leaves_puts_no_traceback_on_the_terminal(
    server: PageServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):  # now before the server reads the request, now while it answers
        connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
        connection.sendall(f"GET /assets/charts.js HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        connection.close()
    assert ask(server, "/")[0] == 200
    assert capsys.readouterr().err == ""


def test_another_error_of_the_server_is_reported(
    server: PageServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.files, "content", lambda address: 1 / 0)
    with pytest.raises(http.client.RemoteDisconnected):
        ask(server, "/")
    assert "ZeroDivisionError" in capsys.readouterr().err
