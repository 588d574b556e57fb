"""A vendor that passes every check, as the conformance suite's tests break it: its folder in a plugins folder."""

from __future__ import annotations

from pathlib import Path

VENDOR = """schema: levelfield.vendor/1
name: acme
title: Acme's cards, which do not exist
device_kind: acme
visible_devices_variable: ACME_VISIBLE_DEVICES
frameworks:
  torch: {device: acme, backend: accl, preload: [torch_acme]}
chips:
  - name: A1
    match: [Acme A1]
    device_is: card
    memory_bytes: 68719476736
    memory_source: made up
    peaks: {bf16: {tflops: 100, source: made up}}
container:
  device_nodes: ["/dev/acme{index}", /dev/acmectl]
  mounts: [{path: /opt/acme/lib, why: the driver's libraries}]
  capabilities: {SYS_NICE: the driver raises its threads' priority}
images:
  torch: {image: "acme/torch:2.0", has_framework: true, source: made up}
monitor:
  command: [acme-smi, --query]
  timeout_seconds: 2
  format: csv
  columns: 7
  fields:
    index: {column: 1}
    identity: {column: 2}
    name: {column: 3}
    memory_total: {column: 4, unit: GiB}
    memory_used: {column: 5, unit: MiB}
    power: {column: 6, unit: W}
    temperature: {column: 7, unit: celsius, printed: C}
software:
  driver: {command: [acme-smi, --version], pattern: 'driver ([0-9.]+)'}
verified: none
"""
MONITOR = """0, SN-100, Acme A1, 64, 1024, 250.5, 41C
1, SN-101, Acme A1, 64, 1030, N/A, 42C
2, SN-102, Acme A1, 64, 2048, 252.0, 43C
"""
TUNING = """schema: levelfield.tuning/1
case: gpt3_6.7B
rows:
  - {chip: A1, set: {micro_batch: 2}, why: made up}
"""
FILES = {
    "vendor.yaml": VENDOR,
    "README.md": "# acme\n\nMade up for the tests.\n",
    "tuning/gpt3_6.7B.yaml": TUNING,
    "recorded/monitor.csv": MONITOR,
    "recorded/software.driver.txt": "acme-smi 2\ndriver 6.7.0\n",
    "recorded/README.md": "- `monitor.csv`: made up\n- `software.driver.txt`: made up\n",
}


def write_acme(plugins: Path) -> Path:
    """The vendor's folder, whole."""
    folder = plugins / "vendors/acme"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def replace(path: Path, old: str, new: str) -> None:
    """Raises AssertionError when the text to be replaced is not there."""
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1), errors="surrogateescape")
