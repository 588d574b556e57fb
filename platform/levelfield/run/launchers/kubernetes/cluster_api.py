"""Requests to a cluster's API, with the official client's configuration, certificates and tokens.

Bodies are sent as the manifest has them: no model of the client changes or drops a key.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3

from levelfield.errors import UsageError, connection_failure_text
from levelfield.user_folders import home_folder

CLIENT_REQUIREMENT = "kubernetes==37.0.2"
MIN_MINOR_VERSION = 26  # the minor version: an older cluster silently drops keys of a Job
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 30.0
PART_BYTES = 65536
MAX_LINE_BYTES = 4 * 2**20  # the API's objects have less than 2 MiB
COLLECTIONS = {  # every apiVersion and kind that a run may create: the path below the namespace
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("batch/v1", "Job"): "jobs",
}
Fields = dict[str, Any]


class ClusterRefusal(Exception):
    """The cluster answered with an error. status: the HTTP status. The message is the cluster's own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} ({status})")
        self.status = status


class ClusterSilence(Exception):
    """The cluster gave no answer, or the connection to it broke."""


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
        self._client, self.address = client.ApiClient(settings), str(settings.host)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **query: object) -> Fields:
        return self.answer("GET", path, query)

    def create(self, document: Mapping[str, Any]) -> Fields:
        """Create an object, and return it as the cluster has it. Clusters since 1.25 refuse an unknown key."""
        collection = object_path(document).rpartition("/")[0]
        return self.answer("POST", collection, {"fieldValidation": "Strict"}, document)

    def delete(self, path: str) -> bool:
        """Delete an object with everything that it owns. Return whether it was there."""
        try:
            self.answer("DELETE", path, {"propagationPolicy": "Foreground"})
        except ClusterRefusal as error:
            if error.status != 404:
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
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: Mapping[str, Any] | None = None
    ) -> Fields:
        """Send one request and return the answer. Raises ClusterRefusal and ClusterSilence."""
        response = self._open_response(method, path, query or {}, body)
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
            response = self._client.call_api(*call, _request_timeout=(CONNECT_SECONDS, silence_seconds)).response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterSilence(connection_failure_text(error)) from None
        except Exception as error:  # the client's own errors about certificates, and those of a plugin for tokens
            raise ClusterSilence(f"{type(error).__name__}: {connection_failure_text(error)}") from None
        if response.status < 400:
            return response
        text = response.data.decode(errors="replace")
        try:  # the message of the API's Status object, else the beginning of the text
            message = " ".join(str(json.loads(text)["message"]).split())[:500]
        except (ValueError, KeyError, TypeError):
            message = " ".join(text.split())[:200] or str(response.reason)
        raise ClusterRefusal(response.status, message)


def object_path(document: Mapping[str, Any]) -> str:
    """Return the path of an object, below the collection of its kind in its namespace."""
    version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}/namespaces/{metadata['namespace']}/{COLLECTIONS[version, kind]}/{metadata['name']}"
