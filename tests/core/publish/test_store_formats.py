"""What is exported for other tools is read back by their own readers, where these can be installed alone.

TensorBoard's and MLPerf's readers are the real ones. MLflow's server is mlflow_server.py, which holds requests to the
shapes and limits that MLflow documents; test_real_mlflow.py has the real one.
github-action-benchmark is an action for GitHub; its reader's rules are here.
"""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.publish.benchmark_action import benchmark_json
from levelfield.publish.event_file import scalars
from levelfield.publish.mlflow_client import MlflowClient
from levelfield.publish.mlperf_log import mllog_lines
from levelfield.publish.scalar_events import write_scalars
from levelfield.store.database import Store
from mlflow_server import tracking_server
from stored_records import changed, real_record


@pytest.fixture(scope="module")
def record(recorded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("record") / recorded.name
    return real_record(Path(shutil.copytree(recorded, folder)))


# -- TensorBoard


def test_tensorboard_reads_every_step(record, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = write_scalars(tmp_path, record)
    reader = EventAccumulator(str(path.parent))
    reader.Reload()
    assert path.parent == tmp_path / record.run_id
    losses = reader.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, len(record.losses) + 1))
    assert [event.value for event in losses] == pytest.approx(record.losses, rel=1e-6)
    began = datetime.fromisoformat(record.began).timestamp()
    assert losses[0].wall_time == began + record.step_seconds[0]
    assert [event.value for event in reader.Scalars("step_seconds")] == pytest.approx(record.step_seconds, rel=1e-6)
    (speed,) = reader.Scalars("tokens_per_second_per_device")
    assert speed.value == pytest.approx(record.tokens_per_second_per_device, rel=1e-6)
    assert speed.step == len(record.step_seconds)


def test_tensorboard_finds_a_byte_that_was_changed(record, tmp_path):
    """Its reader checks our checksums: that is what the test above rests on."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    path = write_scalars(tmp_path, record)
    whole = len(list(RawEventFileLoader(str(path)).Load()))
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    assert len(list(RawEventFileLoader(str(path)).Load())) == whole - 1


def test_our_own_reader_reads_it_too(record, tmp_path):
    found = list(scalars(write_scalars(tmp_path, record).read_bytes(), "loss"))
    assert [value for _, value in found] == pytest.approx(record.losses, rel=1e-6)


@pytest.mark.parametrize("run_id", ["../../outside", "/etc/x", "..", "a/b", ".hidden", "a\n\x1b[2J"])
def test_no_run_leaves_the_folder(record, tmp_path, run_id):
    path = write_scalars(tmp_path / "folder", record.model_copy(update={"run_id": run_id}))
    assert path.parent.parent == tmp_path / "folder" and path.parent.name.isprintable()
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_step_without_a_loss_has_none(record, tmp_path):
    path = write_scalars(tmp_path, record.model_copy(update={"losses": (2.0, None, 1.0)}))
    assert list(scalars(path.read_bytes(), "loss")) == [(1, 2.0), (3, 1.0)]


# -- MLPerf


def test_mlperfs_parser_reads_every_line(record, tmp_path):
    from mlperf_logging.compliance_checker.mlp_parser import parse_file

    file = tmp_path / "run.log"
    file.write_text("".join(mllog_lines(record)))
    lines, failed = parse_file(str(file), ruleset="6.1.0")
    assert failed == [] and len(lines) == len(file.read_text().splitlines())
    by_key = {line.key: line for line in lines}
    losses = [line.value["value"] for line in lines if line.key == "train_loss"]
    assert losses == list(record.losses)
    assert by_key["global_batch_size"].value["value"] == 8
    assert by_key["tracked_stats"].value["value"] == {"throughput": record.tokens_per_second_per_device}
    assert by_key["run_stop"].value["metadata"]["status"] == "success"
    assert by_key["run_start"].timestamp <= by_key["run_stop"].timestamp
    times = [line.timestamp for line in lines]
    assert times == sorted(times)


def test_the_keys_are_those_of_mlperf(record):
    """All but two are constants of the logging library; those two are in the logs of submissions."""
    from mlperf_logging.mllog import constants

    known = {value for name, value in vars(constants).items() if name.isupper() and isinstance(value, str)}
    keys = {json.loads(line.removeprefix(":::MLLOG "))["key"] for line in mllog_lines(record)}
    assert keys - known == {"train_loss", "tracked_stats"}


def test_a_failed_run_is_aborted(record):
    failed = record.model_copy(update={"word": "failed", "tokens_per_second_per_device": None})
    last = json.loads(list(mllog_lines(failed))[-1].removeprefix(":::MLLOG "))
    assert last["metadata"]["status"] == "aborted" and "tracked_stats" not in "".join(mllog_lines(failed))


# -- github-action-benchmark


def test_the_action_gets_the_newest_comparable_run_of_each_series(record):
    other = {"series": {"case": "tinier"}}
    runs = [
        changed(record, 1),
        changed(record, 2),
        changed(record, 3, evidence="unsealed"),
        changed(record, 1, **other),
    ]
    runs.append(changed(record, 4, word="failed"))
    found = json.loads(benchmark_json(runs))
    # What the action's reader of `customBiggerIsBetter` takes: a list of names, numbers and units, and two texts.
    assert all(entry.keys() <= {"name", "unit", "value", "range", "extra"} for entry in found)
    assert all(isinstance(e["name"], str) and isinstance(e["unit"], str) for e in found)
    assert all(isinstance(e["value"], float) and isinstance(e["extra"], str) for e in found)
    assert {e["name"]: e["value"] for e in found} == {
        changed(record, 1, **other).series.label: changed(record, 1).tokens_per_second_per_device,
        record.series.label: changed(record, 2).tokens_per_second_per_device,
    }


def test_series_with_one_label_have_two_names(record):
    """The action compares by name alone."""
    runs = [changed(record, 1), changed(record, 1, series={"work": "sha256:other"})]
    names = [entry["name"] for entry in json.loads(benchmark_json(runs))]
    assert len({*names}) == 2 and all(name.startswith(record.series.label) for name in names)


# -- MLflow


def test_mlflow_gets_a_run_once(record):
    with tracking_server() as server:
        assert MlflowClient(server.url).send(record) and not MlflowClient(f"{server.url}/").send(record)
        (run,) = server.runs.values()
        assert server.experiments == {"tiny": "0"} and run["run_name"] == record.run_id
        assert run["status"] == "FINISHED" and run["end_time"] >= run["start_time"] == 1767323045000
        losses = [metric for metric in run["metrics"] if metric["key"] == "loss"]
        assert [metric["value"] for metric in losses] == list(record.losses)
        assert [metric["step"] for metric in losses] == list(range(1, len(losses) + 1))
        values = {metric["key"]: metric["value"] for metric in run["metrics"]}
        assert values["tokens_per_second_per_device"] == record.tokens_per_second_per_device
        assert run["params"]["framework"] == "fake" and run["params"]["layout"] == str(record.series.layout)


def test_a_long_run_is_sent_in_parts(record):
    steps = 1700
    long = record.model_copy(update={"step_seconds": (0.5,) * steps, "losses": (1.0,) * steps})
    with tracking_server() as server:
        MlflowClient(server.url).send(long)
        (run,) = server.runs.values()
        assert len([metric for metric in run["metrics"] if metric["key"] == "loss"]) == steps


def test_a_quote_in_a_name_is_no_filter(record):
    with tracking_server() as server:
        client = MlflowClient(server.url)
        client.send(record)
        odd = record.model_copy(update={"run_id": "x' OR '1' = '1"})
        assert client.send(odd) and not client.send(odd)


def test_the_server_is_authorised_as_mlflow_does(record, monkeypatch):
    with tracking_server() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
        MlflowClient(server.url).send(record)
        assert {headers["Authorization"] for headers in server.headers} == {"Basic YW5uOnNlY3JldA=="}
        server.headers.clear()
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "word")
        MlflowClient(server.url).send(record)
        assert server.headers[0]["Authorization"] == "Bearer word"


@pytest.mark.parametrize("refusal", [(403, "not yours"), (500, "broken"), (400, "INVALID_PARAMETER_VALUE")])
def test_a_server_that_refuses_is_named(record, refusal):
    with tracking_server() as server:
        server.refusal = refusal
        with pytest.raises(UsageError, match=rf"MLflow at http://127.* {refusal[0]} .*{refusal[1]}"):
            MlflowClient(server.url).send(record)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x", "", "http://ann:secret@127.0.0.1:9"])
def test_an_address_that_is_no_server_is_named_without_a_password(record, url, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UsageError) as raised:
        MlflowClient(url).send(record)
    assert "secret" not in str(raised.value)


# -- the command


def test_the_command_writes_each_format(record, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_STORE", str(tmp_path / "results.sqlite"))
    with Store.open() as store:
        store.add([changed(record, 1), changed(record, 2)])
    export = ["store", "export", "--format"]
    assert main([*export, "tensorboard", "--output", str(tmp_path / "boards")]) == 0
    assert len(list((tmp_path / "boards").glob("*/events.out.tfevents.*"))) == 2
    assert main([*export, "github", "--output", str(tmp_path / "b.json")]) == 0
    assert len(json.loads((tmp_path / "b.json").read_text())) == 1
    assert main([*export, "mllog"]) == 0 and capsys.readouterr().out.count(":::MLLOG") > 20
    with tracking_server() as server:
        assert main([*export, "mlflow", "--to", server.url]) == 0
        assert main([*export, "mlflow", "--to", server.url]) == 0
        assert len(server.runs) == 2
    assert capsys.readouterr().out == "sent 2 run(s)\nsent 0 run(s), 2 were there already\n"
    assert main([*export, "tensorboard"]) == main([*export, "csv", "--to", "http://x"]) == 2
    (tmp_path / "file").touch()
    assert main([*export, "tensorboard", "--output", str(tmp_path / "file")]) == 2
    assert "Not a directory" in capsys.readouterr().err
