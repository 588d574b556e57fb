"""A vendor that is a vendor.yaml alone, from the command line to the result: its tool is found by PATH and replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from acme_machine import AcmeMachine
from levelfield.judge.collector import collect
from recorded_runs import edit

VENDOR = """
schema: levelfield.vendor/1
name: acme
title: A maker whose vendor.yaml says everything
device_kind: fake
visible_devices_variable: ACME_VISIBLE_DEVICES
frameworks:
  fake: {device: cpu, backend: gloo}
chips:
  - {name: A1, match: [Acme A1], device_is: card}
environment: {ACME_TUNED: "1", ACME_CHOSEN: vendor, FAKE_RANK: vendor}
monitor:
  command: [acme-smi]
  timeout_seconds: 2
  format: csv
  columns: 5
  fields:
    index: {column: 1}
    name: {column: 2}
    memory_total: {column: 3, unit: GiB}
    memory_used: {column: 4, unit: MiB}
    power: {column: 5, unit: W}
software:
  driver: {command: [acme-smi, --version], pattern: 'driver ([0-9.]+)'}
verified: none
"""
TOOL = """if [ "$1" = --version ]; then echo "driver 1.2.3"; exit; fi
echo "0, Acme A1, 64, 1024, 250.5"
echo "1, Acme A1, 64, 1025, N/A"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> AcmeMachine:
    acme = AcmeMachine(tmp_path, VENDOR, monkeypatch, capsys)
    acme.tool(TOOL)
    return acme


def test_a_whole_run_on_a_replayed_tool(machine: AcmeMachine) -> None:
    result = machine.result("tiny:fake:acme")
    assert result["status"]["word"] == "valid"
    assert result["memory"]["device_used_peak"]["value"] == 1025 * 2**20
    first, second = json.loads(machine.paths.telemetry.read_text().splitlines()[1])["samples"]
    assert (first["power_watts"], second["power_watts"]) == (250.5, None)
    assert second["reasons"]["power_watts"].endswith(" 'N/A'")
    assert json.loads(machine.paths.provenance.read_text())["vendor_software"]["driver"] == "1.2.3"
    hardware = json.loads(machine.paths.plan.read_text())["hardware"]
    assert (hardware["chip"]["name"], hardware["memory_bytes_per_device"]) == ("A1", 64 * 2**30)


@pytest.mark.parametrize(
    ("cards", "reasons"),
    [
        ("GPU-a,GPU-b,GPU-c", []),
        (
            "GPU-a,GPU-c,GPU-b",  # the framework numbers them otherwise than the tool
            ["device: rank 1 trained on device 2 of the vendor's tool, planned 1"],
        ),
        (
            "GPU-b,GPU-a,GPU-c",
            [
                "device: rank 0 trained on device 1 of the vendor's tool, planned 0",
                "device: rank 1 trained on device 0 of the vendor's tool, planned 1",
            ],
        ),
    ],
    ids=["as planned", "the card of another index", "two cards exchanged"],
)
def test_a_training_on_other_cards_than_planned_is_invalid(
    machine: AcmeMachine, monkeypatch: pytest.MonkeyPatch, cards: str, reasons: list[str]
) -> None:
    text = VENDOR.replace("columns: 5", "columns: 6")
    machine.vendor_file.write_text(
        text.replace("column: 5, unit: W}", "column: 5, unit: W}\n    identity: {column: 6}")
    )
    rows = [f'echo "{index}, Acme A1, 64, 1024, 250.5, GPU-{letter}"' for index, letter in enumerate("abc")]
    machine.tool("\n".join(rows))
    monkeypatch.setenv("FAKE_CARDS", cards)
    code, printed, error = machine.run("tiny:fake:acme:1:2", "--json")
    (result,) = json.loads(printed)
    assert (code, result["status"]["word"]) == ((3, "invalid") if reasons else (0, "valid")), error
    assert [reason for reason in result["status"]["reasons"] if reason.startswith("device")] == reasons


def test_a_run_has_the_node_power_that_the_sites_command_prints(machine: AcmeMachine) -> None:
    site = machine.folder / "site.yaml"
    site.write_text("schema: levelfield.site/1\nnode_power: {command: 'echo 374', source: rack meter, seconds: 0.1}\n")
    result = machine.result("tiny:fake:acme", "--site", str(site))
    nodes, paths = result["energy"]["nodes"], machine.paths
    assert result["status"]["word"] == "valid" and nodes["sources"] == ["rack meter"]
    assert nodes["joules"]["value"] is None and "readings" in nodes["joules"]["reason"]
    assert '"watts": 374.0' in paths.node_power.read_text()
    assert not any("echo 374" in path.read_text() for path in paths.root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("exit 3", marks=pytest.mark.thorough),
        "exec sleep 60",
        pytest.param("echo '0, Acme A1, 64'", marks=pytest.mark.thorough),
        pytest.param("printf '\\377'", marks=pytest.mark.thorough),
    ],
)
def test_a_tool_that_breaks_in_the_run_costs_its_figures_only(machine: AcmeMachine, fault: str) -> None:
    """It answers the discovery and from then on no more."""
    once = machine.folder / "asked"
    machine.tool(f"if [ -e {once} ]; then {fault}; exit; fi; touch {once}\n{TOOL}")
    result = machine.result("tiny:fake:acme")
    assert result["status"]["word"] == "valid" and result["memory"]["device_used_peak"]["value"] is None


def test_the_vendors_environment_is_between_the_implementations_and_the_tunings(machine: AcmeMachine) -> None:
    code, printed, _ = machine.run("tiny:fake:acme", "--dry-run", "--env", "ACME_CHOSEN=user")
    assert code == 0
    for line in ("ACME_TUNED=1", "ACME_CHOSEN=user", "FAKE_RANK=vendor", "ACME_VISIBLE_DEVICES=0,1"):
        assert line in printed
    assert "ACME_CHOSEN=vendor" not in printed


def test_a_vendor_is_listed_with_what_its_tool_shows(machine: AcmeMachine) -> None:
    _, printed, _ = machine.command("show", "vendors")
    (row,) = [line.split() for line in printed.splitlines() if line.startswith("  acme ")]
    assert row == ["acme", "2", "(Acme", "A1)", "none"]
    assert all(len(line) <= 80 for line in printed.splitlines())


def test_without_adapter_and_declaration_the_missing_keys_are_named(machine: AcmeMachine) -> None:
    machine.vendor_file.write_text(VENDOR[: VENDOR.index("monitor:")] + "verified: none\n")
    code, _, message = machine.run("tiny:fake:acme", "--dry-run")
    assert code == 2 and str(machine.vendor_file) in message and "'discovery'" in message and "'monitor'" in message


def shares(machine: AcmeMachine, variable: str = "visible_devices_variable: ACME_VISIBLE_DEVICES\n") -> None:
    """Make acme's devices those of the host, and its tool print eight that take 100 W each."""
    text = VENDOR.replace("device_kind: fake", "device_kind: cpu")
    machine.vendor_file.write_text(text.replace("visible_devices_variable: ACME_VISIBLE_DEVICES\n", variable))
    rows = "".join(f'echo "{index}, Acme A1, 64, 1024, 100.0"\n' for index in range(8))
    machine.tool(TOOL[: TOOL.index("echo", TOOL.index("exit"))] + rows)


def test_only_the_devices_of_the_run_count_also_on_a_host(
    machine: AcmeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of eight took 200 W, not 800 W."""
    shares(machine)
    result = machine.result("tiny:fake:acme", "--layout", "DP2")
    assert json.loads(machine.paths.plan.read_text())["hardware"]["device_indices"] == [0, 1]
    assert result["energy"]["mean_watts"]["value"] == pytest.approx(200)
    assert result["memory"]["capacity_bytes"] == 64 * 2**30
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "5")
    code, _, message = machine.run("tiny:fake:acme", "--layout", "DP2")
    assert code == 2 and "A1 (vendor" in message and "expected 2" in message


def test_several_devices_of_a_host_that_nothing_chooses_among_are_refused(machine: AcmeMachine) -> None:
    shares(machine, variable="")
    code, _, message = machine.run("tiny:fake:acme", "--layout", "DP2")
    assert code == 2 and "8 devices" in message and "one record" in message and "visible_devices_variable" in message


@pytest.mark.thorough
def test_readings_of_more_devices_than_a_host_has_give_no_energy(machine: AcmeMachine) -> None:
    """An adapter's samples, or a run of an earlier version: it is not known which of them trained."""
    shares(machine, variable="")
    machine.tool('echo "0, Acme A1, 64, 1024, 100.0"')
    result = machine.result("tiny:fake:acme", "--layout", "DP2")
    assert result["energy"]["mean_watts"]["value"] == pytest.approx(100)
    edit(machine.paths.telemetry, lambda lines: [line | {"samples": eight(line["samples"])} for line in lines])
    energy = collect(machine.paths).energy
    assert energy.joules.value is None and "8 devices" in str(energy.joules.reason)


def eight(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [sample | {"index": index} for sample in samples for index in range(8)]
