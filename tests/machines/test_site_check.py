"""`site check` on real machines: hosts behind sshd, and a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster_shared import Cluster
from fleet import Fleet, running, wait_until
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


def test_an_address_at_which_the_others_do_not_reach_the_first_host_is_named(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = fleet.cluster.hosts
    given = ("--site", str(tmp_path / "site.json"), "--json")
    for address, who, why in (
        (fleet.address(first), set(), ""),
        ("127.0.0.1", {second}, "Connection refused"),
        (fleet.address(second), {first, second}, "Connection refused"),
        (fleet.address(first).rpartition(".")[0] + ".199", {first, second}, ""),
        ("no-such-name.invalid", {first, second}, ""),
    ):
        fleet.write(lambda host, at=address: {**host, "address": at} if host["name"] == first else host)
        assert main(["site", "check", *given]) == (4 if who else 0), address
        found = json.loads(capsys.readouterr().out)["findings"]
        lacking = {each["subject"]: each for each in found if each["word"] == "missing"}
        assert set(lacking) == who, (address, lacking)
        for host, each in lacking.items():
            whom = "itself" if host == first else first
            assert f"it cannot reach {whom} at {address}, port " in each["says"] and why in each["says"], each
            assert f"correct `address` of {first} in the hosts file" in each["do"]
        assert sum("it reaches" in each["says"] for each in found) == 2 - len(who), found
    assert wait_until(lambda: not [line for _, line in running() if "server.accept()" in line])


def test_the_partition_and_the_shared_folder_are_tried(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = {"schema": "levelfield.site/1", "launcher": "slurm", "shared": str(tmp_path)}
    (tmp_path / "site.json").write_text(json.dumps(site))
    found = words(capsys, "--site", str(tmp_path / "site.json"))
    assert found["controller"] == found["job"] == found["node"] == found["shared"] == ["ok"], found
    (tmp_path / "site.json").write_text(json.dumps({**site, "slurm": {"partition": "nothing"}}))
    assert words(capsys, "--site", str(tmp_path / "site.json"))["job"] == ["missing"]
