"""Nights of made-up runs by a seed, as a store holds them: for the pages' tests and for benchmarks/page_speed.py.

The figures are invented. Their form is that of real runs: result.json with all its parts, a curve, step times.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from compared_records import figure, result_content
from levelfield.pages.series_history import InMemoryStore
from levelfield.specs.layout import Layout
from levelfield.specs.record import (
    Conditions,
    DeviceTrace,
    RankPeaks,
    RankTrace,
    RunRecord,
    RunTraces,
    Series,
    StoredResult,
    StoreEvent,
    Subject,
)

FIRST = datetime(2026, 10, 1, 1, 30, tzinfo=timezone.utc)
CASES = ("gpt3_6.7B", "llama3_8b", "gpt2_small", "llama3_70b", "gpt3_13B")
MACHINES = (("nvidia", "H100-SXM5-80GB"), ("ascend", "910B2"), ("cambricon", "MLU590-M9"), ("amd", "MI300X"))
FRAMEWORKS = ("torch", "megatron", "paddle", "deepspeed")
GIB = 2**30
STEPS = 40


@dataclass(frozen=True)
class SeededNights:
    """series, nights: how many of each. faults: whether events are planted: a slow-down, a driver, a bad night.

    traced: devices with readings over time.
    """

    series: int = 8
    nights: int = 40
    seed: int = 7
    faults: bool = True
    traced: int = 2

    def results(self) -> InMemoryStore:
        """The runs as a store gives them, with expected entries, findings and statements of the last night."""
        records = list(self.records())
        values = InMemoryStore(records)
        if not self.faults:
            return values
        digests = {entry.series.label: entry.digest for entry in values.series()}
        last = records[-1].night or ""
        return InMemoryStore(
            records, _events(digests, records), {last: _findings(digests, records)}, {last: _expected(digests)}
        )

    def records(self) -> Iterator[RunRecord]:
        """Every run in order of time."""
        source = random.Random(self.seed)
        series = [_series(number) for number in range(self.series)]
        subjects = [_subject(night) for night in range(self.nights)]
        conditions = (_conditions("550.90.07"), _conditions("560.35.03"))
        for night in range(self.nights):
            for number, one in enumerate(series):
                if self.faults and number == 3 and night == self.nights - 1:
                    continue  # missing in the last night
                after = conditions[int(self.faults and number % 2 == 0 and night >= self.nights // 2)]
                yield _record(source, one, number, night, after, subjects[night], self)


def _series(number: int) -> Series:
    vendor, chip = MACHINES[number % len(MACHINES)]
    framework = FRAMEWORKS[number // len(MACHINES) % len(FRAMEWORKS)]
    case = CASES[number // (len(MACHINES) * len(FRAMEWORKS)) % len(CASES)]
    more = number // (len(MACHINES) * len(FRAMEWORKS) * len(CASES))
    return Series(
        case=case,
        work=digest(case),
        corpus=digest("corpus"),
        scale="full",
        framework=framework,
        vendor=vendor,
        chip=chip,
        device_is="card",
        nodes=1,
        devices=8,
        precision="bf16",
        layout=Layout(data=8 >> (more % 3), tensor=1 << (more % 3)),
        micro_batch=1 << (more // 3 % 3),
        accumulation=4,
        virtual_pipeline=1,
        recompute=("none", "selective")[more // 9 % 2],
        compile=False,
        attention="sdpa",
        threads=None,
        runtime="docker",
    )


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _conditions(driver: str) -> Conditions:
    return Conditions(
        software={"driver": driver, "cuda": "13.0"},
        kernel="6.8.0-48-generic",
        os="Ubuntu 24.04",
        processor="AMD EPYC 9654",
        cores=96,
        memory_gib=1511,
        engine="docker 28.0.1",
        variables={"OMP_NUM_THREADS": "12", "NCCL_ALGO": "Ring"},
    )


def _subject(night: int) -> Subject:
    return Subject(
        framework_version=f"2.13.{night // 14}",
        environment=digest(f"environment {night // 7}"),
        packages=None,
        image=digest(f"image {night}"),
        implementation=digest(f"code {night}"),
        commit=digest(f"commit {night}")[7:47],
        is_dirty=False,
        platform_version="0.1.0",
        formulas=("megatron/1", "6n/1"),
    )


def _record(
    source: random.Random,
    series: Series,
    number: int,
    night: int,
    conditions: Conditions,
    subject: Subject,
    plan: SeededNights,
) -> RunRecord:
    began = FIRST + timedelta(days=night, minutes=3 * number)
    speed = (4200.0 + 310.0 * number) * (1 + source.gauss(0, 0.006))
    if plan.faults:
        speed *= 0.94 if number == 0 and night >= plan.nights - 3 else 1.0
        speed *= 0.985 if number % 2 == 0 and night >= plan.nights // 2 else 1.0
        speed *= 0.82 if number == 5 and night == plan.nights // 3 else 1.0
    failed = plan.faults and number == 1 and night % 17 == 9
    seconds = 524288.0 / 8 / speed
    run_id = f"{began:%Y%m%dT%H%M%SZ}_{series.case}_{series.framework}_{series.vendor}_{number * 100000 + night:06x}"
    steps = () if failed else tuple(seconds * (1 + source.gauss(0, 0.01)) for _ in range(STEPS))
    losses = () if failed else tuple(2.5 + 8.3 * math.exp(-step / 9) + source.gauss(0, 0.002) for step in range(STEPS))
    memory = None if failed else (61.0 + number % 5 + source.gauss(0, 0.05)) * GIB
    joules = None if failed else 600.0 / speed
    fields: dict[str, Any] = {
        "run_id": run_id,
        "content": digest(run_id),
        "began": began.isoformat().replace("+00:00", "Z"),
        "purpose": "nightly",
        "night": f"{began:%Y-%m-%d}",
        "entry": f"nightly/{series.case}:{series.framework}",
        "evidence": "sealed",
        "evidence_reason": None,
        "series": series,
        "conditions": conditions,
        "subject": subject,
        "node": digest(f"{series.chip} {(night + number) % 3}"),
        "word": "failed" if failed else "valid",
        "failure": "killed" if failed else None,
        "reason": "rank 3 was ended by signal 9" if failed else None,
        "verdict": "unchecked" if failed else "aligned",
        "tokens_per_second_per_device": None if failed else speed,
        "memory_bytes": memory,
        "joules_per_token": joules,
        "mfu_megatron": None if failed else speed / 11300.0,
        "loss_tail": None if failed else sum(losses[-10:]) / 10,
        "window": (11, STEPS),
        "step_seconds": steps,
        "losses": losses,
        "telemetry": {} if failed else {"power_watts": 600.0 + source.gauss(0, 4), "temperature_celsius": 61.0},
        "result": StoredResult(
            result_content(
                series,
                **_sections(speed, memory, seconds, run_id, failed),
                loss={**_LOSS, "tail_mean": None if failed else sum(losses[-10:]) / 10},
                energy={**_ENERGY, "joules_per_token": figure(joules, "J/token")},
            )
        ),
        "traces": None if failed else _traces(source, steps, plan.traced),
    }
    # Validated records are costly to make by the 100,000; tests/core/site checks that one of them is valid.
    return RunRecord.model_construct(**fields)


def _traces(source: random.Random, steps: Sequence[float], devices: int) -> RunTraces:
    """As many devices as asked, and two ranks, of which the second is the slower one."""
    micro = [round(entry * 1e6) for entry in steps]
    return RunTraces(
        seconds=round(sum(steps), 3),
        parts=16,
        devices=8,
        ranks=8,
        device_traces=tuple(
            DeviceTrace(
                device=str(device),
                values={
                    "power_watts": tuple(round(600 + 20 * device + source.gauss(0, 9), 1) for _ in range(16)),
                    "memory_used_mebibytes": tuple(float(40000 + 1400 * min(part, 4)) for part in range(16)),
                },
            )
            for device in range(devices)
        ),
        rank_traces=(
            RankTrace(rank=0, step_microseconds=tuple(micro)),
            RankTrace(rank=5, step_microseconds=tuple(round(entry * 1.02) for entry in micro)),
        ),
        rank_peaks=tuple(RankPeaks(rank=rank, process=9100 + rank, allocated=54000 + 300 * rank) for rank in range(8)),
    )


def _sections(speed: float, memory: float | None, seconds: float, run_id: str, failed: bool) -> dict[str, Any]:
    """The parts of result.json that pages read, in their stored form."""
    outcome = copy.copy(_SHARED)
    outcome["run_id"] = run_id
    outcome["status"] = {
        "word": "failed" if failed else "valid",
        "reasons": ["rank 3 was ended by signal 9"] if failed else [],
        "failure": "killed" if failed else None,
        "evidence": None,
    }
    outcome["steps_done"] = 0 if failed else STEPS
    outcome["throughput"] = (
        None
        if failed
        else {
            "tokens_per_second": speed * 8,
            "tokens_per_second_per_device": speed,
            "wall_seconds": seconds * 30,
            "step_seconds": {
                "steps": 30,
                "median": seconds,
                "mean": seconds,
                "p90": seconds * 1.013,
                "minimum": seconds * 0.98,
                "maximum": seconds * 1.03,
                "spread": 0.012,
                "flags": [],
                "unchecked": None,
            },
        }
    )
    outcome["utilisation"] = (
        []
        if failed
        else [
            {
                "formula": "megatron/1",
                "kind": "MFU",
                "value": speed / 11300,
                "low": speed / 11300,
                "high": speed / 11300,
                "flops_per_token": 4.4e10,
                "achieved_tflops": speed * 0.044,
                "peak_tflops": 989.0,
                "peak_source": "published: the maker's data sheet, dense bf16",
                "reason": None,
            }
        ]
    )
    outcome["memory"] = {
        "device_used_peak": figure(memory, "B", None if memory else "the run ended before the first reading"),
        "allocated_peak": figure(None if memory is None else memory * 0.88, "B"),
        "reserved_peak": figure(None if memory is None else memory * 0.95, "B"),
        "process_peak": figure(9.1 * GIB, "B"),
        "capacity_bytes": 80 * GIB,
        "expected_bytes": int(63.5 * GIB),
        "expectation": None,
    }
    return outcome


_QUIET = figure(0.4, "cores")
_LOSS = {"first": None, "last": None, "floor": None}
_ENERGY = {"joules": figure(1.1e6, "J"), "mean_watts": figure(4800.0, "W"), "boundary": "chip"}
_SHARED: dict[str, Any] = {
    "parameters": 6_658_850_816,
    "steps_planned": STEPS,
    "other_use": {"devices": [], "host_before": _QUIET, "host_in_window": _QUIET, "host_cores": 96},
    "certificate": {"holds": True, "reason": None, "run_id": "20260930T000000Z_gpt3_6.7B_torch_nvidia_abcdef"},
    "alignment": {
        "verdict": "aligned",
        "reason": "every layer within its limit",
        "reference": "gpt3_6.7B_full_bf16 (20261001T000000Z_gpt3_6.7B_torch_nvidia_abcdef)",
        "limits": "tolerance limit of 10 rows",
        "layers": [
            {
                "name": "first step",
                "passed": True,
                "value": 6.8e-8,
                "limit": 2.1e-6,
                "detail": "6.8e-08, limit 2.1e-06 (loss of step 1)",
            },
            {
                "name": "gradients",
                "passed": True,
                "value": 2.6e-5,
                "limit": 1.5e-4,
                "detail": "2.6e-05, limit 1.5e-04 (layers.3.attention.query.weight at step 10)",
            },
            {
                "name": "curve",
                "passed": True,
                "value": 4.7e-7,
                "limit": 3.3e-6,
                "detail": "4.7e-07, limit 3.3e-06 (loss of step 26)",
            },
        ],
        "flagperf_mean_error": 1.1e-7,
    },
    "deviations": ["layout: the planner's fastest one that fits, because none was given"],
    "warnings": ["the host's processors ran at powersave"],
    "allowed": [],
    "inherited": {},
}


def _finding(digest: str, label: str, word: str, **more: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "series": digest,
        "label": label,
        "figure": None,
        "word": word,
        "change": None,
        "low": None,
        "high": None,
        "level": None,
        "level_since": None,
        "nights": 0,
        "detectable": None,
        "run_id": None,
        "detail": "",
        "fields": [],
    }
    return content | more


def _findings(digests: dict[str, str], records: list[RunRecord]) -> list[dict[str, Any]]:
    """One finding of each urgent word, and `no change` for the other series."""
    last = {record.series.label: record for record in records}
    speed = {"figure": "tokens_per_second_per_device", "level_since": "2026-10-08", "nights": 30, "detectable": 0.021}
    sentence: dict[int, tuple[str, dict[str, Any]]] = {
        0: (
            "regression",
            {"change": -0.061, "low": -0.068, "high": -0.054, "detail": "confirmed by 4 pairs on the same node"},
        ),
        1: ("invalid run", {"figure": None, "detail": "killed: rank 3 was ended by signal 9"}),
        2: (
            "environment step",
            {
                "change": -0.015,
                "low": -0.018,
                "high": -0.012,
                "detail": "driver 550.90.07 -> 560.35.03",
                "fields": ["software.driver"],
            },
        ),
        3: ("missing", {"figure": None, "detail": "expected and not run"}),
        4: ("improvement", {"change": 0.024, "low": 0.019, "high": 0.029, "detail": "confirmed by 3 pairs"}),
        5: ("inconclusive", {"change": -0.012, "low": -0.03, "high": 0.006, "detail": "about 3 more pairs"}),
        6: ("bad night", {"change": -0.08, "detail": "the baseline build is off its baseline on this node, too"}),
    }
    return [
        _finding(
            digest,
            label,
            word,
            **{**speed, "level": last[label].tokens_per_second_per_device, "run_id": last[label].run_id, **more},
        )
        for number, (label, digest) in enumerate(digests.items())
        for word, more in [sentence.get(number, ("no change", {"change": 0.001, "low": -0.01, "high": 0.012}))]
    ]


def _expected(digests: dict[str, str]) -> dict[str, str | None]:
    return {f"nightly/{label}": digest for label, digest in digests.items()}


def _events(digests: dict[str, str], records: list[RunRecord]) -> list[StoreEvent]:
    first = next(iter(digests.values()))
    return [
        StoreEvent(
            id="1",
            kind="baseline",
            series=first,
            at="2026-10-08T09:00:00Z",
            who="m.weber",
            why="seven quiet nights",
            level={"tokens_per_second_per_device": 4200.0, "memory_bytes": 61.0 * GIB},
        ),
        StoreEvent(
            id="2", kind="note", series=first, at="2026-10-30T09:00:00Z", who="m.weber", why="fans were replaced"
        ),
    ]
