"""A cluster's API in this process, for the real client: it keeps objects, watches, logs, and fails on request.

It answers as an API server does: Status objects with reason and code, Retry-After, versions of which old ones are
expired, bookmarks, watches that end in time. Its kubelet is a thread: it runs each pod's command here, with the pod's
folders below a temporary folder. Nothing of a cluster is tested with it but the requests of the client and what follows
from the answers.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

INDEX = "batch.kubernetes.io/job-completion-index"
BOOKMARK_SECONDS = 1.0  # a real server sends one about once a minute
REASONS = {  # https://github.com/kubernetes/apimachinery, pkg/apis/meta/v1/types.go
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists", 410: "Expired",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
SILENT, RESET = 0, -1  # in place of a status: no answer, and a connection that breaks
Fields = dict[str, Any]


@dataclass
class Fault:
    """A wrong answer to requests of one kind. method: also WATCH for a watch, and EVENT for an ERROR within a watch."""

    method: str
    path: str  # how it ends
    status: int
    message: str
    times: int | None  # None: always
    pause_seconds: int | None  # Retry-After
    is_late: bool  # the request is carried out before the wrong answer
    text: str | None  # in place of a Status, as a proxy answers


def status_object(code: int, message: str, reason: str | None = None) -> Fields:
    """Return the Status with which an API server refuses."""
    reason = REASONS.get(code, "") if reason is None else reason
    fields = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return {**fields, "reason": reason, "code": code}


class SimulatedCluster:
    """Objects by path, the changes of pods for watches, and planned faults.

    broken_watches, broken_logs: how often a watch or a log is cut. dead_machines: the indexes of pods whose logs cannot
    be read. played: called with this cluster when the pods' object is created.
    """

    def __init__(self, played: Callable[[SimulatedCluster], None]) -> None:
        self.objects: dict[str, Fields] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.faults: list[Fault] = []
        self.reviews: dict[str, bool] = {}
        self.broken_watches = self.broken_logs = 0
        self.dead_machines: set[int] = set()
        self.secrets: list[Fields] = []
        self.events: list[Fields] = []
        self.pods: dict[str, Fields] = {}
        self.logs: dict[str, Callable[[], Iterator[bytes]]] = {}
        self.on_delete: Callable[[], None] = lambda: None
        self._played, self._version = played, 100
        self._changes: list[tuple[int, bytes]] = []  # version and line
        self._watched_version = 0  # up to which a watch has sent
        self.lock = threading.RLock()
        self.closing = False

    def fail(
        self,
        method: str,
        path: str,
        status: int,
        message: str = "planted",
        *,
        times: int | None = None,
        pause_seconds: int | None = None,
        is_late: bool = False,
        text: str | None = None,
    ) -> None:
        """Plan a wrong answer."""
        self.faults.append(Fault(method, path, status, message, times, pause_seconds, is_late, text))

    def fault_for(self, method: str, path: str) -> Fault | None:
        """Return the planned answer to a request, and count it."""
        with self.lock:
            for fault in self.faults:
                if fault.method == method and path.endswith(fault.path) and fault.times != 0:
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def warn(self, name: str, message: str, at: str = "2026-01-01T00:00:00Z") -> None:
        """Add a warning about an object, as the Job's controller gives it where it can make no pod."""
        about = {"involvedObject": {"name": name}, "type": "Warning", "reason": "FailedCreate"}
        self.events.append({**about, "message": message, "lastTimestamp": at})

    def main(self) -> Fields:
        """Return the object that runs the pods."""
        return next(v for v in self.objects.values() if v["kind"] == "Job")

    def pod(self, index: int, status: Fields, kind: str = "MODIFIED") -> None:
        """Set the status of a node's pod, and tell it to every watch."""
        with self.lock:
            self._version += 1
            name = f"{self.main()['metadata']['name']}-{index}-abcde"
            metadata = {"name": name, "annotations": {INDEX: str(index)}, "resourceVersion": str(self._version)}
            pod = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": f"machine{index}"}, "status": status}
            if kind == "DELETED":
                self.pods.pop(name, None)
            else:
                self.pods[name] = pod
            self._changes.append((self._version, json.dumps({"type": kind, "object": pod}).encode() + b"\n"))

    def is_seen(self) -> None:
        """Wait until a watch has sent everything, or a list has shown it."""
        while self._watched_version < self._version:
            time.sleep(0.02)
        time.sleep(0.3)

    def created(self, path: str, document: Fields) -> None:
        where = f"{path}/{document['metadata']['name']}"
        stored = {**document, "metadata": {**document["metadata"], "uid": f"uid-{len(self.objects)}"}}
        if document["kind"] == "Secret":
            self.secrets.append(document)
        self.objects[where] = stored
        if document["kind"] == "Job":
            threading.Thread(target=self._played, args=(self,), daemon=True).start()

    def deleted(self, path: str) -> bool:
        removed = self.objects.pop(path, None)
        if removed and removed["kind"] == "Job":
            self.on_delete()
            for name in list(self.pods):
                pod = self.pods[name]
                self.objects[path] = removed  # `pod` reads its name
                self.pod(int(pod["metadata"]["annotations"][INDEX]), pod["status"], "DELETED")
                self.objects.pop(path)
        return removed is not None

    def pod_list(self) -> Fields:
        with self.lock:
            self._watched_version = self._version
            metadata = {"resourceVersion": str(self._version)}
            return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": list(self.pods.values())}

    def watch(self, version: int, seconds: float, has_bookmarks: bool) -> Iterator[bytes]:
        """Yield the lines of a watch: changes after a version, and bookmarks, until its time is over."""
        deadline, next_bookmark = time.monotonic() + seconds, time.monotonic() + BOOKMARK_SECONDS
        while not self.closing and time.monotonic() < deadline:
            if any(fault.method == "WATCH" and fault.status == SILENT for fault in self.faults):
                time.sleep(0.03)  # the connection stands
                continue
            if fault := self.fault_for("EVENT", "/pods"):
                error = status_object(fault.status, fault.message)
                yield json.dumps({"type": "ERROR", "object": error}).encode() + b"\n"
                return
            with self.lock:
                changes = [change for change in self._changes if change[0] > version]
            for number, line in changes:
                yield line
                version = number
                self._watched_version = max(self._watched_version, number)
                if self.broken_watches > 0:
                    self.broken_watches -= 1
                    yield b'{"type": "MODI'
                    return
            if has_bookmarks and time.monotonic() >= next_bookmark:
                next_bookmark = time.monotonic() + BOOKMARK_SECONDS
                bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}}
                yield json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n"
            time.sleep(0.03)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: SimulatedCluster

    def log_message(self, format: str, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        url, length = urlsplit(self.path), int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        query = dict(parse_qsl(url.query))
        self.cluster.requests.append((method, url.path, body))
        fault = self.cluster.fault_for("WATCH" if query.get("watch") else method, url.path)
        if fault is None:
            return getattr(self, f"_{method.lower()}")(url.path, query, body)
        if fault.is_late:
            answer, self.wfile = self.wfile, io.BytesIO()
            getattr(self, f"_{method.lower()}")(url.path, query, body)
            self.wfile = answer
        self._fail(fault)

    def _fail(self, fault: Fault) -> None:
        if fault.status == RESET:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        elif fault.status == SILENT:
            while fault in self.cluster.faults and not self.cluster.closing:
                time.sleep(0.05)
            self.close_connection = True
        elif fault.text is not None:
            self._send(fault.status, fault.text.encode(), "text/html", fault.pause_seconds)
        else:
            self._refuse(fault.status, fault.message, fault.pause_seconds)

    def _get(self, path: str, query: dict[str, str], body: Any) -> None:
        cluster = self.cluster
        if path.endswith("/log"):
            return self._log(path.split("/")[-2])
        if path.endswith("/pods") and query.get("watch"):
            version, seconds = int(query["resourceVersion"]), float(query["timeoutSeconds"])
            return self._stream(cluster.watch(version, seconds, query.get("allowWatchBookmarks") == "true"))
        if path.endswith("/pods"):
            return self._send(200, cluster.pod_list())
        if path.endswith("/events"):
            name = query["fieldSelector"].rpartition("=")[2]
            return self._send(200, {"items": [e for e in cluster.events if e["involvedObject"]["name"] == name]})
        if path in cluster.objects:
            return self._send(200, cluster.objects[path])
        if path == "/version":
            return self._send(200, {"gitVersion": "v1.36.0"})
        self._refuse(404, f"{path} not found")

    def _log(self, pod: str) -> None:
        index = int(pod.split("-")[-2])
        if index in self.cluster.dead_machines:
            address = f"https://machine{index}:10250/containerLogs/benchmarks/{pod}/node"
            return self._refuse(500, f'Get "{address}?follow=true": dial tcp 10.0.0.7:10250: connect: no route to host')
        self._stream(self.cluster.logs.get(pod, lambda: iter(()))(), index)

    def _post(self, path: str, query: dict[str, str], body: Any) -> None:
        if path.endswith("selfsubjectaccessreviews"):
            attributes = body["spec"]["resourceAttributes"]
            what = f"{attributes['verb']} {attributes['resource']}"
            return self._send(201, {"status": {"allowed": self.cluster.reviews.get(what, True)}})
        if f"{path}/{body['metadata']['name']}" in self.cluster.objects:
            return self._refuse(409, f"{body['metadata']['name']} already exists")
        self.cluster.created(path, body)
        self._send(201, self.cluster.objects[f"{path}/{body['metadata']['name']}"])

    def _patch(self, path: str, query: dict[str, str], body: Any) -> None:
        self.cluster.objects[path]["metadata"] |= body["metadata"]
        self._send(200, self.cluster.objects[path])

    def _delete(self, path: str, query: dict[str, str], body: Any) -> None:
        if not self.cluster.deleted(path):
            return self._refuse(404, f"{path} not found")
        self._send(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _refuse(self, status: int, message: str, pause_seconds: int | None = None) -> None:
        self._send(status, status_object(status, message), pause_seconds=pause_seconds)

    def _send(
        self, status: int, content: Fields | bytes, kind: str = "application/json", pause_seconds: int | None = None
    ) -> None:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        if pause_seconds is not None:
            self.send_header("Retry-After", str(pause_seconds))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, lines: Iterator[bytes], log_index: int | None = None) -> None:
        """Send lines as they come: a log until the connection closes, a watch in chunks."""
        self.send_response(200)
        self.send_header("Connection", "close")
        if log_index is None:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for number, line in enumerate(lines):
                if log_index is not None:
                    while log_index in self.cluster.dead_machines and not self.cluster.closing:
                        time.sleep(0.05)  # the connection stands
                    if number > 3 and self.cluster.broken_logs > 0:
                        self.cluster.broken_logs -= 1
                        self.wfile.write(line[: len(line) // 2])
                        return
                self.wfile.write(line if log_index is not None else b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"" if log_index is not None else b"0\r\n\r\n")
        except OSError:
            pass


@contextmanager
def served(cluster: SimulatedCluster, folder: Path) -> Iterator[Path]:
    """Serve the cluster on loopback. Return a kubeconfig for it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": cluster}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "simulated", "user": "me"}}],
        "clusters": [{"name": "simulated", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "users": [{"name": "me", "user": {"token": "a-token-of-the-kubeconfig"}}],
    }
    path = folder / "kubeconfig.yaml"
    path.write_text(yaml.safe_dump(config))
    try:
        yield path
    finally:
        cluster.closing = True
        server.shutdown()
        server.server_close()


class Kubelet:
    """Runs the pods' own command as processes here. Each pod has its folders below `folder`, and its log is a file."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder, self.mark = folder, mark
        self.processes: list[subprocess.Popen[bytes]] = []
        self.is_over = False

    def play(self, cluster: SimulatedCluster) -> None:
        """Run every pod of the cluster's Job until its end."""
        spec = cluster.main()["spec"]
        cluster.on_delete = self.end
        for index in range(spec["completions"]):
            cluster.pod(index, {"phase": "Pending", "conditions": []}, "ADDED")
        for index in range(spec["completions"]):
            self._start(cluster, index, spec["template"]["spec"])
        threads = [threading.Thread(target=self._wait, args=(cluster, index)) for index in range(spec["completions"])]
        for thread in threads:
            thread.start()

    def end(self) -> None:
        """End all pods as the kubelet does: SIGTERM, and SIGKILL after the grace."""
        self.is_over = True
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + 20
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)

    def kill_machine(self, cluster: SimulatedCluster, index: int) -> None:
        """End a pod as a machine that loses its power: nothing more comes from it, and the API still shows it."""
        cluster.dead_machines.add(index)
        os.killpg(self.processes[index].pid, signal.SIGKILL)

    def _start(self, cluster: SimulatedCluster, index: int, spec: Fields) -> None:
        root = self.folder / f"pod{index}"
        for document in [d for d in cluster.objects.values() if d["kind"] == "ConfigMap"]:
            self._mounted(root, document)
        (container,) = spec["containers"]
        argv = [text.replace("/levelfield", str(root)) for text in container["command"] + container["args"]]
        at = argv.index("--first-node") + 1
        argv[at] = "localhost"  # no cluster's DNS is here
        argv[0] = sys.executable
        secrets = {s["metadata"]["name"]: s["stringData"] for s in cluster.secrets}
        variables = {"JOB_COMPLETION_INDEX": str(index), "LEVELFIELD_TEST_MARK": self.mark, "PATH": os.environ["PATH"]}
        for variable in container.get("env", []):
            source = variable["valueFrom"]["secretKeyRef"]
            variables[variable["name"]] = secrets[source["name"]][source["key"]]
        log = root / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True
            )
        self.processes.append(process)
        if self.is_over:  # the Job was deleted while this pod began
            self.end()
            return
        name = f"{cluster.main()['metadata']['name']}-{index}-abcde"
        cluster.logs[name] = lambda: _followed(log, process)
        cluster.pod(index, {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]})

    def _mounted(self, root: Path, document: Fields) -> None:
        folder = root / ("package" if document["metadata"]["name"].endswith("-code") else "work")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in document.get("data", {}).items():
            if folder.name == "work":  # with the paths of a pod that runs here, and this Python
                text = text.replace("/levelfield/", f"{root}/").replace('"python3"', json.dumps(sys.executable))
            (folder / name).write_text(text)
        for name, text in document.get("binaryData", {}).items():
            (folder / name).write_bytes(base64.b64decode(text))

    def _wait(self, cluster: SimulatedCluster, index: int) -> None:
        code = self.processes[index].wait()
        if index in cluster.dead_machines:
            return  # nothing reports its end
        reason = "Completed" if code == 0 else "Error"
        ended = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": reason}}
        with cluster.lock:
            if any(v["kind"] == "Job" for v in cluster.objects.values()):
                phase = "Succeeded" if code == 0 else "Failed"
                cluster.pod(index, {"phase": phase, "containerStatuses": [{"name": "node", "state": ended}]})


def _followed(log: Path, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Return the lines of a growing log until its process has ended."""
    with log.open("rb") as file:
        rest = b""
        while True:
            is_last = process.poll() is not None
            part = file.read()
            *lines, rest = (rest + part).split(b"\n")
            yield from (line + b"\n" for line in lines)
            if is_last and not part:
                return
            time.sleep(0.05)
