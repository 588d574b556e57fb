"""The conformance suite for launchers on the launchers of Levelfield, with real hosts and a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

import pytest
from cluster_shared import Cluster
from levelfield.testing import LauncherConformance

pytestmark = pytest.mark.machines


class TestSsh(LauncherConformance):
    launcher: ClassVar[str] = "ssh"

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def reached(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("ssh")
        entries = [{"name": name, "address": f"{name}"} for name in hosts.hosts]
        TestSsh.hosts, TestSsh.site = folder / "hosts.json", folder / "site.json"
        TestSsh.hosts.write_text(json.dumps({"schema": "levelfield.hosts/1", "hosts": entries}))
        TestSsh.site.write_text(json.dumps({"schema": "levelfield.site/1", "ssh": {"config": str(hosts.ssh_config)}}))


class TestSlurm(LauncherConformance):
    launcher: ClassVar[str] = "slurm"

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def reached(slurm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        TestSlurm.runs = tmp_path_factory.mktemp("slurm")
        yield
