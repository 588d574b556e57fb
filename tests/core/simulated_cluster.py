"""A cluster's API in this process, for the real client: it keeps objects, watches, logs, and fails on request.

Its kubelet is a thread: it runs each pod's command here, with the pod's folders below a temporary folder. Nothing of a
cluster is tested with it but the requests of the client and what follows from the answers.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

INDEX = "batch.kubernetes.io/job-completion-index"
Fields = dict[str, Any]


class SimulatedCluster:
    """Objects by path, the changes of pods for watches, and planned faults.

    refusals: (method, end of the path) to (status, message). breaks: how often a watch or a log is cut. expired: how
    often a watch ends with 410. played: called with this cluster when the pods' object is created.
    """

    def __init__(self, played: Callable[[SimulatedCluster], None]) -> None:
        self.objects: dict[str, Fields] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        self.reviews: dict[str, bool] = {}
        self.broken_watches = self.broken_logs = self.expired = 0
        self.secrets: list[Fields] = []
        self.events: list[Fields] = []
        self.pods: dict[str, Fields] = {}
        self.logs: dict[str, Callable[[], Iterator[bytes]]] = {}
        self.on_delete: Callable[[], None] = lambda: None
        self._played, self._version = played, 100
        self._changes: list[queue.Queue[bytes]] = []
        self.lock = threading.RLock()
        self.closing = False

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
            line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
            for changes in self._changes:
                changes.put(line)

    def is_seen(self) -> None:
        """Wait until a watch has sent everything."""
        while not self._changes or not all(changes.empty() for changes in self._changes):
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

    def watch(self) -> Iterator[bytes]:
        changes: queue.Queue[bytes] = queue.Queue()
        with self.lock:
            self._changes.append(changes)
            for pod in self.pods.values():
                changes.put(json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n")
        try:
            if self.expired > 0:
                self.expired -= 1
                yield b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
                return
            while not self.closing:
                try:
                    yield changes.get(timeout=0.1)
                except queue.Empty:
                    continue
                if self.broken_watches > 0:
                    self.broken_watches -= 1
                    yield b'{"type": "MODI'
                    return
        finally:
            self._changes.remove(changes)


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
        for (refused, end), (status, message) in self.cluster.refusals.items():
            if refused == method and url.path.endswith(end):
                return self._send(status, {"kind": "Status", "message": message})
        getattr(self, f"_{method.lower()}")(url.path, query, body)

    def _get(self, path: str, query: dict[str, str], body: Any) -> None:
        cluster = self.cluster
        if path.endswith("/log"):
            return self._stream(cluster.logs.get(path.split("/")[-2], lambda: iter(()))(), cuts=True)
        if path.endswith("/pods") and query.get("watch"):
            return self._stream(cluster.watch())
        if path.endswith("/pods"):
            with cluster.lock:
                return self._send(200, {"items": list(cluster.pods.values()), "metadata": {"resourceVersion": "100"}})
        if path.endswith("/events"):
            name = query["fieldSelector"].rpartition("=")[2]
            return self._send(200, {"items": [e for e in cluster.events if e["involvedObject"]["name"] == name]})
        if path in cluster.objects:
            return self._send(200, cluster.objects[path])
        if path == "/version":
            return self._send(200, {"gitVersion": "v1.36.0"})
        self._send(404, {"kind": "Status", "message": f"{path} not found"})

    def _post(self, path: str, query: dict[str, str], body: Any) -> None:
        if path.endswith("selfsubjectaccessreviews"):
            attributes = body["spec"]["resourceAttributes"]
            what = f"{attributes['verb']} {attributes['resource']}"
            return self._send(201, {"status": {"allowed": self.cluster.reviews.get(what, True)}})
        if f"{path}/{body['metadata']['name']}" in self.cluster.objects:
            return self._send(409, {"kind": "Status", "message": f"{body['metadata']['name']} already exists"})
        self.cluster.created(path, body)
        self._send(201, self.cluster.objects[f"{path}/{body['metadata']['name']}"])

    def _patch(self, path: str, query: dict[str, str], body: Any) -> None:
        self.cluster.objects[path]["metadata"] |= body["metadata"]
        self._send(200, self.cluster.objects[path])

    def _delete(self, path: str, query: dict[str, str], body: Any) -> None:
        is_removed = self.cluster.deleted(path)
        self._send(200 if is_removed else 404, {"kind": "Status", "message": "deleted" if is_removed else "not found"})

    def _send(self, status: int, content: Fields) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, lines: Iterator[bytes], cuts: bool = False) -> None:
        """Send lines as they come: a log until the connection closes, a watch in chunks."""
        self.send_response(200)
        self.send_header("Connection", "close")
        if not cuts:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for number, line in enumerate(lines):
                if cuts and number > 3 and self.cluster.broken_logs > 0:
                    self.cluster.broken_logs -= 1
                    self.wfile.write(line[: len(line) // 2])
                    return
                self.wfile.write(line if cuts else b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"" if cuts else b"0\r\n\r\n")
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
        cluster.pod(index, {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]})

    def _mounted(self, root: Path, document: Fields) -> None:
        folder = root / ("package" if document["metadata"]["name"].endswith("-code") else "work")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in document.get("data", {}).items():
            # the paths of the pod, and the image's Python
            text = text.replace("/levelfield/", f"{root}/").replace('"python3"', json.dumps(sys.executable))
            (folder / name).write_text(text)
        for name, text in document.get("binaryData", {}).items():
            (folder / name).write_bytes(base64.b64decode(text))

    def _wait(self, cluster: SimulatedCluster, index: int) -> None:
        code = self.processes[index].wait()
        reason = "Completed" if code == 0 else "Error"
        ended = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": reason}}
        with cluster.lock:
            if any(v["kind"] == "Job" for v in cluster.objects.values()):
                phase = "Succeeded" if code == 0 else "Failed"
                cluster.pod(index, {"phase": phase, "containerStatuses": [{"state": ended}]})


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
