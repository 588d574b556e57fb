"""Plans for machines that a launcher reaches, by a site's own launcher."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main

LAUNCHER = """
import json
from dataclasses import replace
from levelfield.contracts.execution import Outcome, Submission
from levelfield.run.launchers.node_content import node_content, request_for_nodes
from levelfield.run.runtimes.process_runtime import NodeRuntime

class SiteLauncher:
    name = "mine"

    def runtime(self, plan):
        return NodeRuntime(plan.launch.hosts[0].reached_at if plan.launch.hosts else "{first_node}")

    def request(self, plan, paths, runtime):
        found = request_for_nodes(plan, paths, self.name, runtime)
        lines = (json.dumps(node_content(plan, paths, found, node, None)) for node in found.nodes)
        sent = (Submission(node.name, ("reach", node.name), stdin=line) for node, line in zip(found.nodes, lines))
        return replace(found, submissions=tuple(sent))

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


def shown(capsys: pytest.CaptureFixture[str], plugins: Path, *arguments: str) -> list[dict[str, Any]]:
    given = ["--launcher", "mine", "--plugins", str(plugins), "--dry-run", "--json", *arguments]
    assert main(given) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    return " ".join(capsys.readouterr().err.split())


def test_every_rank_of_every_node_is_shown(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    (found,) = shown(capsys, plugins, "--case", "llama3_8b:megatron:H100:4:8")
    nodes = found["request"]["nodes"]
    ranks = [process["environment"] for node in nodes for process in node["processes"]]
    assert [int(rank["RANK"]) for rank in ranks] == list(range(32))
    assert [int(rank["NODE_RANK"]) for rank in ranks] == [n for n in range(4) for _ in range(8)]
    assert {rank["MASTER_ADDR"] for rank in ranks} == {"{first_node}"}
    assert len({rank["MASTER_PORT"] for rank in ranks}) == 1 and ranks[0]["MASTER_PORT"].isdecimal()
    assert not found["plan"]["hardware"]["assumed"] and found["plan"]["scale"] == "full"


def test_a_python_of_the_nodes_is_not_looked_into_here(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    given = ("--case", "llama3_8b:megatron:H100:4:8", "--python", sys.executable)
    assert shown(capsys, plugins, *given)[0]["plan"]["environment"].get("lacking") is None
    assert main([*given, "--dry-run"]) == 0
    assert "found no transformer-engine" in " ".join(capsys.readouterr().out.split())


def test_hosts_give_nodes_devices_address_and_interface(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    (found,) = shown(capsys, plugins, "--case", "gpt3_6.7B:torch:cpu", "--hosts", str(plugins.parent / "hosts.json"))
    assert found["plan"]["hardware"]["nodes"] == 4 and found["plan"]["hardware"]["devices_per_node"] == 2
    rank = found["request"]["nodes"][2]["processes"][1]["environment"]
    assert (rank["RANK"], rank["MASTER_ADDR"], rank["GLOO_SOCKET_IFNAME"]) == ("5", "10.0.0.1", "eth1")
    content = json.loads(found["request"]["submissions"][2]["stdin"])
    assert (content["name"], content["node_rank"], content["nodes"]) == ("host3", 2, 4)


def test_fewer_nodes_than_hosts_take_the_first(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    hosts = str(plugins.parent / "hosts.json")
    (found,) = shown(capsys, plugins, "--case", "gpt3_6.7B:torch:cpu:2:1", "--hosts", hosts)
    assert [host["name"] for host in found["plan"]["launch"]["hosts"]] == ["host1", "host2"]


def test_hosts_that_a_site_lists_and_a_run_leaves_out_are_said(
    capsys: pytest.CaptureFixture[str], plugins: Path
) -> None:
    site = plugins.parent / "site.json"
    hosts = str(plugins.parent / "hosts.json")
    site.write_text(json.dumps({"schema": "levelfield.site/1", "launcher": "ssh", "hosts": hosts}))
    for case, said in (("gpt3_6.7B:torch:cpu", True), ("gpt3_6.7B:torch:cpu:1:1", False)):
        assert main(["--case", case, "--site", str(site), "--dry-run", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        notices = " ".join(found["plan"]["notices"])
        assert ("1 of 4 hosts is used" in notices and "chip:4 for all" in notices) is said


def test_secrets_reach_no_submission(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    hosts = str(plugins.parent / "hosts.json")
    given = ("--case", "gpt3_6.7B:torch:cpu", "--hosts", hosts, "--env", "HF_TOKEN=verysecret")
    (found,) = shown(capsys, plugins, *given)
    assert "verysecret" not in json.dumps(found["request"])
    assert json.loads(found["request"]["submissions"][0]["stdin"])["inherit"] == ["HF_TOKEN"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--case", "gpt3_6.7B:torch"), "names no vendor or chip"),
        (("--case", "gpt3_6.7B:torch:cpu:8:1"), "found 4 hosts, expected 8"),
    ],
)
def test_wrong_requests_are_refused(
    capsys: pytest.CaptureFixture[str], plugins: Path, arguments: tuple[str, ...], said: str
) -> None:
    launched = ("--launcher", "mine", "--plugins", str(plugins), "--hosts", str(plugins.parent / "hosts.json"))
    assert said in refused(capsys, *launched, *arguments, "--dry-run")


def test_an_unknown_launcher_or_site_is_named(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    case = ("--case", "gpt3_6.7B:torch:cpu:2:1", "--dry-run")
    assert "unknown launcher 'slrum'; nearest: slurm" in refused(capsys, "--launcher", "slrum", *case)
    assert "unknown site 'example-slrum'" in refused(capsys, "--site", "example-slrum", *case)
    assert "found no hosts" in refused(capsys, "--launcher", "ssh", *case)


def test_a_launcher_that_cannot_be_loaded_names_its_file(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    file = plugins / "launchers" / "mine" / "launcher.py"
    file.write_text("import nothing_of_this_name\n")
    given = ("--launcher", "mine", "--plugins", str(plugins), "--case", "gpt3_6.7B:torch:cpu:2:1", "--dry-run")
    assert f"{file}: ModuleNotFoundError" in refused(capsys, *given)


def test_a_suite_on_the_hardware_that_it_names(capsys: pytest.CaptureFixture[str], plugins: Path) -> None:
    found = shown(capsys, plugins, "--suite", "oneflow_gpt")
    assert len(found) == 18 and {each["plan"]["scale"] for each in found} == {"full"}
    assert {len(each["request"]["nodes"]) for each in found} == {1, 2, 4}
