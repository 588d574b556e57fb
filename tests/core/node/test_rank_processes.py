"""Ranks as processes of this machine's kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.node.rank_processes import FIRST_FOR_MEMORY
from plans import ROOT

STARTING = """
import sys
from pathlib import Path
from levelfield.node.rank_processes import Ranks

own, log = sys.argv[1:]
Path("/proc/self/oom_score_adj").write_text(own)
ranks = Ranks()
ranks.start(0, ["sleep", "60"], {"PATH": "/usr/bin:/bin"}, log)
try:
    print(Path(f"/proc/{ranks.processes()[0]}/oom_score_adj").read_text().strip())
    print(Path("/proc/self/oom_score_adj").read_text().strip())
finally:
    ranks.stop()
"""


@pytest.mark.parametrize(("platform", "rank"), [(0, FIRST_FOR_MEMORY), (900, 900)])
def test_the_kernel_ends_a_rank_before_the_platform_when_memory_ends(tmp_path: Path, platform: int, rank: int) -> None:
    command = [sys.executable, "-c", STARTING, str(platform), str(tmp_path / "rank0.log")]
    environment = {"PYTHONPATH": str(ROOT / "platform")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert [int(line) for line in done.stdout.split()] == [rank, platform]
