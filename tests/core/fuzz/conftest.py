"""Every fuzzed command has a user's folders of its own, and may write in the test's folder and nowhere else."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import run_in


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Home, settings, caches, data, temporary files, runs and the current folder lie in the test's folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", None)  # Python looks once
    for name, folder in FOLDERS.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.setenv(name, str(tmp_path / folder))
    with run_in(tmp_path):
        yield


FOLDERS = {
    "HOME": "home", "XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data",
    "TMPDIR": "temporary", "LEVELFIELD_RUNS": "own runs", "LEVELFIELD_LOCKS": "locks",
}  # fmt: skip
