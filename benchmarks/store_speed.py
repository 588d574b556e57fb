#!/usr/bin/env python3
"""The store of results with a hundred thousand of them: 300 series, 334 nights, 40 steps a run.

Quoted: rows of an export per second of processor time, run directories per second (taking result.json as it is, and
computing it again), the size on disk, and the time of a series' and of a case's history. On SQLite, and on PostgreSQL
where `--url` names an empty database. The result of each run is that of one real run directory, with every measured
number changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Outcome, ProcessEnd
from levelfield.judge.collector import collect
from levelfield.plan.request import Entry, UserRequest
from levelfield.run.runner import finish
from levelfield.run.scheduler import plan_jobs
from levelfield.rundir.directory import write_json
from levelfield.rundir.raw_files import read_raw
from levelfield.rundir.seal import add_seal
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import job_content
from levelfield.specs.record import RunRecord, RunTraces, StoredResult
from levelfield.specs.run_figures import STORED_FIGURES
from levelfield.store.database import Store
from levelfield.store.record_lines import format_line, parse_line
from levelfield.store.run_record import record_of
from levelfield.store.upkeep import size_bytes
from levelfield.worker import Batches, Initializer, Recorder, coordinates, events, learning_rate, load_job

SERIES, NIGHTS, CASES, FOLDERS = 300, 334, 30, 200
STEP_NS, BEGIN_NS = 671_700_000, 7_000_000_000_000
MEASURED = ("throughput", "utilisation", "memory", "energy", "loss", "disturbance", "other_use", "load")
GOALS = {"rows_per_second": 2000, "directories_per_second": 200, "collected_per_second": 80}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="an empty database (default: a file of SQLite in a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    series, nights, folders = (6, 4, 4) if arguments.quick else (SERIES, NIGHTS, FOLDERS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = measure(arguments.url or str(folder / "results.sqlite"), folder, series, nights, folders)
    print(json.dumps(figures, indent=2) if arguments.json else text(figures))


def measure(url: str, folder: Path, series: int, nights: int, folders: int) -> dict[str, float]:
    paths = run_directory(folder / "runs")
    first = record_of(paths)
    with Store.open(url) as store:
        figures = imported(store, first, series, nights)
        figures |= {"runs": float(series * nights), "mebibytes": size_bytes(store) / 2**20}
        figures |= histories(store)
    with Store.open(str(folder / "directories.sqlite")) as store:
        return figures | directories(store, paths, folders)


def imported(store: Store, first: RunRecord, series: int, nights: int) -> dict[str, float]:
    """Rows of an export per second: of the processor, and of the clock. Making the lines is not counted."""
    generator, busy, wall, plain = random.Random(1), 0.0, 0.0, 0.0
    for night in range(nights):
        lines = [format_line(varied(first, number, night, generator)).encode() for number in range(series)]
        started, clock = time.process_time(), time.perf_counter()
        store.add(parse_line(line, "a line") for line in lines)  # type: ignore[misc]
        busy += time.process_time() - started
        started = time.process_time()
        list(map(json.loads, lines))
        plain += time.process_time() - started
        wall += time.perf_counter() - clock
        if sys.stderr.isatty():
            print(f"\r{night + 1} of {nights} nights", end="", file=sys.stderr)
    rows = series * nights
    return {
        "rows_per_second": rows / busy,
        "rows_per_second_of_the_clock": rows / wall,
        "times_json_loads": busy / plain,  # which a busy machine changes less
    }


def histories(store: Store) -> dict[str, float]:
    all_series = store.series()
    case = [stored.digest for stored in all_series if stored.series.case == all_series[0].series.case]
    return {
        "history_of_a_series_ms": milliseconds(lambda: store.points([all_series[0].digest])),
        "history_of_a_case_ms": milliseconds(lambda: store.points(case)),
        "list_of_series_ms": milliseconds(store.series),
        "record_ms": milliseconds(lambda: store.record(store.find("latest"))),
    }


def directories(store: Store, paths: RunPaths, folders: int) -> dict[str, float]:
    """Run directories per second of the processor: read as they are, and with every result computed again."""
    copies = [copied(paths, number) for number in range(folders)]
    started = time.process_time()
    store.add(record_of(copy) for copy in copies[: folders // 2])
    as_they_are = time.process_time() - started
    started = time.process_time()
    store.add(recomputed(copy) for copy in copies[folders // 2 :])
    again = time.process_time() - started
    return {
        "directories_per_second": (folders // 2) / as_they_are,
        "collected_per_second": (folders - folders // 2) / again,
    }


def recomputed(paths: RunPaths) -> RunRecord:
    raw = read_raw(paths)
    return record_of(paths, result=collect(paths, raw), raw=raw)


def milliseconds(question: Any) -> float:
    started = time.perf_counter()
    question()
    return 1000 * (time.perf_counter() - started)


def run_directory(runs: Path) -> RunPaths:
    """One run of gpt3_6.7B at smoke scale on one processor, as the worker's recorder writes it, by a made-up clock."""
    (job,) = plan_jobs(Registry(), [Entry("gpt3_6.7B:torch:cpu:1:1", UserRequest(scale="smoke", repeats=1))], None)
    paths, plan = RunPaths(runs / job.plan.run_id), job.plan
    paths.events.mkdir(parents=True)
    paths.plan.write_text(dump(plan))
    write_json(paths.job, job_content(plan, paths))
    end_ns = record_events(paths)
    samples = [telemetry(BEGIN_NS + second * 10**9) for second in range((end_ns - BEGIN_NS) // 10**9 + 1)]
    paths.telemetry.write_text("".join(json.dumps(line) + "\n" for line in samples))
    write_json(paths.provenance, provenance())
    seal(paths)
    assert finish(paths).status.word == "valid"
    return paths


def seal(paths: RunPaths) -> None:
    outcome = Outcome("exited", (ProcessEnd(0, 0, None, False),))
    write_json(paths.outcome, add_seal(paths, outcome.to_dict()))


def record_events(paths: RunPaths) -> int:
    """Write the events of rank 0; return when the last step ended."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    clock, generator = SimpleNamespace(now=BEGIN_NS), random.Random(0)
    events.time = SimpleNamespace(monotonic_ns=lambda: clock.now)  # type: ignore[assignment,attr-defined]
    events.start_heartbeat = lambda path: Path(path).touch()  # type: ignore[attr-defined]
    job = load_job(str(paths.job))
    recorder, initializer = Recorder(job), Initializer(job)
    recorder.framework(name="torch", version="2.13.0", device="cpu")
    weights = [
        (name, spec.shape, None, initializer.array(name, spec.shape, std=spec.std, fill=spec.fill))
        for name, spec in initializer.parameters(job.model).items()
    ]
    recorder.weights(weights)
    recorder.begin()
    for batch in Batches(job, coordinates(job).data):
        clock.now += int(STEP_NS * generator.gauss(1, 0.01))
        recorder.step(
            batch.step,
            loss=single(7 * 0.96**batch.step),
            grad_norm=1.5,
            tokens=batch.tokens,
            tokens_checksum=batch.checksum,
            learning_rate=learning_rate(job.training.schedule, batch.step),
            memory={"process_peak_bytes": 500_000_000 + batch.step},
        )
    recorder.close()
    return clock.now


def telemetry(time_ns: int) -> dict[str, Any]:
    reasons = {"power_watts": "powercap counts energy", "temperature_celsius": "no sensor can be read"}
    sample = {"index": 0, "memory_used_bytes": 4_000_000_000, "utilisation": 0.9, "reasons": reasons}
    host = {"time_ns": time_ns, "busy_seconds": time_ns / 1e9, "own_seconds": time_ns / 2e9, "cores": 2}
    return {"time_ns": time_ns, "samples": [sample], "host": host}


def provenance() -> dict[str, Any]:
    machine = {"name": "node-17", "os": "Linux 1", "kernel": "6.1", "processor": "a processor", "usable_cores": 2}
    return {
        "time": "2026-01-02T03:04:05+00:00",
        "source": {"commit": hashlib.sha1(b"a commit").hexdigest(), "changed_files": []},
        "environment_packages": {f"package{number}": f"1.{number}" for number in range(30)},
        "machine": {**machine, "memory_bytes": 2**34, "network": []},
        "vendor_software": {"kernel": "Linux 6.1", "libc": "glibc 2.36"},
        "inherited": {"OMP_NUM_THREADS": "2"},
    }


def copied(paths: RunPaths, number: int) -> RunPaths:
    run_id = f"{paths.root.name[:-6]}{number:06x}"
    copy = RunPaths(Path(shutil.copytree(paths.root, paths.root.parent / run_id)))
    for path in (copy.plan, copy.result):
        path.write_text(path.read_text().replace(paths.root.name, run_id))
    seal(copy)
    return copy


def varied(first: RunRecord, series: int, night: int, generator: random.Random) -> RunRecord:
    """The run of one series in one night: another case, layout and node, and every measured number its own."""
    factor = 1 + generator.gauss(0, 0.01)
    began = (
        f"{2025 + night // 334}-{1 + night % 334 // 28:02}-{1 + night % 28:02}T03:{series // 60:02}:{series % 60:02}"
    )
    changes = {"case": f"case_{series % CASES}", "micro_batch": 1 + series // CASES}
    steps = tuple(round(s * 1e9 * factor * generator.gauss(1, 0.01)) / 1e9 for s in first.step_seconds)
    content = first.stored_result.content
    result = {key: changed(value, generator) if key in MEASURED else value for key, value in content.items()}
    return first.model_copy(
        update={
            "run_id": f"{began.replace('-', '').replace(':', '')}Z_case_{series % CASES}_torch_cpu_{series:06x}",
            "content": f"sha256:{generator.getrandbits(256):064x}",
            "began": f"{began}+00:00",
            "night": began[:10],
            "series": first.series.model_copy(update=changes),
            "node": f"sha256:{hashlib.sha256(bytes([series % 7])).hexdigest()}",
            "step_seconds": steps,
            "losses": tuple(single((loss or 0) * generator.gauss(1, 1e-4)) for loss in first.losses),
            "telemetry": {name: value * generator.gauss(1, 0.01) for name, value in first.telemetry.items()},
            "stored_result": StoredResult(result),
            "traces": traced(first, generator),
            **{column: figure.value_and_reason(result, True)[0] for column, figure in STORED_FIGURES.items()},
        }
    )


def traced(first: RunRecord, generator: random.Random) -> RunTraces | None:
    """The traces with every reading its own, as exact as a store keeps them."""
    if first.traces is None:
        return None
    devices = [
        device.model_copy(
            update={
                "values": {
                    name: tuple(
                        round((reading or 0) * generator.gauss(1, 0.01), 3 if name == "utilisation" else 0)
                        for reading in values
                    )
                    for name, values in device.values.items()
                }
            }
        )
        for device in first.traces.device_traces
    ]
    return first.traces.model_copy(update={"device_traces": tuple(devices)})


def changed(value: Any, generator: random.Random) -> Any:
    """The JSON value with every number but small whole ones multiplied by its own noise."""
    if isinstance(value, dict):
        return {key: changed(item, generator) for key, item in value.items()}
    if isinstance(value, list):
        return [changed(item, generator) for item in value]
    if isinstance(value, float):
        return value * generator.gauss(1, 0.01)
    return int(value * generator.gauss(1, 0.01)) if isinstance(value, int) and value > 10**6 else value


def single(value: float) -> float:
    """The value as a single float, as frameworks report losses."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def text(figures: dict[str, float]) -> str:
    lines: Iterator[str] = (
        f"{name.replace('_', ' '):<32}{value:>12,.1f}" + (f"   (goal: {GOALS[name]:,})" if name in GOALS else "")
        for name, value in figures.items()
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
