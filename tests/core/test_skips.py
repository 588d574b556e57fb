"""What is skipped is said last, and fails a run of CI unless its reason is a known one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from plans import ROOT

KNOWN = "no Python older than 3.10 lies in ~/.pyenv/versions"


@pytest.mark.parametrize(
    ("reason", "ci", "code", "last"),
    [
        ("no engine", "true", 1, "skipped, which CI forbids, 1: no engine"),
        ("no engine", "", 0, "skipped 1: no engine"),
        (KNOWN, "yes", 0, f"skipped 1: {KNOWN}"),
    ],
)
def test_a_skip_fails_a_run_of_ci_unless_it_is_known(
    reason: str, ci: str, code: int, last: str, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n\ndef test_passes(): pass\n\ndef test_skips(): pytest.skip({reason!r})\n"
    )
    processes = (
        ["-p", "xdist.plugin", "-n", "1"] if ci == "true" else []
    )  # where the reports come from another process, and in one
    argv = [sys.executable, "-m", "pytest", "-q", *processes, str(tmp_path)]
    environment = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the others have no part in it
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, last in done.stdout.splitlines()) == (code, True), done.stdout
