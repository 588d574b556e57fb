"""A node's checks: what they print, and what a check that hangs or fails costs."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from levelfield.node import node_facts, node_rates, preflight_checks

SCRIPT = Path(preflight_checks.__file__)


def options(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(folder=str(folder), short=True, own=0, check=None)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the script prints by path, with no variable of this process."""
    folder = tmp_path_factory.mktemp("run")
    argv = [sys.executable, "-I", str(SCRIPT), "--folder", str(folder), "--short"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, env={"PATH": os.defpath})
    assert list(folder.iterdir()) == [], "the file on the disk is removed"
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_check_gives_rates_or_facts_and_the_whole_is_short(printed: dict[str, object]) -> None:
    checks = printed["checks"]
    assert isinstance(checks, dict) and set(checks) == {*preflight_checks.STATES, *preflight_checks.RATES}
    assert not any("reason" in answer for answer in checks.values()), checks
    rates = {name: rate for answer in checks.values() for name, rate in answer.get("rates", {}).items()}
    assert {name: rate["unit"] for name, rate in rates.items()} == {
        "memory copy": "B/s", "integer loop": "1/s", "hash": "B/s", "disk write": "B/s", "disk read": "B/s",
    }  # fmt: skip
    assert all(len(rate["values"]) >= 3 and all(0 < v < math.inf for v in rate["values"]) for rate in rates.values())
    assert checks["load"]["facts"]["cores"] == len(os.sched_getaffinity(0))
    assert checks["memory"]["facts"]["total_bytes"] > 2**28
    assert abs(checks["clock"]["facts"]["drift_ppm"]) < 1e6
    assert "open_files" in checks["limits"]["facts"] and "locked_memory" in checks["limits"]["facts"]


def test_a_check_that_hangs_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = tmp_path / "number"

    def argv(name: str, given: argparse.Namespace) -> list[str]:
        hangs = f"import os, time; open({str(number)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        return [sys.executable, "-c", hangs if name == "disk" else 'print(\'{"facts": {"a": 1}}\')']

    monkeypatch.setattr(preflight_checks, "_argv", argv)
    found = preflight_checks.checked(options(tmp_path), limit=2.0)["checks"]
    assert found["disk"] == {"reason": "no answer within 2 s"}
    assert all(found[name] == {"facts": {"a": 1}} for name in found if name != "disk")
    assert not psutil.pid_exists(int(number.read_text())), "no process is left"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise OSError('no such disk')", "the check failed: OSError: no such disk"),
        ("print('[1]')", "the check printed no object"),
        ("print('{')", "the check failed: exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "the check failed: exit code -9"),
    ],
)
def test_a_check_that_fails_says_why(code: str, reason: str) -> None:
    assert preflight_checks._answer([sys.executable, "-c", code], 20.0) == {"reason": reason}


def test_too_little_room_is_a_reason_with_the_figures(tmp_path: Path) -> None:
    found = node_rates.disk(str(tmp_path), 2**60)
    assert "too few for a file" in found["reason"] and found["facts"]["free_bytes"] > 0 and "rates" not in found


def test_a_disk_that_gives_other_bytes_is_no_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_rates, "_read", lambda file: [b"\0" * 2**20])
    with pytest.raises(OSError, match="other bytes than were written"):
        node_rates.disk(str(tmp_path), 2**20)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_ends_early_is_no_rate() -> None:
    def broken() -> node_rates.Work:
        raise MemoryError

    with pytest.raises(OSError, match="ended before its last window"):
        node_rates.on_every_core(broken, 0.01)


def test_own_processes_are_no_others() -> None:
    """Processor time of this process's children counts as its own, while they run and after they have ended."""
    before = node_facts._own_ticks(os.getpid())
    burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"burnt\n"
        running = node_facts._own_ticks(os.getpid())
    ended = node_facts._own_ticks(os.getpid())
    assert running - before >= 25 and ended >= running
    assert node_facts._own_ticks(2**30) == 0, "no such process: everything is others' load"


def test_what_is_busy_beyond_its_own_is_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    busy, own = iter([0, 2 * ticks]), iter([0, ticks // 2])
    monkeypatch.setattr(node_facts, "_sum", lambda cores, places: next(busy))
    monkeypatch.setattr(node_facts, "_own_ticks", lambda first: next(own))
    clock = iter([10.0, 11.0])
    monkeypatch.setattr(node_facts.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(node_facts.time, "sleep", lambda seconds: None)
    assert node_facts.load_of_others(0)["facts"]["other_cores"] == 1.5


def test_a_container_has_the_memory_that_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "/proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    900 kB\nHugePages_Total:       7",
        "/sys/fs/cgroup/memory.max": "409600",
        "/sys/fs/cgroup/memory.current": "9600",
    }
    monkeypatch.setattr(node_facts, "file_text", lambda path: texts.get(str(path), ""))
    assert node_facts.available_bytes() == 400_000
    assert node_facts.memory()["facts"]["huge_pages"] == 7
    texts["/sys/fs/cgroup/memory.max"] = "max"
    assert node_facts.available_bytes() == 900 * 1024
    texts.clear()
    assert node_facts.available_bytes() is None, "unknown is not 0"
