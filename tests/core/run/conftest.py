"""Shared by the tests of the room `run`: commands of Slurm that only pretend, and the folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.run.launchers.slurm import slurm_watch
from planted_slurm import PlantedSlurm


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlantedSlurm:
    """Slurm's commands, and a watch that does not wait between two questions to them."""
    for name in ("END_POLL_SECONDS", "MIN_POLL_SECONDS", "MAX_POLL_SECONDS", "RECORD_WAIT_SECONDS"):
        monkeypatch.setattr(slurm_watch, name, 0.01)
    monkeypatch.setattr(slurm_watch, "END_SECONDS", 1.0)
    return PlantedSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def node_run(tmp_path: Path) -> Path:
    """The directory of a run, with empty folders for what nodes write."""
    for folder in ("events", "nodes", "logs", "telemetry"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    return tmp_path / "run"
