"""Finds doubtful facts of a run that breaks no rule, as sentences of its result.

A doubt is no proof: each of these facts may have an honest cause, so it changes neither status nor figures. It says
what a reader should look at before a figure counts. Limits lie far from what honest runs showed
(docs/decisions/least-work.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from levelfield.measure.energy import MIN_READINGS
from levelfield.measure.raw_facts import NANOSECONDS, records_by_rank
from levelfield.measure.throughput import clock_rank
from levelfield.measure.validity import loss_curve
from levelfield.rundir.event_lines import mapping
from levelfield.rundir.node_parts import NodePart
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference

# Steps before the window, without the first one, which compiles: fewer show no level.
MIN_EARLIER_STEPS = 4
# Of the fastest step before the window. A framework that still compiles there is slower in some steps, not in all.
MIN_STEP_SHARE = 0.5
MIN_EVEN_STEPS = 10
# Steps that differ by less are suspect: the least spread of real steps is some ten times as large.
EVEN_NANOSECONDS = 1_000


def doubtful_facts(
    plan: Plan, raw: RawRecords, parts: Sequence[NodePart], reference: Reference | None
) -> Iterator[str]:
    """Yield a sentence for each fact of the run that is doubtful."""
    yield from _step_doubts(plan, raw)
    yield from _copied_losses(plan, raw, reference)
    yield from _unplanned_versions(plan, raw)
    for part in parts:
        yield from map(part.labelled, _repeated_power(plan, part))


def _step_doubts(plan: Plan, raw: RawRecords) -> Iterator[str]:
    """Compare the steps of the window with those before it, and with each other, on the clock of throughput."""
    window = plan.work.window
    records = records_by_rank(raw.steps).get(clock_rank(raw.steps, window.first_step, window.last_step), ())
    ends = {record.step: record.end_ns for record in records}
    seconds = {b: (ends[b] - ends[a]) / NANOSECONDS for a, b in pairwise(sorted(ends)) if b == a + 1}
    earlier_seconds = [lasted for step, lasted in seconds.items() if step < window.first_step]
    window_seconds = [lasted for step, lasted in seconds.items() if window.first_step <= step <= window.last_step]
    if (
        len(earlier_seconds) >= MIN_EARLIER_STEPS
        and window_seconds
        and median(window_seconds) < MIN_STEP_SHARE * min(earlier_seconds)
    ):
        yield (
            f"half of the window's steps lasted at most {median(window_seconds):.4g} s, and the fastest of the "
            f"{len(earlier_seconds)} steps before it {min(earlier_seconds):.4g} s: they computed less, or something "
            "slowed the steps before"
        )
    # only where the platform saw the steps happen: tests make up their clocks
    if (
        raw.seen
        and len(window_seconds) >= MIN_EVEN_STEPS
        and (max(window_seconds) - min(window_seconds)) * NANOSECONDS <= EVEN_NANOSECONDS
    ):
        yield (
            f"the window's {len(window_seconds)} steps last the same to a microsecond ({window_seconds[0]:.6g} s): "
            "their times were computed, not measured, so nothing shows outlying steps"
        )


def _copied_losses(plan: Plan, raw: RawRecords, reference: Reference | None) -> Iterator[str]:
    """Compare the losses with those of the reference. Two frameworks never round alike in every step."""
    if reference is None or reference.framework == plan.implementation.framework:
        return
    losses = tuple(loss_curve(raw.steps).values())
    if len(losses) >= MIN_EVEN_STEPS and losses == reference.losses:
        yield (
            f"each of the {len(losses)} losses is the reference's in every digit, and {reference.framework} trained "
            "that: another framework rounds otherwise, so they may be copied"
        )


def _unplanned_versions(plan: Plan, raw: RawRecords) -> Iterator[str]:
    """Compare the version that the training reports with the planned one, and with its environment's packages."""
    packages = raw.provenance.get("environment_packages")
    if not isinstance(packages, dict):
        return
    texts = {plan.implementation.version, *map(str, mapping(packages).values())}
    expected = {text.partition("+")[0] for text in texts}
    for rank, event in sorted(raw.framework_events.items()):
        version = str(event.get("version"))
        if version.partition("+")[0] not in expected:
            yield (
                f"rank {rank} reports version {version[:40]} of its framework; {plan.implementation.version} was "
                "planned, and no package of its environment has that version"
            )
            return


def _repeated_power(plan: Plan, part: NodePart) -> Iterator[str]:
    """Look for a power that never changes in the window, where no counter of energy stands beside it."""
    window_ns = part.window_ns(plan.work.window)
    if window_ns is None or plan.hardware.is_host:
        return
    begin, end = window_ns
    for index in part.device_indices:
        readings = [r for r in part.telemetry.readings if r.device == index and begin <= r.time_ns <= end]
        watts = [r.power_watts for r in readings if r.power_watts is not None]
        is_counted = any(r.energy_joules is not None for r in readings)
        if len(watts) >= MIN_READINGS and len({*watts}) == 1 and not is_counted:
            name = part.device_name(index)
            yield (
                f"all {len(watts)} readings of device {name}'s power in the window are {watts[0]:g} W: "
                "the tool may repeat an old one"
            )
