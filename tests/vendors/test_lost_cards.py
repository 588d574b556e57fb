"""A card that fell off the bus is named, and the others are used, whatever CUDA numbers them (recorded/README.md)."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from adapters import load_adapter, load_spec, tool
from levelfield.catalog.machine import devices_of
from levelfield.cli.main import main
from levelfield.contracts.command import CommandOutput, ask
from levelfield.contracts.vendor import DeviceList, Vendor

RECORDED = Path(__file__).with_name("recorded")
NVIDIA = load_adapter("nvidia")
SEVEN = (RECORDED / "nvidia_smi_1_of_8_lost.csv").read_text()
LOST_LINE = (RECORDED / "nvidia_smi_1_of_8_lost.errors.txt").read_text()
LOST_CARD = LOST_LINE.partition(" for ")[2].strip()  # which card, and what is wrong with it


@pytest.fixture(autouse=True)
def none_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # NVML is not here


def seven(complaint: str = LOST_LINE, text: str = SEVEN) -> DeviceList:
    return devices_of(nvidia(CommandOutput(text, complaint=complaint)))


def nvidia(answer: CommandOutput) -> Vendor:
    return NVIDIA.Adapter(load_spec("nvidia"), NVIDIA.Smi(lambda seconds: answer))


def test_a_lost_card_is_named_and_the_others_are_meant_by_their_uuids() -> None:
    cards = seven()
    assert [device.index for device in cards] == [0, 1, 2, 3, 4, 5, 7]
    assert LOST_CARD in str(cards.problem)
    assert [device.visible for device in cards] == [device.identity for device in cards]
    without = seven("")
    assert "card 6" in str(without.problem) and without == cards
    last = seven(LOST_LINE.replace("GPU6", "GPU7"), SEVEN.replace("7, GPU-", "6, GPU-"))
    assert "GPU7" in str(last.problem) and all(device.visible_as for device in last)


def test_a_plan_has_the_beginning_of_a_uuid_that_is_a_cards_own() -> None:
    text = SEVEN.replace("GPU-00000000-0000-0000-0000-000000000001", "GPU-0123abcd-0000-0000-0000-000000000001")
    assert [device.visible for device in seven(text=text)][:3] == [
        "GPU-00000000-0000-0000-0000-000000000000", "GPU-0123abcd", "GPU-00000000-0000-0000-0000-000000000002",
    ]  # fmt: skip


@pytest.mark.parametrize("variable", ["7", "0,1", "GPU-00000000-0000-0000-0000-000000000001,6"])
def test_numbers_of_cuda_are_no_cards_while_one_is_lost(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    cards = seven()
    assert cards == [] and "expected UUIDs" in str(cards.problem) and "GPU6" in str(cards.problem)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000007")
    assert [device.index for device in seven()] == [7]


def test_a_card_that_has_words_in_place_of_values_is_lost() -> None:
    cards = seven("", (RECORDED / "nvidia_smi_lost_fields.csv").read_text())
    assert [device.index for device in cards] == [0] and re.search(r"\bcard 1:.*\blost\b", str(cards.problem))


@pytest.mark.parametrize(
    "line", [LOST_LINE, "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n"]
)
def test_the_only_card_lost_is_no_machine_without_cards(line: str) -> None:
    for answer in (
        CommandOutput(line),
        CommandOutput(line + "No devices were found\n"),
        CommandOutput("No devices were found\n", complaint=line),
    ):
        cards = devices_of(nvidia(answer))
        assert cards == [] and line.partition(" for ")[0] in str(cards.problem)


def test_a_lost_card_is_in_the_listing_in_the_plan_and_in_a_refusal_of_eight(
    tools: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(
        tools,
        "nvidia-smi",
        f"cat {RECORDED}/nvidia_smi_1_of_8_lost.csv; cat {RECORDED}/nvidia_smi_1_of_8_lost.errors.txt >&2",
    )
    assert main(["show", "vendors"]) == 0
    assert LOST_CARD in " ".join(capsys.readouterr().out.split())
    arguments = ["--scale", "smoke"]
    assert main(["--case", "gpt2_small:torch:nvidia:1:4", "--dry-run", *arguments]) == 0
    plan = capsys.readouterr().out
    assert LOST_CARD in " ".join(plan.split())
    assert "CUDA_VISIBLE_DEVICES=GPU-00000000-0000-0000-0000-000000000000,GPU-" in plan
    assert main(["--case", "gpt2_small:torch:nvidia:1:8", *arguments]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(r"\b8: nvidia-smi\b.*\bGPU6\b", error)


def test_ask_keeps_what_a_tool_that_ended_well_printed_as_errors(tools: Path) -> None:
    tool(tools, "acme-smi", "echo 1; echo lost >&2")
    assert ask(["acme-smi"], 5) == CommandOutput("1\n", complaint="lost\n")


# -- cards that differ


def test_cards_that_differ_are_meant_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = SEVEN.splitlines()[:2]
    text = "\n".join([lines[0], lines[1].replace("RTX 4090", "RTX 3090")]) + "\n"
    assert [d.visible_as for d in seven("", text)] == [d.identity for d in seven("", text)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    cards = seven("", text)
    assert cards == [] and "fastest" in str(cards.problem)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert [device.index for device in seven("", text)] == [1]


# -- cards that no list has


@pytest.mark.parametrize(("name", "is_listed"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA GB10", False)])
def test_a_printed_plan_of_more_devices_works_as_it_is_typed(
    name: str, is_listed: bool, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tools, "nvidia-smi", f"echo '0, GPU-00000000, {name}, 81559, 100, 74.72, 0, 38, [N/A], 580.95.05'")
    assert main(["--case", "llama3_8b:torch", "--dry-run"]) == 0
    plan = " ".join(capsys.readouterr().out.split())
    assert "it fits from 1 x 2 devices on" in plan
    commands = re.findall(r"`run_benchmarks.py (plan [^`]*)`", plan)
    assert len(commands) == is_listed and (is_listed or f"`run_benchmarks.py show chips` does not list {name}" in plan)
    assert [main(shlex.split(command)) for command in commands] == [0] * is_listed
