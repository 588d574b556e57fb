"""Where a suite's entry runs: where it says when that is here, assumed for a plan, else scaled to what is here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, DoesNotFit, UnknownName, UsageError
from levelfield.plan import placement
from levelfield.plan.placement import reduce_layout
from levelfield.plan.request import Entry, Suggestion, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.predict.layout_rules import broken_rules
from levelfield.specs.base import parse
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.plan import Plan
from levelfield.specs.suite import NamedHardware, Suite, read_hardware
from levelfield.specs.tuning import TuningChoice, chosen_by

Planned = Callable[..., Plan]


@pytest.fixture
def planned(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """planned(case string, hardware, layout, ...): the plan on a machine with two F1 dies and two cores."""
    monkeypatch.setenv("FAKE_DEVICES", "2")
    monkeypatch.setattr(placement, "usable_cores", lambda: 2)

    def make(text: str, where: str | None, layout: str | None = None, **fields: Any) -> Plan:
        suggestion = Suggestion(TuningChoice(layout=layout, micro_batch=1), "suite s")
        hardware = read_hardware(where) if where else None
        entry = Entry(text, UserRequest(**fields), suggestion=suggestion, hardware=hardware)
        return resolve(placement.place(registry, entry), "run-id")

    return make


@pytest.mark.parametrize("text", ["4x8 V100-SXM2-16GB", " 4x8  V100-SXM2-16GB "])
def test_hardware_is_nodes_by_devices_and_a_chip(text: str) -> None:
    assert read_hardware(text) == NamedHardware(nodes=4, devices=8, chip="V100-SXM2-16GB")
    assert str(read_hardware(text)) == "4x8 V100-SXM2-16GB"


@pytest.mark.parametrize(
    "text", ["", "4x8", "V100", "4x8V100", "0x8 V100", "4x0 V100", "4*8 V100", "x8 V100", "-1x8 V100"]
)
def test_other_texts_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=f"found '{re.escape(text)}', expected"):
        read_hardware(text)


def test_a_suite_with_wrong_hardware_names_the_key() -> None:
    content = {"schema": "levelfield.suite/1", "title": "t", "entries": [{"case": "a:b", "hardware": "8 V100"}]}
    with pytest.raises(DocumentError, match=r"^s.yaml:.*'entries.0.hardware'.*'8 V100'"):
        parse(Suite, content, "s.yaml")


def test_a_suite_with_one_row_twice_is_refused() -> None:
    entries = [{"case": "a:b", "name": "row"}, {"case": "a:c", "name": "row"}]
    content = {"schema": "levelfield.suite/1", "title": "t", "entries": entries}
    with pytest.raises(DocumentError, match=r"entries:.*'row' twice"):
        parse(Suite, content, "s.yaml")


def test_hardware_that_is_here_is_used_as_it_is(planned: Planned) -> None:
    plan = planned("tiny:fake", "1x2 F1-8GB", "TP2")
    assert (plan.hardware.chip.name, plan.world_size, plan.scale) == ("F1", 2, "full")
    assert (plan.hardware.assumed, plan.deviations, plan.origins["layout"]) == (False, (), "suite s")


def test_a_base_run_takes_the_defaults_and_no_choice_of_vendor_or_suite(planned: Planned) -> None:
    tuned, base = (planned("tiny:fake", "1x2 F1", "TP2", scale="smoke", base=base) for base in (False, True))
    assert (str(tuned.tuning.layout), tuned.tuning.micro_batch, tuned.tuning.threads) == ("DP1TP2PP1", 1, 3)
    assert (str(base.tuning.layout), base.tuning.micro_batch, base.tuning.threads) == ("DP2TP1PP1", 4, None)
    assert {who for origin in tuned.origins.values() if (who := chosen_by(origin))} == {"vendor", "suite s"}
    assert not any(map(chosen_by, base.origins.values())), base.origins


def test_a_base_run_refuses_a_layout_in_its_case_string(planned: Planned) -> None:
    with pytest.raises(UsageError, match=r"--base:.*TP2"):
        planned("tiny:fake:TP2F1:1:2", None, base=True)


@pytest.mark.parametrize("hardware", ["1x4 F1", "2x2 F1", "1x2 F2"])
def test_hardware_that_is_not_here_is_assumed_for_a_plan(planned: Planned, hardware: str) -> None:
    place = read_hardware(hardware)
    plan = planned("tiny:fake", hardware, f"TP{place.nodes * place.devices}", may_lack_hardware=True)
    assert plan.hardware.assumed and plan.hardware.chip.name == place.chip
    assert (plan.hardware.nodes, plan.hardware.devices_per_node) == (place.nodes, place.devices)
    assert (plan.scale, plan.tuning.micro_batch) == ("full", 1)
    numbers = tuple(range(place.devices))  # two are here, of another number than the plan's
    assert plan.hardware.device_indices == numbers
    assert plan.hardware.visible == {"FAKE_VISIBLE_DEVICES": ",".join(map(str, numbers))}
    assert "suite" in plan.scale_reason and plan.scale_reason.endswith(hardware)


@pytest.mark.parametrize("may_lack_hardware", [False, True])
def test_a_run_without_the_hardware_is_scaled_and_says_so(planned: Planned, may_lack_hardware: bool) -> None:
    scale = "smoke" if may_lack_hardware else "auto"
    plan = planned("tiny:fake", "1x8 F2", "DP2TP2PP2", may_lack_hardware=may_lack_hardware, scale=scale)
    assert (str(plan.tuning.layout), plan.scale, plan.hardware.assumed) == ("DP1TP1PP2", "smoke", False)
    assert plan.deviations == ("1x8 F2 is not here: layout DP2TP2PP2 of 8 devices scaled to DP1TP1PP2 for 2",)
    assert plan.origins["micro_batch"].startswith("vendor fake")


def test_a_sharding_stage_that_is_not_offered_is_lowered_and_said(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "detect_vendor", lambda registry: registry.vendor("cpu"))
    plan = planned("gpt3_6.7B:paddle", "1x8 A100-SXM4-40GB", "TP1PP1SH2SP8")
    assert plan.hardware.vendor == "cpu" and str(plan.tuning.layout) == "DP2TP1PP1SH1SP2"
    [lowered] = plan.deviations[1:]
    for part in ("stage 2", "to 1", "paddle on cpu"):
        assert part in lowered


def test_hardware_that_is_named_twice_is_refused(planned: Planned) -> None:
    for text in ("tiny:fake:F1", "tiny:fake:fake:1:2", "tiny:fake:TP2F1"):
        with pytest.raises(UsageError, match=r"twice.*tiny:fake.*'1x8 F2'"):
            planned(text, "1x8 F2")
    assert str(planned("tiny:fake:TP2", "1x8 F2").tuning.layout) == "DP1TP2PP1"


def test_a_layout_on_the_command_line_is_not_scaled(planned: Planned) -> None:
    plan = planned("tiny:fake", "1x8 F2", "DP2TP2PP2", choice=TuningChoice(layout="DP1TP2PP1"))
    assert str(plan.tuning.layout) == "DP1TP2PP1"
    [deviation] = plan.deviations
    assert "1x8 F2" in deviation and deviation.endswith("on F1")


def test_full_scale_without_the_hardware_is_refused(planned: Planned) -> None:
    with pytest.raises(DoesNotFit, match=r"--scale full.*1x8.F2"):
        planned("tiny:fake", "1x8 F2", "DP8", scale="full")


def test_a_withheld_chip_has_no_plan_of_its_own(planned: Planned) -> None:
    plan = planned("tiny:fake", "1x8 withheld", "DP8", may_lack_hardware=True)
    assert plan.hardware.chip.name == "F1" and plan.scale == "smoke" and not plan.hardware.assumed
    assert "1x8 is withheld" in plan.deviations[0] and "DP8TP1PP1" in plan.deviations[0]


def test_assumed_hardware_is_marked_even_where_it_is_here(planned: Planned) -> None:
    plan = planned("tiny:fake", None, "TP2", may_lack_hardware=True, assumed_hardware=read_hardware("1x2 F1"))
    assert plan.hardware.assumed and "--assume-hardware" in plan.scale_reason
    over = planned("tiny:fake", "1x8 F1", "TP2", may_lack_hardware=True, assumed_hardware=read_hardware("1x2 F2"))
    assert over.hardware.chip.name == "F2"


def test_a_chip_that_nobody_makes_is_refused(planned: Planned) -> None:
    with pytest.raises(UnknownName, match=r"unknown.*'F9'"):
        planned("tiny:fake", "1x8 F9")
    with pytest.raises(UsageError, match=r"'fake'.*chip: F1"):
        planned("tiny:fake", "1x8 fake")


@pytest.mark.parametrize(
    ("layout", "chip", "ran"),
    [
        ("PP1DP4TP2", "H100-SXM5-80GB", "DP4TP2PP1SH1SP4+seq"),
        ("pp1dp4tp2", "H100-SXM5-80GB", "DP4TP2PP1SH1SP4+seq"),
        ("PP2DP4TP1", "A800-SXM4-80GB", "DP4TP1PP2SH1SP4"),
        ("DP4TP2PP1", "H100-SXM5-80GB", "DP4TP2PP1"),
        ("PP4DP1TP1", "H100-SXM5-80GB", "DP1TP1PP4"),
    ],
)
def test_a_layout_as_flagperf_prints_it_is_planned_as_its_row_ran(
    registry: Registry, layout: str, chip: str, ran: str
) -> None:
    devices = 4 if ran == "DP1TP1PP4" else 8
    hardware = NamedHardware(nodes=1, devices=devices, chip=chip)
    request = UserRequest(choice=TuningChoice(layout=layout), assumed_hardware=hardware, may_lack_hardware=True)
    decision = placement.place(registry, Entry("llama3_8b:megatron", request))
    plan = resolve(decision, "run-id")
    assert str(plan.tuning.layout) == ran
    rows = [name for name in ROWS for deviation in plan.deviations if name in deviation and ran in deviation]
    assert bool(rows) is ("SH" in ran)
    if chip.startswith("A800"):  # the report has 76 of 80 GB
        assert 70 < plan.expected_memory.total_bytes / 2**30 < 80


ROWS = ("H100 1x8 bf16 PP1DP4TP2", "A100 1x8 bf16 PP2DP4TP1")


def test_another_framework_and_a_host_take_the_printed_layout_as_it_stands(registry: Registry) -> None:
    hardware = read_hardware("1x8 H100-SXM5-80GB")
    request = UserRequest(choice=TuningChoice(layout="PP1DP4TP2"), assumed_hardware=hardware, may_lack_hardware=True)
    assert placement.place(registry, Entry("llama3_8b:torch", request)).request.choice.layout == "PP1DP4TP2"
    request = replace(request, assumed_hardware=None)
    assert placement.place(registry, Entry("llama3_8b:megatron:cpu:1:8", request)).request.choice.layout == "PP1DP4TP2"


def test_the_user_picks_devices_of_this_machine(planned: Planned) -> None:
    hardware = planned("tiny:fake:fake:1:1", None, devices=(1,)).hardware
    assert hardware.device_indices == (1,) and hardware.visible == {"FAKE_VISIBLE_DEVICES": "1"}
    assert planned("tiny:fake:fake", None, devices=(1, 0)).hardware.device_indices == (1, 0)


@pytest.mark.parametrize(
    ("text", "devices", "fault"),
    [
        ("tiny:fake:fake", (1, 2), "--devices: found 2, expected devices of F1 here: 0, 1"),
        ("tiny:fake:fake:1:2", (1,), "found 1 x F1"),
        ("gpt2_small:torch:cpu", (0,), "--devices: found numbers of devices, expected none: cpu is divided"),
    ],
)
def test_devices_that_are_not_here_are_refused(
    planned: Planned, text: str, devices: tuple[int, ...], fault: str
) -> None:
    with pytest.raises(UsageError, match=fault):
        planned(text, None, devices=devices)


# ---- layouts for many devices, cut down to a few

ALL = ("data", "tensor", "pipeline", "sequence", "zero1", "zero2", "zero3")
SMOKE = Registry().case("llama3_8b").work("smoke")


def cut(text: str, devices: int, offered: tuple[str, ...] = ALL, micro_batch: int = 8) -> str:
    return str(reduce_layout(parse_layout(text).layout, devices, SMOKE, micro_batch, offered))


@pytest.mark.parametrize(
    ("text", "devices", "expected"),
    [
        ("DP8TP1PP4", 2, "DP1TP1PP2"),
        ("DP8TP1PP4", 4, "DP2TP1PP2"),
        ("DP8TP1PP4", 8, "DP2TP1PP4"),
        ("2x4x4", 8, "DP2TP2PP2"),
        ("2x4x4", 4, "DP1TP2PP2"),
        ("2x4x4", 3, "DP1TP1PP2"),
        ("1x32x1", 2, "DP1TP2PP1"),
        ("4x8x1", 1, "DP1TP1PP1"),
        ("DP220TP2PP1SH1SP220+seq", 2, "DP1TP2PP1+seq"),
        ("DP220TP2PP1SH1SP220+seq", 8, "DP4TP2PP1SH1SP4+seq"),
        ("DP1TP1PP1", 2, "DP1TP1PP1"),
        ("DP4CP2TP1PP1", 4, "DP2CP2TP1PP1"),
        ("DP1CP8TP1PP1SH1SP8", 2, "DP1CP2TP1PP1SH1SP2"),
    ],
)
def test_the_largest_goes_first_and_a_pipeline_goes_last(text: str, devices: int, expected: str) -> None:
    assert cut(text, devices) == expected


@pytest.mark.parametrize(
    ("text", "devices", "expected"),
    [
        ("1x32x1", 64, "DP1TP4PP1"),  # four key-value heads
        ("DP1TP1PP16", 64, "DP1TP1PP4"),  # four layers
        ("DP32TP1PP1", 64, "DP4TP1PP1"),  # 32 sequences in micro-batches of 8
    ],
)
def test_no_dimension_is_larger_than_what_it_cuts(text: str, devices: int, expected: str) -> None:
    assert cut(text, devices) == expected


@pytest.mark.parametrize(
    ("text", "offered", "expected"),
    [
        ("DP8TP1PP1SH2SP8", ("data", "zero1"), "DP2TP1PP1SH1SP2"),
        ("DP8TP1PP1SH3SP8", ("data", "zero1", "zero2"), "DP2TP1PP1SH2SP2"),
        ("DP8TP1PP1SH1SP8", ("data",), "DP2TP1PP1"),
        ("DP8TP1PP1SH2SP8", ALL, "DP2TP1PP1SH2SP2"),
        ("DP8TP1PP1SH1SP2", ALL, "DP2TP1PP1SH1SP2"),
        ("DP4TP2PP1SH2SP4", ALL, "DP1TP2PP1"),
        ("DP1TP4PP1+seq", ("tensor",), "DP1TP2PP1"),
    ],
)
def test_sharding_and_sequence_parallel_stay_where_they_are_offered(
    text: str, offered: tuple[str, ...], expected: str
) -> None:
    assert cut(text, 2, offered) == expected


SIZES = st.integers(1, 100)  # together at most 2^20 ranks


@given(SIZES, SIZES, SIZES, st.integers(1, 64))
def test_what_comes_out_can_always_be(data: int, tensor: int, pipeline: int, devices: int) -> None:
    layout = reduce_layout(Layout(data=data, tensor=tensor, pipeline=pipeline), devices, SMOKE, 8, ALL)
    assert layout.world_size <= devices
    assert broken_rules(SMOKE, layout, 8, 1, layout.world_size) == []
