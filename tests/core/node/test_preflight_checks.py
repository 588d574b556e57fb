"""A node's checks: what they print, and what a check that fails costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from levelfield.node import node_facts, preflight_checks

SCRIPT = Path(preflight_checks.__file__)
CHECKS = {"load", "memory", "limits"}


def test_every_check_gives_facts(tmp_path: Path) -> None:
    """By path, with no variable of this process, and with the options that the worker gives."""
    argv = [sys.executable, "-I", str(SCRIPT), "--folder", str(tmp_path), "--own", str(os.getpid()), "--short"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, env={"PATH": os.defpath})
    checks = json.loads(done.stdout)["checks"]
    assert set(checks) == CHECKS and not any("reason" in answer for answer in checks.values()), checks
    assert checks["load"]["facts"]["cores"] == len(os.sched_getaffinity(0))
    assert checks["memory"]["facts"]["total_bytes"] > 2**28
    assert "open_files" in checks["limits"]["facts"] and "locked_memory" in checks["limits"]["facts"]


def test_a_check_that_fails_costs_only_itself_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> dict[str, object]:
        raise OSError("no file")

    monkeypatch.setattr(node_facts, "memory_facts", failing)
    checks = preflight_checks.run_checks(0)["checks"]
    assert checks["memory"].keys() == {"reason"} and checks["memory"]["reason"].endswith("OSError: no file")
    assert all("facts" in checks[name] for name in CHECKS - {"memory"})


def test_what_is_busy_beyond_its_own_is_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    busy, ours = iter([0, 2 * ticks]), iter([0, ticks // 2])
    monkeypatch.setattr(node_facts, "_core_ticks", lambda places: (next(busy), 8))
    monkeypatch.setattr(node_facts, "_tree_ticks", lambda first: next(ours))
    clock = iter([10.0, 11.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert node_facts.measure_load_of_others(0)["facts"]["other_cores"] == 1.5


def test_a_container_has_the_memory_that_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "/proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    900 kB\nHugePages_Total:       7",
        "/sys/fs/cgroup/memory.max": "409600",
        "/sys/fs/cgroup/memory.current": "9600",
    }
    monkeypatch.setattr(node_facts, "file_text", lambda path: texts.get(str(path), ""))

    def available() -> object:
        return node_facts.memory_facts()["facts"]["available_bytes"]

    assert available() == 400_000
    assert node_facts.memory_facts()["facts"]["huge_pages"] == 7
    texts["/sys/fs/cgroup/memory.max"] = "max"
    assert available() == 900 * 1024
    texts.clear()
    assert available() is None, "unknown is not 0"
