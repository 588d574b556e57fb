"""Plans for machines that a launcher reaches, by a site's own launcher."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.node.assignment import parse_assignment
from levelfield.node.common_work import join_work

LAUNCHER = """
import json
from dataclasses import replace
from levelfield.contracts.execution import Outcome, Submission
from levelfield.run.launchers.node_content import node_content, request_for_nodes
from levelfield.run.runtimes.process_runtime import NodeRuntime

class SiteLauncher:
    name = "mine"

    def runtime(self, plan):
        return NodeRuntime(plan.launch.hosts[0].peer_address if plan.launch.hosts else "{first_node}")

    def request(self, plan, paths, runtime):
        request = request_for_nodes(plan, paths, self.name, runtime)
        lines = (json.dumps(node_content(plan, paths, request, node, None)) for node in request.nodes)
        sent = (Submission(node.name, ("reach", node.name), stdin=line) for node, line in zip(request.nodes, lines))
        return replace(request, submissions=tuple(sent))

    def execute(self, request, watch):
        return Outcome("unreachable")
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins" / "launchers" / "mine"
    folder.mkdir(parents=True)
    (folder / "launcher.py").write_text(LAUNCHER)
    hosts = [{"name": f"host{n}", "address": f"10.0.0.{n}", "slots": 2, "interface": "eth1"} for n in (1, 2, 3, 4)]
    (tmp_path / "hosts.json").write_text(json.dumps({"schema": "levelfield.hosts/1", "hosts": hosts}))
    return tmp_path / "plugins"


def dry_runs(capsys: pytest.CaptureFixture[str], plugins: Path, *arguments: str) -> list[dict[str, Any]]:
    command = ["--launcher", "mine", "--plugins", str(plugins), "--dry-run", "--json", *arguments]
    assert main(command) == 0, capsys.readouterr().err
    runs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return runs


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    return " ".join(capsys.readouterr().err.split())


def test_every_rank_of_every_node_is_shown(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    [run] = dry_runs(capsys, plugins, "--case", "llama3_8b:megatron:H100:4:8")
    nodes = [join_work(run["request"]["common"], node) for node in run["request"]["nodes"]]
    ranks = [process["environment"] for node in nodes for process in node["processes"]]
    assert [int(rank["RANK"]) for rank in ranks] == list(range(32))
    assert [int(rank["NODE_RANK"]) for rank in ranks] == [n for n in range(4) for _ in range(8)]
    assert {rank["MASTER_ADDR"] for rank in ranks} == {"{first_node}"}
    assert len({rank["MASTER_PORT"] for rank in ranks}) == 1 and ranks[0]["MASTER_PORT"].isdecimal()
    assert not run["plan"]["hardware"]["assumed"] and run["plan"]["scale"] == "full"


def test_a_python_of_the_nodes_is_not_looked_into_here(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    case = ("--case", "llama3_8b:megatron:H100:4:8", "--python", sys.executable)
    assert dry_runs(capsys, plugins, *case)[0]["plan"]["environment"].get("lacking") is None
    assert main([*case, "--dry-run"]) == 0
    assert "no transformer-engine" in " ".join(capsys.readouterr().out.split())


def test_hosts_give_nodes_devices_address_and_interface(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    [run] = dry_runs(capsys, plugins, "--case", "gpt3_6.7B:torch:cpu", "--hosts", str(plugins.parent / "hosts.json"))
    assert run["plan"]["hardware"]["nodes"] == 4 and run["plan"]["hardware"]["devices_per_node"] == 2
    request = run["request"]
    rank = join_work(request["common"], request["nodes"][2])["processes"][1]["environment"]
    assert (rank["RANK"], rank["MASTER_ADDR"], rank["GLOO_SOCKET_IFNAME"]) == ("5", "10.0.0.1", "eth1")
    content = json.loads(run["request"]["submissions"][2]["stdin"])
    assert (content["name"], content["node_rank"], content["nodes"]) == ("host3", 2, 4)


def test_fewer_nodes_than_hosts_take_the_first(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    hosts = str(plugins.parent / "hosts.json")
    [run] = dry_runs(capsys, plugins, "--case", "gpt3_6.7B:torch:cpu:2:1", "--hosts", hosts)
    assert [host["name"] for host in run["plan"]["launch"]["hosts"]] == ["host1", "host2"]


def test_hosts_that_a_site_lists_and_a_run_leaves_out_are_said(
    capsys: pytest.CaptureFixture[str], plugins: Path
) -> None:
    site = plugins.parent / "site.json"
    hosts = str(plugins.parent / "hosts.json")
    site.write_text(json.dumps({"schema": "levelfield.site/1", "launcher": "ssh", "hosts": hosts}))
    for case, has_notice in (("gpt3_6.7B:torch:cpu", True), ("gpt3_6.7B:torch:cpu:1:1", False)):
        assert main(["--case", case, "--site", str(site), "--dry-run", "--json"]) == 0
        [run] = json.loads(capsys.readouterr().out)
        notices = " ".join(run["plan"]["notices"])
        assert ("1 of 4" in notices) is ("chip:4" in notices) is has_notice


def test_secrets_reach_no_submission(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    hosts = str(plugins.parent / "hosts.json")
    case = ("--case", "gpt3_6.7B:torch:cpu", "--hosts", hosts, "--env", "HF_TOKEN=verysecret")
    [run] = dry_runs(capsys, plugins, *case)
    assert "verysecret" not in json.dumps(run["request"])
    assert json.loads(run["request"]["submissions"][0]["stdin"])["inherit"] == ["HF_TOKEN"]


def test_ssh_shows_once_what_it_sends_to_all(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    hosts = str(plugins.parent / "hosts.json")
    assert main(["--launcher", "ssh", "--hosts", hosts, "--case", "gpt3_6.7B:torch:cpu", "--dry-run", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)
    sent = [submission["stdin"] for submission in run["request"]["submissions"]]
    assert max(map(len, sent)) < 400 and len(run["request"]["common_stdin"]) > 2000
    for node, text in enumerate(sent):
        lines = iter([run["request"]["common_stdin"]])
        assignment = parse_assignment(text, lambda name, lines=lines: next(lines))  # type: ignore[misc]
        assert (assignment.name, assignment.ranks) == (f"host{node + 1}", [2 * node, 2 * node + 1])
        assert assignment.processes[1]["environment"]["RANK"] == str(2 * node + 1)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--case", "gpt3_6.7B:torch"), "names no vendor or chip"),
        (("--case", "gpt3_6.7B:torch:cpu:8:1"), "found 4 hosts, expected 8"),
    ],
)
def test_wrong_requests_are_refused(
    capsys: pytest.CaptureFixture[str], plugins: Path, arguments: tuple[str, ...], fault: str
) -> None:
    launched = ("--launcher", "mine", "--plugins", str(plugins), "--hosts", str(plugins.parent / "hosts.json"))
    assert fault in refused(capsys, *launched, *arguments, "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--launcher", "slrum"), "unknown launcher 'slrum'; nearest: slurm"),
        (("--site", "example-slrum"), "unknown site 'example-slrum'"),
        (("--launcher", "ssh"), "found no hosts"),
    ],
)
def test_an_unknown_launcher_or_site_is_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], fault: str
) -> None:
    assert fault in refused(capsys, *arguments, "--case", "gpt3_6.7B:torch:cpu:2:1", "--dry-run")


def test_a_launcher_that_cannot_be_loaded_names_its_file(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    file = plugins / "launchers" / "mine" / "launcher.py"
    file.write_text("import nothing_of_this_name\n")
    command = ("--launcher", "mine", "--plugins", str(plugins), "--case", "gpt3_6.7B:torch:cpu:2:1", "--dry-run")
    assert f"{file}: ModuleNotFoundError" in refused(capsys, *command)


@pytest.mark.thorough
def test_a_suite_on_the_hardware_that_it_names(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    runs = dry_runs(capsys, plugins, "--suite", "oneflow_gpt")
    assert len(runs) == len(Registry().suite("oneflow_gpt").entries)
    assert {run["plan"]["scale"] for run in runs} == {"full"}
    assert {len(run["request"]["nodes"]) for run in runs} == {1, 2, 4}
