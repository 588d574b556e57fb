"""Patterns of vendor.yaml have a time limit: a text that a pattern does not fit never stops a run."""

from __future__ import annotations

import re
import time

import pytest
from declared_specs import spec_of
from levelfield.contracts import tool_records
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.contracts.vendor import Device, DeviceList

EXPONENTIAL = "(a|aa)+"  # 2 to the 30th ways to read sixty a
TEXT = "a" * 60 + "b"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_records, "SEARCH_LIMIT_SECONDS", 0.1)


def test_an_exponential_pattern_ends_at_the_limit_with_its_name() -> None:
    before, pattern = time.process_time(), f"^{EXPONENTIAL}$"
    for is_whole in (False, True):
        with pytest.raises(ValueError, match=rf"'{re.escape(pattern)}'.*\b0\.1 s$"):
            next(tool_records.find_matches(pattern, TEXT, is_whole=is_whole))
    assert time.process_time() - before < 5


def test_what_fits_is_found_at_every_line() -> None:
    digit, text = r"^(?P<n>\d)$", "1\n2\nx\nv 2\n"
    assert [m["n"] for m in tool_records.find_matches(digit, text)] == ["1", "2"]
    assert [m["n"] for m in tool_records.find_matches(digit, text, 2)] == ["2"]
    assert [m.start() for m in tool_records.find_matches(digit, text, 0, 1)] == [0]
    assert [m[1] for m in tool_records.find_matches(r"^v (\S+)$", text)] == ["2"]
    assert [*tool_records.find_matches("y", text)] == []
    assert [m[1] for m in tool_records.find_matches(r"card(\d)", "card7", is_whole=True)] == ["7"]
    assert [*tool_records.find_matches(r"card\d", "card77", is_whole=True)] == []


@pytest.mark.parametrize(
    "monitor",
    [
        f"""
monitor:
  command: [acme-smi]
  format: pattern
  patterns: ['^(?P<index>{EXPONENTIAL})$']
  fields: {{index: {{}}}}
""",
        f"""
monitor:
  command: [acme-smi]
  format: csv
  columns: 1
  fields: {{index: {{column: 1, matching: "{EXPONENTIAL}"}}}}
""",
    ],
    ids=["pattern", "matching"],
)
def test_a_monitor_whose_pattern_does_not_end_is_one_without_an_answer(monitor: str) -> None:
    adapter = DeclaredVendor(spec_of(monitor), lambda argv, seconds: CommandOutput(TEXT + "\n"))
    listing = adapter.devices()
    assert isinstance(listing, DeviceList) and not listing and (listing.problem or "").endswith("0.1 s")
    (sample,) = adapter.sample([Device(0, None, "", None)])
    assert set(sample.reasons) == set(SAMPLED_FIELDS) and "0.1 s" in sample.reasons["power_watts"]


def test_a_version_whose_pattern_does_not_end_is_unreadable() -> None:
    pattern = f"^{EXPONENTIAL}$"
    spec = spec_of(f"software: {{driver: {{command: [acme-smi], pattern: '{pattern}'}}}}")
    versions = DeclaredVendor(spec, lambda argv, seconds: CommandOutput(TEXT)).software()
    assert re.fullmatch(rf"unreadable: .*'{re.escape(pattern)}'.*\b0\.1 s", versions["driver"])
