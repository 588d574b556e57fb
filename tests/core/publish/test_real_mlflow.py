"""Runs that are sent to MLflow's own server are read back by MLflow's own client."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from levelfield.publish.mlflow_client import MlflowClient
from levelfield.specs.record import RunRecord
from stored_records import real_record

pytestmark = pytest.mark.thorough

MLFLOW = "mlflow==3.17.2"  # a package of 850 MB with sixty others, in an environment of its own
LONGEST_START = 120.0
READER = """
import json, sys
from mlflow import MlflowClient

client, found = MlflowClient(sys.argv[1]), {}
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        metrics = {}
        for key in run.data.metrics:
            history = sorted(client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)
            metrics[key] = [(metric.step, metric.value) for metric in history]
        found[run.info.run_name] = {
            "experiment": experiment.name, "status": run.info.status, "params": run.data.params, "tags": run.data.tags,
            "start": run.info.start_time, "end": run.info.end_time, "metrics": metrics,
        }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mlflow") / "environment"
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", MLFLOW], check=True)
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    database = f"sqlite:///{folder / 'mlflow.db'}"
    argv = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--backend-store-uri", database], cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        await_health(f"http://127.0.0.1:{port}", process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)  # its workers too
        process.wait(timeout=60)


def await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + LONGEST_START
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"no answer in {LONGEST_START:g} s: {log.read_text()}")


@pytest.fixture(scope="module")
def record(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return real_record(Path(shutil.copytree(recorded, tmp_path_factory.mktemp("record") / recorded.name)))


def read(python: Path, server: str) -> dict[str, Any]:
    """MLflow's runs by their names."""
    done = subprocess.run([python, "-c", READER, server], check=True, capture_output=True, text=True, timeout=120)
    return dict(json.loads(done.stdout))


def test_mlflow_s_client_reads_what_was_sent(record: RunRecord, server: str, python: Path) -> None:
    odd = record.model_copy(update={"run_id": "x' OR '1' = '1", "word": "invalid"})
    long = record.model_copy(update={"run_id": "long", "step_seconds": (0.5,) * 1700, "losses": (1.0,) * 1700})
    for each in (record, odd, long):
        assert MlflowClient(server).send(each)
        assert not MlflowClient(server).send(each)
    found = read(python, server)
    assert set(found) == {record.run_id, odd.run_id, "long"}
    assert found[odd.run_id]["status"] == "FAILED"
    assert [step for step, _value in found["long"]["metrics"]["loss"]] == list(range(1, 1701))
    run = found[record.run_id]
    assert run["experiment"] == record.series.case and run["status"] == "FINISHED"
    assert [value for _step, value in run["metrics"]["loss"]] == list(record.losses)
    assert [value for _step, value in run["metrics"]["step_seconds"]] == list(record.step_seconds)
    ((_step, rate),) = run["metrics"]["tokens_per_second_per_device"]
    assert rate == record.tokens_per_second_per_device
    assert run["end"] - run["start"] == round(1000 * sum(record.step_seconds))
    assert run["params"]["framework"] == "fake" and run["tags"]["levelfield.run_id"] == record.run_id
