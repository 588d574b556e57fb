"""Commands that write where the user says: a full disk is named with exit code 2, and leaves nothing in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.specs.paths import RunPaths
from plans import PLUGINS

COMMANDS: dict[str, list[str]] = {
    "bundle": ["evidence", "bundle", "RUN", "--output", "DISK/run.zip", "--plugins", str(PLUGINS)],
    "report": ["report", "RUN", "--format", "json", "--output", "DISK/run.json"],
    "pages": ["report", "pages", "DISK/pages", "RUN", "--plugins", str(PLUGINS)],
}


def filled(disk: Path, free: int) -> Path:
    filler = disk / "filler"
    filler.write_bytes(bytes(2**20 - free))
    return filler


@pytest.mark.parametrize(("name", "free"), [*((name, 0) for name in COMMANDS), ("bundle", 4096), ("pages", 65536)])
def test_a_full_disk_is_said_and_the_next_try_succeeds(
    run: RunPaths, small_disk: Path, capsys: pytest.CaptureFixture[str], name: str, free: int
) -> None:
    words = [word.replace("RUN", str(run.root)).replace("DISK", str(small_disk)) for word in COMMANDS[name]]
    filler = filled(small_disk, free)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said and str(small_disk) in said and "fault" not in said
    if name != "pages":  # they go on where they ended
        assert [path for path in small_disk.rglob("*") if path.is_file()] == [filler]
    filler.unlink()
    assert main(words) == 0
