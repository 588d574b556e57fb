"""Requests to a cluster's API, with the official client's configuration, certificates and tokens.

Bodies are sent as the manifest has them: no model of the client changes or drops a key.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import urllib3

from levelfield.errors import UsageError, connection_failure_text
from levelfield.user_folders import home_folder

CLIENT_REQUIREMENT = "kubernetes==37.0.2"
MIN_MINOR_VERSION = 26  # the minor version: an older cluster silently drops keys of a Job
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 30.0
QUICK_SECONDS = 3.0  # for the answer to a question that is asked again soon
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 10.0  # the first and the longest pause between tries
MAX_ASKED_SECONDS = 30.0  # the longest pause that a cluster may ask for
PART_BYTES = 65536
MAX_LINE_BYTES = 4 * 2**20  # the API's objects have less than 2 MiB
COLLECTIONS = {  # every apiVersion and kind that a run may create: the path below the namespace
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("batch/v1", "Job"): "jobs",
}
Fields = dict[str, Any]


T = TypeVar("T")


class ClusterError(Exception):
    """A request failed. pause_seconds: how long the cluster asks to wait before the next one."""

    pause_seconds = 0.0

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a moment later."""
        return True


class ClusterRefusal(ClusterError):
    """The cluster answered with an error. status: the HTTP status. The message is the cluster's own.

    reason: the API's word for the error; empty where a proxy answered.
    """

    def __init__(self, status: int, message: str, reason: str = "", pause_seconds: float = 0.0) -> None:
        super().__init__(f"{message} ({status})")
        self.status, self.reason, self.pause_seconds = status, reason, pause_seconds

    @property
    def is_passing(self) -> bool:
        # a proxy in front of an API server that starts again answers 401, and admission webhooks 500; a Conflict is
        # that of two writers of a quota
        statuses = (HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
        return self.status in statuses or self.is_server_error or self.reason == "Conflict"

    @property
    def is_server_error(self) -> bool:
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class ClusterSilence(ClusterError):
    """The cluster gave no answer, or the connection to it broke."""


class Backoff:
    """Pauses between tries, each about twice as long as the last one. They vary, so that clients do not try at once."""

    def __init__(self) -> None:
        self._next_seconds = RETRY_SECONDS

    def reset(self) -> None:
        self._next_seconds = RETRY_SECONDS

    def pause_seconds(self, asked_seconds: float = 0.0) -> float:
        """Return the next pause. asked_seconds: the shortest one that the cluster asks for."""
        pause = self._next_seconds * random.uniform(0.75, 1.25)
        self._next_seconds = min(2 * self._next_seconds, MAX_RETRY_SECONDS)
        return max(pause, min(asked_seconds, MAX_ASKED_SECONDS))


def retried(send: Callable[[float], T], subject: str, limit_seconds: float, say: Callable[[str], None]) -> T:
    """Return what `send` returns. It is tried again, up to a limit, while the cluster fails in a way that may pass.

    send: gets the seconds that are left. subject: what is tried, for a sentence before each pause. Raises the last
    ClusterError.
    """
    deadline, backoff = time.monotonic() + limit_seconds, Backoff()
    while True:
        try:
            return send(max(0.1, deadline - time.monotonic()))
        except ClusterError as error:
            pause = backoff.pause_seconds(error.pause_seconds)
            if not error.is_passing or time.monotonic() + pause > deadline:
                raise
            say(f"{subject} is tried again for up to {limit_seconds:.0f} s: {error}")
            time.sleep(pause)


class ClusterApi:
    """One cluster, as a context of the user's kubeconfig reaches it."""

    def __init__(self, context: str | None, max_connections: int = 16) -> None:
        """Read the configuration. Raises UsageError where there is none, or where the client is not installed."""
        try:
            from kubernetes import client, config
        except ImportError:
            raise UsageError(
                "--launcher kubernetes needs the package kubernetes in the Python that runs Levelfield: "
                f"{sys.executable} -m pip install '{CLIENT_REQUIREMENT}'"
            ) from None
        settings = client.Configuration()
        path = os.environ.get("KUBECONFIG") or str(home_folder() / ".kube" / "config")
        try:
            if context is None and "KUBERNETES_SERVICE_HOST" in os.environ and not Path(path).exists():
                # without a kubeconfig: the account of the pod that this process runs in
                config.load_incluster_config(client_configuration=settings)
            else:
                config.load_kube_config(config_file=path, context=context, client_configuration=settings)
        except (config.ConfigException, OSError, ValueError) as error:
            context_text = f"context {context}" if context else "the current context"
            reason = " ".join(str(error).split()).rstrip(".")
            raise UsageError(
                f"kubeconfig: {context_text}: {reason}; `kubectl config get-contexts` lists them"
            ) from None
        settings.connection_pool_maxsize = max_connections
        settings.retries = False  # else urllib3 tries again by itself, and waits as long as a server asks
        self._client, self.address = client.ApiClient(settings), str(settings.host)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, limit_seconds: float = ANSWER_SECONDS, **query: object) -> Fields:
        return self.answer("GET", path, query, limit_seconds=limit_seconds)

    def create(self, document: Mapping[str, Any], limit_seconds: float = ANSWER_SECONDS) -> Fields:
        """Create an object, and return it as the cluster has it. Clusters since 1.25 refuse an unknown key."""
        collection = object_path(document).rpartition("/")[0]
        return self.answer("POST", collection, {"fieldValidation": "Strict"}, document, limit_seconds)

    def delete(self, path: str, limit_seconds: float = ANSWER_SECONDS) -> bool:
        """Delete an object with everything that it owns. Return whether it was there."""
        try:
            self.answer("DELETE", path, {"propagationPolicy": "Foreground"}, limit_seconds=limit_seconds)
        except ClusterRefusal as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def lines(self, path: str, silence_seconds: float, **query: object) -> Iterator[bytes]:
        """Yield the complete lines of an endless answer, such as a log, until the server or the network ends it.

        Raises ClusterSilence when nothing comes for `silence_seconds`, or when the connection breaks.
        """
        response = self._open_response("GET", path, query, silence_seconds=silence_seconds)
        partial_line = b""
        try:
            while part := response.read1(PART_BYTES):
                *whole_lines, partial_line = (partial_line + part).split(b"\n")
                yield from whole_lines
                if len(partial_line) > MAX_LINE_BYTES:
                    raise ClusterSilence(f"found a line of more than {MAX_LINE_BYTES} bytes")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterSilence(connection_failure_text(error)) from None
        finally:
            response.close()

    def answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, Any] | None = None,
        limit_seconds: float = ANSWER_SECONDS,
    ) -> Fields:
        """Send one request and return the answer. Raises ClusterRefusal and ClusterSilence."""
        response = self._open_response(method, path, query or {}, body, min(limit_seconds, ANSWER_SECONDS))
        try:
            content = json.loads(response.data or b"{}")
        except urllib3.exceptions.HTTPError as error:
            raise ClusterSilence(connection_failure_text(error)) from None
        except ValueError:
            raise ClusterSilence(f"{self.address}: the answer is no JSON") from None
        finally:
            response.release_conn()
        return content if isinstance(content, dict) else {}

    def _open_response(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: Mapping[str, Any] | None = None,
        silence_seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """Send one request; return the response with its content unread. Raises ClusterRefusal and ClusterSilence."""
        query_pairs = [
            (name, str(value).lower() if isinstance(value, bool) else value) for name, value in query.items()
        ]
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", **({"Content-Type": content_type} if body else {})}
        call = self._client.param_serialize(
            method, path, query_params=query_pairs, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            timeouts = (min(CONNECT_SECONDS, silence_seconds), silence_seconds)
            response = self._client.call_api(*call, _request_timeout=timeouts).response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterSilence(connection_failure_text(error)) from None
        except Exception as error:  # the client's own errors about certificates, and those of a plugin for tokens
            raise ClusterSilence(f"{type(error).__name__}: {connection_failure_text(error)}") from None
        if response.status < 400:
            return response
        text = response.data.decode(errors="replace")
        reason, message = "", " ".join(text.split())[:200] or str(response.reason)
        try:  # the API's Status object, else the beginning of a proxy's text
            status = json.loads(text)
            reason, message = str(status.get("reason") or ""), " ".join(str(status["message"]).split())[:500]
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise ClusterRefusal(response.status, message, reason, _asked_pause(response.headers.get("Retry-After")))


def _asked_pause(header: str | None) -> float:
    """Return the seconds of a header Retry-After. API servers send whole seconds; a proxy's date counts as none."""
    return float(header) if header and header.isdecimal() and len(header) < 10 else 0.0


def object_path(document: Mapping[str, Any]) -> str:
    """Return the path of an object, below the collection of its kind in its namespace."""
    version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}/namespaces/{metadata['namespace']}/{COLLECTIONS[version, kind]}/{metadata['name']}"
