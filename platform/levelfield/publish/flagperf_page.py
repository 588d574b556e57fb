"""The parts of a FlagPerf page above its table of figures: the environment of the runs, and what the columns hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from levelfield.publish.foreign_tables import NONE, ReportedRun
from levelfield.report.escapes import markdown, table

_FAMILY = {"gpt": ("parallel_strategy", "throughput"), "llama": ("parallel", "token/p/s")}  # columns of its table
_BELOW = "见“性能指标”"


def page_head(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """Yield the environment of each kind of machine and software, and the general table of each case."""
    environments = dict.fromkeys("\n".join(_environment(run)) for run in runs)
    yield from (f"#### 环境配置\n\n{text}\n" for text in environments)
    generals = dict.fromkeys(_general(run) for run in runs)
    yield from (f"* 通用指标\n\n{text}\n" for text in generals)


def _environment(run: ReportedRun) -> Iterator[str]:
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
        yield from (f"    - {name}: {markdown(text or NONE)}" for name, text in values.items())


def _general(run: ReportedRun) -> str:
    corpus, (strategy, throughput) = run.plan.corpus, _FAMILY[run.plan.work.model.family]
    values = {
        "任务类别": "文本生成",
        "模型": run.result.case,
        "数据集": Path(corpus.prefix).name if corpus.prefix else corpus.kind,
        "数据精度": f"precision,{_BELOW}",
        "超参修改": f"fix_hp,{_BELOW}",
        "并行策略": f"{strategy},{_BELOW}",
        "硬件设备简称": f"{run.result.vendor} {run.result.chip}",
        "硬件存储使用": f"memory,{_BELOW}",
        "吞吐量": f"{throughput},{_BELOW}",
    }
    return "\n".join(table(("指标名称", "指标值", "特殊说明"), ([*pair, ""] for pair in values.items()), " --- "))
