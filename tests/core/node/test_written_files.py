"""Two nodes that share a folder write the same file at once, also with the same process number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from levelfield.node.node_duty import write_files


def test_a_node_in_between_does_not_take_the_file_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each container counts its processes from 1, so both nodes may be process 7."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    replace = Path.replace

    def after_the_other_node(path: Path, target: Any) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_files(tmp_path, {"run/job.json": "{}"})
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", after_the_other_node)
    write_files(tmp_path, {"run/job.json": "{}"})
    assert [(path.name, path.read_text()) for path in (tmp_path / "run").iterdir()] == [("job.json", "{}")]
