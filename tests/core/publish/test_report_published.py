"""Runs beside published rows, and in the columns of other reports: a run that measured what a report printed prints its
cells again."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.compare.published_rows import figure_rows, format_figure_rows, missing_row_remarks, rate_and_origin
from levelfield.errors import UsageError
from levelfield.judge.collector import collect
from levelfield.measure.utilisation import hfu, mfu, peak_range
from levelfield.publish.foreign_columns import FLAGPERF_LLAMA, FOREIGN_FORMATS, format_report, interval_table
from levelfield.publish.foreign_tables import ExportedRun, case_constants, exported_runs, number_with_change
from levelfield.rundir.directory import read_plan
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.figures import PublishedRow
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Figure, Result, Status, System, Utilisation
from levelfield.specs.tuning import Recompute

REGISTRY = Registry([])
work_of = cache(lambda case: REGISTRY.case(case).work("full"))
chip_of = cache(lambda name: find_chip(REGISTRY, name)[1])
LLAMA, ONEFLOW_SET, OSDI_SET, PADDLE = (
    REGISTRY.published_set(name) for name in ("flagperf_llama3", "oneflow_gpt", "osdi_gpt2", "flagperf_gpt3_paddle")
)
Pair = tuple[Result, Plan]


@pytest.fixture(scope="module")
def valid(recorded: Path) -> Pair:
    return collect(RunPaths(recorded)), read_plan(RunPaths(recorded))


def measured_as(valid: Pair, row: PublishedRow, **changes: Any) -> Pair:
    """The recorded run, as if it had been this row's and had measured what the row prints."""
    result, plan = valid
    s, work = row.setting, work_of(row.setting.case)
    tokens, _ = rate_and_origin(row)
    speed = None
    if result.throughput and tokens:
        seconds = s.global_batch * s.sequence_length / tokens / s.devices
        steps = result.throughput.step_seconds.model_copy(update={"mean": seconds, "median": seconds})
        rates = {"tokens_per_second": tokens * s.devices, "tokens_per_second_per_device": tokens}
        speed = result.throughput.model_copy(update={**rates, "step_seconds": steps})
    capacity = chip_of(s.chip).memory_bytes if s.chip else None
    stages = row.values("memory_bytes")
    used = Figure(value=max(stages, default=None), unit="B")
    peaks = {"device_used_peak": used, "stage_peaks": tuple(map(int, stages)) if len(stages) > 1 else None}
    memory = result.memory.model_copy(update={**peaks, "capacity_bytes": capacity})
    update = {
        "case": s.case, "scale": "full", "framework": s.framework, "vendor": "nvidia", "chip": s.chip or "withheld",
        "nodes": s.nodes, "devices": s.devices, "precision": s.precision, "layout": s.parsed_layout,
        "micro_batch": s.micro_batch, "accumulation": s.accumulation, "recompute": s.recompute or "none",
        "throughput": speed, "memory": memory, "utilisation": utilisation(row, tokens),
    }  # fmt: skip
    measured = result.model_copy(update={**update, **changes})
    return measured, plan.model_copy(update={"work": work, "case": s.case, "scale": "full"})


def utilisation(row: PublishedRow, tokens: float | None) -> tuple[Utilisation, ...]:
    """As `collect` computes it, with Levelfield's own peaks and parameters."""
    s = row.setting
    if tokens is None or s.chip is None:
        return ()
    work = work_of(s.case)
    peaks = peak_range(s.precision, chip_of(s.chip).peaks)
    inputs = (work.model, s.sequence_length, tokens, peaks)
    recompute: Recompute = "full" if s.recompute == "full" else "none"
    figures = [
        mfu("palm", *inputs),
        mfu("megatron", *inputs),
        mfu("6n", *inputs),
        hfu("megatron-2021", *inputs, recompute),
    ]
    return tuple(Utilisation.model_validate(vars(figure)) for figure in figures)


def cells(form: str, pairs: Sequence[Pair]) -> list[dict[str, str]]:
    """The rows of the table in this format, by heading."""
    text = format_report(form, exported_runs([r for r, _ in pairs], [p for _, p in pairs], REGISTRY))
    figures = text.split("* 通用指标")[-1].split("| 吞吐量 |")[-1].partition("\n")[2] if form == "flagperf" else text
    table = [line for line in figures.splitlines() if line.startswith("|")]
    head, _, *rows = [[part.strip() for part in line.strip("| ").split(" | ")] for line in table]
    return [dict(zip(head, row, strict=True)) for row in rows]


def text_of(row: PublishedRow, name: str) -> str:
    return str(row.figures[name].text)


# -- in the columns of other reports


@pytest.mark.parametrize("row", ONEFLOW_SET.rows, ids=lambda row: row.name)
def test_a_run_like_oneflows_prints_oneflows_row(valid: Pair, row: PublishedRow) -> None:
    [printed] = cells("oneflow", [measured_as(valid, row)])
    latency = float(printed.pop("lantency").removesuffix(" (ms)"))
    assert latency == pytest.approx(1000 * (row.figure("step_seconds_finer") or 0), abs=0.0051)
    if row.name.startswith("MP_1x1x1"):
        printed["case"] = printed["case"].replace("DP_", "MP_")  # one device is of no kind; OneFlow counts this one so
        printed["group"] = "MP"
    if row.name.startswith(("2D_1x8x1", "2D_8x1x1")):
        printed["case"] = printed["case"].replace("MP_", "2D_").replace("DP_", "2D_")  # ... and two with one kind only
        printed["group"] = "2D"
    expected = {
        "group": row.group,
        "case": row.name,
        "memory": f"{text_of(row, 'memory_bytes')} (MiB)",
        "throuthput(sample/sec)": text_of(row, "samples_per_second"),
        "Achieved teraFLOP/s per GPU": text_of(row, "flops_per_second"),
        "Percentage of theoretical peak FLOP/s": f"{text_of(row, 'share_of_peak')}%",
        "Achieved aggregate petaFLOP/s": text_of(row, "aggregate_flops_per_second"),
    }
    assert printed == expected


MACHINES = {"A100 1x8": "A800-SXM4-80GB单机8卡（1x8）", "H100 1x8": "H100-SXM5-80GB单机8卡（1x8）",
            "H100 2x8": "H100-SXM5-80GB二机16卡（2x8）", "H100 55x8": "H100-SXM5-80GB-55机440卡（55x8）"}  # fmt: skip


@pytest.mark.parametrize("row", [r for r in LLAMA.rows if r.setting.chip], ids=lambda row: row.name)
def test_a_run_like_flagperfs_prints_flagperfs_row(valid: Pair, row: PublishedRow) -> None:
    oom = row.status == "oom"
    changes = {"status": Status(word="oom", reasons=("out of memory",))} if oom else {}
    [cell_texts] = cells("flagperf", [measured_as(valid, row, **changes)])
    printed = [row.figures[name] for name in ("mfu", "mfu_low", "mfu_high") if name in row.figures]
    expected = "-".join(f"{cell.text}%" for cell in printed)
    if any(cell.note for cell in printed):  # what does not follow from its own row does not from a run either
        expected = {"50.0%": "50.9%", "25.4%-50.6%": "25.4%-50.9%"}[expected]
    machines = MACHINES[" ".join(row.name.split()[:2])] if row.group == "performance" else MACHINES["A100 1x8"]
    memory = "OOM" if oom else f"{text_of(row, 'memory_bytes')}/{text_of(row, 'chip_memory_bytes')}"
    assert cell_texts == {
        "配置": machines,
        "precision": "bf16+fp8" if row.setting.precision == "fp8" else "bf16",
        "parallel": row.setting.layout_printed,
        "fix_hp": "gbs=1760" if "1760" in text_of(row, "hyperparameters") else "/",
        "token/p/s": text_of(row, "tokens_per_second_per_device"),
        "是否精度对齐": "/,仅供性能参考" if "1760" in text_of(row, "hyperparameters") else "/",
        "mem": memory,
        "MFU": "/" if oom else expected,
    }


@pytest.mark.parametrize("row", [r for r in PADDLE.rows if r.figures], ids=lambda row: row.name)
def test_a_run_like_flagperfs_with_paddle_prints_its_row(valid: Pair, row: PublishedRow) -> None:
    result, plan = measured_as(valid, row)
    exact = (row.figure("samples_per_second") or 0) * 2048
    assert result.throughput
    speed = result.throughput.model_copy(update={"tokens_per_second": exact})
    [printed] = cells("flagperf", [(result.model_copy(update={"throughput": speed}), plan)])
    tokens, samples = text_of(row, "tokens_per_second_per_device"), text_of(row, "samples_per_second")
    assert printed["throughput"] == f"{samples} * 2048 / 8 = {tokens} tokens/s"
    assert printed["配置"] == "A100-SXM4-80GB单机8卡（1x8*80G）"
    assert printed["config"] == f"config_{row.name.partition(' ')[2]}"
    assert printed["precision"] == 'fp16, level="O1"'
    s = row.setting
    batches = (f"per_device_bs={s.micro_batch}", f"accumulate={s.accumulation}", "(global bs = 2M tokens)")
    assert printed["fix_hp"] == ", ".join(batches)
    text = row.figures["memory_bytes"].text
    stages = [text] if isinstance(text, str) else text
    assert printed["memory"] == " + ".join(f"{stage} * {8 // len(stages)}" for stage in stages) + " GB"
    assert f"recompute={s.recompute == 'full'}" in printed["parallel_strategy"]
    degrees = ("sharding_degree", s.parsed_layout.sharding_degree), ("tensor_parallel_degree", s.parsed_layout.tensor)
    assert all((f"{name}={degree}" in printed["parallel_strategy"]) == (degree > 1) for name, degree in degrees)


def test_runs_like_the_osdi_report_print_its_changes(valid: Pair) -> None:
    lines = cells("osdi", [measured_as(valid, row) for row in OSDI_SET.rows])
    expected = {
        "test-10-1": ("5603", "104"),
        "test-10-2": ("3849(-1754,↓31.3%)", "89(↓14.4%)"),
        "test-10-3": ("11301", "239"),
        "test-10-4": ("9547(-1754,↓15.5%)", "235(↓1.7%)"),
        "test-14-1": ("11087", "412"),
        "test-14-2": ("9160(-1927,↓17.4%)", "395(↓4.1%)"),  # printed there: 11.4
        "test-19-1": ("11089", "717"),
        "test-19-2": ("9082(-2007,↓18.1%)", "742(↑3.5%)"),  # printed there: -2727, 23.1 and 3.4
    }
    for row, line in zip(OSDI_SET.rows, lines, strict=True):
        assert (line["gpu_mem(mB)"], line["throuthput(sample/sec)"]) == expected[row.name]
        assert (line["xn_xg_xdp_xmp_xbs"], line["test_desc"]) == (row.setting.layout_printed, row.group)
        assert (line["date"], line["test_num"], line["gpu_util(%)"]) == ("20260102", "/", "/")


def with_load(pair: Pair, load: float | None) -> Pair:
    figure = Figure(value=load, unit="1", reason=None if load is not None else "not read")
    return pair[0].model_copy(update={"load": figure}), pair[1]


@pytest.mark.parametrize(("load", "printed"), [(0.95, "95"), (0.428, "43"), (0.0, "0"), (1.0, "100"), (None, "/")])
def test_the_osdi_report_s_utilisation_is_the_tool_s(valid: Pair, load: float | None, printed: str) -> None:
    [line] = cells("osdi", [with_load(measured_as(valid, OSDI_SET.row("test-10-3")), load)])
    assert line["gpu_util(%)"] == printed


def repeated(valid: Pair, name: str, rates: Sequence[float]) -> list[Pair]:
    """Repeats of a row, whose rates are these multiples of the printed one."""
    result, plan = measured_as(valid, OSDI_SET.row(name))
    assert result.throughput
    speed, repeats = result.throughput, []
    for number, factor in enumerate(rates, 1):
        faster = speed.model_copy(update={"tokens_per_second": factor * speed.tokens_per_second})
        repeats.append((result.model_copy(update={"repeat": number, "throughput": faster}), plan))
    return repeats


def pairs_of(runs: list[Pair]) -> list[str]:
    report = format_report("osdi", exported_runs([run for run, _ in runs], [plan for _, plan in runs], REGISTRY))
    return [line for line in report.splitlines() if "on over off" in line and "throughput" in line]


def test_a_pair_of_repeats_has_an_interval(valid: Pair) -> None:
    off, on = repeated(valid, "test-10-3", (1.0, 1.1, 0.9)), repeated(valid, "test-10-4", (1.0, 1.1, 0.9))
    (line,) = pairs_of([*off, *on])
    for part in ("throughput 0.983", "95% interval", "0.983 to 0.983", "3 pairs", "student-t"):
        assert part in line
    (line,) = pairs_of([*off, *repeated(valid, "test-10-4", (1.0, 1.0, 1.0))])
    low, high = (float(word) for word in line.split("interval ")[1].split(" of")[0].split(" to "))
    assert low < 0.9 and high > 1.05


def test_one_pair_says_that_it_has_no_interval(valid: Pair) -> None:
    (line,) = pairs_of([*repeated(valid, "test-10-3", (1.0,)), *repeated(valid, "test-10-4", (1.0,))])
    for part in ("throughput 0.983;", "no interval", "--repeat 5"):
        assert part in line
    assert pairs_of(repeated(valid, "test-10-4", (1.0, 1.1))) == []


def test_a_sharded_run_is_compared_with_its_own_kind_only(valid: Pair) -> None:
    off, on = (measured_as(valid, OSDI_SET.row(name)) for name in ("test-14-1", "test-10-2"))
    assert cells("osdi", [off, on])[1]["gpu_mem(mB)"] == "3849"
    other = off[0].model_copy(update={"chip": "H100-SXM5-80GB"}), off[1]
    assert cells("osdi", [other, measured_as(valid, OSDI_SET.row("test-14-2"))])[1]["gpu_mem(mB)"] == "9160"


@pytest.mark.parametrize("change", [{"recompute": "full"}, {"threads": 7}, {"environment": {"NCCL_PROTO": "Simple"}}])
def test_a_run_with_other_choices_is_no_baseline_of_a_sharded_one(valid: Pair, change: dict[str, object]) -> None:
    (off, plan), on = measured_as(valid, OSDI_SET.row("test-14-1")), measured_as(valid, OSDI_SET.row("test-14-2"))
    assert cells("osdi", [(off, plan), on])[1]["gpu_mem(mB)"] == "9160(-1927,↓17.4%)"
    other = plan.model_copy(update={"tuning": plan.tuning.model_copy(update=change)})
    assert cells("osdi", [(off, other), on])[1]["gpu_mem(mB)"] == "9160"


@pytest.mark.parametrize("form", FOREIGN_FORMATS)
def test_a_run_that_has_no_figures_prints_slashes(valid: Pair, form: str) -> None:
    pair = measured_as(valid, LLAMA.row("ablation PP1DP8TP1"))
    [line] = cells(form, [pair])
    figures = [value for name, value in line.items() if any(word in name for word in ("put", "FLOP", "token", "MFU"))]
    assert figures and set(figures) == {"/"}


def test_what_a_pasted_row_must_not_lose_stands_below(valid: Pair) -> None:
    result, plan = valid
    oom = result.model_copy(update={"status": Status(word="oom", reasons=("no memory",)), "deviations": ("other",)})
    lines = format_report("osdi", exported_runs([oom], [plan], REGISTRY)).splitlines()
    remarks = [line.removeprefix(f"{result.run_id}: ") for line in lines if line and not line.startswith("|")]
    assert remarks[0].startswith("smoke scale")
    assert remarks[1:] == ["oom", "no memory", "other"]
    full, _ = measured_as(valid, OSDI_SET.rows[0])
    assert format_report("osdi", exported_runs([full], [plan], REGISTRY)).count("\n") == 3


def test_a_smoke_run_takes_none_of_the_reports_numbers(valid: Pair) -> None:
    result, plan = measured_as(valid, LLAMA.rows[0])
    runs = exported_runs([result, result.model_copy(update={"scale": "smoke"})], [plan] * 2, REGISTRY)
    assert [run.constants for run in runs] == [{"parameters": 8e9}, {}]


def test_memory_of_a_cpu_is_its_largest_process(valid: Pair) -> None:
    result, plan = valid
    [line] = cells("oneflow", [(result.model_copy(update={"device_is": "host share"}), plan)])
    process = result.memory.process_peak.value
    assert process and line["memory"] == f"{process / 2**20:.0f} (MiB)"
    assert cells("oneflow", [valid])[0]["memory"] == "3072 (MiB)"


@pytest.mark.parametrize(
    ("value", "before", "text"),
    [
        *((None, 1.0, "/"), (89.0, None, "89"), (89.0, 0.0, "89")),
        *((742.4, 717, "742(↑3.5%)"), (0.5, 0.4, "0(↑25.0%)")),
    ],
)
def test_changes(value: float | None, before: float | None, text: str) -> None:
    assert number_with_change(value, before) == text


def test_a_flagperf_page_begins_with_the_environment_and_the_general_table(valid: Pair) -> None:
    result, plan = measured_as(valid, PADDLE.rows[0])
    system = System(
        os="Ubuntu 20.04", kernel="5.4.0-113-generic", processor="AMD EPYC7742", model="NVIDIA DGX A100(80G)",
        network=("mlx5_0 200 Gb/sec",), software={"driver": "470.129.06", "cuda": "11.8"}, engine="docker 20.10.16",
    )  # fmt: skip
    runs = exported_runs([result.model_copy(update={"system": system})] * 2, [plan] * 2, REGISTRY)
    text = format_report("flagperf", runs)
    head = f"""#### 环境配置

- ##### 硬件环境
    - 机器型号: NVIDIA DGX A100(80G)
    - 加速卡型号: A100-SXM4-80GB
    - CPU型号: AMD EPYC7742
    - 多机网络类型、带宽: mlx5_0 200 Gb/sec
- ##### 软件环境
    - OS版本: Ubuntu 20.04
    - OS kernel版本: 5.4.0-113-generic
    - 加速卡驱动版本: 470.129.06
    - Docker 版本: 20.10.16
    - 训练框架版本: paddle-{result.framework_version}
    - 依赖软件版本: cuda: 11.8
"""
    assert text.startswith(head)
    assert text.count("* 通用指标") == 1 and text.count("模型 | gpt3_6.7B") == 1
    assert text.count("throughput,见“性能指标”") == 1
    bare = format_report("flagperf", exported_runs([result.model_copy(update={"system": None})], [plan], REGISTRY))
    assert "机器型号: /" in bare and "依赖软件版本: /" in bare


def test_the_run_that_the_reference_was_made_from_is_the_baseline(valid: Pair) -> None:
    result, plan = valid
    for made_from, text in ((result.run_id, "True(作为基线)"), ("another run", "False")):
        alignment = {"flagperf_mean_error": 0.5, "reference": f"tiny of {made_from}"}
        run = result.model_copy(update={"alignment": result.alignment.model_copy(update=alignment)})
        assert FLAGPERF_LLAMA["是否精度对齐"](ExportedRun(run, plan, {})) == text


@pytest.mark.parametrize(("error", "text"), [(None, "/"), (0.0199, "True"), (0.02, "False"), (float("nan"), "False")])
def test_flagperfs_rule_is_flagperfs(valid: Pair, error: float | None, text: str) -> None:
    result, plan = valid
    alignment = result.alignment.model_copy(update={"flagperf_mean_error": error})
    run = ExportedRun(result.model_copy(update={"alignment": alignment}), plan, {})
    assert FLAGPERF_LLAMA["是否精度对齐"](run) == text


def test_a_case_that_nobody_published_takes_its_own_numbers() -> None:
    rows = [row for name in REGISTRY.published for row in REGISTRY.published_set(name).rows]
    assert case_constants("llama3_8b", rows) == {}
    assert case_constants("flagperf_llama3_8b", rows) == {"parameters": 8e9}
    assert case_constants("oneflow_768x12_b8", rows) == {"vocab_size": 51200}


# -- beside published rows


def test_published_rows_of_the_case_stand_beside_the_run(valid: Pair) -> None:
    result, _ = measured_as(valid, PADDLE.rows[0])
    first, *others = figure_rows([result], REGISTRY)
    assert (first.origin, len(others)) == ("measured", 8) and {line.case for line in others} == {"gpt3_6.7B"}
    theirs = others[0]
    assert theirs.tokens_per_second_per_device == first.tokens_per_second_per_device == 4410
    assert theirs.mfu == first.mfu == "58.7 %"
    for part in ("converted: ", "megatron/1", "312 TFLOP/s"):
        assert part in theirs.mfu_from
    assert theirs.memory_bytes == pytest.approx(66.27 * 2**30) and theirs.tokens_from == "printed"
    assert others[3].memory_from.startswith("printed: ") and "4 pipeline" in others[3].memory_from
    by_stage = PADDLE.rows[3].values("memory_bytes")
    assert others[3].memory_bytes == max(by_stage) > min(by_stage)


def test_throughput_is_converted_from_the_finest_figure_and_says_so() -> None:
    value, arithmetic = rate_and_origin(ONEFLOW_SET.row("DP_8x1x1_16_1536x16"))
    assert value == pytest.approx(16 * 2048 / 0.417952 / 8)
    rows = (OSDI_SET.rows[0], PADDLE.rows[0])
    expected = ["converted: 16 x 2048 / 0.417952 s / 8", "converted: 104 samples/s x 1024 / 8", "printed"]
    assert [arithmetic, *(rate_and_origin(row)[1] for row in rows)] == expected


def test_what_cannot_be_converted_is_absent_with_the_reason(valid: Pair) -> None:
    result, _ = measured_as(valid, LLAMA.rows[0])
    lines = {line.name: line for line in figure_rows([result], REGISTRY)}
    withheld = lines["flagperf_llama3: * 1x8 bf16 PP2DP4TP1"]
    assert withheld.tokens_per_second_per_device == 2260 and withheld.mfu == "-"
    assert [reason.partition(":")[0] for reason in withheld.absence_reasons] == ["no MFU", "no memory"]
    assert all("withheld" in reason for reason in withheld.absence_reasons)
    [oom] = [line for name, line in lines.items() if name.endswith("ablation PP1DP8TP1")]
    assert len(oom.absence_reasons) == 3


def test_mixed_fp8_keeps_its_range(valid: Pair) -> None:
    result, _ = measured_as(valid, LLAMA.row("H100 1x8 bf16+fp8 PP1DP4TP2"))
    ours, theirs, _ = figure_rows([result], REGISTRY)
    assert ours.mfu == theirs.mfu == "27.3-54.6 %"


def test_a_chip_that_no_vendor_has_is_said(tmp_path: Path, valid: Pair) -> None:
    folder = tmp_path / "configs" / "published"
    folder.mkdir(parents=True)
    text = (Path(REGISTRY.published["osdi_gpt2"])).read_text(encoding="utf-8")
    (folder / "mine.yaml").write_text(text.replace("osdi_gpt2", "mine").replace("V100-SXM2-16GB", "Z9"), "utf-8")
    result, _ = measured_as(valid, OSDI_SET.rows[0])
    mine = [line for line in figure_rows([result], Registry([tmp_path])) if line.name.startswith("mine")]
    assert len(mine) == 2 and all("unknown" in line.mfu_from and "'Z9'" in line.mfu_from for line in mine)


def test_smoke_runs_are_not_put_beside_published_ones(valid: Pair) -> None:
    result, _ = measured_as(valid, PADDLE.rows[0], scale="smoke")
    lines = figure_rows([result], REGISTRY)
    assert [line.origin for line in lines] == ["measured"]
    [smoke] = missing_row_remarks([result], lines)
    assert smoke.startswith("gpt3_6.7B: ") and "smoke scale" in smoke
    unpublished, _ = measured_as(valid, PADDLE.rows[0], case="tiny")
    [absent] = missing_row_remarks([unpublished], figure_rows([unpublished], REGISTRY))
    assert absent.startswith("tiny: ") and "no published" in absent


def test_every_format_holds_measured_and_published(valid: Pair) -> None:
    result, _ = measured_as(valid, LLAMA.rows[0])
    texts = {form: format_figure_rows(form, [result], REGISTRY) for form in ("table", "markdown", "csv", "json")}
    assert [line for line in texts["table"].splitlines() if len(line) > 80] == []
    for part in ("3,698.7 tokens/s/device", "76.00 GiB", "61.0 %", "figures: oom"):
        assert part in texts["table"]
    head, rule, *rows = [line for line in texts["markdown"].splitlines() if line.startswith("|")]
    assert len(rows) == 12 and {line.count("|") for line in (head, rule, *rows)} == {12}
    csv_rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["origin"] for row in csv_rows] == ["measured"] + ["published"] * 11
    assert float(csv_rows[1]["tokens_per_second_per_device"]) == 3698.7 and csv_rows[1]["tokens_from"] == "printed"
    assert json.loads(texts["json"])["rows"][0]["name"] == result.run_id


# -- the command


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--with-published"], "tiny: measured at smoke scale"),
        (["--format", "flagperf"], "| 配置 | config |"),
        (["--format", "oneflow"], "DP_2x1x1_8_16x2"),
        (["--format", "osdi"], "| 20260102 | / | off_optimization | 1n_2g_dp_2bs | 3072 | / | 16 |"),
    ],
)
def test_the_report_command_prints_them(
    run: RunPaths, capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    assert main(["report", str(run.root), *options]) == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--with-published", "--format", "oneflow"],
        ["--with-published", "--hide", "mfu"],
        ["--format", "osdi", "--hide", "mfu"],
    ],
)
def test_options_that_make_different_tables_are_refused_together(
    run: RunPaths, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert main(["report", str(run.root), *options]) == 2
    error = capsys.readouterr().err
    assert all(option in error for option in options if option.startswith("--"))


# -- OneFlow's table of intervals


def test_a_row_for_every_interval_has_its_means_and_its_last_loss(recorded: Path) -> None:
    paths = RunPaths(recorded)
    result, plan, raw = collect(paths), read_plan(paths), read_raw(paths)
    later = [replace(step, end_ns=step.end_ns + 10**7 * step.step**2) for step in raw.steps]  # no two steps are alike
    raw = replace(raw, steps=tuple(later))
    lines = interval_table(result, plan, raw, 2).splitlines()
    assert lines[0] == result.run_id
    head = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert head == ["batches", "micro_batches", "samples", "throughput", "latency", "loss"]
    rows = [[float(cell) for cell in line.strip("| ").split(" | ")] for line in lines[4:]]
    steps, batch = plan.work.training.steps, plan.work.training.global_batch
    assert [row[:3] for row in rows] == [[n, n * plan.accumulation, n * batch] for n in range(2, steps + 1, 2)]
    ends = {record.step: record.end_ns for record in raw.steps if record.rank == 0}
    latency = (ends[4] - ends[2]) / 2e9
    assert rows[1][4] == pytest.approx(latency, abs=1e-5) and rows[1][3] == pytest.approx(batch / latency, rel=1e-4)
    losses = {record.step: record.loss for record in raw.steps if record.loss is not None}
    assert rows[1][5] == pytest.approx(losses[4], abs=1e-5)


def test_a_run_without_a_whole_interval_or_not_valid_has_no_row(recorded: Path) -> None:
    paths = RunPaths(recorded)
    result, plan, raw = collect(paths), read_plan(paths), read_raw(paths)
    with pytest.raises(UsageError, match="1000 batches"):
        interval_table(result, plan, raw, 1000)
    tampered = result.model_copy(update={"status": Status(word="tampered", reasons=("x",))})
    with pytest.raises(UsageError, match="found tampered"):
        interval_table(tampered, plan, raw, 2)


@pytest.mark.parametrize("options", [("--format", "oneflow", "--log-interval", "0"), ("--log-interval", "10")])
def test_an_interval_needs_oneflows_format(
    options: tuple[str, ...], recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(recorded.parent)]
    assert main(["report", recorded.name, *runs, *options]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "--log-interval" in error and "--format oneflow" in error
    assert main(["report", recorded.name, *runs, "--format", "oneflow", "--log-interval", "5"]) == 0
    assert "| 5 | " in capsys.readouterr().out
