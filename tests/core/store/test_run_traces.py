"""Traces follow from the raw files: bounded, on the clock of each machine, and without what was not recorded."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from levelfield.errors import DocumentError
from levelfield.judge.collector import collect
from levelfield.measure.raw_facts import Reading, StepRecord
from levelfield.rundir.directory import read_plan
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.rundir.telemetry_files import NodeTelemetry
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import (
    MAX_KERNELS,
    MAX_PLACES,
    MAX_RANK_PEAKS,
    MAX_READINGS,
    MAX_TRACE_POINTS,
    MAX_TRACED_DEVICES,
    MAX_TRACED_RANKS,
    RunRecord,
)
from levelfield.specs.step_parts import StepParts
from levelfield.store.database import Store
from levelfield.store.rows import stored_documents
from levelfield.store.run_record import TextRedactor, record_of
from levelfield.store.run_traces import run_traces, step_trace
from stored_records import changed

SECOND = 10**9
MIB = 2**20


@pytest.fixture(scope="module")
def plan(recorded: Path) -> Plan:
    return read_plan(RunPaths(recorded))


def raw(ranks: int = 2, steps: int = 4, readings: tuple[Reading, ...] = ()) -> RawRecords:
    """Rank k takes 1 + k / 1000 s for each step, and k MiB more than rank 0; it begins at second 100."""
    records = tuple(
        StepRecord(k, step, 100 * SECOND + step * (SECOND + k * 10**6), memory={"process_peak_bytes": (50 + k) * MIB})
        for k in range(ranks)
        for step in range(1, steps + 1)
    )
    telemetry = (NodeTelemetry(None, readings),) if readings else ()
    return RawRecords(steps=records, first_step_start_ns=dict.fromkeys(range(ranks), 100 * SECOND), telemetry=telemetry)


def reading(second: float, watts: float | None, device: str = "0", **more: Any) -> Reading:
    return Reading(device, int((100 + second) * SECOND), power_watts=watts, **more)


def test_each_rank_has_its_own_step_times_and_memory(plan: Plan) -> None:
    traces = run_traces(plan, raw())
    assert traces is not None and traces.ranks == 2 and traces.seconds == 4.004
    assert [(t.rank, t.step_microseconds) for t in traces.rank_traces] == [(0, (1000000,) * 4), (1, (1001000,) * 4)]
    assert [(p.rank, p.process, p.allocated) for p in traces.rank_peaks] == [(0, 50, None), (1, 51, None)]


def test_of_many_ranks_the_slowest_the_fastest_and_the_fullest_are_kept(plan: Plan) -> None:
    traces = run_traces(plan, raw(ranks=200))
    assert traces is not None and traces.ranks == 200
    assert [trace.rank for trace in traces.rank_traces] == [0, *range(200 - MAX_TRACED_RANKS + 1, 200)]
    assert [peak.rank for peak in traces.rank_peaks] == list(range(200 - MAX_RANK_PEAKS, 200))


def test_readings_are_means_of_equal_parts_of_the_steps(plan: Plan) -> None:
    before = reading(1, 900.0, before=True)
    readings = (reading(-1, 900.0), before, reading(0.5, 10.0), reading(3.9, 40.0), reading(4.1, 900.0))
    traces = run_traces(plan, raw(ranks=1, readings=readings))
    assert traces is not None and traces.parts == 2
    assert traces.device_traces[0].values == {"power_watts": (10.0, 40.0)}
    many = tuple(reading(i / 100, float(i % 2)) for i in range(400))
    traces = run_traces(plan, raw(ranks=1, readings=many))
    assert traces is not None and traces.parts == MAX_TRACE_POINTS
    assert all(value == pytest.approx(0.5, abs=0.1) for value in traces.device_traces[0].values["power_watts"])


def test_of_many_devices_those_that_differ_most_are_kept(plan: Plan) -> None:
    watts = (500.0, 90.0, 510.0, 700.0, 505.0, 80.0, 690.0, 502.0)
    readings = tuple(reading(i / 50, w, str(d)) for d, w in enumerate(watts) for i in range(200))
    traces = run_traces(plan, raw(ranks=1, readings=readings))
    assert traces is not None and traces.devices == 8 and traces.parts == MAX_READINGS // MAX_TRACED_DEVICES
    assert [trace.device for trace in traces.device_traces] == ["1", "3", "5", "6"]


def test_memory_is_in_mebibytes_and_what_was_never_read_is_left_out(plan: Plan) -> None:
    readings = (reading(1, None, memory_used_bytes=3 * 2**30), reading(2, math.nan), reading(3, math.inf))
    traces = run_traces(plan, raw(ranks=1, readings=readings))
    assert traces is not None
    assert traces.device_traces[0].values == {"memory_used_mebibytes": (3072.0, None, None)}


def test_a_step_that_is_missing_or_ends_before_it_began_ends_a_rank(plan: Plan) -> None:
    whole = raw()
    gap = replace(whole, steps=tuple(r for r in whole.steps if (r.rank, r.step) != (1, 3)))
    back = replace(whole, steps=tuple(replace(r, end_ns=5) if (r.rank, r.step) == (1, 3) else r for r in whole.steps))
    for damaged in (gap, back):
        traces = run_traces(plan, damaged)
        assert traces is not None and len(traces.rank_traces[1].step_microseconds) == 2


def test_a_run_without_telemetry_and_memory_has_no_traces(plan: Plan) -> None:
    one = raw(ranks=1)
    assert run_traces(plan, replace(one, steps=tuple(replace(r, memory={}) for r in one.steps))) is None
    assert run_traces(plan, RawRecords()) is None
    assert run_traces(plan, replace(raw(), first_step_start_ns={})) is not None  # memory is left


def test_a_recorded_run_has_traces_that_a_store_keeps(plan: Plan, recorded: Path, record: RunRecord, url: str) -> None:
    traces = run_traces(plan, read_raw(RunPaths(recorded)))
    assert traces == record.traces and traces is not None and len(traces.rank_traces) == 2
    with Store.open(url) as store:
        store.add([record, bare := changed(record, 5, traces=None)])
        assert store.record(record.run_id) == record and store.record(bare.run_id) == bare
    assert len(stored_documents(record)) == 3 and len(stored_documents(bare)) == 2


def parts(**more: Any) -> StepParts:
    """Two ranks, of which only the second repeats a pass."""
    ms = {"mean": 10.0123456, "low": 9.0, "high": 11.0}
    place = {"part": "mlp", "phase": "forward", "count": 1.0}
    ranks = [
        {"rank": 0, "stage": 0, "step": ms, "parts": [], "places": [{**place, "where": "layers.0.mlp", "ms": 4.0}],
         "waited_for": [{"rank": 1, "ms": 0.5}, {"rank": 2, "ms": 1.5}]},
        {"rank": 1, "stage": 0, "step": ms, "parts": [], "places": [
            {**place, "where": "layers.0.mlp", "ms": 2.0, "phase": "backward"},
            {**place, "where": "layers.0.mlp", "ms": 3.0, "phase": "recompute"}]},
    ]  # fmt: skip
    overhead = {"plain_ms": ms, "recorded_ms": ms, "ratio": 0.0, "low": None, "high": None}
    content = {"run_id": "a", "framework": "torch", "profiler": "k", "device": "processor", "recorded_steps": 2,
             "step": ms, "overhead": overhead, "parts": [{"part": "mlp", "time": ms}], "ranks": ranks,
             "timeline": {"ms": 10.0, "parts": ["mlp"], "lines": [{"rank": 0, "cells": "aA "}]}}  # fmt: skip
    return StepParts.model_validate(content | more)


def test_a_step_in_parts_is_the_mean_over_the_ranks_bounded_and_without_private_words() -> None:
    kernel = {"part": "mlp", "kind": "other", "dtype": None, "count": 1.0}
    kernels = [{**kernel, "name": f"k{number} /home/ann/x/y.py", "ms": float(number)} for number in range(60)]
    alone = {"parts": [], "peak": "of node7", "memory": "/home/ann/x", "findings": ["node7"], "missing": ["node7"] * 40}
    public = TextRedactor(["node7"], ()).redact_text
    traces = step_trace(parts(kernels=kernels, warnings=["node7 slow"], alone=alone), public)
    assert traces.alone and (traces.alone.peak, traces.alone.memory) == ("of (host)", "(path)")
    assert traces.alone.findings == ("(host)",) and traces.alone.missing == ("(host)",) * 20
    assert [(entry.where, entry.ms, entry.is_repeated) for entry in traces.places] == [
        ("layers.0.mlp", 3.0, False), ("layers.0.mlp", 1.5, True),
    ]  # fmt: skip
    assert traces.step.mean == 10.01235 and traces.warnings == ("(host) slow",)
    assert len(traces.kernels) == MAX_KERNELS and traces.kernels[0].name == "k59 (path)/y.py"
    long = f"void at::native::(anonymous namespace)::{'k' * 130}"
    (shortened,) = step_trace(parts(kernels=[{**kernel, "name": long, "ms": 1.0}]), str).kernels
    assert shortened.name == "k" * 117 + "..."
    (rank,) = traces.ranks
    assert (rank.rank, rank.waited_ms, [entry.rank for entry in rank.waited_for]) == (0, 2.0, [2, 1])
    place = {"part": "mlp", "phase": "forward", "count": 1.0, "ms": 1.0}
    many = [{**place, "where": f"layers.{number}.mlp"} for number in range(300)]
    step = {"mean": 10.0}
    one = {"rank": 0, "stage": 0, "step": step, "parts": [], "places": many}
    assert len(step_trace(parts(ranks=[one]), str).places) == MAX_PLACES


def test_a_record_has_the_parts_that_its_run_left_or_that_were_computed(
    recorded: Path, url: str, tmp_path: Path
) -> None:
    paths = RunPaths(Path(shutil.copytree(recorded, tmp_path / recorded.name)))
    result = collect(paths)
    paths.result.write_text(dump(result))
    left = parts(run_id=result.run_id)
    bare = record_of(paths)
    paths.step_parts.write_text(dump(left))
    traces = record_of(paths)
    assert traces.traces and traces.traces.step == step_trace(left, str)
    unsealed = record_of(paths, result=result)
    assert unsealed == bare, "a file that no seal covers is not read beside a computed result"
    assert record_of(paths, result=result, step=left) == traces
    with Store.open(url) as store:
        store.add([traces])
        assert store.record(traces.run_id) == traces
    paths.step_parts.write_text(dump(parts(run_id="another")))
    with pytest.raises(DocumentError, match="found 'another'"):
        record_of(paths)
    paths.step_parts.write_text("{")
    with pytest.raises(DocumentError, match=r"step-parts\.json"):
        record_of(paths)
