"""`site check` on real machines: hosts behind sshd, and a real Slurm."""

from __future__ import annotations

import errno
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import Cluster
from driving import SHORT, TORCH_HERE
from fleet import Fleet, running, wait_until
from levelfield.cli.main import main

pytestmark = pytest.mark.machines


def words(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[str]]:
    main(["site", "check", *arguments, "--json"])
    findings: dict[str, list[str]] = {}
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        findings.setdefault(finding["subject"], []).append(finding["word"])
    return findings


def test_the_hosts_are_reached(hosts: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts.json").write_text(
        json.dumps({"schema": "levelfield.hosts/1", "hosts": [{"name": name} for name in hosts.hosts]})
    )
    site = {"schema": "levelfield.site/1", "ssh": {"config": str(hosts.ssh_config)}}
    (tmp_path / "site.json").write_text(json.dumps(site))
    arguments = ("--launcher", "ssh", "--hosts", str(tmp_path / "hosts.json"), "--site", str(tmp_path / "site.json"))
    findings = words(capsys, *arguments)
    assert sorted(findings) == sorted(hosts.hosts) and all(
        words_of_host[0] == "ok" for words_of_host in findings.values()
    ), findings


def addressed(first: str, address: str, host: dict[str, Any]) -> dict[str, Any]:
    return {**host, "address": address} if host["name"] == first else host


@pytest.mark.thorough  # a firewall, below, is told by the same calls of the hosts to each other
def test_an_address_at_which_the_others_do_not_reach_the_first_host_is_named(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = fleet.cluster.hosts
    arguments = ("--site", str(tmp_path / "site.json"), "--json")
    for address, who, reason in (
        (fleet.address(first), set(), ""),
        (fleet.address(second), {first, second}, "Connection refused"),
        (fleet.address(first).rpartition(".")[0] + ".199", {first, second}, ""),
        ("no-such-name.invalid", {first, second}, ""),
    ):
        fleet.write(partial(addressed, first, address))
        assert main(["site", "check", *arguments]) == (4 if who else 0), address
        findings = json.loads(capsys.readouterr().out)["findings"]
        lacking = {finding["subject"]: finding for finding in findings if finding["word"] == "missing"}
        assert set(lacking) == who, (address, lacking)
        for host, finding in lacking.items():
            whom = "itself" if host == first else first
            assert f"reach {whom} at {address}, port" in finding["says"] and reason in finding["says"], finding
            assert f"`address` of {first} " in finding["do"]
        assert sum("it reaches" in finding["says"] for finding in findings) == 4 - len(who), findings
    assert wait_until(lambda: not [line for _, line in running() if "node_setup.py" in line])


def test_a_firewall_between_the_hosts_is_named_before_anything_trains(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lets ssh and the rendezvous pass. A run would hang behind it for the case's limit of the first step."""
    with fleet.cluster.firewall():
        assert main(["site", "check", "--site", str(tmp_path / "site.json"), "--json"]) == 4
        findings = json.loads(capsys.readouterr().out)["findings"]
        done = fleet.run(*fleet.command())
    lacking = {finding["subject"]: finding["says"] for finding in findings if finding["word"] == "missing"}
    first, second = fleet.cluster.hosts
    for host, other in ((first, second), (second, first)):
        assert lacking[host].startswith(f"it cannot reach {other} at {fleet.address(other)}, port "), lacking
    assert sum("it reaches" in finding["says"] for finding in findings) == 2, findings  # the rendezvous is open
    assert done.returncode == 3 and fleet.words() == ["unreachable", "unreachable"], done.stderr
    outcome = fleet.outcome()
    assert outcome["cause"] == "unreachable" and outcome["evidence"].startswith(f"{first}: {lacking[first][:30]}")
    assert "at least 32768 to 60999" in outcome["evidence"] and not outcome["ends"]


@pytest.mark.thorough
def test_an_own_name_on_loopback_is_no_obstacle(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interface follows from the other hosts' names, and a real training meets over it."""
    fleet.write(lambda host: {"name": host["name"], "python": host["python"]})
    arguments = (*TORCH_HERE, *SHORT, "--no-preflight", "--site", str(tmp_path / "site.json"))
    with fleet.cluster.own_names_on_loopback(tmp_path):
        assert main(["site", "check", "--site", str(tmp_path / "site.json"), "--json"]) == 0
        findings = json.loads(capsys.readouterr().out)["findings"]
        done = fleet.run("--case", "short:torch:cpu:2:1", "--scale", "smoke", *arguments)
    for host in fleet.cluster.hosts:
        says = f"it reaches the 1 other(s) by eth0 ({fleet.address(host)}) on ports of collectives"
        assert says in [finding["says"] for finding in findings if finding["subject"] == host], findings
    assert fleet.words() == ["ended", "ended"], done.stderr
    for node in (0, 1):
        (started,) = [line for line in fleet.record(node) if line["event"] == "ranks-started"]
        assert set(started["variables"].values()) == {"eth0"}


def test_a_folder_of_others_is_told_as_the_run_refuses_it(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    link, foreign, open_to_all = (tmp_path / name for name in ("link", "foreign", "open"))
    link.symlink_to(elsewhere)
    foreign.mkdir(mode=0o755)
    os.chown(foreign, 1234, -1)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder, message in (
        (link, "found a link, expected a folder itself"),
        (foreign, f"found a folder of user 1234 with mode 0755, expected one of user {os.geteuid()} with mode 0700"),
        (open_to_all, "found mode 0777, with which others can write, expected 0700"),
    ):
        fleet.write(folder=str(folder))
        assert main(["site", "check", "--site", str(tmp_path / "site.json"), "--json"]) == 4, folder
        findings = json.loads(capsys.readouterr().out)["findings"]
        lacking = [finding for finding in findings if finding["word"] == "missing"]
        assert [finding["subject"] for finding in lacking] == list(fleet.cluster.hosts)
        assert all(finding["says"].startswith(f"{folder}: {message}") for finding in lacking), lacking
    done = fleet.run(*fleet.command())
    assert done.returncode == 3 and f"{folder}: {message}" in " ".join(done.stderr.split()), done.stderr


def test_a_python_that_is_absent_on_a_node_is_named(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words_of_host = fleet.cluster.own(fleet.cluster.hosts[0], "/var/tmp/only-here")
    words_of_host.symlink_to(sys.executable)
    try:
        site = json.loads((tmp_path / "site.json").read_text())
        (tmp_path / "site.json").write_text(json.dumps({**site, "python": "/var/tmp/only-here"}))
        assert main(["site", "check", "--site", str(tmp_path / "site.json"), "--json"]) == 4
    finally:
        words_of_host.unlink()
    findings = json.loads(capsys.readouterr().out)["findings"]
    (lacking,) = [finding for finding in findings if finding["word"] == "missing"]
    assert lacking["subject"] == fleet.cluster.hosts[1]
    assert "/var/tmp/only-here," in lacking["says"] and os.strerror(errno.ENOENT) in lacking["says"]
    assert any("`python` is" in finding["says"] for finding in findings)


def test_the_partition_and_the_shared_folder_are_tried(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = {"schema": "levelfield.site/1", "launcher": "slurm", "shared": str(tmp_path)}
    (tmp_path / "site.json").write_text(json.dumps(site))
    findings = words(capsys, "--site", str(tmp_path / "site.json"))
    assert findings["controller"] == findings["job"] == findings["node"] == findings["shared"] == ["ok"], findings
    (tmp_path / "site.json").write_text(json.dumps({**site, "slurm": {"partition": "nothing"}}))
    assert words(capsys, "--site", str(tmp_path / "site.json"))["job"] == ["missing"]


def test_what_a_node_of_slurm_lacks_is_named(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    site = {"schema": "levelfield.site/1", "launcher": "slurm", "shared": str(tmp_path)}
    wrong = {
        "interface": "ib0",
        "modules": ["no-such-module"],
        "slurm": {"local_folder": str(tmp_path / "open"), "partition": "short", "minutes": 5},
    }
    right = {"interface": "eth0", "slurm": {"local_folder": "/var/tmp/not-there", "partition": "short", "minutes": 1}}
    for more, code in ((wrong, 4), (right, 0)):
        (tmp_path / "site.json").write_text(json.dumps({**site, **more}))
        assert main(["site", "check", "--site", str(tmp_path / "site.json"), "--json"]) == code
        by_subject = {
            finding["subject"].partition(" of ")[0]: finding
            for finding in json.loads(capsys.readouterr().out)["findings"]
        }
        for subject, message in (
            ("interface", "found no interface ib0; it has " if code else "it has the interface eth0"),
            ("local folder", "open: found mode 0777" if code else "/var/tmp/not-there can be written"),
            ("minutes", "is 5, and the partition allows: short 1" if code else "1 minutes are within the limit"),
            *([("modules", "does not load no-such-module: ")] if code else []),
        ):
            assert message in by_subject[subject]["says"] and (by_subject[subject]["word"] == "missing") is bool(
                code
            ), by_subject
    assert not slurm.own(slurm.hosts[0], "/var/tmp/not-there").exists()
