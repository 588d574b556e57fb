"""docs/writing-a-vendor.md: its tables name every key, and its further examples are read by the real loader."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from acme_folder import VENDOR
from levelfield.contracts import tool_records
from levelfield.errors import DocumentError
from levelfield.specs.base import parse
from levelfield.specs.bounded_reading import read_mapping
from levelfield.specs.tool import Tool, ValueLocation
from levelfield.specs.vendor import Chip, ContainerAccess, Image, Interconnect, PeakDtype, VendorFile
from pydantic import BaseModel

PAGE = (Path(__file__).resolve().parents[2] / "docs/writing-a-vendor.md").read_text(encoding="utf-8")


BANDWIDTH = """memory_bandwidth_bytes_per_second: 3.2e12
bandwidth_source: Acme A1 datasheet, March 2026
interconnect:
  description: AcmeLink, a link of 50 GB/s each way to each of seven others, without a switch
  each_way_bytes_per_second: 350.0e9
  pair_each_way_bytes_per_second: 50.0e9
  bytes_per_second: 700.0e9
  source_counts: both ways
  source: Acme A1 datasheet, March 2026
"""
IMAGES = """images:
  base:
    image: debian:bookworm-slim
    python_version: "3.11"
    system_packages: [ca-certificates, libgomp1, libstdc++6, python3]
    source: Debian's official image
  torch:
    image: acme/pytorch:2.13-sdk6
    python_version: "3.11"
    has_framework: true
    source: Acme's images, named in its installation guide
"""
NESTED_JSON = """{"version": "6.7.0",
 "cards": {
   "card0": {"product": {"name": "Acme A1", "serial": "AC-000001"},
             "memory": {"total": {"value": 65536, "unit": "MiB"}, "used": {"value": 1204, "unit": "MiB"}},
             "sensors": [{"kind": "power", "reading": "183.5 W"}, {"kind": "chip", "reading": "61 C"}]},
   "card1": {"product": {"name": "Acme A1", "serial": "AC-000002"},
             "memory": {"total": {"value": 65536, "unit": "MiB"}, "used": {"value": 3, "unit": "MiB"}},
             "sensors": [{"kind": "power", "reading": "N/A"}, {"kind": "chip", "reading": "34 C"}]}}}
"""
NESTED_MONITOR = """monitor:
  command: [acme-smi, --json]
  format: json
  records: [cards]
  fields:
    index: {path: ["@key"], matching: "card([0-9]+)"}
    name: {path: [product, name]}
    identity: {path: [product, serial]}
    memory_total: {path: [memory, total], unit: MiB, printed: MiB}
    memory_used: {path: [memory, used], unit: MiB, printed: MiB}
    power: {path: [sensors, 0, reading], unit: W, printed: W}
    temperature: {path: [sensors, 1, reading], unit: celsius, printed: C}
"""


def content(text: str) -> Any:
    """What the platform reads in a file with this text."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return read_mapping(Path(file.name), "vendor")


BLOCKS = [content(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def block(key: str) -> dict[str, Any]:
    """The page's last example that begins with this key."""
    return next(block for block in reversed(BLOCKS) if next(iter(block)) == key)


def acme(**changes: Any) -> VendorFile:
    """The page's vendor with some of its keys replaced. Raises DocumentError."""
    return parse(VendorFile, {**content(VENDOR), **changes}, "the page")


def keys() -> Iterator[str]:
    models: tuple[type[BaseModel], ...] = (VendorFile, Chip, Interconnect, ContainerAccess, Image, Tool, ValueLocation)
    yield from sorted({name for model in models for name in model.model_fields})
    yield from get_args(PeakDtype)


def test_every_key_is_on_the_page() -> None:
    section, names = PAGE[PAGE.index("## 8. Every key") :], list(keys())
    assert len(names) > 50
    assert [key for key in names if f"`{key}`" not in section] == []


def test_links_and_bandwidth_are_a_chip_s() -> None:
    chip = {**content(VENDOR)["chips"][0], **content(BANDWIDTH)}
    links = acme(chips=[chip]).chips[0].interconnect
    assert links is not None and links.pair_each_way_bytes_per_second == 50e9


def test_container_and_images_are_read() -> None:
    vendor = acme(**block("container"), **content(IMAGES))
    assert vendor.container.shm_bytes == 2**35 and vendor.container.ulimits == {"memlock": -1}
    assert vendor.images["torch"].has_framework and vendor.images["base"].system_packages


def test_values_are_read_from_nested_json_by_their_paths() -> None:
    monitor = acme(**content(NESTED_MONITOR)).monitor
    assert monitor is not None and monitor.format == "json"
    parsed = tool_records.parse_output(monitor, NESTED_JSON)
    first, second = (record.texts for record in parsed.records.values())
    assert (first.values["index"], first.values["memory_total"]) == ("card0", "65536 MiB")
    assert (first.values["power"], first.values["temperature"]) == ("183.5 W", "61 C")
    assert (second.values["identity"], second.values["power"]) == ("AC-000002", "N/A")


def test_software_has_no_name_of_another_command() -> None:
    """Nodes would ask that command in its place."""
    with pytest.raises(DocumentError, match=r"software: found monitor, the name of another key"):
        acme(software={"monitor": {"command": ["acme", "--version"], "pattern": r"\d+"}})
