#!/usr/bin/env python3
"""The processor time of the planner: of the search, and of the whole `plan` command on the hardest questions.

Search: every dimension on 8, 1,024 and 16,384 devices; quoted is the best of five, in seconds and as a ratio to eight
devices in the same run. Command: DeepSeek-V3 on 1,024 devices by those programs that have most layouts, from the start
of Python to its end, the best of five. Other work on the same cores makes both longer.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.predict import layout_search, machines

SCRIPT = Path(__file__).resolve().parents[1] / "run_benchmarks.py"
WANTED_SECONDS = 1.5
HARDEST = (("megatron", "megatron_bridge"), ("torch", "automodel"))
DIMENSIONS = frozenset({"data", "tensor", "pipeline", "sequence", "interleaved", "context", "zero1", "zero2", "zero3"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    quick, first = parser.parse_args().quick, None
    for devices in (8,) if quick else (8, 1024, 16384):
        question = question_of(devices)
        seconds, ranking = min((timed(question) for _ in range(1 if quick else 5)), key=lambda pair: pair[0])
        first = first or seconds
        print(
            f"{devices:>6} devices: {seconds:.2f} s ({seconds / first:.1f} x), {ranking.considered:,} layouts, "
            f"{len(ranking.rows):,} fit"
        )
    for framework, program in HARDEST[:1] if quick else HARDEST:
        devices, repeats = (64, 1) if quick else (1024, 5)
        took = min(command_seconds(framework, program, devices) for _ in range(repeats))
        met = "met" if took < WANTED_SECONDS else "MISSED"
        print(f"plan deepseek_v3, {devices:,} H100, {program}: {took:.2f} s, wanted {WANTED_SECONDS} s: {met}")


def command_seconds(framework: str, program: str, devices: int) -> float:
    """Return the processor time of the whole command."""
    command = ["plan", "deepseek_v3", "--chip", "H100", "--devices", str(devices), "--framework", framework]
    environment = {"LEVELFIELD_NO_BOOTSTRAP": "1"}  # this Python, as the search before it
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *command, "--program", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise SystemExit(f"plan ended with {ended.returncode}: {ended.stderr.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def question_of(devices: int) -> layout_search.LayoutQuestion:
    registry = Registry()
    _, chip = find_chip(registry, "H100")
    constants = registry.planner_constants("megatron")
    if constants is None:
        raise SystemExit("configs/planner/megatron.yaml is missing")
    return layout_search.LayoutQuestion(
        work=registry.case("llama3_70b").work("full"),
        machine=machines.machine_rates(chip, "bf16", 8, 8 * machines.ASSUMED_PORT_BYTES_PER_SECOND),
        constants=constants,
        supported=layout_search.SupportedParallelism(DIMENSIONS, layout_search.RECOMPUTATIONS),
        on_host=False,
        devices=devices,
        capacity_bytes=chip.memory_bytes,
    )


def timed(question: layout_search.LayoutQuestion) -> tuple[float, layout_search.LayoutRanking]:
    start = time.process_time()
    ranking = layout_search.search_layouts(question)
    return time.process_time() - start, ranking


if __name__ == "__main__":
    main()
