"""Small models of many widths and layouts, trained for 20 steps each on this machine, to hold predictions against.

    .venvs/dev/bin/python tools/host_runs.py

writes configs/planner/host_runs.json: what this host reaches, then each run with its whole setting and what it took.
About a quarter of an hour, on a machine that has nothing else to do: it waits for that before each run, writes down how
much others did meanwhile, and makes a run that was disturbed again. `--missing` goes on from the file that is there,
with the runs that it lacks and those that were disturbed, and with `--rates` takes what the host reaches anew. The
cases are made in a temporary folder and run through run_benchmarks.py like any other.
"""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import yaml
from levelfield.catalog.registry import Registry
from levelfield.run.measurement import measure_host_rates
from levelfield.specs.base import dump, load
from levelfield.specs.case import Precision
from levelfield.specs.host_rates import HostRates, HostRun, HostRuns
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "configs" / "planner" / "host_runs.json"
T = TypeVar("T")
STEPS, WARM_UP = 20, 5
LIMIT_SECONDS = 180
QUIET_CORES, WAIT_SECONDS = 0.1, 1800
DISTURBED_CORES, ATTEMPTS = 0.05, 3


@dataclass(frozen=True)
class Setting:
    """One run to make. batch: global."""

    family: str
    hidden: int
    layers: int
    length: int
    vocabulary: int
    micro_batch: int
    batch: int
    layout: str = "DP1"
    threads: int = 1
    precision: Precision = "fp32"

    @property
    def case(self) -> str:
        shape = f"{self.hidden}x{self.layers}_s{self.length}_v{self.vocabulary}_b{self.batch}"
        return f"{self.family}_{shape}_{self.precision}"

    @property
    def name(self) -> str:
        return f"{self.case} {self.layout} micro {self.micro_batch} threads {self.threads}"


def _wide(layout: str, micro_batch: int = 4, family: str = "gpt") -> Setting:
    """The same model in every layout of two processes."""
    return Setting(family, 512, 4, 128, 4096, micro_batch, 8, layout)


SETTINGS = (
    Setting("gpt", 128, 2, 128, 1024, 4, 8),
    Setting("gpt", 128, 2, 128, 1024, 16, 16),
    Setting("gpt", 256, 4, 128, 1024, 1, 8),
    Setting("gpt", 256, 4, 128, 1024, 8, 8),
    Setting("gpt", 256, 4, 128, 1024, 8, 8, threads=2),
    Setting("gpt", 256, 4, 256, 8192, 8, 8, threads=2),
    Setting("gpt", 512, 4, 128, 4096, 4, 8),
    Setting("gpt", 512, 4, 128, 4096, 4, 8, threads=2),
    Setting("gpt", 512, 8, 128, 1024, 8, 8, threads=2),
    Setting("gpt", 768, 4, 128, 4096, 4, 8, threads=2),
    Setting("gpt", 512, 4, 128, 4096, 4, 8, threads=2, precision="bf16"),
    Setting("llama", 128, 8, 128, 1024, 16, 16),
    Setting("llama", 256, 4, 128, 1024, 8, 8),
    Setting("llama", 256, 4, 256, 4096, 4, 8, threads=2),
    Setting("llama", 512, 4, 256, 8192, 4, 4, threads=2),
    Setting("llama", 768, 8, 128, 1024, 4, 4, threads=2),
    Setting("gpt", 256, 4, 128, 1024, 4, 8, "DP2"),
    Setting("llama", 256, 4, 256, 4096, 2, 8, "DP2"),
    _wide("DP2"),
    Setting("gpt", 256, 4, 128, 1024, 8, 8, "TP2"),
    _wide("TP2"),
    _wide("TP2+seq"),
    Setting("llama", 256, 4, 256, 4096, 4, 8, "TP2+seq"),
    _wide("PP2", micro_batch=2),
    Setting("llama", 256, 8, 128, 1024, 2, 16, "PP2"),
    _wide("DP2SH1SP2"),
    _wide("DP2SH2SP2"),
    _wide("DP2SH3SP2"),
    _wide("DP2SH3SP2", family="llama"),
)


def case_of(s: Setting) -> dict[str, object]:
    """The case file of a setting, the same at both scales."""
    gpt = s.family == "gpt"
    heads = max(4, s.hidden // 64)
    return {
        "schema": "levelfield.case/1",
        "name": s.case,
        "title": "A small model of one width, to hold predictions against",
        "source": "made for tools/host_runs.py",
        "tokenizer": "none",
        "model": {
            **{"family": s.family, "layers": s.layers, "hidden_size": s.hidden, "vocab_size": s.vocabulary},
            **{"ffn_hidden_size": 4 * s.hidden if gpt else 8 * s.hidden // 3 // 64 * 64},
            **{"heads": heads, "kv_heads": heads if gpt else heads // 2, "bias": gpt, "tied_embeddings": gpt},
            **({"positions": "learned"} if gpt else {"positions": "rope", "rope_base": 10000.0}),
            **{"norm": "layernorm" if gpt else "rmsnorm", "norm_eps": 1e-5},
            **{"activation": "gelu" if gpt else "swiglu", "hidden_dropout": 0, "attention_dropout": 0},
            **{"init_std": 0.02, "scaled_residual_init": True},
        },
        "training": {
            **{"steps": STEPS, "sequence_length": s.length, "global_batch": s.batch, "precision": s.precision},
            "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
            "schedule": {
                **{"style": "cosine", "peak_lr": 1e-3, "min_lr": 1e-4},
                **{"warmup_steps": WARM_UP, "decay_steps": STEPS},
            },
            **{"gradient_clip": 1.0, "seed": 7},
        },
        "data": {"seed": 7, "shuffle": True, "split": [998, 1, 1], "alphabet": 64, "branching": 8},
        "window": {"first_step": WARM_UP + 1, "last_step": STEPS},
        "acceptance": {"final_loss_below_fraction": 1.0, "tail_steps": 3},
        "limits": {"heartbeat_seconds": 60, "step_seconds": 60, "start_seconds": 120},
        "smoke": {},
    }


def write_cases(folder: Path) -> None:
    """A --plugins folder with the case of every setting."""
    cases = folder / "configs" / "cases"
    cases.mkdir(parents=True)
    for setting in SETTINGS:
        (cases / f"{setting.case}.yaml").write_text(yaml.safe_dump(case_of(setting), sort_keys=False))


def run(setting: Setting, plugins: Path, runs: Path) -> HostRun:
    """Train one setting on the quiet machine, by the command that everybody uses."""
    load_before = wait_until_quiet()
    processes = 1 if setting.layout == "DP1" else 2
    folder = runs / setting.name.replace(" ", "_")
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), "--scale", "smoke", "--plugins", str(plugins)]
    argv += [
        "--no-store",
        "--case",
        f"{setting.case}:torch:cpu:1:{processes}",
        "--layout",
        setting.layout,
        "--runs",
        str(folder),
    ]
    argv += ["--micro-batch", str(setting.micro_batch), "--threads", str(setting.threads)]
    _, others = beside_others(
        lambda: subprocess.run(argv, stdout=subprocess.DEVNULL, timeout=LIMIT_SECONDS, check=False)
    )
    return measured(setting.name, folder, load_before, others)


def beside_others(work: Callable[[], T]) -> tuple[T, float]:
    """What the work gives, and how many cores others kept busy meanwhile."""
    busy, own_busy, start = _busy_seconds(), _own_seconds(), time.monotonic()
    result = work()
    others = _busy_seconds() - busy - (_own_seconds() - own_busy)
    return result, round(others / (time.monotonic() - start), 3)


def undisturbed_rates(registry: Registry) -> HostRates:
    """Raises SystemExit when the machine is never left alone for a minute."""
    for _ in range(ATTEMPTS):
        wait_until_quiet()
        rates, others = beside_others(lambda: measure_host_rates(registry, print))
        if others <= DISTURBED_CORES:
            return rates
        print(f"others kept {others} cores busy meanwhile; once more", flush=True)
    raise SystemExit("others use the machine; run it when they do not")


def measured(name: str, folder: Path, load_before: float, other_cores: float) -> HostRun:
    """What a run directory says of the run."""
    (root,) = (path.parent for path in folder.glob("*/result.json"))
    plan, result = load(Plan, RunPaths(root).plan), load(Result, RunPaths(root).result)
    valid, throughput, peak = result.status.word == "valid", result.throughput, result.memory.process_peak.value
    return HostRun(
        name=name,
        model=plan.work.model,
        training=plan.work.training,
        layout=plan.tuning.layout,
        micro_batch=plan.tuning.micro_batch,
        threads=plan.tuning.threads or 1,
        status=result.status.word,
        step_seconds=throughput.step_seconds.median if throughput else None,
        tokens_per_second_per_device=throughput.tokens_per_second_per_device if throughput else None,
        process_peak_bytes=int(peak) if valid and peak is not None else None,
        load_before=load_before,
        other_cores=other_cores,
    )


def wait_until_quiet() -> float:
    """The load average once others leave the cores alone. Raises SystemExit when they do not."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        busy = psutil.cpu_percent(interval=3) / 100 * (psutil.cpu_count() or 1)
        if busy < QUIET_CORES:  # the load average would still tell of the run before
            return round(os.getloadavg()[0], 2)
    raise SystemExit(
        f"the machine was busy for {WAIT_SECONDS} s (load {os.getloadavg()[0]:.1f}); run it when it is not"
    )


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def least_disturbed(setting: Setting, plugins: Path, runs: Path) -> HostRun:
    """The first run that others left alone; of several that they did not, the one that they disturbed least."""
    attempts: list[HostRun] = []
    for number in range(ATTEMPTS):
        attempts.append(run(setting, plugins, runs / str(number)))
        if not is_disturbed(attempts[-1]):
            break
    return min(attempts, key=lambda attempt: attempt.other_cores)


def is_disturbed(host_run: HostRun) -> bool:
    return not host_run.other_cores <= DISTURBED_CORES


def measure_all(rates: HostRates, recorded: dict[str, HostRun]) -> None:
    """Make every run that is not kept, and write the file after each, so that nothing is lost."""
    with tempfile.TemporaryDirectory() as folder:
        plugins, done = Path(folder) / "plugins", dict(recorded)
        write_cases(plugins)
        for setting in (s for s in SETTINGS if s.name not in recorded):
            host_run = least_disturbed(setting, plugins, Path(folder) / "runs")
            print(
                f"{host_run.name}: {host_run.status}, {host_run.step_seconds} s a step, others {host_run.other_cores}",
                flush=True,
            )
            done[setting.name] = host_run
            write(rates, done)


def write(rates: HostRates, done: dict[str, HostRun]) -> None:
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    runs = tuple(done[s.name] for s in SETTINGS if s.name in done)
    PAGE.write_text(dump(HostRuns(date=date, processor=_processor(), rates=rates, runs=runs)))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train small models here and write down what they took")
    parser.add_argument("--missing", action="store_true", help="keep what the file has, but for disturbed runs")
    parser.add_argument("--rates", action="store_true", help="with --missing: take the host's rates anew all the same")
    options = parser.parse_args()
    before = load(HostRuns, PAGE) if options.missing and PAGE.exists() else None
    recorded = {r.name: r for r in before.runs if r.status == "valid" and not is_disturbed(r)} if before else {}
    rates = before.rates if before and not options.rates else undisturbed_rates(Registry())
    write(rates, recorded)
    measure_all(rates, recorded)


if __name__ == "__main__":
    main()
