"""`plan` as a user types it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    return capsys.readouterr().err


def test_a_case_string_means_the_same_as_options(capsys: pytest.CaptureFixture[str]) -> None:
    for text, options in (
        ("llama3_8b:megatron:H100:2:8", ("--framework", "megatron", "--nodes", "2", "--devices", "8")),
        ("llama3_8b:torch:H100", ()),
        ("llama3_8b:torch:DP8SH3H100", ("--layout", "DP8SH3")),
    ):
        assert said(capsys, text) == said(capsys, "llama3_8b", "--chip", "H100", *options)


def test_a_case_string_that_lacks_or_repeats_a_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    case = "gpt2_small:torch:H100:1:1"
    for arguments, says in (
        (("gpt2_small",), "plan gpt2_small: found no chip; give --chip NAME or case:framework:chip"),
        ((case, "--chip", "A100"), f"--chip: found it in '{case}' too"),
        ((case, "--framework", "torch"), "--framework: found it in"),
        (("a::H100",), "expected case:framework"),
    ):
        assert says in refused(capsys, *arguments), arguments


def test_a_table_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "llama3_70b", "--chip", "H100", "--devices", "16384", "--framework", "megatron")
    assert max(map(len, text.splitlines())) <= 80
    assert "predicted, not measured" in text
    assert "assumed: nodes of 8 devices" in text and "a network of 8 x 400 Gb/s per node (NVIDIA DGX BasePOD" in text


def test_the_parameters_are_printed_and_of_a_mixture_the_active_ones_too(capsys: pytest.CaptureFixture[str]) -> None:
    mixture = said(capsys, "mixtral_8x7b", "--chip", "H100", "--devices", "64", "--top", "1")
    assert "\n46,702,792,704 parameters, 12,879,925,248 active\n" in mixture
    assert "assumed: the busiest expert rank has 1 x the mean's tokens" in mixture
    assert "\n8,030,261,248 parameters\n" in said(capsys, "llama3_8b", "--chip", "H100", "--top", "1")


def test_a_chip_that_nobody_measured_says_what_is_assumed_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, "llama3_8b", "--chip", "MI355X", "--devices", "8", "--top", "1").split())
    assert (
        "assumed: large products at 80% of MI355X's bf16 peak, as no public measurement is known; 10 measured reach "
        in text
    )
    for measured in ("MI300X", "H100"):
        assert "large products" not in said(capsys, "llama3_8b", "--chip", measured, "--top", "1")


def test_what_is_said_is_not_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "gpt3_6.7B", "--chip", "A100", "--nodes", "2", "--network", "8x400Gb/s", "--top", "3")
    assert "assumed" not in text and "on 2 x 8" in text
    assert [line.split()[0] for line in text.splitlines() if line[:3].strip().isdecimal()] == ["1", "2", "3"]


def test_json_has_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "gpt3_6.7B", "--chip", "A100", "--devices", "8", "--json", "--top", "2"))
    assert found["schema"] == "levelfield.planned/1" and len(found["rows"]) == 2
    for row in found["rows"]:
        assert sum(row["memory_parts_bytes"].values()) == row["memory_bytes"] <= found["capacity_bytes"]
        assert sum(row["step_parts_seconds"].values()) == pytest.approx(row["step_seconds"])


def test_the_arithmetic_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "llama3_8b", "--chip", "H100", "--devices", "8", "--explain", "2")
    assert "Korthikanti et al." in text and "optimizer_states" in text
    found = json.loads(said(capsys, "llama3_8b", "--chip", "H100", "--devices", "8", "--explain", "2", "--json"))
    assert {term["part"] for term in found["time"]} >= {"compute", "bubble", "tensor", "data"}
    rows = json.loads(said(capsys, "llama3_8b", "--chip", "H100", "--devices", "8", "--json"))["fitting"]
    assert f"expected 1 to {rows}," in refused(
        capsys, "llama3_8b", "--chip", "H100", "--devices", "8", "--explain", "0"
    )


def test_nothing_fits_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "llama3_70b", "--chip", "A100", "--devices", "1")
    assert "no layout fits" in text and "of 80.0 GiB" in text


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
def test_wrong_questions(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(capsys, *arguments)


def test_a_chip_without_public_rates_is_ranked_without_a_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every chip of nodes of eight whose memory is known and whose maker publishes no peak, as a run's default is."""
    registry = Registry()
    files = [registry.vendor_file(name) for name in registry.vendors]
    chips = [(f.name, c) for f in files if not f.is_host for c in f.chips if c.memory_bytes and not c.peaks]
    assert len(chips) >= 8
    for vendor, chip in chips:
        found = json.loads(said(capsys, "gpt2_small_b8", "--chip", chip.name, "--devices", "8", "--json"))
        assert found["rows"] and all(row["tokens_per_second_per_device"] is None for row in found["rows"]), vendor
        assert f"peak of fp16, memory bandwidth, links: not public of {chip.name}" in found["assumed"][0]
    arguments = ("llama3_8b", "--chip", "Ascend-910B1", "--devices", "8")
    lines = said(capsys, *arguments, "--top", "1").splitlines()
    assert any(line.startswith("assumed: peak of bf16") for line in lines) and max(map(len, lines)) <= 80
    assert next(line for line in lines if line.startswith("  1 ")).split()[6:8] == ["100%", "-"]
    assert said(capsys, *arguments, "--explain", "1").startswith("assumed: peak of bf16")
    one = " ".join(said(capsys, "gpt2_small_b8", "--chip", "BI-V100", "--devices", "1").split())
    assert "memory bandwidth: not public of BI-V100" in one, "one device needs no links"


def test_a_run_s_plan_has_no_speed_from_another_chip_s_rates(capsys: pytest.CaptureFixture[str]) -> None:
    for chip, known in (("Ascend-910B1", False), ("A100-SXM4-80GB", True)):
        assert main(["--case", f"llama3_8b_bf16:torch:{chip}:1:8", "--scale", "full", "--dry-run", "--json"]) == 0
        (shown,) = json.loads(capsys.readouterr().out)
        plan = shown["plan"]
        assert plan["predicted"] and (plan["predicted"][0]["tokens_per_second"] is not None) == known
    assert main(["--case", "llama3_8b_bf16:torch:Ascend-910B1:1:8", "--scale", "full", "--dry-run"]) == 0
    assert "predicted    no rate, " in capsys.readouterr().out


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
    own = ("--chips", str(chips))
    found = json.loads(said(capsys, case, "--chip", chip, "--nodes", "4", "--devices", "8", "--json", *own))
    assert all(row["tokens_per_second_per_device"] is None for row in found["rows"])
    lacks, has = {"ours": ("fp16", "bf16, fp32"), "V100": ("bf16", "fp64, fp32, fp16")}[chip]
    (said_of,) = (each for each in found["assumed"] if each.startswith("peak"))
    assert said_of.startswith(f"peak of {lacks}: not public of ")
    assert f", which has peaks of {has} alone, so rows have the order that" in said_of
    assert "Your own go into vendor.yaml or a private chips file" in said_of
    assert main(["--case", f"{case}:torch:{chip}:4:8", "--scale", "full", "--dry-run", "--json", *own]) == 0
    plan = json.loads(capsys.readouterr().out)[0]["plan"]
    assert plan["predicted"][0]["tokens_per_second"] is None
    first, best = plan["predicted"][0], next(row for row in found["rows"] if not row["is_tight"])
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
    own = ["--plugins", str(plugins), "--chips", str(chips)]
    assert main(["--case", "gpt3_6.7B:torch:ours:1:1", "--dry-run", "--json", *own]) == 0
    reason = json.loads(capsys.readouterr().out)[0]["plan"]["scale_reason"]
    assert "it fits from 1 x 2 devices on: `run_benchmarks.py plan gpt3_6.7B --chip ours --framework torch" in reason
    words = shlex.split(reason.rpartition("run_benchmarks.py ")[2].rstrip("`"))
    assert words[-4:] == own and main([*words, "--top", "1"]) == 0
    assert "ours, 64 GiB each" in capsys.readouterr().out


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
    said(capsys, "llama3_8b", "--chip", "ours", "--chips", str(chips), "--devices", "1")
    chips.write_text(chips.read_text().replace("each_way_bytes_per_second: 196.0e9, ", ""))
    assert "links: not public of ours" in said(capsys, "llama3_8b", "--chip", "ours", "--chips", str(chips))
    chips.write_text(chips.read_text().replace("a mesh,", "a mesh, each_way_bytes_per_second: 196.0e9,"))
    assert "ours, 64 GiB each" in said(capsys, "llama3_8b", "--chip", "ours", "--chips", str(chips))
