"""Two machines with ssh and Slurm for the tests that need them, and what they must not keep of them.

LEVELFIELD_TEST_HOSTS names an ssh_config whose hosts are the machines, SLURM_CONF the cluster's; `.ci/cluster up` gives
both. Without them these tests are skipped by name, which CI forbids.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_shared import Cluster, cluster_at, idle_nodes, jobs_left, jobs_of
from driving import Benchmark, trainings
from fleet import Fleet

HINT = "`.ci/cluster up` starts them and prints the variables to set"
SECONDS = 20  # that a question to a host or to Slurm may take


@pytest.fixture(scope="session")
def hosts() -> Cluster:
    """Return the machines, each of which was reached by ssh."""
    place = os.environ.get("LEVELFIELD_TEST_HOSTS", "")
    if not place or not Path(place).exists():
        pytest.skip(f"no test machines: LEVELFIELD_TEST_HOSTS='{place}'; {HINT}")
    cluster = cluster_at(Path(place))
    for host in cluster.hosts:
        done = subprocess.run([*cluster.ssh, host, "true"], capture_output=True, text=True, timeout=SECONDS)
        if done.returncode != 0:
            pytest.skip(f"the test machine {host} does not answer: {done.stderr.strip()}; {HINT}")
    return cluster


@pytest.fixture(scope="session")
def slurm_cluster(hosts: Cluster) -> Cluster:
    """Return the machines, all of which are nodes of a Slurm that answers."""
    if not os.environ.get("SLURM_CONF"):
        pytest.skip(f"no test cluster: SLURM_CONF is not set; {HINT}")
    if not idle_nodes(hosts, SECONDS):
        pytest.skip(f"Slurm does not show {', '.join(hosts.hosts)} as idle; {HINT}")
    return hosts


@pytest.fixture
def slurm(slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The same, for a test: the nodes are idle when it begins, and no job of it is left soon after its end."""
    assert idle_nodes(slurm_cluster, 60), "a node is not idle"
    before = set(jobs_of())
    yield slurm_cluster
    left = jobs_left(before, 60)  # a node that was lost is given time to come back
    if left:
        subprocess.run(["scancel", *left], check=False, timeout=SECONDS)
    assert left == []


@pytest.fixture
def fleet(hosts: Cluster, tmp_path: Path) -> Iterator[Fleet]:
    """The machines as the launcher ssh drives them, with folders of their own; a test leaves nothing on them."""
    started = Fleet(hosts, tmp_path, tmp_path / "node")
    yield started
    started.stop()
    assert started.nothing_is_left()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def benchmark(slurm: Cluster, tmp_path: Path, cache: Path) -> Iterator[Benchmark]:
    """Runs in a folder that all nodes see. No process of a training may be left on any node."""
    started = Benchmark(tmp_path / "runs", cache, LEVELFIELD_LOCKS="/tmp/levelfield-devices")  # a node's own folder
    yield started
    started.stop()
    assert trainings(started.runs) == {}
