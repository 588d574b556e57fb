"""The drill trains nothing: its list entry and each of its results say so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.testing.rehearsal import DRILL_FOLDER

REMARK = "a simulated training; no figure and no verdict is of a device"


def test_results_of_a_simulated_training_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "frameworks", "--plugins", str(DRILL_FOLDER)]) == 0
    assert f"every device: {REMARK}" in " ".join(capsys.readouterr().out.split())
    words = ["--plugins", str(DRILL_FOLDER), "--plugins", str(DRILL_FOLDER / "hosts"), "--python", sys.executable]
    assert main(["--case", "drill:drill:drill:1:1", *words, "--runs", str(tmp_path), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert f"framework drill: {REMARK}" in result["warnings"]


def test_a_real_training_is_not_called_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "gpt2_small:torch:cpu:1:1", "--dry-run"]) == 0
    assert "simulated" not in capsys.readouterr().out
