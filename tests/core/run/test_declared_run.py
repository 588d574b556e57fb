"""A vendor that is a vendor.yaml alone, from the command line to the result: its tool is found by PATH and replays."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.judge.collector import collect
from levelfield.specs.paths import RunPaths
from plans import PLUGINS
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
TOOL = """#!/bin/sh
if [ "$1" = --version ]; then echo "driver 1.2.3"; exit; fi
echo "0, Acme A1, 64, 1024, 250.5"
echo "1, Acme A1, 64, 1025, N/A"
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests' plugins with the vendor acme, whose tool is first on PATH."""
    folder = Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))
    (folder / "vendors/acme").mkdir()
    (folder / "vendors/acme/vendor.yaml").write_text(VENDOR)
    (tmp_path / "bin").mkdir()
    tool(tmp_path, TOOL)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ACME_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("levelfield.node.rank_processes.SETTLE_SECONDS", 0.5)
    return folder


def tool(folder: Path, text: str) -> None:
    (folder / "bin/acme-smi").write_text(text)
    (folder / "bin/acme-smi").chmod(0o755)


def run(plugins: Path, *arguments: str) -> int:
    given = ["--case", "tiny:fake:acme", "--scale", "smoke", "--python", sys.executable, "--plugins", str(plugins)]
    return main([*given, "--runs", str(plugins.parent / "runs"), *arguments])


def only(plugins: Path) -> RunPaths:
    (folder,) = (plugins.parent / "runs").iterdir()
    return RunPaths(folder)


def test_a_whole_run_on_a_replayed_tool(plugins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(plugins, "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["status"]["word"] == "valid"
    assert result["memory"]["device_used_peak"]["value"] == 1025 * 2**20
    first, second = json.loads(only(plugins).telemetry.read_text().splitlines()[1])["samples"]
    assert (first["power_watts"], second["power_watts"]) == (250.5, None)
    assert second["reasons"]["power_watts"] == "the tool says 'N/A'"
    assert json.loads(only(plugins).provenance.read_text())["vendor_software"]["driver"] == "1.2.3"
    hardware = json.loads(only(plugins).plan.read_text())["hardware"]
    assert (hardware["chip"]["name"], hardware["memory_bytes_per_device"]) == ("A1", 64 * 2**30)


def test_a_run_has_the_node_power_that_the_sites_command_prints(
    plugins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = plugins.parent / "site.yaml"
    site.write_text("schema: levelfield.site/1\nnode_power: {command: 'echo 374', source: rack meter, seconds: 0.1}\n")
    assert run(plugins, "--json", "--site", str(site)) == 0
    (result,) = json.loads(capsys.readouterr().out)
    nodes, paths = result["energy"]["nodes"], only(plugins)
    assert result["status"]["word"] == "valid" and nodes["sources"] == ["rack meter"]
    assert nodes["joules"]["value"] is None and "readings" in nodes["joules"]["reason"]
    assert '"watts": 374.0' in paths.node_power.read_text()
    assert not any("echo 374" in path.read_text() for path in paths.root.rglob("*") if path.is_file())


@pytest.mark.parametrize("fault", ["exit 3", "exec sleep 60", "echo '0, Acme A1, 64'", "printf '\\377'"])
def test_a_tool_that_breaks_in_the_run_costs_its_figures_only(
    plugins: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    """It answers the discovery and from then on no more."""
    once = plugins.parent / "asked"
    broken = f"if [ -e {once} ]; then {fault}; exit; fi; touch {once}"
    tool(plugins.parent, TOOL.replace("#!/bin/sh", f"#!/bin/sh\n{broken}"))
    assert run(plugins, "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["status"]["word"] == "valid" and result["memory"]["device_used_peak"]["value"] is None


def test_the_vendors_environment_is_between_the_implementations_and_the_tunings(
    plugins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(plugins, "--dry-run", "--env", "ACME_CHOSEN=user") == 0
    shown = capsys.readouterr().out
    for line in ("ACME_TUNED=1", "ACME_CHOSEN=user", "FAKE_RANK=vendor", "ACME_VISIBLE_DEVICES=0,1"):
        assert line in shown
    assert "ACME_CHOSEN=vendor" not in shown


def test_a_vendor_is_listed_with_what_its_tool_shows(plugins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "vendors", "--plugins", str(plugins)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^  acme +2 \(Acme A1\) +none$", shown, re.MULTILINE)
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_without_adapter_and_declaration_the_missing_keys_are_named(
    plugins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plugins / "vendors/acme/vendor.yaml"
    file.write_text(VENDOR[: VENDOR.index("monitor:")] + "verified: none\n")
    assert run(plugins, "--dry-run") == 2
    said = capsys.readouterr().err
    assert str(file) in said and "found neither 'discovery' nor 'monitor'" in said


def shares(plugins: Path, variable: str = "visible_devices_variable: ACME_VISIBLE_DEVICES\n") -> None:
    """Make acme's devices those of the host, and its tool print eight that take 100 W each."""
    text = VENDOR.replace("device_kind: fake", "device_kind: cpu")
    (plugins / "vendors/acme/vendor.yaml").write_text(
        text.replace("visible_devices_variable: ACME_VISIBLE_DEVICES\n", variable)
    )
    rows = "".join(f'echo "{index}, Acme A1, 64, 1024, 100.0"\n' for index in range(8))
    tool(plugins.parent, TOOL[: TOOL.index("echo", TOOL.index("exit"))] + rows)


def test_only_the_devices_of_the_run_count_also_on_a_host(
    plugins: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of eight took 200 W, not 800 W."""
    shares(plugins)
    assert run(plugins, "--json", "--layout", "DP2") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert json.loads(only(plugins).plan.read_text())["hardware"]["device_indices"] == [0, 1]
    assert result["energy"]["mean_watts"]["value"] == pytest.approx(200)
    assert result["memory"]["capacity_bytes"] == 64 * 2**30
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "5")
    assert run(plugins, "--layout", "DP2") == 2
    assert "found 1 x A1 (vendor acme), expected 2" in " ".join(capsys.readouterr().err.split())


def test_several_devices_of_a_host_that_nothing_chooses_among_are_refused(
    plugins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares(plugins, variable="")
    assert run(plugins, "--layout", "DP2") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "found 8 devices, expected one record, of the whole host" in said and "visible_devices_variable" in said


def test_readings_of_more_devices_than_a_host_has_give_no_energy(
    plugins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter's samples, or a run of an earlier version: it is not known which of them trained."""
    shares(plugins, variable="")
    tool(plugins.parent, '#!/bin/sh\necho "0, Acme A1, 64, 1024, 100.0"')
    assert run(plugins, "--json", "--layout", "DP2") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["energy"]["mean_watts"]["value"] == pytest.approx(100)
    edit(only(plugins).telemetry, lambda lines: [line | {"samples": eight(line["samples"])} for line in lines])
    energy = collect(only(plugins)).energy
    assert energy.joules.value is None and "8 devices" in str(energy.joules.reason)


def eight(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [sample | {"index": index} for sample in samples for index in range(8)]
