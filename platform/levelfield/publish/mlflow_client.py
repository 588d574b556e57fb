"""Sends runs to an MLflow tracking server by its REST interface (version 2.0), with the standard library alone.

An experiment is a case; a run there has the same name as here. A run that the server has already is left alone.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from levelfield.errors import UsageError
from levelfield.specs.record import RunRecord

URL = "MLFLOW_TRACKING_URI"
SECONDS = 30.0
TAG = "levelfield.run_id"
# Of one request, by the server's own rules.
MOST_METRICS = 1000
_MOST_BYTES = 2**20
_FIGURES = ("tokens_per_second_per_device", "memory_bytes", "joules_per_token", "mfu", "loss_tail")
_FINISHED = ("valid", "unsealed")


class MlflowClient:
    """A tracking server. url: without a path of the interface, such as http://localhost:5000.

    MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD, authorise as they do for MLflow's own client.
    """

    def __init__(self, url: str | None) -> None:
        found = url or os.environ.get(URL, "")
        if urllib.parse.urlsplit(found).scheme not in ("http", "https"):
            raise UsageError(
                f"--to: found '{_shown(found)}', expected a tracking server, http://... or https://...; or set {URL}"
            )
        self._url, self._experiments = found.rstrip("/"), dict[str, str]()

    def send(self, record: RunRecord) -> bool:
        """Send a run with its figures, losses and step times. Return whether it is new there."""
        experiment = self._experiment(record.series.case)
        if self._has(experiment, record.run_id):
            return False
        began = _milliseconds(record.began)
        tags = _pairs({TAG: _quoted(record.run_id), **_tags(record)})
        start = {"experiment_id": experiment, "run_name": record.run_id, "start_time": began, "tags": tags}
        run = str(self._post("runs/create", start)["run"]["info"]["run_id"])
        self._post("runs/log-batch", {"run_id": run, "params": _pairs(_params(record))})
        for metrics in _batches(list(_metrics(record, began))):
            self._post("runs/log-batch", {"run_id": run, "metrics": metrics})
        ended = began + round(1000 * sum(record.step_seconds))
        word = "FINISHED" if record.word in _FINISHED else "FAILED"
        self._post("runs/update", {"run_id": run, "status": word, "end_time": ended})
        return True

    def _experiment(self, name: str) -> str:
        """Return the id of an experiment, which is made where it is missing."""
        if name not in self._experiments:
            try:
                found = self._get("experiments/get-by-name", {"experiment_name": name})["experiment"]
            except _Absent:
                found = self._post("experiments/create", {"name": name})
            self._experiments[name] = str(found["experiment_id"])
        return self._experiments[name]

    def _has(self, experiment: str, run_id: str) -> bool:
        filter_ = f"tags.`{TAG}` = '{_quoted(run_id)}'"
        wanted = {"experiment_ids": [experiment], "filter": filter_, "max_results": 1}
        return bool(self._post("runs/search", wanted).get("runs"))

    def _get(self, place: str, query: Mapping[str, str]) -> Any:
        return self._answer(urllib.request.Request(f"{self._place(place)}?{urllib.parse.urlencode(query)}"))

    def _post(self, place: str, content: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(self._place(place), json.dumps(content).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        return self._answer(request)

    def _place(self, place: str) -> str:
        return f"{self._url}/api/2.0/mlflow/{place}"

    def _answer(self, request: urllib.request.Request) -> Any:
        for name, value in _authorization().items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return json.loads(answer.read(_MOST_BYTES) or b"{}")
        except urllib.error.HTTPError as error:
            said = error.read(_MOST_BYTES).decode("utf-8", "replace")
            if error.code == 404 and "RESOURCE_DOES_NOT_EXIST" in said:
                raise _Absent(said) from None
            raise self._failed(request, f"{error.code} {error.reason}: {' '.join(said.split())[:300]}") from None
        except (OSError, ValueError) as error:
            raise self._failed(request, str(getattr(error, "reason", error))) from None

    def _failed(self, request: urllib.request.Request, why: str) -> UsageError:
        return UsageError(f"MLflow at {_shown(self._url)}: {request.full_url.rpartition('/mlflow/')[2]}: {why}")


def _quoted(run_id: str) -> str:
    """Return a run's id without quotation marks: MLflow's filters have no way to write them. Ours have none."""
    return urllib.parse.quote(run_id)


class _Absent(Exception):
    """The server has no such thing."""


def _authorization() -> dict[str, str]:
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    name, password = (os.environ.get(f"MLFLOW_TRACKING_{word}") for word in ("USERNAME", "PASSWORD"))
    if not name or password is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def _tags(record: RunRecord) -> dict[str, str]:
    return {
        "levelfield.word": record.word,
        "levelfield.verdict": record.verdict,
        "levelfield.evidence": record.evidence,
        "levelfield.series": record.series.fingerprint(),
        "mlflow.source.git.commit": record.subject.commit or "",
    }


def _params(record: RunRecord) -> dict[str, str]:
    series = {name: str(getattr(record.series, name)) for name in type(record.series).model_fields}
    return {**series, "framework_version": record.subject.framework_version, "node": record.node}


def _metrics(record: RunRecord, began: int) -> Iterator[dict[str, Any]]:
    now = float(began)
    for step, seconds in enumerate(record.step_seconds, 1):
        now += 1000 * seconds
        yield {"key": "step_seconds", "value": seconds, "timestamp": round(now), "step": step}
        if step <= len(record.losses) and record.losses[step - 1] is not None:
            yield {"key": "loss", "value": record.losses[step - 1], "timestamp": round(now), "step": step}
    for name in _FIGURES:
        if (value := getattr(record, name)) is not None:
            yield {"key": name, "value": value, "timestamp": round(now), "step": len(record.step_seconds)}


def _batches(metrics: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    return (metrics[start : start + MOST_METRICS] for start in range(0, len(metrics), MOST_METRICS))


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value} for name, value in values.items()]


def _milliseconds(time: str) -> int:
    return round(1000 * datetime.fromisoformat(time).timestamp())


def _shown(url: str) -> str:
    """Return the address without a password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
