"""What the rules say, word for word. Other tests compare the facts within these sentences."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from levelfield.measure import energy as energies
from levelfield.measure.alignment import AlignmentLimits, TrainingCurve, align
from levelfield.measure.clocks import Sighting, WindowSighting, node_clock_reasons, platform_clock_reasons
from levelfield.measure.curves import compare_tails
from levelfield.measure.memory import ALLOCATED, PROCESS, RESERVED, compare_with_estimate, memory_peaks
from levelfield.measure.other_use import host_use
from levelfield.measure.raw_facts import HostReading, PowerReading, Reading, StepRecord, mean_load
from levelfield.measure.routing import FP32_CHOICE_LIMITS, OwnChoices, judge_own_choices, routing_difference
from levelfield.measure.straggler import find_stragglers
from levelfield.measure.throughput import StepEnd, StepSpan, WindowError, loss_crossing, measure_window, window_spans
from levelfield.specs.case import Window

GOLDEN = Path(__file__).parents[1] / "golden" / "measure.txt"
SECOND, GIB = 10**9, 2**30
STEPS = range(1, 41)
LOSSES = {step: 5.0 * 0.97**step for step in STEPS}
NORMS = {"embedding.weight": 1.0, "layers.0.mlp.up.weight": 0.2}
TRAINING = TrainingCurve(
    40,
    LOSSES,
    dict.fromkeys(STEPS, 1.0),
    {1: NORMS, 10: NORMS},
    {"work": "w", "tokens": "t"},
    {"head.weight": (3.0, 1.0)},
)
LIMITS = AlignmentLimits(1e-6, 1e-4, 1e-5, "the test", 1e-5, FP32_CHOICE_LIMITS, 1e-4)


def alignments() -> Iterable[str]:
    runs = {
        "the same": TRAINING,
        "other tokens": replace(TRAINING, identity={"work": "w", "tokens": "u"}),
        "other work": replace(TRAINING, identity={"work": "v", "tokens": "t"}),
        "a loss is NaN": replace(TRAINING, losses={**LOSSES, 7: math.nan}),
        "a step is missing": replace(TRAINING, losses={s: x for s, x in LOSSES.items() if s < 40}),
        "a spike": replace(TRAINING, losses={**LOSSES, 33: 1.4 * LOSSES[33]}),
        "a bias from step 20 on": replace(
            TRAINING, losses={s: x * (1.003 if s > 19 else 1) for s, x in LOSSES.items()}
        ),
        "doubled gradients": replace(TRAINING, gradients={1: {name: 2 * x for name, x in NORMS.items()}, 10: NORMS}),
        "no gradients of step 10": replace(TRAINING, gradients={1: NORMS}),
        "another parameter": replace(TRAINING, gradients={1: {"embedding.weight": 1.0}}),
        "no norm of step 33": replace(TRAINING, grad_norms={s: 1.0 for s in STEPS if s != 33}),
        "a larger norm": replace(TRAINING, grad_norms={s: 2.0 if s == 30 else 1.0 for s in STEPS}),
        "other final weights": replace(TRAINING, weights={"head.weight": (3.0, -1.0)}),
        "no final weights": replace(TRAINING, weights={}),
    }
    for name, run in runs.items():
        finding = align(run, TRAINING, LIMITS)
        yield f"{name}: {finding.verdict}: {finding.reason}"
    without_noise = align(TRAINING, TRAINING, AlignmentLimits(None, None, None, "no noise"))
    yield f"no noise: {without_noise.verdict}: {without_noise.reason}"
    older = align(TRAINING, replace(TRAINING, weights={}), LIMITS)
    yield f"an older reference: {older.verdict}: {older.reason}"


def choices() -> Iterable[str]:
    for changed, margin, gates in ((0, 0.0, 0.0), (2, 3e-7, 0.0), (20, 1e-3, 0.0), (0, 0.0, 1e-6)):
        yield judge_own_choices({17: OwnChoices(8000, changed, margin, 2, gates)}, FP32_CHOICE_LIMITS).detail
    yield judge_own_choices({17: OwnChoices(8000, 5, 1e-2, 2)}, None).detail
    yield routing_difference({17: {2: (5, 3)}}, {17: {2: (4, 4)}}).sentence
    yield routing_difference({17: {2: (4, 4)}}, {17: {2: (4, 4)}}).sentence


def tails() -> Iterable[str]:
    def curve(offset: float, fast: float = 20.0, last: int = 400) -> dict[int, float]:
        return {s: (2 + 5 * math.exp(-s / fast)) * (1 + offset) for s in range(1, last + 1)}

    near = [curve(offset) for offset in (-0.001, 0.0, 0.001)]
    yield compare_tails(near, near, 0.01).reason
    yield compare_tails([curve(0.03), curve(0.031)], near, 0.01).reason
    yield compare_tails([curve(0.009), curve(0.011)], near, 0.01).reason
    yield compare_tails(near[:1], near, 0.01).reason
    yield compare_tails([curve(x, 300.0) for x in (0.0, 0.001)], [curve(0.0, 300.0)] * 2, 0.01).reason
    yield compare_tails([curve(0.0, last=30)] * 2, [curve(0.0, last=30)] * 2, 0.01).reason
    yield compare_tails([{**curve(0.0), 7: math.nan}, near[0]], near, 0.01).reason
    yield compare_tails([curve(0.0, last=60), near[0]], near, 0.01).reason
    yield compare_tails([{s: x for s, x in curve(0.0).items() if s > 100}, near[0]], near, 0.01).reason


def energy_reasons() -> Iterable[str | None]:
    def over(watts: Iterable[float | None], joules: Callable[[int], float | None] = lambda second: None) -> str | None:
        readings = [Reading("0", second * SECOND, power, joules(second)) for second, power in enumerate(watts)]
        return energies.device_energy(readings, ["0"], SECOND, 9 * SECOND, 1000, 5.0).reason

    yield over([None] * 11)
    yield over([300.0] * 8)
    yield over([math.nan] * 11)
    yield over([0.5] * 11)
    yield over([300.0] * 11, lambda second: 1000.0 * (second % 6))
    yield energies.device_energy([], [], 0, 0, 0).reason
    for node_watts in ([500.0, 501.0], [0.0] * 20, [500.0] * 20, [5e6 + second for second in range(20)]):
        power = [PowerReading(second * SECOND, 0, watts) for second, watts in enumerate(node_watts)]
        yield energies.node_energy(power, SECOND, 15 * SECOND).reason


def memory_reasons() -> Iterable[str | None]:
    records = [StepRecord(0, 1, 1, memory={ALLOCATED: 60 * GIB, RESERVED: None, PROCESS: 2 * GIB})]

    def used(*sizes: int | None) -> str | None:
        readings = [Reading("0", second * SECOND, memory_used_bytes=size) for second, size in enumerate(sizes)]
        return memory_peaks(readings, records, {"0": 80 * GIB}, (0, 4 * SECOND)).used.reason

    yield used(None, None)
    yield used(0, 0)
    yield used(64 * GIB, 64 * GIB)
    yield used(*[90 * GIB] * 5)
    yield used(*[20 * GIB] * 5)
    peaks = memory_peaks([], records, {"0": None})
    yield peaks.reserved.reason
    for expected in (GIB, 2048 * GIB, 4 * GIB, 0):
        compared = compare_with_estimate(expected, peaks, True, None)
        yield compared.remark or compared.measured.reason


def clock_reasons() -> Iterable[str]:
    records = [StepRecord(0, 2, 0), StepRecord(0, 12, 95 * SECOND)]
    seen = {0: WindowSighting(Sighting(0, 0), Sighting(100 * SECOND, 101 * SECOND))}
    yield from platform_clock_reasons(records, seen, Window(first_step=3, last_step=12))
    yield from node_clock_reasons({f"node{k}": (0, (100 + 50 * (k == 2)) * SECOND) for k in range(3)}, 40)


def window_reasons() -> Iterable[str | None]:
    steps = [StepEnd(step, step * SECOND, 10) for step in range(13)]
    faults = {
        "missing": [step for step in steps if step.step not in (4, 6)],
        "no tokens": [replace(step, tokens=0) if step.step == 7 else step for step in steps],
        "backward": [replace(step, end_ns=0) if step.step == 7 else step for step in steps],
        "twice": [*steps[:7], *steps[6:]],
    }
    for name, ends in faults.items():
        try:
            window_spans(ends, None, 3, 12, 2)
        except WindowError as error:
            yield f"{name}: {error}"
    slower = [StepEnd(step, (step + 2 * max(0, step - 30)) * SECOND, 10) for step in range(61)]
    yield from measure_window(slower, None, 1, 60, 2).step_seconds.flags
    yield measure_window(steps, None, 3, 6, 2).step_seconds.unchecked
    spans = [StepSpan(step, step * SECOND, (step + 1) * SECOND) for step in range(3, 41)]
    for level in (0.1, 9.0):
        yield str(loss_crossing(LOSSES, spans, level, 2))
    yield str(loss_crossing({**LOSSES, 5: math.nan}, spans, 2.0, 2))


def other_reasons() -> Iterable[str | None]:
    yield find_stragglers({0: dict.fromkeys(STEPS, 1.0)}, {}).unchecked
    yield find_stragglers({rank: dict.fromkeys(range(9), 1.0) for rank in (0, 1)}, {}).unchecked
    yield host_use([], 0, SECOND).reason
    yield host_use([HostReading(0, 0.0, 0.0, 2), HostReading(SECOND, 1.0, 1.0, 2)], 0, 4 * SECOND).reason
    yield host_use([HostReading(0, 0.0, None, 2), HostReading(SECOND, 1.0, None, 2)], 0, SECOND).reason
    for load in (None, 95.0):
        yield str(mean_load([Reading("0", 1, utilisation=load)], ["0"], 0, 2))
    yield str(mean_load([], [], 0, 2))


SUBJECTS: dict[str, Callable[[], Iterable[str | None]]] = {
    "alignment": alignments,
    "choices of experts": choices,
    "tails of curves": tails,
    "energy": energy_reasons,
    "memory": memory_reasons,
    "clocks": clock_reasons,
    "the window": window_reasons,
    "pace, other programs, load": other_reasons,
}


def test_each_reason_reads_as_in_the_golden_file() -> None:
    blocks = ["\n".join((f"## {name}", *map(str, reasons()))) for name, reasons in SUBJECTS.items()]
    text = "\n\n".join(blocks) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
