"""`store export` writes each format, to a file or a stream, and never half of one."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store
from plans import ROOT
from stored_records import changed, real_record


@pytest.fixture(scope="module")
def record(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("record") / recorded.name
    return real_record(Path(shutil.copytree(recorded, folder)))


def test_the_command_writes_each_format(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVELFIELD_STORE", str(tmp_path / "results.sqlite"))
    with Store.open() as store:
        store.add([changed(record, 1), changed(record, 2)])
    assert main(["store", "export"]) == 0
    runs = [json.loads(line).get("run_id") for line in capsys.readouterr().out.splitlines()]
    assert len(runs) == 2 and None not in runs
    assert main(["store", "export", "--format", "csv"]) == 0
    assert [row["run_id"] for row in csv.DictReader(capsys.readouterr().out.splitlines())] == runs
    (tmp_path / "file").touch()
    assert main(["store", "export", "--output", str(tmp_path / "file" / "export.jsonl")]) == 2
    assert os.strerror(errno.ENOTDIR) in capsys.readouterr().err


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_pipe_without_a_reader_is_refused_and_stays(form: str, record: RunRecord, tmp_path: Path) -> None:
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
    assert done.returncode == 2 and f"--output {pipe}" in done.stderr
    assert pipe.is_fifo() and list(pipe.parent.iterdir()) == [pipe]


def test_a_failed_export_keeps_the_file_that_was_there(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, file = str(tmp_path / "results.sqlite"), tmp_path / "export.csv"
    with Store.open(store) as opened:
        opened.add([record])
    file.write_text("before")
    monkeypatch.setattr("levelfield.store.record_lines.table_row", lambda record: 1 / 0)
    assert main(["store", "export", "--format", "csv", "--store", store, "--output", str(file)]) == 5
    assert file.read_text() == "before"
