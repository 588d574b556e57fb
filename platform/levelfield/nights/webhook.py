"""Sends the report of a night to a URL as one JSON document. The URL is a secret: no message and no file has it.

A failed delivery changes nothing: the caller says why. Redirects are not followed, so the document goes nowhere that
the user did not name.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import levelfield
from levelfield.errors import UsageError
from levelfield.node.regular_files import read_regular

WEBHOOK_VARIABLE = "LEVELFIELD_WEBHOOK"  # holds the address
RETRY_WAITS = (1.0, 5.0)  # seconds before the second and the third try
MAX_ANSWER_SECONDS, MAX_DELIVERY_SECONDS = 10.0, 60.0  # of one try, and of all
_RETRYABLE_CODES = frozenset({408, 429, *range(500, 600)})  # status codes after which another try may help
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "no answer in time"),
    (ConnectionRefusedError, "the connection was refused"),
    (socket.gaierror, "the name of the host is not known"),
    (ssl.SSLError, "the certificate is not valid for the host"),
)


def webhook_url(file: Path | None) -> str | None:
    """Return the URL of a file, else of LEVELFIELD_WEBHOOK, which is removed so that no run inherits it.

    Raises UsageError for a file or a URL that cannot be used, without its text.
    """
    text, origin = os.environ.pop(WEBHOOK_VARIABLE, ""), WEBHOOK_VARIABLE
    if file is None and not text.strip():
        return None
    if file is not None:
        origin = f"--webhook-file {file}"
        try:
            text = read_regular(file, "URL").decode()
        except OSError as error:
            raise UsageError(f"{origin}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{origin}: found bytes that are no text, expected a URL") from None
    url = text.strip()
    try:
        parts = urllib.parse.urlsplit(url)
        is_url = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{origin}: found no URL, expected one line that begins with https://")
    return url


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


def deliver(
    url: str,
    document: str,
    waits: tuple[float, ...] = RETRY_WAITS,
    answer_seconds: float = MAX_ANSWER_SECONDS,
    all_seconds: float = MAX_DELIVERY_SECONDS,
) -> str | None:
    """Send the document and return why it was not accepted; None where it was. It never raises."""
    answers: list[str | None] = []

    def send() -> None:
        for number, wait in enumerate((*waits, 0.0), 1):
            reason, may_help = _send_once(url, document, answer_seconds)
            if reason is None or not may_help or number > len(waits):
                break
            time.sleep(wait)
        answers.append(reason if reason is None or number == 1 else f"{reason} ({number} tries)")

    # A server that answers byte by byte never exceeds the limit of a socket, so all tries have a limit of their own.
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(all_seconds)
    return answers[0] if answers else f"no whole answer within {all_seconds:.0f} s"


def _send_once(url: str, document: str, seconds: float) -> tuple[str | None, bool]:
    """Send once. Return why the document was not accepted, and whether another try may help."""
    headers = {"Content-Type": "application/json", "User-Agent": f"levelfield/{levelfield.__version__}"}
    try:
        request = urllib.request.Request(url, document.encode(), headers, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=seconds):
            return None, False
    except urllib.error.HTTPError as error:
        error.close()
        where = "; redirects are not followed, so name the last URL" if 300 <= error.code < 400 else ""
        return f"the server answered {error.code}{where}", error.code in _RETRYABLE_CODES
    except Exception as error:  # its text may have the URL, so the message has only its type
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        message = next((text for kind, text in _REASONS if isinstance(cause, kind)), None)
        return message or f"the connection failed ({type(cause).__name__})", True
