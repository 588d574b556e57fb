"""A maker's tool that misbehaves, from the command line to the result. The tool is a planted script, found by PATH.

It hangs, fails, prints garbage, lies about units, loses a device, or shows a device that others use.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from acme_machine import AcmeMachine

LIMIT_SECONDS = 0.5
VENDOR = f"""
schema: levelfield.vendor/1
name: acme
title: A maker whose tool misbehaves
device_kind: fake
visible_devices_variable: ACME_VISIBLE_DEVICES
frameworks:
  fake: {{device: cpu, backend: gloo}}
chips:
  - {{name: A1, match: [Acme A1], device_is: card, memory_bytes: 68719476736, memory_source: made for the tests}}
monitor:
  command: [acme-smi]
  timeout_seconds: {LIMIT_SECONDS}
  format: csv
  columns: 6
  fields:
    index: {{column: 1}}
    name: {{column: 2}}
    memory_total: {{column: 3, unit: MiB}}
    memory_used: {{column: 4, unit: MiB}}
    power: {{column: 5, unit: W}}
    utilisation: {{column: 6, unit: percent}}
verified: none
"""
SILENT = {
    "exec sleep 60": f"acme-smi did not answer within {LIMIT_SECONDS} s",
    "echo 'no driver' >&2; exit 9": "acme-smi ended with exit code 9: no driver",
    "echo 'unexpected state 0x3f'": "acme-smi printed no device that vendor.yaml can read: a line of 1 columns",
}
NAMES = ["hangs", "fails", "prints garbage"]
# where the tool is not needed, one way to be silent shows enough
FIRST_SILENT = [
    pytest.param(*item, marks=[] if name == "hangs" else [pytest.mark.thorough])
    for name, item in zip(NAMES, SILENT.items(), strict=True)
]


def devices(*rows: str) -> str:
    """The body of a tool that prints these rows: memory total and used in MiB, power in W, load in per cent."""
    return "\n".join(f"echo '{index}, Acme A1, {row}'" for index, row in enumerate(rows))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> AcmeMachine:
    return AcmeMachine(tmp_path, VENDOR, monkeypatch, capsys)


@pytest.mark.parametrize(("body", "reason"), SILENT.items(), ids=NAMES)
def test_without_a_named_vendor_the_run_is_refused(machine: AcmeMachine, body: str, reason: str) -> None:
    machine.tool(body)
    for arguments in ([], ["--dry-run"]):
        code, _, message = machine.run("tiny:torch", *arguments)
        assert code == 2 and f"vendor acme: {reason}" in message and "`:cpu`" in message
    assert not (machine.folder / "runs").exists()


@pytest.mark.parametrize(("body", "reason"), SILENT.items(), ids=NAMES)
def test_the_named_vendor_is_refused_and_its_dry_run_says_why(machine: AcmeMachine, body: str, reason: str) -> None:
    machine.tool(body)
    code, _, message = machine.run("tiny:fake:acme")
    assert code == 2 and "(vendor acme)," in message and f" 1: {reason}" in message
    code, out, _ = machine.run("tiny:fake:A1:1:2", "--dry-run", "--json")
    plan = json.loads(out)[0]["plan"]
    assert code == 0 and plan["hardware"]["assumed"]
    assert len(plan["notices"]) == 1 and plan["notices"][0].startswith(f"vendor acme: {reason}")
    code, out, _ = machine.run("tiny:fake:A1:1:2", "--dry-run")
    assert "acme: acme-smi" in out


@pytest.mark.parametrize(("body", "reason"), FIRST_SILENT, ids=NAMES)
def test_a_plan_for_the_cpu_and_the_list_of_vendors_say_why(machine: AcmeMachine, body: str, reason: str) -> None:
    machine.tool(body)
    code, out, _ = machine.run("tiny:torch:cpu", "--dry-run")
    assert code == 0 and f"not used: {reason[:22]}" in out
    code, out, _ = machine.command("show", "vendors")
    assert code == 0 and f"acme: {reason}" in " ".join(out.split())
    _, out, _ = machine.command("show", "vendors", "--json")
    (row,) = [row for row in json.loads(out)["vendors"] if row["name"] == "acme"]
    assert row["devices"] is None and row["problem"].startswith(reason)


# -- units


def test_a_total_memory_that_is_not_the_chips_is_said_and_not_used(machine: AcmeMachine) -> None:
    """MB printed for MiB: 4.9 % more than there is."""
    machine.tool(devices("68719, 500, 90, 0"))
    result = machine.result("tiny:fake:acme")
    assert result["memory"]["capacity_bytes"] == 65536 * 2**20
    peak = result["memory"]["device_used_peak"]
    assert peak["value"] is None and "72057094144 bytes" in peak["reason"]
    (warning,) = [w for w in result["warnings"] if w.startswith("vendor acme: device 0: the tool's total memory")]
    assert "4.9% apart" in warning


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("65536, 500, 0.5, 0", "found 0.5, expected 1 to 10000"),
        pytest.param("65536, 500, 0, 0", "found 0, expected 1 to 10000", marks=pytest.mark.thorough),
        ("65536, 500, 90000, 0", "found 90000, expected 1 to 10000"),
    ],
)
def test_a_power_that_no_accelerator_draws_is_no_energy(machine: AcmeMachine, row: str, says: str) -> None:
    machine.tool(devices(row))
    joules = machine.result("tiny:fake:acme")["energy"]["joules"]
    assert joules["value"] is None and says in joules["reason"]


@pytest.mark.thorough
def test_more_memory_in_use_than_there_is_is_no_peak(machine: AcmeMachine) -> None:
    machine.tool(devices("65536, 70000, 90, 0"))
    peak = machine.result("tiny:fake:acme")["memory"]["device_used_peak"]
    assert peak["value"] is None and str(70000 * 2**20) in peak["reason"] and "68719476736" in peak["reason"]


# -- devices that are lost, and devices that others use


def test_a_device_that_is_lost_after_the_plan_costs_its_figures_and_is_named(machine: AcmeMachine) -> None:
    calls = machine.folder / "calls"
    both, one = devices("65536, 500, 90, 0", "65536, 500, 90, 0"), devices("65536, 500, 90, 0")
    machine.tool(f'echo x >> {calls}\nif [ "$(wc -l < {calls})" -le 2 ]; then\n{both}\nelse\n{one}\nfi')
    result = machine.result("tiny:fake:acme:1:2")
    assert result["status"]["word"] == "valid" and result["devices"] == 2
    peak, joules = result["memory"]["device_used_peak"], result["energy"]["joules"]
    assert peak["value"] is None and "device 1" in peak["reason"]
    assert joules["value"] is None and joules["reason"].startswith("device 1: ")
    assert any(warning.startswith("device 1 ") for warning in result["warnings"])


BUSY, IDLE = "65536, 30000, 300, 97", "65536, 500, 90, 3"


def test_a_device_that_others_use_is_left_to_them_while_idle_ones_are_there(machine: AcmeMachine) -> None:
    machine.tool(devices(BUSY, IDLE, IDLE))
    result = machine.result("tiny:fake:acme:1:2")
    plan = json.loads((machine.folder / "runs" / result["run_id"] / "plan.json").read_text())
    assert plan["hardware"]["device_indices"] == [1, 2]
    assert plan["hardware"]["visible"] == {"ACME_VISIBLE_DEVICES": "1,2"}
    (notice,) = plan["notices"]
    assert notice.startswith("device 0 ") and all(fact in notice for fact in ("29.3 GiB", "64.0 GiB,", "load 97%"))
    assert [(d["device"], d["in_use"]) for d in result["other_use"]["devices"]] == [("1", False), ("2", False)]


def test_a_device_that_others_use_and_that_is_needed_is_named_in_plan_and_result(machine: AcmeMachine) -> None:
    machine.tool(devices(BUSY, IDLE))
    _, out, _ = machine.run("tiny:fake:acme:1:2", "--dry-run")
    (notice,) = [line for line in out.splitlines() if line.startswith("notice ")]
    assert all(fact in notice for fact in ("device 0:", "29.3 GiB", "64.0 GiB,", "load 97%"))
    result = machine.result("tiny:fake:acme:1:2")
    first, second = result["other_use"]["devices"]
    assert (first["in_use"], first["load"], first["memory_used"]["value"]) == (True, 0.97, 30000 * 2**20)
    assert (second["in_use"], second["load"]) == (False, 0.03)
    message = (
        "others use device 0: 29.3 GiB of 64.0 GiB, load 97% before the training (limits: 10% of memory, 10% load)"
    )
    assert message in result["warnings"]


def test_the_hosts_own_load_is_recorded_for_accelerators_too(machine: AcmeMachine) -> None:
    machine.tool(devices(IDLE))
    used = machine.result("tiny:fake:acme")["other_use"]
    assert used["host_cores"] >= 1 and used["host_before"]["value"] >= 0 and used["host_in_window"]["value"] >= 0


def test_hidden_devices_let_the_cpu_be_taken(machine: AcmeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.tool("exit 9")
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "")
    code, out, _ = machine.run("tiny:torch", "--dry-run")
    assert code == 0 and "1 cpu" in out
