"""The columns of FlagPerf's, OneFlow's and the OSDI report, with their own headings and spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from levelfield.errors import UsageError
from levelfield.measure.series import median_interval
from levelfield.measure.throughput import step_seconds_from_start
from levelfield.measure.validity import loss_curve
from levelfield.publish.foreign_tables import (
    FLAGPERF_BATCH,
    MIB,
    NONE,
    ExportColumns,
    ExportedRun,
    achieved_tflops,
    alignment_cell,
    memory_over_capacity,
    mfu_cell,
    number,
    number_with_change,
    or_oom,
    row_notes,
    share_of_peak,
    strip_zeros,
)
from levelfield.report import escapes
from levelfield.report.escapes import escape_markdown
from levelfield.report.result_words import headline_memory
from levelfield.report.words import GIB
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.layout import Layout
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result

FOREIGN_FORMATS = ("flagperf", "oneflow", "osdi")
_RECOMPUTE = {"none": "False", "full": "True"}
_FLAGPERF_COLUMNS = {
    "gpt": ("parallel_strategy", "throughput"),
    "llama": ("parallel", "token/p/s"),
}  # columns of its table
_SEE_PERFORMANCE = "见“性能指标”"


def format_report(format_name: str, runs: Sequence[ExportedRun]) -> str:
    """Return the runs in the columns of the named report, with notes below. FlagPerf's page has a head of its own."""
    sections: list[str] = []
    remarks, tables = row_notes(runs), {"oneflow": [(ONEFLOW, runs)], "osdi": [(OSDI, runs)]}.get(format_name, [])
    if format_name == "flagperf":  # it has a table for GPT and one for Llama
        gpt = [run for run in runs if run.plan.work.model.family == "gpt"]
        llama = [run for run in runs if run not in gpt]
        tables = [(columns, part) for columns, part in ((FLAGPERF_GPT, gpt), (FLAGPERF_LLAMA, llama)) if part]
        # above: the environment of each kind of machine and software, and the general table of each case
        environments = dict.fromkeys("\n".join(_environment(run)) for run in runs)
        sections += (f"#### 环境配置\n\n{text}\n" for text in environments)
        sections += (f"* 通用指标\n\n{text}\n" for text in dict.fromkeys(_general_table(run) for run in runs))
        if llama:
            remarks.insert(0, "MFU: by 6n, with the parameters that the report's own rows take, where it has some")
    elif format_name == "oneflow":
        formula = "HFU by megatron-2021, which counts full recomputation"
        remarks.insert(0, f"Percentage of theoretical peak FLOP/s: {formula}")
    elif format_name == "osdi":
        remarks += pair_lines(runs)
    for columns, part in tables:
        rows = ([write(run) for write in columns.values()] for run in part)
        sections.append("\n".join(escapes.markdown_table(columns, rows, " --- ")) + "\n")
    return "\n".join([*sections, *(f"{escape_markdown(remark)}\n" for remark in remarks)])


# -- FlagPerf
def _machines(run: ExportedRun, show_memory: bool = False) -> str:
    """Return machines and cards in FlagPerf's form, such as `A100单机8卡（1x8）` and `A100单机8卡（1x8*80G）`."""
    capacity = run.result.memory.capacity_bytes
    memory = f"*{capacity / GIB:.0f}G" if show_memory and capacity else ""
    nodes, chip = run.result.nodes, run.result.chip
    devices_per_node = run.result.devices // nodes
    counts = {1: f"单机{devices_per_node}卡", 2: f"二机{run.result.devices}卡"}
    return f"{chip}{counts.get(nodes, f'-{nodes}机{run.result.devices}卡')}（{nodes}x{devices_per_node}{memory}）"


def _config_name(run: ExportedRun) -> str:
    """Return the name of FlagPerf's configuration file of this layout and hardware."""
    r = run.result
    layout, capacity = r.layout, r.memory.capacity_bytes
    if capacity is None:
        return NONE
    sharding = f"SH{max(1, layout.sharding_stage)}SP{layout.sharding_degree}"
    chip = f"{r.chip.partition('-')[0]}{capacity / GIB:.0f}G"
    return f"config_TP{layout.tensor}PP{layout.pipeline}{sharding}{chip}x{r.nodes}x{r.devices // r.nodes}"


def _precision_with_level(run: ExportedRun) -> str:
    """Return the precision with paddle's level: models/paddle keeps float32 weights, which paddle calls O1."""
    is_mixed = run.result.framework == "paddle" and run.result.precision != "fp32"
    return f'{_precision(run)}, level="O1"' if is_mixed else _precision(run)


def _precision(run: ExportedRun) -> str:
    return {"fp8": "bf16+fp8"}.get(run.result.precision, run.result.precision)


def _parallel_sizes(run: ExportedRun) -> str:
    layout = run.result.layout
    return f"PP{layout.pipeline}DP{layout.data}TP{layout.tensor}"


def _other_settings(run: ExportedRun) -> str:
    """Return what PPxDPyTPz cannot express: sharded states, and a global batch other than 512."""
    layout, batch = run.result.layout, run.plan.work.training.global_batch
    sharding = f"SH{layout.sharding_stage}SP{layout.sharding_degree}" if layout.sharding_stage > 1 else ""
    return ", ".join(filter(None, (f"gbs={batch}" if batch != FLAGPERF_BATCH else "", sharding))) or NONE


def _batch_settings(run: ExportedRun) -> str:
    tokens = run.plan.work.training.tokens_per_step
    count = f"{tokens / 1e6:.0f}M" if tokens >= 1e6 else str(tokens)
    r = run.result
    return f"per_device_bs={r.micro_batch}, accumulate={r.accumulation}, (global bs = {count} tokens)"


def _strategy(run: ExportedRun) -> str:
    layout, recompute = run.result.layout, run.result.recompute
    settings = ["flash_attention=True"] if run.plan.tuning.attention == "flash_attn" else []
    settings.append(f"recompute={_RECOMPUTE.get(recompute, recompute)}")
    if run.result.recompute_layers is not None:
        settings.append(f"recompute_num_layers={run.result.recompute_layers}")
    if layout.sharding_stage:
        settings += [f'sharding="stage{layout.sharding_stage}"', f"sharding_degree={layout.sharding_degree}"]
    degrees = {"tensor": layout.tensor, "pipline": layout.pipeline}
    settings += [f"{name}_parallel_degree={degree}" for name, degree in degrees.items() if degree > 1]
    return ", ".join(settings)


def _tokens_with_arithmetic(run: ExportedRun) -> str:
    """Return `17.23 * 2048 / 8 = 4410 tokens/s`, truncated as in FlagPerf's report."""
    speed = run.samples_per_second(run.result)
    if speed is None:
        return NONE
    samples, length = f"{speed:.2f}", run.plan.work.training.sequence_length
    return f"{samples} * {length} / {run.result.devices} = {int(float(samples) * length / run.result.devices)} tokens/s"


@or_oom
def _memory_of_all(run: ExportedRun) -> str:
    """Return `66.27 * 8 GB`: the peak of the fullest device of each stage, for each device of it."""
    used, stages = headline_memory(run.result).value, run.result.layout.pipeline
    peaks = (run.result.memory.stage_peaks or ()) if stages > 1 else filter(None, (used,))
    terms = [f"{peak / GIB:.2f} * {run.result.devices // stages}" for peak in peaks]
    return f"{' + '.join(terms)} GB" if terms else NONE


FLAGPERF_LLAMA: ExportColumns = {
    "配置": _machines,
    "precision": _precision,
    "parallel": _parallel_sizes,
    "fix_hp": _other_settings,
    "token/p/s": lambda run: strip_zeros(run.tokens_per_second_per_device, 1),
    "是否精度对齐": alignment_cell,
    "mem": memory_over_capacity,
    "MFU": mfu_cell,
}
FLAGPERF_GPT: ExportColumns = {
    "配置": lambda run: _machines(run, show_memory=True),
    "config": _config_name,
    "precision": _precision_with_level,
    "fix_hp": _batch_settings,
    "parallel_strategy": _strategy,
    "throughput": _tokens_with_arithmetic,
    "memory": _memory_of_all,
}


# -- OneFlow
def _parallel_kind(layout: Layout) -> str:
    return "2D" if layout.data > 1 and layout.tensor > 1 else "MP" if layout.tensor > 1 else "DP"


def _case_name(run: ExportedRun) -> str:
    """Return kind, layout, global batch and hidden size x layers, such as `2D_PP_2x4x4_512_2304x24`."""
    layout, model = run.result.layout, run.plan.work.model
    sizes = f"{layout.data}x{layout.tensor}x{layout.pipeline}"
    batch = run.plan.work.training.global_batch
    kind = f"{_parallel_kind(layout)}{'_PP' if layout.pipeline > 1 else ''}"
    return f"{kind}_{sizes}_{batch}_{model.hidden_size}x{model.layers}"


def _latency(run: ExportedRun) -> str:
    """Return the mean step time of the window."""
    return f"{strip_zeros(1000 * run.result.throughput.step_seconds.mean)} (ms)" if run.result.throughput else NONE


@or_oom
def _mebibytes(run: ExportedRun) -> str:
    used = headline_memory(run.result).value
    return NONE if used is None else f"{used / MIB:.0f} (MiB)"


def _petaflops(run: ExportedRun) -> str:
    achieved = achieved_tflops(run)
    return NONE if achieved is None else strip_zeros(achieved * run.result.devices / 1000)


ONEFLOW: ExportColumns = {
    "group": lambda run: "PP" if run.result.layout.pipeline > 1 else _parallel_kind(run.result.layout),
    "case": _case_name,
    "lantency": _latency,
    "memory": _mebibytes,
    "throuthput(sample/sec)": lambda run: strip_zeros(run.samples_per_second(run.result)),
    "Achieved teraFLOP/s per GPU": lambda run: strip_zeros(achieved_tflops(run)),
    "Percentage of theoretical peak FLOP/s": share_of_peak,
    "Achieved aggregate petaFLOP/s": _petaflops,
}


_INTERVAL_COLUMNS = ("batches", "micro_batches", "samples", "throughput", "latency", "loss")


def interval_table(result: Result, plan: Plan, raw: RawRecords, interval: int) -> str:
    """Return the table that OneFlow's training prints in Markdown, with a row for every `interval` batches.

    Samples/s and seconds a batch are the means of the interval, the loss is that of its last batch. All batches count
    from the first one, which OneFlow's do too.

    Raises UsageError where the run has fewer batches, or is not valid.
    """
    window, batch = plan.work.window, plan.work.training.global_batch
    is_unproven = result.status.is_unproven
    seconds = (
        []
        if is_unproven
        else step_seconds_from_start(raw.steps, raw.first_step_start_ns, window.first_step, window.last_step)
    )
    if len(seconds) < interval:
        reason = result.status.word if is_unproven else f"fewer than {interval} batches"
        raise UsageError(f"--log-interval {interval}: {result.run_id}: found {reason}, expected a row's batches")
    losses, rows = loss_curve(raw.steps), []
    for last in range(interval, len(seconds) + 1, interval):
        latency = fmean(seconds[last - interval : last])
        loss = f"{losses[last]:.5f}" if last in losses else "/"
        counts = (last, last * plan.accumulation, last * batch)
        rows.append((*map(str, counts), f"{batch / latency:.5f}", f"{latency:.5f}", loss))
    return "\n".join((f"{result.run_id}\n", *escapes.markdown_table(_INTERVAL_COLUMNS, rows, " --- "), ""))


# -- OSDI
def _nodes_and_batch(run: ExportedRun) -> str:
    """Return `4n_8g_dp_4bs` or `1n_8g_2dp_4mp_4bs`; `/` for a layout that has more than data and tensor parallel."""
    layout, nodes = run.result.layout, run.result.nodes
    if layout.world_size > layout.data * layout.tensor or layout.expert > 1:
        return NONE
    ways = "dp" if layout.tensor == 1 else f"{layout.data}dp_{layout.tensor}mp"
    text = f"{nodes}n_{run.result.devices // nodes}g_{ways}_{run.result.micro_batch}bs"
    return f"{text}+seq" if layout.sequence_parallel else text


@or_oom
def _memory_change(run: ExportedRun) -> str:
    used = headline_memory(run.result).value
    before = headline_memory(run.baseline).value if run.baseline else None
    return number_with_change(used and used / MIB, before and before / MIB, show_difference=True)


def _mean_load(run: ExportedRun) -> str:
    """Return the mean utilisation of the devices over the window, in percent."""
    load = run.result.load.value if run.result.load else None
    return NONE if load is None else number(100 * load, 0)


_PLACEMENTS = {0: "off_optimization", 1: "on_optimization"}  # of the optimizer's states, by the stage of sharding
OSDI: ExportColumns = {
    "date": lambda run: run.result.run_id[:8] if run.result.run_id[:8].isdigit() else NONE,
    "test_num": lambda run: NONE,
    "test_desc": lambda run: _PLACEMENTS.get(run.result.layout.sharding_stage, NONE),
    "xn_xg_xdp_xmp_xbs": _nodes_and_batch,
    "gpu_mem(mB)": _memory_change,
    "gpu_util(%)": _mean_load,
    "throuthput(sample/sec)": lambda run: number_with_change(
        run.samples_per_second(run.result), run.samples_per_second(run.baseline)
    ),
}


def pair_lines(runs: Sequence[ExportedRun]) -> Iterator[str]:
    """Yield a line for each figure of each pair: the median of on over off and its interval over the repeats."""
    figures: dict[str, Callable[[Result], float | None]] = {
        "gpu_mem": lambda result: headline_memory(result).value,
        "throughput": lambda result: result.throughput.tokens_per_second if result.throughput else None,
    }
    pairs: dict[str, list[tuple[Result, Result]]] = {}
    for run in runs:
        if run.baseline is not None and run.baseline.repeat == run.result.repeat:
            r = run.result
            name = f"{r.case} {r.nodes}x{r.devices // r.nodes} {r.chip} {r.layout}"
            pairs.setdefault(name, []).append((r, run.baseline))
    for name, members in pairs.items():
        for figure, read in figures.items():
            values = [(read(on), read(off)) for on, off in members]
            if ratios := [on / off for on, off in values if on is not None and off]:
                summary = median_interval(ratios)
                interval = f"; {summary.n} pair(s) have no interval, --repeat 5 gives one"
                if summary.low is not None and summary.high is not None:
                    interval = f", {summary.coverage:.0%} interval {summary.low:.3f} to {summary.high:.3f} of "
                    interval += f"{summary.n} pairs of repeats ({summary.method})"
                yield f"{name}, on over off: {figure} {summary.median:.3f}{interval}"


def _environment(run: ExportedRun) -> Iterator[str]:
    """Yield FlagPerf's lines of hardware and software; `/` for what the run did not record."""
    r, system = run.result, run.result.system
    software = dict(system.software) if system else {}
    driver = software.pop("driver", None)
    hardware = {
        "机器型号": system and system.model,
        "加速卡型号": r.chip,
        "CPU型号": system and system.processor,
        "多机网络类型、带宽": ", ".join(system.network) if system else None,
    }
    installed = {
        "OS版本": system and system.os,
        "OS kernel版本": system and system.kernel,
        "加速卡驱动版本": driver,
        "Docker 版本": system and (system.engine or "").removeprefix("docker "),
        "训练框架版本": f"{r.framework}-{r.framework_version}",
        "依赖软件版本": ", ".join(f"{name}: {text}" for name, text in software.items()),
    }
    for title, values in (("硬件环境", hardware), ("软件环境", installed)):
        yield f"- ##### {title}"
        yield from (f"    - {name}: {escape_markdown(text or NONE)}" for name, text in values.items())


def _general_table(run: ExportedRun) -> str:
    corpus, (strategy, throughput) = run.plan.corpus, _FLAGPERF_COLUMNS[run.plan.work.model.family]
    values = {
        "任务类别": "文本生成",
        "模型": run.result.case,
        "数据集": Path(corpus.prefix).name if corpus.prefix else corpus.kind,
        "数据精度": f"precision,{_SEE_PERFORMANCE}",
        "超参修改": f"fix_hp,{_SEE_PERFORMANCE}",
        "并行策略": f"{strategy},{_SEE_PERFORMANCE}",
        "硬件设备简称": f"{run.result.vendor} {run.result.chip}",
        "硬件存储使用": f"memory,{_SEE_PERFORMANCE}",
        "吞吐量": f"{throughput},{_SEE_PERFORMANCE}",
    }
    rows = ([*pair, ""] for pair in values.items())
    return "\n".join(escapes.markdown_table(("指标名称", "指标值", "特殊说明"), rows, " --- "))
