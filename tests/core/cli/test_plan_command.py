"""`plan` as a user types it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from plan_outputs import plan_output, plan_refusal, plan_values


def test_a_case_string_means_the_same_as_options(capsys: pytest.CaptureFixture[str]) -> None:
    for text, options in (
        ("llama3_8b:megatron:H100:2:8", ("--framework", "megatron", "--nodes", "2", "--devices", "8")),
        ("llama3_8b:torch:H100", ()),
        ("llama3_8b:torch:DP8SH3H100", ("--layout", "DP8SH3")),
    ):
        assert plan_output(capsys, text) == plan_output(capsys, "llama3_8b", "--chip", "H100", *options)


def test_a_case_string_that_lacks_or_repeats_a_part_is_plan_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    case = "gpt2_small:torch:H100:1:1"
    for arguments, says in (
        (("gpt2_small",), "plan gpt2_small: found no chip; give --chip NAME or case:framework:chip"),
        ((case, "--chip", "A100"), f"--chip: found it in '{case}' too"),
        ((case, "--framework", "torch"), "--framework: found it in"),
        (("a::H100",), "expected case:framework"),
    ):
        assert says in plan_refusal(capsys, *arguments), arguments


@pytest.mark.parametrize(
    ("case", "devices", "parameters"),
    [
        ("mixtral_8x7b", "64", "46,702,792,704 parameters, 12,879,925,248 active"),
        ("llama3_8b", "8", "8,030,261,248 parameters"),
    ],
)
def test_the_parameters_are_printed_and_of_a_mixture_the_active_ones_too(
    case: str, devices: str, parameters: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parameters in plan_output(capsys, case, "--chip", "H100", "--devices", devices, "--top", "1").splitlines()


@pytest.mark.parametrize(("chip", "is_measured"), [("MI355X", False), ("MI300X", True), ("H100", True)])
def test_a_chip_that_nobody_measured_has_an_assumed_rate(
    chip: str, is_measured: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_values(capsys, "llama3_8b", "--chip", chip, "--devices", "8", "--top", "1")
    assert any(assumption.startswith("large products") for assumption in plan["assumed"]) is not is_measured


def test_options_leave_nothing_to_assume(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("gpt3_6.7B", "--chip", "A100", "--nodes", "2", "--network", "8x400Gb/s", "--top", "3")
    text, plan = plan_output(capsys, *question), plan_values(capsys, *question)
    assert (plan["assumed"], plan["nodes"], plan["devices_per_node"]) == ([], 2, 8)
    assert [line.split()[0] for line in text.splitlines() if line[:3].strip().isdecimal()] == ["1", "2", "3"]


def test_json_has_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_values(capsys, "gpt3_6.7B", "--chip", "A100", "--devices", "8", "--top", "2")
    assert plan["schema"] == "levelfield.planned/1" and len(plan["rows"]) == 2
    for row in plan["rows"]:
        assert sum(row["memory_parts_bytes"].values()) == row["memory_bytes"] <= plan["capacity_bytes"]
        assert sum(row["step_parts_seconds"].values()) == pytest.approx(row["step_seconds"])


def test_the_arithmetic_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("llama3_8b", "--chip", "H100", "--devices", "8")
    explained = plan_values(capsys, *question, "--explain", "2")
    assert {term["part"] for term in explained["memory"]} >= {"weights", "optimizer_states", "activations"}
    assert {term["part"] for term in explained["time"]} >= {"compute", "bubble", "tensor", "data"}
    assert all(term["source"] for term in [*explained["memory"], *explained["time"]])
    rows = plan_values(capsys, *question)["fitting"]
    assert f"1 to {rows}," in plan_refusal(capsys, *question, "--explain", "0")


def test_nothing_fits_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_values(capsys, "llama3_70b", "--chip", "A100", "--devices", "1")
    assert (plan["rows"], plan["fitting"], plan["capacity_bytes"]) == ([], 0, 80 * 2**30)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpt3_6.7B", "--chip", "A1000"), "unknown vendor or chip 'A1000'"),
        (("gpt3_7B", "--chip", "A100"), "unknown case 'gpt3_7B'"),
        (("gpt3_6.7B", "--chip", "A100", "--framework", "mxnet"), "unknown framework 'mxnet'"),
        (("gpt3_6.7B", "--chip", "A100", "--devices", "0"), "--devices: found 0"),
        (("gpt3_6.7B", "--chip", "A100", "--devices", "12"), "expected a multiple of 8"),
        (("gpt3_6.7B", "--chip", "A100", "--network", "fast"), "--network: found 'fast'"),
    ],
)
def test_wrong_questions_are_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    assert says in plan_refusal(capsys, *arguments)


def test_a_chip_without_public_rates_is_ranked_without_a_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every chip of nodes of eight whose memory is known and whose maker publishes no peak, as a run's default is."""
    registry = Registry()
    files = [registry.vendor_file(name) for name in registry.vendors]
    chips = [(f.name, c) for f in files if not f.is_host for c in f.chips if c.memory_bytes and not c.peaks]
    assert len(chips) >= 8
    for vendor, chip in chips:
        plan = plan_values(capsys, "gpt2_small_b8", "--chip", chip.name, "--devices", "8")
        assert plan["rows"] and all(row["tokens_per_second_per_device"] is None for row in plan["rows"]), vendor
        lacking, _, of_chip = plan["assumed"][0].partition(": ")
        assert lacking.split(", ") == ["peak of fp16", "memory bandwidth", "links"] and chip.name in of_chip, vendor
    lines = plan_output(capsys, "llama3_8b", "--chip", "Ascend-910B1", "--devices", "8", "--top", "1").splitlines()
    assert next(line for line in lines if line.startswith("  1 ")).split()[6:8] == ["100%", "-"]
    (assumption,) = plan_values(capsys, "gpt2_small_b8", "--chip", "BI-V100", "--devices", "1")["assumed"]
    assert assumption.startswith("memory bandwidth:"), "one device needs no links"


def test_a_run_s_plan_has_no_speed_from_another_chip_s_rates(capsys: pytest.CaptureFixture[str]) -> None:
    for chip, has_rates in (("Ascend-910B1", False), ("A100-SXM4-80GB", True)):
        assert main(["--case", f"llama3_8b_bf16:torch:{chip}:1:8", "--scale", "full", "--dry-run", "--json"]) == 0
        (entry,) = json.loads(capsys.readouterr().out)
        predicted = entry["plan"]["predicted"]
        assert predicted and (predicted[0]["tokens_per_second"] is not None) == has_rates
    assert main(["--case", "llama3_8b_bf16:torch:Ascend-910B1:1:8", "--scale", "full", "--dry-run"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("predicted")]
    assert row.split()[1:3] == ["no", "rate,"]


@pytest.mark.parametrize(("case", "chip"), [("gpt3_6.7B", "ours"), ("llama3_8b", "V100")])
def test_a_peak_that_is_lacking_beside_others_is_assumed_by_the_plan_and_by_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str, chip: str
) -> None:
    """gpt3_6.7B is in fp16, llama3_8b in bf16."""
    chips = tmp_path / "chips.yaml"
    chips.write_text(
        "schema: levelfield.chips/1\nvendors:\n  nvidia:\n    - {name: ours, device_is: card, memory_bytes: "
        "68719476736, memory_source: a letter, memory_bandwidth_bytes_per_second: 1.6e12, bandwidth_source: a letter, "
        "interconnect: {description: a mesh, each_way_bytes_per_second: 196.0e9, source: a letter}, "
        "peaks: {bf16: {tflops: 300, source: a letter}, fp32: {tflops: 30, source: a letter}}}\n"
    )
    private = ("--chips", str(chips))
    planned = plan_values(capsys, case, "--chip", chip, "--nodes", "4", "--devices", "8", *private)
    assert all(row["tokens_per_second_per_device"] is None for row in planned["rows"])
    lacks, has = {"ours": ("fp16", "bf16, fp32"), "V100": ("bf16", "fp64, fp32, fp16")}[chip]
    (assumption,) = (text for text in planned["assumed"] if text.startswith("peak"))
    assert assumption.startswith(f"peak of {lacks}:") and f"peaks of {has} alone," in assumption
    assert main(["--case", f"{case}:torch:{chip}:4:8", "--scale", "full", "--dry-run", "--json", *private]) == 0
    first = json.loads(capsys.readouterr().out)[0]["plan"]["predicted"][0]
    assert first["tokens_per_second"] is None
    best = next(row for row in planned["rows"] if not row["is_tight"])
    assert [first[key] for key in ("micro_batch", "recompute")] == [best[key] for key in ("micro_batch", "recompute")]
    assert f"DP{first['layout']['data']}TP{first['layout']['tensor']}PP" in best["layout"]


def test_the_plan_that_a_smoke_run_names_knows_the_same_chip(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugins, chips = tmp_path / "my plugins", tmp_path / "chips.yaml"
    plugins.mkdir()
    chips.write_text(
        "schema: levelfield.chips/1\nvendors:\n  nvidia:\n    - {name: ours, device_is: card, memory_bytes: "
        "68719476736, memory_source: a letter}\n"
    )
    private = ["--plugins", str(plugins), "--chips", str(chips)]
    assert main(["--case", "gpt3_6.7B:torch:ours:1:1", "--dry-run", "--json", *private]) == 0
    before, _, call = json.loads(capsys.readouterr().out)[0]["plan"]["scale_reason"].rpartition("run_benchmarks.py ")
    words = shlex.split(call.rstrip("`"))
    assert "1 x 2" in before and words[:6] == ["plan", "gpt3_6.7B", "--chip", "ours", "--framework", "torch"]
    assert words[-4:] == private and main([*words, "--top", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["capacity_bytes"] == 64 * 2**30


def test_a_private_chip_can_be_planned_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chips = tmp_path / "chips.yaml"
    chips.write_text(
        "schema: levelfield.chips/1\n"
        "vendors:\n"
        "  ascend:\n"
        "    - name: ours\n"
        "      device_is: card\n"
        "      memory_bytes: 68719476736\n"
        "      memory_source: a letter\n"
        "      memory_bandwidth_bytes_per_second: 1.6e12\n"
        "      bandwidth_source: a letter\n"
        "      interconnect: {description: a mesh, each_way_bytes_per_second: 196.0e9, source: a letter}\n"
        "      peaks: {bf16: {tflops: 300, source: a letter}}\n"
    )
    question = ("llama3_8b", "--chip", "ours", "--chips", str(chips))
    assert plan_values(capsys, *question, "--devices", "1")["capacity_bytes"] == 64 * 2**30
    assert not any(text.startswith("links:") for text in plan_values(capsys, *question)["assumed"])
    chips.write_text(chips.read_text().replace("each_way_bytes_per_second: 196.0e9, ", ""))
    assert any(text.startswith("links:") for text in plan_values(capsys, *question)["assumed"])
