"""`site check` on real machines: hosts behind sshd, and a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster_shared import Cluster
from levelfield.cli.main import main

pytestmark = pytest.mark.machines


def words(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[str]]:
    main(["site", "check", *arguments, "--json"])
    found: dict[str, list[str]] = {}
    for each in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(each["subject"], []).append(each["word"])
    return found


def test_the_hosts_are_reached(hosts: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts.json").write_text(
        json.dumps({"schema": "levelfield.hosts/1", "hosts": [{"name": name} for name in hosts.hosts]})
    )
    site = {"schema": "levelfield.site/1", "ssh": {"config": str(hosts.ssh_config)}}
    (tmp_path / "site.json").write_text(json.dumps(site))
    given = ("--launcher", "ssh", "--hosts", str(tmp_path / "hosts.json"), "--site", str(tmp_path / "site.json"))
    found = words(capsys, *given)
    assert sorted(found) == sorted(hosts.hosts) and all(own[0] == "ok" for own in found.values()), found


def test_the_partition_and_the_shared_folder_are_tried(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = {"schema": "levelfield.site/1", "launcher": "slurm", "shared": str(tmp_path)}
    (tmp_path / "site.json").write_text(json.dumps(site))
    found = words(capsys, "--site", str(tmp_path / "site.json"))
    assert found["controller"] == found["job"] == found["node"] == found["shared"] == ["ok"], found
    (tmp_path / "site.json").write_text(json.dumps({**site, "slurm": {"partition": "nothing"}}))
    assert words(capsys, "--site", str(tmp_path / "site.json"))["job"] == ["missing"]
