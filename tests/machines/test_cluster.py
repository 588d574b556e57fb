"""The machines of the tests are two: other addresses, names and own folders, but one shared folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cluster_shared import Cluster, answer

pytestmark = pytest.mark.machines


def test_the_hosts_are_two_machines(hosts: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    script = f"hostname; hostname > /var/tmp/own; cat /var/tmp/own; echo here >> {shared}; ip -4 -br address"
    sentences = [
        subprocess.run([*hosts.ssh, host, script], capture_output=True, text=True, check=True).stdout
        for host in hosts.hosts
    ]
    assert [text.split()[:2] for text in sentences] == [[host, host] for host in hosts.hosts]
    assert len({text.split()[-1] for text in sentences}) == 2
    assert shared.read_text() == "here\n" * 2


def test_slurm_runs_a_task_on_each(slurm: Cluster) -> None:
    out = answer("srun", "--nodes=2", "--ntasks-per-node=1", "--time=1", "hostname")
    assert sorted(out.split()) == list(slurm.hosts)
