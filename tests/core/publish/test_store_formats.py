"""What is exported for other tools is read back by their own readers, where these can be installed alone.

TensorBoard's and MLPerf's readers are the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.publish.foreign_curves import scalars
from levelfield.publish.log_files import read_log_file
from levelfield.publish.reported_runs import reported
from levelfield.publish.tool_logs import mllog_lines, write_scalars
from levelfield.store.database import Store
from plans import ROOT
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


def test_tensorboard_writes_through_no_link(record, tmp_path):
    path = write_scalars(tmp_path / "boards", record)
    (tmp_path / "thesis.tex").write_text("years of work")
    path.unlink()
    path.symlink_to(tmp_path / "thesis.tex")
    write_scalars(tmp_path / "boards", record)
    assert not path.is_symlink() and (tmp_path / "thesis.tex").read_text() == "years of work"
    path.parent.rename(tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere" / path.name).stat().st_mtime_ns
    with pytest.raises(OSError, match=str(path.parent)):
        write_scalars(tmp_path / "boards", record)
    assert (tmp_path / "elsewhere" / path.name).stat().st_mtime_ns == before


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


# -- the command


def test_the_command_writes_each_format(record, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_STORE", str(tmp_path / "results.sqlite"))
    with Store.open() as store:
        store.add([changed(record, 1), changed(record, 2)])
    export = ["store", "export", "--format"]
    assert main([*export, "tensorboard", "--output", str(tmp_path / "boards")]) == 0
    assert len(list((tmp_path / "boards").glob("*/events.out.tfevents.*"))) == 2
    assert main([*export, "mllog"]) == 0 and capsys.readouterr().out.count(":::MLLOG") > 20
    assert main([*export, "tensorboard"]) == 2
    (tmp_path / "file").touch()
    assert main([*export, "tensorboard", "--output", str(tmp_path / "file")]) == 2
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["jsonl", "csv", "mllog", "tensorboard"])
def test_a_pipe_without_a_reader_is_refused_and_stays(form, record, tmp_path, capsys):
    """The command waited for a reader without an end."""
    store, pipe = str(tmp_path / "results.sqlite"), tmp_path / "output" / "pipe"
    pipe.parent.mkdir()
    with Store.open(store) as opened:
        opened.add([record])
    os.mkfifo(pipe)
    code = "import sys; from levelfield.cli.main import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "store", "export", "--format", form, "--store", store, "--output", str(pipe)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and f"--output {pipe}" in done.stderr and "cannot be written" in done.stderr
    assert pipe.is_fifo() and list(pipe.parent.iterdir()) == [pipe]


def test_a_failed_export_keeps_the_file_that_was_there(record, tmp_path, monkeypatch, capsys):
    store, file = str(tmp_path / "results.sqlite"), tmp_path / "export.csv"
    with Store.open(store) as opened:
        opened.add([record])
    file.write_text("before")
    monkeypatch.setattr("levelfield.store.record_lines.row_of", lambda record: 1 / 0)
    assert main(["store", "export", "--format", "csv", "--store", store, "--output", str(file)]) == 5
    assert file.read_text() == "before"


def test_our_own_lines_of_mlperf_are_read_as_others_are(record, tmp_path):
    path = tmp_path / "own.log"
    path.write_text("".join(mllog_lines(record)))
    (file,) = read_log_file(path)
    row = reported(file, {})
    assert row.format == "MLPerf"
    assert row.figures["tokens_per_second_per_device"].value == record.tokens_per_second_per_device
    assert row.figures["last_loss"].value == pytest.approx(record.losses[-1])
