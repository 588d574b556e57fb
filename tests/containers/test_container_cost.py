"""The benchmark of a step in a container against one without runs from end to end, on little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker import DockerClient
from driving import ROOT

# test_container_runs.py trains in both; as other benchmarks that train, this one is thorough.
pytestmark = [pytest.mark.containers, pytest.mark.thorough]


def test_a_step_in_a_container_is_compared_with_one_without(
    engine: DockerClient, images_cache: Path, tmp_path: Path
) -> None:
    ours = {"PYTHONPATH": str(ROOT / "platform"), "XDG_CACHE_HOME": str(images_cache)}
    environment = {**os.environ, **ours, "LEVELFIELD_LOCKS": str(tmp_path / "locks")}
    argv = [sys.executable, str(ROOT / "benchmarks" / "container_cost.py"), "--quick", "--json"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout)
    assert figures["container_ms"] > 0 and figures["process_ms"] > 0 and 0 < figures["start_seconds"] < 600
