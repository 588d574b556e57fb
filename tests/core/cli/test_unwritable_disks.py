"""Commands that write to a full or a read-only disk: exit code 2, the path and what to do. What only reads goes on."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.specs.paths import RunPaths
from plans import PLUGINS
from read_only_disk import read_only

PLUGIN = ["--plugins", str(PLUGINS)]
FAKE = ["--case", "tiny:fake:fake:1:1", *PLUGIN, "--python", sys.executable, "--quiet", "--runs"]
Printed = pytest.CaptureFixture[str]
WRITING: dict[str, list[str]] = {
    "a run": [*FAKE, "DISK/new"],
    "bundle": ["evidence", "bundle", "RUN", "--output", "DISK/run.zip", *PLUGIN],
    "report": ["report", "RUN", "--format", "json", "--output", "DISK/run.json"],
    "pages": ["report", "pages", "DISK/pages", "RUN", *PLUGIN],
    "collect": ["evidence", "collect", "DISK/run"],
    "store import": ["store", "import", "RUN", "--store", "DISK/store.sqlite"],
    "a new store": ["store", "import", "RUN", "--store", "DISK/new/store.sqlite"],
    "store export": ["store", "export", "--store", "DISK/store.sqlite", "--format", "jsonl", "--output", "DISK/lines"],
    "store prune": ["store", "prune", "--keep-days", "1", "--store", "DISK/store.sqlite"],
    "gate": ["nightly", "gate", "--store", "DISK/store.sqlite"],
}
READING: dict[str, list[str]] = {
    "report": ["report", "DISK/run", *PLUGIN],
    "list runs": ["show", "runs", "--runs", "DISK"],
    "store check": ["store", "check", "--store", "DISK/store.sqlite"],
    "baseline list": ["nightly", "levels", "--store", "DISK/store.sqlite"],
}
FULL: dict[str, list[str]] = {
    "bundle": ["evidence", "bundle", "RUN", "--output", "DISK/run.zip", *PLUGIN],
    "report": ["report", "RUN", "--format", "json", "--output", "DISK/run.json"],
    "pages": ["report", "pages", "DISK/pages", "RUN", *PLUGIN],
}


@pytest.fixture
def disk(run: RunPaths, tmp_path: Path, capsys: Printed) -> Path:
    """A folder with a run and a store, which is to become read-only."""
    place = tmp_path / "disk"
    place.mkdir()
    (place / "run").symlink_to(run.root)
    assert main(["store", "import", str(run.root), "--store", str(place / "store.sqlite")]) == 0
    (place / "run").unlink()
    run.root.rename(place / "run")
    capsys.readouterr()
    return place


def test_what_cannot_be_written_is_named_with_what_to_do(
    disk: Path, recorded: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    for name, words in WRITING.items():
        with read_only(disk):
            code = main([word.replace("RUN", str(recorded)).replace("DISK", str(disk)) for word in words])
        message = capsys.readouterr().err
        assert code == 2, (name, code, message)
        assert str(disk) in message and "fault" not in message, (name, message)
        assert re.search("Mount it|may be written|[Nn]ame (one|another)", message), (name, message)


def test_what_only_reads_goes_on(disk: Path, capsys: Printed) -> None:
    with read_only(disk):
        for name, words in READING.items():
            code = main([word.replace("DISK", str(disk)) for word in words])
            assert code == 0, (name, capsys.readouterr().err)


def filled(disk: Path, free: int) -> Path:
    filler = disk / "filler"
    filler.write_bytes(bytes(2**20 - free))
    return filler


@pytest.mark.parametrize(("name", "free"), [*((name, 0) for name in FULL), ("bundle", 4096), ("pages", 65536)])
def test_a_full_disk_is_said_and_the_next_try_succeeds(
    run: RunPaths, small_disk: Path, capsys: Printed, name: str, free: int
) -> None:
    words = [word.replace("RUN", str(run.root)).replace("DISK", str(small_disk)) for word in FULL[name]]
    filler = filled(small_disk, free)
    assert main(words) == 2
    message = capsys.readouterr().err
    assert os.strerror(errno.ENOSPC) in message and str(small_disk) in message and "fault" not in message
    if name != "pages":  # they go on where they ended
        assert [path for path in small_disk.rglob("*") if path.is_file()] == [filler]
    filler.unlink()
    assert main(words) == 0
