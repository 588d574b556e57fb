"""Threads follow affinity and quota: control groups of both versions, on recorded files."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.catalog.machine import usable_cores
from levelfield.node.control_groups import core_quota, count_memory_kills
from live_groups import control_group, inside

V2 = {"proc/self/cgroup": "0::/user/job"}
V1 = {"proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc"}
CORES = 8


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(CORES)))


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def v1_quota(quota: str, period: str = "100000", folder: str = "docker/abc") -> dict[str, str]:
    place = f"sys/fs/cgroup/cpu/{folder}"
    return {
        "proc/self/cgroup": "3:cpu:/docker/abc",
        f"{place}/cpu.cfs_quota_us": quota,
        f"{place}/cpu.cfs_period_us": period,
    }


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, CORES),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "200000 100000"}, 2),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "max 100000"}, CORES),
        ({**V2, "sys/fs/cgroup/user/cpu.max": "300000 100000"}, 3),  # of a parent
        ({**V2, "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),  # of a container whose path is not to be seen
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "150000 100000"}, 2),  # half a core pays for a thread
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "10000 100000"}, 1),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "6400000 100000"}, CORES),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "200000 0"}, CORES),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "0 100000"}, CORES),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "200000"}, CORES),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "nan 100000"}, CORES),
        ({**V2, "sys/fs/cgroup/unified/user/job/cpu.max": "200000 100000"}, 2),  # v2 beside v1
        (v1_quota("200000"), 2),
        (v1_quota("50000", "25000"), 2),
        (v1_quota("-1"), CORES),
        (v1_quota("200000", folder=""), 2),
    ],
)
def test_threads_follow_the_smaller_of_affinity_and_quota(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert usable_cores(written(tmp_path, files)) == cores


def test_the_least_of_nested_quotas_counts(tmp_path: Path) -> None:
    nested = {**V2, "sys/fs/cgroup/user/job/cpu.max": "400000 100000", "sys/fs/cgroup/user/cpu.max": "100000 100000"}
    assert core_quota(written(tmp_path, nested)) == 1.0


def test_a_quota_of_the_kernel_is_followed() -> None:
    tell = "from levelfield.catalog.machine import usable_cores; print(usable_cores())"
    first = {"cpu.cfs_quota_us": "70000", "cpu.cfs_period_us": "100000"}
    with control_group("cpu", first, {"cpu.max": "70000 100000"}) as folder:
        done = inside(folder, "-c", tell)
        assert done.stdout.strip() == "1", done.stderr
        assert 0.69 < float(inside(folder, "-c", TELL_QUOTA).stdout) < 0.71


TELL_QUOTA = "from levelfield.node.control_groups import core_quota; print(core_quota())"
EVENTS = "low 0\nhigh 3\nmax 9\noom 2\noom_kill {}\noom_group_kill 0"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, None),
        ({**V2, "sys/fs/cgroup/user/job/memory.events": EVENTS.format(2)}, 2),
        (
            {
                **V2,
                "sys/fs/cgroup/user/job/memory.events": EVENTS.format(2),
                "sys/fs/cgroup/user/job/memory.events.local": EVENTS.format(1),  # the other was in a group below
            },
            1,
        ),
        ({**V2, "sys/fs/cgroup/memory.events": EVENTS.format(4)}, 4),  # a container's own root
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.events": EVENTS.format(4)}, 4),  # the same, by namespace
        ({"proc/self/cgroup": "0::/", "proc/vmstat": "oom_kill 7"}, None),  # the machine's
        ({**V1, "sys/fs/cgroup/memory/docker/abc/memory.oom_control": CONTROL.format(3)}, 3),
        ({"proc/self/cgroup": "4:memory:/", "sys/fs/cgroup/memory/memory.oom_control": CONTROL.format(3)}, None),
        ({**V2, "sys/fs/cgroup/user/job/memory.events": "low 0\noom 2"}, None),
        ({**V2, "sys/fs/cgroup/user/job/memory.events": "oom_kill"}, None),
        ({**V2, "sys/fs/cgroup/user/job/memory.events": "oom_kill -1"}, None),
        # another group's kills
        ({**V2, "sys/fs/cgroup/user/memory.events": EVENTS.format(5)}, None),
    ],
)
def test_kills_are_counted_in_ones_own_group(tmp_path: Path, files: dict[str, str], kills: int | None) -> None:
    assert count_memory_kills(written(tmp_path, files)) == kills
