"""A rank on the stand-in says in its events that its devices are pretended, whatever its own code does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from standin.build import build_delivery

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_delivery(tmp_path_factory.mktemp("standin"))


def start(library: Path, folder: Path, **variables: str) -> Path:
    """A process that does nothing, with the stand-in loaded as a rank has it."""
    job = folder / "job.json"
    job.write_text(json.dumps({"case": "tiny", "events_dir": str(folder), "seed": 1}))
    environment = {**os.environ, "LD_PRELOAD": str(library), "LEVELFIELD_JOB": str(job), "RANK": "3", **variables}
    environment = {name: value for name, value in environment.items() if value}
    subprocess.run([sys.executable, "-S", "-c", ""], env=environment, check=True)
    return folder / "rank3.jsonl"


def test_the_first_event_of_a_rank_names_the_pretended_chip(library: Path, tmp_path: Path) -> None:
    path = start(library, tmp_path, LEVELFIELD_STANDIN_CHIP="A100-40")
    (event,) = map(json.loads, path.read_text().splitlines())
    assert event == {"event": "pretended", "chip": event["chip"]} and "A100" in event["chip"]


@pytest.mark.parametrize("variables", [{"RANK": ""}, {"LEVELFIELD_JOB": ""}, {"LD_PRELOAD": ""}], ids=str)
def test_no_other_process_writes_into_a_run(library: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    assert not start(library, tmp_path, **variables).exists()
