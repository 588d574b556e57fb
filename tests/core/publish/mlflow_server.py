"""A tracking server that holds requests to the shapes and limits that MLflow publishes for its REST interface 2.0.

It is no MLflow: the package would bring sixty others (test_real_mlflow.py).
It refuses unknown fields, wrong types and too large requests, as the interface's documentation states them, and keeps
what it was sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TEXT, INTEGER, NUMBER = (str,), (int,), (int, float)
PAIR = {"key": TEXT, "value": TEXT}
METRIC = {"key": TEXT, "value": NUMBER, "timestamp": INTEGER, "step": INTEGER}
FIELDS: dict[str, dict[str, Any]] = {
    "experiments/create": {"name": TEXT, "artifact_location": TEXT, "tags": PAIR},
    "runs/create": {"experiment_id": TEXT, "run_name": TEXT, "start_time": INTEGER, "user_id": TEXT, "tags": PAIR},
    "runs/search": {"experiment_ids": TEXT, "filter": TEXT, "max_results": INTEGER, "run_view_type": TEXT},
    "runs/log-batch": {"run_id": TEXT, "metrics": METRIC, "params": PAIR, "tags": PAIR},
    "runs/update": {"run_id": TEXT, "status": TEXT, "end_time": INTEGER, "run_name": TEXT},
}
REQUIRED = {"experiments/create": ("name",), "runs/create": ("experiment_id",), "runs/log-batch": ("run_id",)}
STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
MOST = {"metrics": 1000, "params": 100, "tags": 100}
MOST_BYTES, LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG = 1_000_000, 250, 6000, 8000


class Refused(Exception):
    """What the server answers with 400."""


class Tracking:
    """What was sent. refusal: an error that every request gets, as (code, text)."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.headers: list[dict[str, str]] = []
        self.refusal: tuple[int, str] | None = None
        self.url = ""

    def answer(self, place: str, content: dict[str, Any]) -> dict[str, Any]:
        _check(place, content)
        if place == "experiments/create":
            if content["name"] in self.experiments:
                raise Refused("RESOURCE_ALREADY_EXISTS")
            self.experiments[content["name"]] = str(len(self.experiments))
            return {"experiment_id": self.experiments[content["name"]]}
        if place == "runs/create":
            if content["experiment_id"] not in self.experiments.values():
                raise Refused("no such experiment")
            name = f"run{len(self.runs)}"
            self.runs[name] = {**content, "metrics": [], "params": {}, "status": "RUNNING"}
            return {"run": {"info": {"run_id": name}}}
        if place == "runs/search":
            return {"runs": [{"info": {"run_id": name}} for name, run in self.runs.items() if _matches(run, content)]}
        run = self.runs[content["run_id"]]
        if place == "runs/log-batch":
            run["metrics"] += content.get("metrics", [])
            run["params"] |= {pair["key"]: pair["value"] for pair in content.get("params", [])}
            return {}
        if content["status"] not in STATUSES:
            raise Refused(f"status {content['status']}")
        run.update(content)
        return {"run_info": {}}


def _matches(run: dict[str, Any], wanted: dict[str, Any]) -> bool:
    if wanted["filter"].count("'") != 2:
        raise Refused("a filter has no way to write a quotation mark within a value")
    tags = {f"tags.`{tag['key']}` = '{tag['value']}'" for tag in run["tags"]}
    return run["experiment_id"] in wanted["experiment_ids"] and wanted["filter"] in tags


def _check(place: str, content: dict[str, Any]) -> None:
    fields = FIELDS[place]
    for name in REQUIRED.get(place, ()):
        if name not in content:
            raise Refused(f"{name} is missing")
    for name, value in content.items():
        if name not in fields:
            raise Refused(f"unknown field {name}")
        for each in value if isinstance(value, list) else [value]:
            _check_value(name, each, fields[name])
        if isinstance(value, list) and len(value) > MOST.get(name, 1000):
            raise Refused(f"{len(value)} {name}")


def _check_value(name: str, value: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise Refused(f"{name}: {value!r}")
        return
    if not isinstance(value, dict) or value.keys() != wanted.keys():
        raise Refused(f"{name}: {value!r}")
    for key, each in value.items():
        _check_value(f"{name}.{key}", each, wanted[key])
    longest = {"params": LONGEST_PARAM, "tags": LONGEST_TAG}.get(name, LONGEST_TAG)
    if len(value["key"]) > LONGEST_KEY or len(str(value["value"])) > longest:
        raise Refused(f"{name}: too long")


class TrackingHandler(BaseHTTPRequestHandler):
    """The HTTP part. Its server has the Tracking."""

    @property
    def _tracking(self) -> Tracking:
        return self.server.tracking  # type: ignore[attr-defined, no-any-return]

    def do_GET(self) -> None:
        if not self._begun():
            return
        url = urlsplit(self.path)
        name = parse_qs(url.query)["experiment_name"][0]
        if url.path != "/api/2.0/mlflow/experiments/get-by-name":
            self._say(404, {"error_code": "ENDPOINT_NOT_FOUND"})
        elif name not in self._tracking.experiments:
            self._say(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})
        else:
            self._say(200, {"experiment": {"experiment_id": self._tracking.experiments[name], "name": name}})

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        content = json.loads(self.rfile.read(size))
        if not self._begun():
            return
        try:
            if size > MOST_BYTES or self.headers["Content-Type"] != "application/json":
                raise Refused("the request")
            self._say(200, self._tracking.answer(self.path.removeprefix("/api/2.0/mlflow/"), content))
        except Refused as error:
            self._say(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": str(error)})

    def _begun(self) -> bool:
        self._tracking.headers.append(dict(self.headers))
        if refusal := self._tracking.refusal:
            self._say(refusal[0], {"error_code": "X", "message": refusal[1]})
        return not refusal

    def _say(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def tracking_server() -> Iterator[Tracking]:
    """The server on a free port of this machine's own address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), TrackingHandler) as server:
        tracking = server.tracking = Tracking()  # type: ignore[attr-defined]
        tracking.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield tracking
        finally:
            server.shutdown()
            thread.join()
