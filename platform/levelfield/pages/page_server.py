"""Gives out the files of a site over HTTP, and nothing else: GET and HEAD, names of the manifest, known hosts."""

from __future__ import annotations

import ipaddress
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from levelfield.errors import UsageError
from levelfield.pages.page_rendering import POLICY
from levelfield.pages.site_files import NAME, content_of, manifest_of

LOOPBACK = "127.0.0.1"
_OWN_NAMES = ("localhost", LOOPBACK, "[::1]")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_SECONDS = 20.0  # for a request to arrive


class PageFiles:
    """The files of a site by their addresses. The list is read again when the site was made again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read_at = folder, -1
        self._names: frozenset[str] = frozenset()
        self._refresh()

    def content(self, address: str) -> tuple[str, bytes] | None:
        """Return (name, bytes) of an address; None where the site has no such file, or it is a link."""
        self._refresh()
        name = unquote(urlsplit(address).path).removeprefix("/")
        name = f"{name}index.html" if name in ("", "zh/") else name
        if name not in self._names:
            return None
        try:
            return name, content_of(self._folder, name)
        except OSError:
            return None

    def _refresh(self) -> None:
        try:
            changed = (self._folder / NAME).stat().st_mtime_ns
        except OSError:
            changed = 0  # manifest_of says what is wrong
        if changed != self._read_at:
            self._names, self._read_at = frozenset(manifest_of(self._folder).files), changed


class PageServer(ThreadingHTTPServer):
    """Serves one site. Use `serve_forever`, and `server_close` at the end."""

    daemon_threads = True

    def __init__(self, folder: Path, host: str = LOOPBACK, port: int = 0) -> None:
        self.files = PageFiles(folder)
        address = ipaddress.ip_address(host)
        self.address_family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        super().__init__((host, port), _Handler)
        own = f"[{host}]" if address.version == 6 else host
        names = {own, *(_OWN_NAMES if address.is_loopback else ())}
        self.hosts = frozenset(
            {f"{name}:{self.server_port}" for name in names} | (names if self.server_port == 80 else set())
        )
        self.url = f"http://{own}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Report an error, but not that a browser went away before it had its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _SECONDS
    server_version, sys_version = "levelfield", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if self.headers.get("Host", "").lower() not in self.server.hosts:  # a page of another name (DNS rebinding)
            return self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"unknown host\n", with_body)
        try:
            found = self.server.files.content(self.path)
        except (UsageError, ValueError):  # the site is gone, or the address holds a NUL
            found = None
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n", with_body)
        name, content = found
        self._send(HTTPStatus.OK, _TYPES.get(Path(name).suffix, "text/plain; charset=utf-8"), content, with_body)

    def _send(self, status: HTTPStatus, kind: str, content: bytes, with_body: bool) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet: an address is text from elsewhere."""


def opened_server(folder: Path, host: str, port: int) -> PageServer:
    """Return the server of a site, which listens already. Raises UsageError for the folder, the host or the port."""
    try:
        if ipaddress.ip_address(host).is_unspecified:
            raise UsageError(f"--host {host}: found every address, expected the one that browsers will name")
        if manifest_of(folder).private and not ipaddress.ip_address(host).is_loopback:
            raise UsageError(f"--host {host}: {folder} has private runs; it is served to this machine alone")
        return PageServer(folder, host, port)
    except ValueError:
        raise UsageError(f"--host {host}: found no IP address, expected one such as {LOOPBACK}") from None
    except (OSError, OverflowError) as error:
        raise UsageError(f"--host {host} --port {port}: cannot listen there: {error}; choose another port") from None
