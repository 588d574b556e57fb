"""A maker's tool that misbehaves, from the command line to the result. The tool is a planted script, found by PATH.

It hangs, fails, prints garbage, lies about units, loses a device, or shows a device that others use.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from levelfield.cli.main import main
from plans import PLUGINS

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


class Machine(NamedTuple):
    """A machine with the tests' plugins, the vendor acme, and its tool."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def tool(self, body: str) -> None:
        path = self.folder / "bin/acme-smi"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def command(self, *arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--plugins", str(self.folder / "plugins")])
        said = self.capsys.readouterr()
        return code, said.out, " ".join(said.err.split())

    def run(self, case: str, *arguments: str) -> tuple[int, str, str]:
        given = ["--case", case, "--scale", "smoke", "--python", sys.executable, "--runs", str(self.folder / "runs")]
        return self.command(*given, *arguments)

    def result(self, case: str, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(case, "--json", *arguments)
        assert code == 0, err
        (result,) = json.loads(out)
        assert isinstance(result, dict)
        return result


def devices(*rows: str) -> str:
    """The body of a tool that prints these rows: memory total and used in MiB, power in W, load in per cent."""
    return "\n".join(f"echo '{index}, Acme A1, {row}'" for index, row in enumerate(rows))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    folder = Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))
    (folder / "vendors/acme").mkdir()
    (folder / "vendors/acme/vendor.yaml").write_text(VENDOR)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ACME_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("FAKE_DEVICES", raising=False)
    monkeypatch.setattr("levelfield.node.rank_processes.SETTLE_SECONDS", 0.5)
    return Machine(tmp_path, capsys)


@pytest.mark.parametrize(("body", "reason"), SILENT.items(), ids=NAMES)
def test_without_a_named_vendor_the_run_is_refused(machine: Machine, body: str, reason: str) -> None:
    machine.tool(body)
    for arguments in ([], ["--dry-run"]):
        code, _, said = machine.run("tiny:torch", *arguments)
        assert code == 2 and f"vendor acme: {reason}" in said and "`:cpu`" in said
    assert not (machine.folder / "runs").exists()


@pytest.mark.parametrize(("body", "reason"), SILENT.items(), ids=NAMES)
def test_the_named_vendor_is_refused_and_its_dry_run_says_why(machine: Machine, body: str, reason: str) -> None:
    machine.tool(body)
    code, _, said = machine.run("tiny:fake:acme")
    assert code == 2 and f"found 0 x A1 (vendor acme), expected 1: {reason}" in said
    code, out, _ = machine.run("tiny:fake:A1:1:2", "--dry-run", "--json")
    plan = json.loads(out)[0]["plan"]
    assert code == 0 and plan["hardware"]["assumed"]
    assert len(plan["notices"]) == 1 and plan["notices"][0].startswith(f"vendor acme: {reason}")
    code, out, _ = machine.run("tiny:fake:A1:1:2", "--dry-run")
    assert "notice       vendor acme: acme-smi" in out


@pytest.mark.parametrize(("body", "reason"), SILENT.items(), ids=NAMES)
def test_the_cpu_by_name_says_that_the_vendor_is_not_used(machine: Machine, body: str, reason: str) -> None:
    machine.tool(body)
    code, out, _ = machine.run("tiny:torch:cpu", "--dry-run")
    assert code == 0 and f"notice       vendor acme is not used: {reason}"[:60] in out


@pytest.mark.parametrize(("body", "reason"), SILENT.items(), ids=NAMES)
def test_the_list_of_vendors_says_why_nothing_is_known(machine: Machine, body: str, reason: str) -> None:
    machine.tool(body)
    code, out, _ = machine.command("list", "vendors")
    assert code == 0 and f"acme: {reason}" in " ".join(out.split())
    _, out, _ = machine.command("list", "vendors", "--json")
    (row,) = [row for row in json.loads(out)["vendors"] if row["name"] == "acme"]
    assert row["devices"] is None and row["problem"].startswith(reason)


def test_hidden_devices_let_the_cpu_be_taken(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.tool("exit 9")
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "")
    code, out, _ = machine.run("tiny:torch", "--dry-run")
    assert code == 0 and "1 x 1 cpu" in out
