"""What a run records of its surroundings: its code, the machine as the reports of others list it, and identities."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
from levelfield.contracts.vendor import Device
from levelfield.judge.collector import collect
from levelfield.run import provenance
from levelfield.run.provenance import device_identities, machine_facts, machine_identity, query_topology, source_state
from levelfield.rundir.directory import write_json
from levelfield.rundir.raw_files import system_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.vendor import VendorFile
from stand_ins import stand_in

FILES = {
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 20.04.6 LTS"\n',
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 7742 64-Core Processor\nmodel name\t: another\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (4X EDR)\n",
    "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    "sys/class/dmi/id/sys_vendor": "NVIDIA\n",
    "sys/class/dmi/id/product_name": "DGXA100 920-23687-2530-000\n",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth0/speed": "25000\n",
    "sys/class/net/eth0/device/x": "",
    "sys/class/net/eth1/operstate": "up\n",
    "sys/class/net/eth1/speed": "-1\n",
    "sys/class/net/eth1/device/x": "",
    "sys/class/net/eth2/operstate": "down\n",
    "sys/class/net/eth2/device/x": "",
    "sys/class/net/docker0/operstate": "up\n",
}
MACHINE = {
    "os": "Ubuntu 20.04", "kernel": "5.4.0", "processor": "EPYC", "model": "NVIDIA DGX A100",
    "network": ["mlx5_0 100 Gb/sec (4X EDR)"],
}  # fmt: skip
PROVENANCE: dict[str, Any] = {
    "machine": MACHINE,
    "vendor_software": {"driver": "470.129.06", "cuda": "11.8"},
    "engine": {"Version": "20.10.16", "Os": "linux"},
}


def test_a_machine_with_infiniband(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = machine_facts(tmp_path)
    maker, product = (FILES[f"sys/class/dmi/id/{name}"].strip() for name in ("sys_vendor", "product_name"))
    assert f'PRETTY_NAME="{facts["os"]}"\n' in FILES["etc/os-release"]
    assert f"model name\t: {facts['processor']}\n" in FILES["proc/cpuinfo"] and "another" not in facts["processor"]
    assert (facts["kernel"], facts["model"]) == (platform.release(), f"{maker} {product}")
    rate = FILES["sys/class/infiniband/mlx5_0/ports/1/rate"].strip()
    networks = (("mlx5_0", rate), ("eth0", "25 Gb/s"), ("eth1", "unknown rate"))
    for (interface, port), network in zip(networks, facts["network"], strict=True):
        assert network.startswith(f"{interface} ") and network.endswith(port)


def test_what_cannot_be_read_is_null(tmp_path: Path) -> None:
    facts = machine_facts(tmp_path)
    assert (facts["os"], facts["processor"], facts["model"], facts["network"]) == (None, None, None, [])


def test_this_machine_has_facts() -> None:
    assert json.loads(json.dumps(machine_facts()))["kernel"] == platform.release()


def test_the_result_has_what_the_provenance_has(run: RunPaths) -> None:
    assert collect(run).system is None
    write_json(run.provenance, PROVENANCE)
    machine = collect(run).system
    assert machine and machine.model_dump(mode="json") == {
        **MACHINE,
        "software": {"driver": "470.129.06", "cuda": "11.8"},
        "engine": "docker 20.10.16",
    }


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"engine": None}, "engine", None),
        ({"engine": {"Version": 20}}, "engine", None),
        ({"vendor_software": ["driver"]}, "software", {}),
        ({"vendor_software": {"driver": 470, "cuda": "11.8"}}, "software", {"cuda": "11.8"}),
        ({"machine": {**MACHINE, "network": "eth0"}}, "network", ()),
        ({"machine": {**MACHINE, "network": [1, None, "eth0"]}}, "network", ("eth0",)),
        ({"machine": {**MACHINE, "os": {"name": "x"}}}, "os", None),
        ({"machine": {**MACHINE, "os": "x" * 10_000}}, "os", "x" * 200),
    ],
)
def test_damaged_provenance_gives_no_false_fact(change: dict[str, Any], field: str, value: Any) -> None:
    machine = system_of({**PROVENANCE, **change})
    assert machine and getattr(machine, field) == value


@pytest.mark.parametrize("content", [{}, {"machine": None}, {"machine": {"name": "of an earlier version"}}])
def test_an_earlier_version_had_none(content: dict[str, Any]) -> None:
    assert system_of(content) is None


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("printf 'GPU0\\tGPU1\\n X \\tNV1\\n'", {"text": "GPU0\tGPU1\n X \tNV1\n"}),
        ("echo no driver >&2; exit 9", {"reason": "acme-smi ended with exit code 9: no driver"}),
        (None, {"reason": "acme-smi cannot be started: No such file or directory", "absent": True}),
    ],
)
def test_the_tool_s_table_of_links_is_recorded_as_it_is_printed(
    tool: str | None, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool:
        stand_in(tmp_path / "acme-smi", tool)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    topology = {"command": ["acme-smi", "topo", "-m"]}
    spec = VendorFile.model_validate({**VENDOR, "topology": topology})
    assert query_topology(spec) == {"argv": ["acme-smi", "topo", "-m"], **expected}
    assert query_topology(VendorFile.model_validate(VENDOR)) is None


VENDOR = {
    "name": "acme", "title": "Acme", "device_kind": "acme", "verified": "none",
    "chips": [{"name": "A1", "device_is": "card", "memory_bytes": 1, "memory_source": "made for this test"}],
}  # fmt: skip


# ---- the code


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("1\n")
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_files_that_differ_from_the_commit_are_named(repository: Path) -> None:
    assert source_state(repository)["changed_files"] == []
    (repository / "a.py").write_text("2\n")
    assert source_state(repository)["changed_files"] == ["a.py"]


def test_a_status_that_does_not_come_is_no_clean_checkout(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = provenance._git
    monkeypatch.setattr(
        provenance, "_git", lambda folder, *words: None if words[0] == "status" else original(folder, *words)
    )
    facts = source_state(repository)
    assert facts["commit"] and facts["changed_files"] is None and "git status" in facts["reason"]


def test_outside_of_git_there_is_a_reason(tmp_path: Path) -> None:
    facts = source_state(tmp_path)
    assert facts == {"commit": None, "reason": facts["reason"]} and "git checkout," in facts["reason"]


# ---- digests of the machine and of its devices


def with_id(folder: Path, text: str) -> Path:
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/machine-id").write_text(text)
    return folder


def test_a_machine_is_known_by_its_identifier_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = with_id(tmp_path / "1", "0123456789abcdef\n"), with_id(tmp_path / "2", "fedcba9876543210\n")
    machine = machine_identity(one)
    assert machine == machine_identity(one) and machine["identity"] != machine_identity(other)["identity"]
    assert machine["identity_rests_on"] == ["machine-id", "host name"]
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert machine_identity(one)["identity"] != machine["identity"]


@pytest.mark.parametrize("text", [None, "", "\n", "uninitialized\n", "\xff\xfe"])
def test_without_an_identifier_the_name_remains_and_it_is_said(tmp_path: Path, text: str | None) -> None:
    root = tmp_path if text is None else with_id(tmp_path, text)
    assert machine_identity(root)["identity_rests_on"] == ["host name"]


def test_nothing_can_be_read_from_a_digest(tmp_path: Path) -> None:
    text = json.dumps([machine_identity(with_id(tmp_path, "0123456789abcdef")), device_identities([card(0, "GPU-1")])])
    assert "0123456789abcdef" not in text and platform.node() + '"' not in text and "GPU-1" not in text


def card(index: int, identity: str | None) -> Device:
    return Device(index, "A1", "a card", 2**30, identity)


def test_a_device_is_known_by_its_own_identity_in_any_place() -> None:
    first, second = device_identities([card(0, "GPU-1"), card(1, "GPU-2")]), device_identities([card(3, "GPU-1")])
    assert first[0]["identity"] == second[0]["identity"] != first[1]["identity"]
    assert device_identities([card(0, None)]) == [{"index": 0, "identity": None}]
