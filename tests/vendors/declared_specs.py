"""vendor.yaml texts for the generic adapter, one for each shape of output, beside the recorded output they read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from levelfield.specs.base import parse
from levelfield.specs.vendor import VendorFile

RECORDED = Path(__file__).with_name("recorded")
HEAD = """
schema: levelfield.vendor/1
name: acme
title: A maker whose tools are replayed
device_kind: acme
visible_devices_variable: ACME_VISIBLE_DEVICES
frameworks:
  fake: {device: cpu, backend: gloo}
chips:
  - {name: X, match: [A100-SXM4-40GB, MXC500, 910A], device_is: card}
verified: none
"""
CSV = """
monitor:
  command: [acme-smi, --query]
  timeout_seconds: 2
  format: csv
  columns: 10
  fields:
    index: {column: 1}
    identity: {column: 2, matching: "GPU-.*"}
    name: {column: 3}
    memory_total: {column: 4, unit: MiB}
    memory_used: {column: 5, unit: MiB}
    power: {column: 6, unit: W}
    utilisation: {column: 7, unit: percent}
    temperature: {column: 8, unit: celsius}
"""
LIST = """
monitor:
  command: [acme-smi, metric, --json]
  format: json
  records: [gpu_data]
  fields:
    index: {path: [gpu]}
    identity: {path: [uuid]}
    memory_used: {path: [mem_usage, used_vram], unit: MiB, printed: MB}
    power: {path: [power, socket_power], unit: W, printed: W}
    energy: {path: [energy, total_energy_consumption, value], unit: J}
    utilisation: {path: [usage, gfx_activity], unit: percent, printed: "%"}
    temperature: {path: [temperature, hotspot], unit: celsius, printed: C}
"""
KEYED = """
monitor:
  command: [acme-smi, --json]
  format: json
  fields:
    index: {path: ["@key"], matching: "card([0-9]+)"}
    memory_used: {path: ["VRAM Total Used Memory (B)"], unit: B}
    power: {path: ["Average Graphics Package Power (W)"], unit: W}
    utilisation: {path: ["GPU use (%)"], unit: percent}
"""
NPU = r"""
monitor:
  command: [npu-smi, info]
  format: pattern
  patterns:
    - '^\| (?P<index>\d+) +(?P<name>\w+) +\| \w+ +\| (?P<power>\S+) +(?P<temperature>\S+) +\d+ */ *\d+ +\|$'
    - '^\| \d+ +\d+ +\| (?P<identity>\S+) +\| (?P<utilisation>\S+) +(?P<memory_used>\d+) */ *(?P<memory_total>\d+) +\|$'
  fields:
    index: {}
    name: {}
    identity: {}
    power: {unit: W}
    temperature: {unit: celsius}
    utilisation: {unit: percent}
    memory_used: {unit: MiB}
    memory_total: {unit: MiB}
"""
MX = r"""
monitor:
  command: [mx-smi]
  format: pattern
  patterns:
    - '^\| +(?P<index>\d+) +(?P<name>MX\w+) +\| (?P<identity>\S+) +\| (?P<utilisation>\S+) +\|\n\| +(?P<temperature>\S+)
      +(?P<power>\S+) +\| (?P<memory_used>\d+)/(?P<memory_total>\d+) MiB +\|$'
  fields:
    index: {}
    name: {}
    identity: {}
    power: {unit: W, printed: W}
    temperature: {unit: celsius, printed: C}
    utilisation: {unit: percent, printed: "%"}
    memory_used: {unit: MiB}
    memory_total: {unit: MiB}
"""
HEADED = """
monitor:
  command: [hy-smi]
  format: csv
  separator: " "
  fields:
    index: {column: DCU}
    power: {column: AvgPwr, unit: W, printed: W}
    utilisation: {column: "DCU%", unit: percent, printed: "%"}
    temperature: {column: Temp, unit: celsius, printed: C}
"""
SHAPES = {
    "csv": (CSV, "nvidia_smi_a100_40g.csv"),
    "list": (LIST, "gpu_list.json"),
    "keyed": (KEYED, "keyed_cards.json"),
    "npu": (NPU, "npu_smi_910a.txt"),
    "mx": (MX, "mx_smi_c500.txt"),
    "headed": (HEADED, "hy_smi_dcu.txt"),
}


@cache
def spec_of(*parts: str) -> VendorFile:
    """A vendor.yaml of these parts. Raises DocumentError as the platform does."""
    return parse(VendorFile, yaml.safe_load(HEAD + "".join(parts)), "vendor.yaml")


@cache
def recorded(shape: str) -> str:
    return (RECORDED / SHAPES[shape][1]).read_text()
