"""Kills for memory: the kernel really kills, in a control group of its own, and only a run's own kill is the run's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from levelfield.node import control_groups as watched
from levelfield.node.control_groups import MemoryKills, MemoryKillWatch, count_memory_kills
from live_groups import control_group, inside
from plans import PLUGINS

EAT = "parts = [bytes([1]) * 2**20 for _ in range(4096)]"


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A control group of 64 MiB, or the parameter's, without swap."""
    limit = str(getattr(request, "param", 64) * 2**20)
    first = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    with control_group("memory", first, {"memory.max": limit, "memory.swap.max": "0"}) as folder:
        yield folder


def eaten(folder: Path) -> int:
    """Let the kernel kill a process in the group for memory; return its number."""
    done = inside(folder, "-c", f"import os; print(os.getpid(), flush=True); {EAT}")
    assert done.returncode == -9, done.stderr
    return int(done.stdout)


def test_the_kernels_log_tells_whose_kill_it_was(group: Path) -> None:
    watches = [MemoryKillWatch() for _ in range(2)]
    if watches[0]._log is None:
        pytest.skip("the kernel's log does not tell this machine's processes")
    victim = eaten(group)
    kills = watches[0].kills([victim, os.getpid()])
    assert kills.number == 1 and str(kills.evidence).endswith(f" process {victim}")
    assert watches[1].kills([os.getpid()]) == MemoryKills(0, None), "a kill elsewhere is not this run's"
    assert MemoryKillWatch().kills([victim]) == MemoryKills(0, None), "nor is an earlier one"


def test_without_the_log_a_kill_elsewhere_is_not_this_runs(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_open_log", lambda root: None)
    watch = MemoryKillWatch()
    eaten(group)
    assert watch.kills([os.getpid()]) == MemoryKills(0, None)


OWN = f"""
import subprocess, sys
from levelfield.node import control_groups
control_groups._open_log = lambda root: None
watch = control_groups.MemoryKillWatch()
victim = subprocess.Popen([sys.executable, "-c", "open('/proc/self/oom_score_adj', 'w').write('900'); {EAT}"])
victim.wait()
print(victim.returncode, *watch.kills([victim.pid]))
"""


def test_without_the_log_the_own_groups_counter_tells(group: Path) -> None:
    done = inside(group, "-c", OWN)
    assert done.stdout.split()[:2] == ["-9", "1"] and "control group" in done.stdout, done.stderr


@pytest.mark.thorough  # above the kernel kills a process alone; test_runner.py has a run with such a kill
@pytest.mark.parametrize("group", [600], indirect=True)
def test_a_run_whose_rank_the_kernel_kills_is_oom(group: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = ["--case", "tiny:fake:F1", "--scale", "smoke", "--json", "--python", sys.executable, "--runs", str(runs)]
    code = "import sys; from levelfield.cli.main import main; sys.exit(main(sys.argv[1:]))"
    changed = {"FAKE_FAULT": "eat", "FAKE_DEVICES": "2", "XDG_CACHE_HOME": str(tmp_path)}
    done = inside(group, "-c", code, *words, "--plugins", str(PLUGINS), **changed)
    assert done.stdout, (done.returncode, done.stderr)
    (result,) = json.loads(done.stdout)
    assert (result["status"]["word"], result["status"]["failure"]) == ("oom", "oom"), done.stderr
    rank, *_, proof = result["status"]["evidence"].split("; ")
    assert "kernel's log" in proof or "control group" in proof
    # on a machine that is short of memory the kernel may kill both ranks of the group
    is_rank_1 = rank.startswith("rank 1 ") and rank.endswith(" SIGKILL")
    assert is_rank_1 or ", " in proof, result["status"]["evidence"]


def test_a_counter_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert count_memory_kills(tmp_path) is None
    assert MemoryKillWatch(tmp_path).kills([1]) == MemoryKills(0, None)


@pytest.mark.parametrize(("before", "after", "number"), [(2, 2, 0), (2, 3, 1), (3, 2, 0)])
def test_only_what_rose_counts(tmp_path: Path, before: int, after: int, number: int) -> None:
    events = tmp_path / "sys/fs/cgroup/job/memory.events"
    events.parent.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    events.write_text(f"oom_kill {before}\n")
    watch = MemoryKillWatch(tmp_path)
    events.write_text(f"oom_kill {after}\n")
    assert watch.kills([1]).number == number
