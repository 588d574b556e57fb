"""From names to things: hardware that is here, chips by name, and the vendor's tuning."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.contracts.vendor import Device
from levelfield.errors import UnknownName, UsageError
from levelfield.specs.selector import parse_selector
from plans import PLUGINS

HIDDEN = {"nvidia"}  # what this machine really has is no part of these tests


@pytest.fixture
def hardware(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry that knows the cpu and the tests' vendor only, whatever the machine has."""
    registry.__dict__["vendors"] = {n: p for n, p in registry.vendors.items() if n not in HIDDEN}
    monkeypatch.delenv("FAKE_DEVICES", raising=False)
    return registry


def test_without_an_accelerator_the_cpu_is_taken(hardware: Registry) -> None:
    adapter, chip, devices = lookup.find_hardware(hardware, None)
    assert (adapter.spec.name, chip.name, len(devices)) == ("cpu", "cpu", 1)


def test_an_accelerator_that_is_here_is_taken_first(hardware: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "4")
    adapter, chip, devices = lookup.find_hardware(hardware, None)
    assert (adapter.spec.name, chip.name, len(devices)) == ("fake", "F1", 4)


def test_a_named_vendor_without_devices_gives_its_first_chip_and_none_here(hardware: Registry) -> None:
    adapter, chip, devices = lookup.find_hardware(hardware, "fake")
    assert (adapter.spec.name, chip.name, devices) == ("fake", "F1", ())


@pytest.mark.parametrize(("name", "here"), [("F1", 2), ("f1-8gb", 2), ("F2", 0)])
def test_a_chip_by_name_or_alias_counts_only_its_own_devices(
    hardware: Registry, monkeypatch: pytest.MonkeyPatch, name: str, here: int
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "2")
    adapter, chip, devices = lookup.find_hardware(hardware, name)
    assert adapter.spec.name == "fake" and chip.name == name[:2].upper() and len(devices) == here


def test_a_device_of_an_unknown_kind_has_no_peaks(hardware: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = hardware.vendor("fake")
    monkeypatch.setattr(fake, "devices", lambda: [Device(0, None, "Fake F9", 2**30)])
    monkeypatch.setattr(hardware, "vendor", lambda name: fake)
    _, chip, devices = lookup.find_hardware(hardware, "fake")
    assert (chip.name, chip.peaks, chip.memory_bytes, len(devices)) == ("Fake F9", {}, 2**30, 1)


def test_an_unknown_target_lists_the_nearest_chips_and_vendors(hardware: Registry) -> None:
    with pytest.raises(UnknownName, match="unknown vendor or chip 'F1-80GB'; nearest: F1-8GB"):
        lookup.find_hardware(hardware, "F1-80GB")


def test_chips_of_the_reports_are_known() -> None:
    names = ["A100", "A10080G", "A10040G", "A800", "V100", "H100"]
    assert all(lookup.find_chip(Registry(), name)[0].name == "nvidia" for name in names)


def test_all_of_one_selector(hardware: Registry) -> None:
    found = lookup.find(hardware, parse_selector("tiny:fake:F2"))
    assert (found.case.name, found.implementation.framework, found.chip.name) == ("tiny", "fake", "F2")
    assert found.folder == PLUGINS / "models/fake" and len(found.tuning_rows) == 3


def test_a_framework_that_the_vendor_does_not_know_is_refused(hardware: Registry) -> None:
    with pytest.raises(UsageError, match="vendor fake does not say how torch reaches its devices; it has fake"):
        lookup.find(hardware, parse_selector("tiny:torch:fake"))
    with pytest.raises(UsageError, match="vendor cpu does not say how fake reaches its devices; it has torch"):
        lookup.find(hardware, parse_selector("tiny:fake:cpu"))


def test_a_family_that_a_framework_lacks_is_refused(hardware: Registry, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))
    file = copy / "models/fake/implementation.yaml"
    file.write_text(file.read_text().replace("[gpt, llama]", "[llama]"))
    with pytest.raises(UsageError, match="fake has no gpt model; it has llama"):
        lookup.find(Registry([copy]), parse_selector("tiny:fake:fake"))


def test_tuning_for_another_case_is_refused(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))
    file = copy / "vendors/fake/tuning/tiny.yaml"
    file.write_text(file.read_text().replace("case: tiny", "case: large"))
    with pytest.raises(UsageError, match="key 'case': found 'large', expected 'tiny' as in the file name"):
        lookup.tuning_rows(Registry([copy]), "fake", "tiny")


def test_a_vendor_without_tuning_has_no_rows(registry: Registry) -> None:
    assert lookup.tuning_rows(registry, "cpu", "tiny") == ()
