"""Site files, hosts files, and the port of a rendezvous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from levelfield.errors import DocumentError
from levelfield.specs.base import load, parse
from levelfield.specs.site import Host, HostsFile, Site, rendezvous_port


def site(**content: Any) -> Site:
    return parse(Site, {"schema": "levelfield.site/1", **content}, "site.yaml")


def test_an_empty_site_has_defaults() -> None:
    empty = site()
    assert (empty.launcher, empty.ports, empty.ssh.command) == (None, (23000, 31999), ("ssh",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"partition": "x"}, "unknown key"),
        ({"slurm": {"partition": "a b"}}, "slurm.partition"),
        ({"slurm": {"partition": "a\n#SBATCH --wrap=x"}}, "slurm.partition"),
        ({"slurm": {"options": ["-p x"]}}, "slurm.options"),
        ({"slurm": {"options": ["--comment=a\nrm"]}}, "slurm.options"),
        ({"slurm": {"account": "--uid=0"}}, "slurm.account"),
        ({"shared": "scratch"}, "a path from the root"),
        ({"ports": [9000, 8000]}, "the first port before the last"),
        ({"ports": [80, 8000]}, "ports"),
        ({"environment": {"HF_TOKEN": "abc"}}, "looks like a secret"),
        ({"environment": {"MASTER_ADDR": "x"}}, "cannot be set here"),
        ({"ssh": {"command": ["-oProxyCommand=x"]}}, "ssh.command"),
        ({"kubernetes": {"claim": "data"}}, "expected both or none"),
        ({"own": {"queue": {"name": "a"}}}, "own.queue"),
        ({"slurm": {"constraint": "h100|`id`"}}, "slurm.constraint"),
        ({"slurm": {"constraint": "--uid=0"}}, "slurm.constraint"),
        ({"kubernetes": {"node_selector": {"gpu": "a b"}}}, "kubernetes.node_selector"),
        ({"kubernetes": {"tolerations": [{"key": "gpu", "value": "h100"}]}}, "expected `operator: Equal` beside it"),
        ({"own": {"api_token": "abc"}}, "api_token looks like a secret"),
    ],
)
def test_a_wrong_site_is_refused_with_its_key(content: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError, match=r"site\.yaml") as refusal:
        site(**content)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [
        {"slurm": {"constraint": "h100|h200"}},
        {"slurm": {"constraint": "[rack1*2&rack2*4]"}},
        {"kubernetes": {"node_selector": {"node-role.kubernetes.io/gpu": ""}}},
        {"kubernetes": {"tolerations": [{"key": "gpu", "operator": "Equal", "value": "h100"}]}},
        {"ssh": {"command": ["ssh", "-4"]}},
    ],
)
def test_what_clusters_have_is_accepted(content: dict[str, Any]) -> None:
    assert site(**content).model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ([], "hosts"),
        ([{"name": "a"}, {"name": "a"}], "expected each name once"),
        ([{"name": "-oProxyCommand=touch"}], "hosts.0.name"),
        ([{"name": "a", "port": 70000}], "hosts.0.port"),
        ([{"name": "a", "slots": 0}], "hosts.0.slots"),
    ],
)
def test_a_wrong_hosts_file_is_refused(hosts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        parse(HostsFile, {"schema": "levelfield.hosts/1", "hosts": hosts}, "hosts.yaml")
    assert message in str(refusal.value)


def test_a_host_is_reached_at_its_address_else_by_its_name() -> None:
    assert [h.peer_address for h in (Host(name="a", address="10.0.0.1"), Host(name="b"))] == ["10.0.0.1", "b"]


def test_the_port_is_a_function_of_the_run_within_the_range() -> None:
    ports = [rendezvous_port(f"run{n}", (23000, 23009)) for n in range(200)]
    assert set(ports) == set(range(23000, 23010))
    assert rendezvous_port("run1", (23000, 23009)) == ports[1]
    assert rendezvous_port("run1", (25000, 25000)) == 25000


def test_every_shipped_site_file_can_be_read() -> None:
    folder = Path(__file__).parents[3] / "configs" / "sites"
    assert [load(Site, path) for path in folder.glob("*.yaml")]
