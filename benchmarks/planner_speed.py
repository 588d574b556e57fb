#!/usr/bin/env python3
"""How long a question to the planner takes: every dimension, on 8, 1,024 and 16,384 devices.

Quoted: the best of five, in seconds and as a ratio to eight devices in the same run.
"""

from __future__ import annotations

import time

from levelfield.catalog.lookup import find_chip
from levelfield.catalog.registry import Registry
from levelfield.predict import layout_search, machines

DIMENSIONS = frozenset({"data", "tensor", "pipeline", "sequence", "interleaved", "context", "zero1", "zero2", "zero3"})


def main() -> None:
    first = None
    for devices in (8, 1024, 16384):
        question = question_of(devices)
        seconds, found = min((timed(question) for _ in range(5)), key=lambda pair: pair[0])
        first = first or seconds
        print(
            f"{devices:>6} devices: {seconds:.2f} s ({seconds / first:.1f} x), {found.considered:,} layouts, "
            f"{len(found.rows):,} fit"
        )


def question_of(devices: int) -> layout_search.LayoutQuestion:
    registry = Registry()
    _, chip = find_chip(registry, "H100")
    constants = registry.constants("megatron")
    if constants is None:
        raise SystemExit("configs/planner/megatron.yaml is missing")
    return layout_search.LayoutQuestion(
        work=registry.case("llama3_70b").work("full"),
        machine=machines.machine_of(chip, "bf16", 8, 8 * machines.ASSUMED_PORT_BYTES_PER_SECOND),
        constants=constants,
        offer=layout_search.SupportedParallelism(DIMENSIONS, layout_search.RECOMPUTATIONS),
        on_host=False,
        devices=devices,
        capacity_bytes=chip.memory_bytes,
    )


def timed(question: layout_search.LayoutQuestion) -> tuple[float, layout_search.LayoutRanking]:
    start = time.process_time()
    found = layout_search.answer(question)
    return time.process_time() - start, found


if __name__ == "__main__":
    main()
