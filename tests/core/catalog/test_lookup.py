"""From names to things: hardware that is here, chips by name, and the vendor's tuning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from levelfield.catalog import lookup
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import tuning_rows
from levelfield.contracts.vendor import Device, DeviceList
from levelfield.errors import UnknownName, UsageError
from levelfield.specs.implementation import DeviceReach
from levelfield.specs.selector import parse_selector
from levelfield.specs.vendor import FrameworkAccess
from plans import PLUGINS

HIDDEN = {"nvidia"}  # what this machine really has is no part of these tests


@pytest.fixture
def hardware(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry that knows the cpu and the tests' vendor only, whatever the machine has."""
    registry.__dict__["vendors"] = {n: p for n, p in registry.vendors.items() if n not in HIDDEN}
    monkeypatch.delenv("FAKE_DEVICES", raising=False)
    return registry


def hardware_of(registry: Registry, target: str | None) -> tuple[str, str, int]:
    """The vendor, the chip and the number of devices of a target."""
    here = lookup.find_hardware(registry, target)
    return here.adapter.spec.name, here.chip.name, len(here.devices)


def test_without_an_accelerator_the_cpu_is_taken(hardware: Registry) -> None:
    assert hardware_of(hardware, None) == ("cpu", "cpu", 1)


def test_an_accelerator_that_is_here_is_taken_first(hardware: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "4")
    assert hardware_of(hardware, None) == ("fake", "F1", 4)


def test_a_named_vendor_without_devices_gives_its_first_chip_and_none_here(hardware: Registry) -> None:
    assert hardware_of(hardware, "fake") == ("fake", "F1", 0)


@pytest.mark.parametrize(("name", "here"), [("F1", 2), ("f1-8gb", 2), ("F2", 0)])
def test_a_chip_by_name_or_alias_counts_only_its_own_devices(
    hardware: Registry, monkeypatch: pytest.MonkeyPatch, name: str, here: int
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "2")
    assert hardware_of(hardware, name) == ("fake", name[:2].upper(), here)


def test_a_device_of_an_unknown_kind_has_no_peaks(hardware: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = hardware.vendor("fake")
    monkeypatch.setattr(fake, "devices", lambda: [Device(0, None, "Fake F9", 2**30)])
    monkeypatch.setattr(hardware, "vendor", lambda name: fake)
    here = lookup.find_hardware(hardware, "fake")
    assert (here.chip.name, here.chip.peaks, here.chip.memory_bytes) == ("Fake F9", {}, 2**30)
    assert len(here.devices) == 1


@pytest.mark.parametrize("chip", ["F1", None])
def test_a_device_that_its_tool_names_as_another_makers_chip_is_told(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, chip: str | None
) -> None:
    device = Device(3, chip, "NVIDIA H100 80GB HBM3", None)
    monkeypatch.setattr(registry.vendor("fake"), "devices", lambda: [device])
    (notice,) = lookup.find_hardware(registry, "fake").notices
    assert "device 3 'NVIDIA H100 80GB HBM3', which is H100-SXM5-80GB of vendor nvidia" in notice
    assert notice.endswith(f"that fake gives for {chip or 'an unknown chip'}")


def test_a_device_that_counts_as_another_chip_of_its_maker_is_told(
    plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = plugins / "vendors/fake/vendor.yaml"
    file.write_text(file.read_text().replace("- name: F2", "- name: F2\n    match: [Fake F2]"))
    registry = Registry([plugins])
    devices = [Device(index, "F1", text, None) for index, text in enumerate(("Fake F1", "Fake F2", "Fake F2"))]
    monkeypatch.setattr(registry.vendor("fake"), "devices", lambda: devices)
    (notice,) = lookup.find_hardware(registry, "fake").notices
    assert "names device 1 'Fake F2', which is F2 of vendor fake; " in notice and notice.endswith("gives for F1")


def test_devices_of_one_identity_are_told(hardware: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Device(index, "F1", "Fake F1 8GB", None, identity) for index, identity in enumerate("abba")]
    monkeypatch.setattr(hardware.vendor("fake"), "devices", lambda: devices)
    notices = lookup.find_hardware(hardware, "fake").notices
    assert [re.findall("devices (.*) have one identity", notice) for notice in notices] == [["0, 3"], ["1, 2"]]


def test_an_unknown_target_lists_the_nearest_chips_and_vendors(hardware: Registry) -> None:
    with pytest.raises(UnknownName, match=r"'F1-80GB';.*\bF1-8GB\b"):
        lookup.find_hardware(hardware, "F1-80GB")


@pytest.mark.parametrize(
    ("alias", "name", "message"),
    [
        ("h100", "H100", "'H100' names (H100-SXM5-80GB|F1) of vendor .*, and (H100-SXM5-80GB|F1) of vendor"),
        ("NVIDIA", "nvidia", "'nvidia' names F1 of vendor fake, and the vendor nvidia; write another name"),
    ],
)
def test_a_name_of_two_things_is_refused(plugins: Path, alias: str, name: str, message: str) -> None:
    file = plugins / "vendors/fake/vendor.yaml"
    file.write_text(file.read_text().replace("[F1-8GB]", f"[F1-8GB, {alias}]"))
    with pytest.raises(UsageError, match=message):
        find_chip(Registry([plugins]), name)
    assert find_chip(Registry([plugins]), "F1")[1].name == "F1"
    assert find_chip(Registry(), "H100")[1].name == "H100-SXM5-80GB"


def test_a_vendor_is_no_chip_and_an_unknown_chip_may_be_in_a_folder_of_plugins(registry: Registry) -> None:
    with pytest.raises(UsageError, match=r"'nvidia'.*: V100-SXM2-16GB, "):
        find_chip(registry, "nvidia")
    with pytest.raises(UnknownName, match=r"`show chips`[^-]*$"):
        find_chip(registry, "X1")
    with pytest.raises(UnknownName, match="--plugins DIR"):
        find_chip(Registry(), "X1")


def test_chips_of_the_reports_are_known() -> None:
    names = ["A100", "A10080G", "A10040G", "A800", "V100", "H100"]
    assert all(find_chip(Registry(), name)[0].name == "nvidia" for name in names)


def test_all_of_one_selector(hardware: Registry) -> None:
    selection = lookup.find_selection(hardware, parse_selector("tiny:fake:F2"))
    assert (selection.case.name, selection.implementation.framework, selection.chip.name) == ("tiny", "fake", "F2")
    assert selection.folder == PLUGINS / "models/fake" and len(selection.tuning_rows) == 3


def test_a_framework_that_the_vendor_does_not_know_is_refused(hardware: Registry) -> None:
    for framework, vendor in (("torch", "fake"), ("fake", "cpu")):
        facts = rf"neither {framework} nor.*\b{vendor}\b.*'{vendor}'.*`reaches\.{vendor}`.*\b{framework}'s"
        with pytest.raises(UsageError, match=facts):
            lookup.find_selection(hardware, parse_selector(f"tiny:{framework}:{vendor}"))


def test_a_framework_says_itself_how_it_reaches_devices() -> None:
    hardware = Registry()
    torch, cpu = hardware.implementation("torch")[0], hardware.vendor_file("cpu")
    assert cpu.frameworks == {} and lookup.framework_access(torch, cpu) == FrameworkAccess(device="cpu", backend="gloo")
    nvidia = hardware.vendor_file("nvidia")
    assert lookup.framework_access(torch, nvidia) == nvidia.frameworks["torch"] and not lookup.access_notices(
        torch, nvidia
    )


def test_the_vendors_words_are_used_and_a_difference_is_a_notice() -> None:
    hardware = Registry()
    reach = DeviceReach(device="gpu", backend="nccl", environment={"A": "1"})
    nvidia = hardware.vendor_file("nvidia")
    torch = hardware.implementation("torch")[0].model_copy(update={"reaches": {"nvidia": reach}})
    assert lookup.framework_access(torch, nvidia) == nvidia.frameworks["torch"] != reach.access
    (notice,) = lookup.access_notices(torch, nvidia)
    assert re.search(r"nvidia.*\bcuda.*nccl; torch.*\bgpu.*nccl.*'nvidia'\..*vendor", notice)
    same = torch.model_copy(update={"reaches": {"nvidia": DeviceReach(device="cuda", backend="nccl")}})
    assert lookup.access_notices(same, nvidia) == ()
    alone = nvidia.model_copy(update={"frameworks": {}})
    assert lookup.framework_access(torch, alone) == reach.access and lookup.access_notices(torch, alone) == ()
    assert torch.environment("nvidia") == {**torch.launch.environment, "A": "1"}


def test_a_part_that_a_framework_lacks_is_refused(plugins: Path) -> None:
    file = plugins / "models/fake/implementation.yaml"
    file.write_text(file.read_text().replace("learned_positions, ", ""))
    with pytest.raises(UsageError, match=r"^fake.*\blearned_positions,.*\btiny\b.*\brope, "):
        lookup.find_selection(Registry([plugins]), parse_selector("tiny:fake:fake"))


def test_tuning_for_another_case_is_refused(plugins: Path) -> None:
    file = plugins / "vendors/fake/tuning/tiny.yaml"
    file.write_text(file.read_text().replace("case: tiny", "case: large"))
    with pytest.raises(UsageError, match=r"tiny\.yaml:.*'case':.*'large'.*'tiny'"):
        tuning_rows(Registry([plugins]), "fake", "tiny")


def test_a_vendor_without_tuning_has_no_rows(registry: Registry) -> None:
    assert tuning_rows(registry, "cpu", "tiny") == ()


# -- tools that are here and do not answer


def silent(problem: str, *devices: Device) -> DeviceList:
    return DeviceList(devices, problem)


PROBLEM = "fake-smi did not answer within 5 s"


@pytest.fixture
def hung(hardware: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(hardware.vendor("fake"), "devices", lambda: silent(PROBLEM))
    return hardware


def test_a_tool_that_is_here_and_does_not_answer_never_gives_a_cpu_plan(hung: Registry) -> None:
    with pytest.raises(UsageError, match=rf"^vendor fake: {PROBLEM}\..*`:cpu`.*FAKE_VISIBLE_DEVICES=$") as refusal:
        lookup.find_selection(hung, parse_selector("tiny:fake"))
    assert refusal.value.exit_code == 2


def test_an_adapter_that_raises_is_a_tool_that_does_not_answer(
    hardware: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[Device]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(hardware.vendor("fake"), "devices", fail)
    with pytest.raises(UsageError, match=r"^vendor fake:.*\bOSError:.*\b5\b.*Input/output"):
        lookup.find_hardware(hardware, None)


def test_with_the_cpu_named_the_silent_vendor_is_said_not_to_be_used(hung: Registry) -> None:
    here = lookup.find_hardware(hung, "cpu")
    assert (here.adapter.spec.name, here.problem) == ("cpu", None)
    (notice,) = here.notices
    assert re.fullmatch(rf"vendor fake.*not.*: {PROBLEM}", notice)


@pytest.mark.parametrize("target", ["fake", "F1"])
def test_a_silent_vendor_that_is_named_has_no_devices_and_the_reason(hung: Registry, target: str) -> None:
    here = lookup.find_hardware(hung, target)
    assert (here.devices, here.problem) == ((), PROBLEM)
    assert here.notices == (f"vendor fake: {PROBLEM}",)


def test_devices_beside_a_lost_one_are_taken_and_the_loss_is_told(
    hardware: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Device(0, "F1", "Fake F1 8GB", 8 * 2**30)
    problem = "device 1: lost"
    monkeypatch.setattr(hardware.vendor("fake"), "devices", lambda: silent(problem, left))
    here = lookup.find_hardware(hardware, None)
    assert (here.adapter.spec.name, here.devices, here.notices) == ("fake", (left,), (f"vendor fake: {problem}",))


def test_an_accelerator_that_answers_is_taken_and_the_silent_one_before_it_is_named(
    hardware: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    monkeypatch.setattr(hardware.vendor("amd"), "devices", lambda: silent(PROBLEM))
    here = lookup.find_hardware(hardware, None)
    (notice,) = here.notices
    assert here.adapter.spec.name == "fake" and re.fullmatch(rf"vendor amd.*not.*: {PROBLEM}", notice)


def test_each_tool_runs_once_in_a_command(hardware: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    listings = iter([silent("hangs")])
    monkeypatch.setattr(hardware.vendor("fake"), "devices", lambda: next(listings))
    problems = [lookup.find_hardware(hardware, target).problem for target in ("cpu", "cpu", "fake", "F1")]
    assert problems == [None, None, "hangs", "hangs"]
