"""Facts of a run held against each other and against this checkout: clocks, job, peaks.

A contradiction makes a bundle not follow. A note says what a reader has to know and cannot be told from the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import LevelfieldError
from levelfield.measure.raw_facts import NANOSECONDS
from levelfield.measure.utilisation import MEASURED, chip_limit
from levelfield.rundir.event_lines import DAMAGE_ERRORS, Event, whole_number
from levelfield.rundir.node_parts import NodePart, node_parts
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_of
from levelfield.specs.short_names import clipped
from levelfield.worker.choices import digest_of

EARLY_SECONDS = 1.0  # telemetry begins before the training, on the same clock
LATE_SECONDS = 60.0  # a tool that hangs leaves the readings after it out; a clock of day is set by seconds
START_SECONDS = 3600.0  # from provenance to the first reading: a large corpus is checked in between
DRIFT = 0.02  # of the time of day against the monotonic clock; a clock that was set in between drifts
_FOLDERS = ("events_dir", "capture", "save_weights_dir", "explain_step")  # of job.json: they hold paths
_STAMP = re.compile(r"(\d{8}T\d{6}Z)_")


@dataclass(frozen=True)
class Contradiction:
    """A field whose statement does not follow."""

    field: str
    stated: str
    recomputed: str  # what the raw files give

    @property
    def text(self) -> str:
        return f"{self.field}: stated {self.stated}, recomputed {self.recomputed}"


def cross_checked(
    plan: Plan, raw: RawRecords, job: Event | None, provenance: Event | None, registry: Registry
) -> Iterator[Contradiction | str]:
    """Yield what contradicts itself in a run, and notes on what could not be checked.

    job, provenance: None where the run has none. registry: this checkout's documents.
    """
    yield from _clocks(plan, raw, provenance)
    if plan.work.fingerprint() != plan.work_digest:
        yield Contradiction("plan.json: work_digest", plan.work_digest, plan.work.fingerprint())
    yield from _job(plan, job)
    yield from _peaks(plan, registry)


def _clocks(plan: Plan, raw: RawRecords, provenance: Event | None) -> Iterator[Contradiction | str]:
    """Hold each machine's events against its telemetry, which has the same clock, and both against provenance."""
    started = None
    try:
        started = datetime.fromisoformat((provenance or {})["time"]).timestamp()
    except DAMAGE_ERRORS:
        yield "provenance.json has no time of the start"
    stamp, made = _STAMP.match(plan.run_id), float("-inf")
    if stamp:
        with suppress(ValueError):  # a stamp that is no date
            made = datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
    if stamp and started is not None and not made <= started + LATE_SECONDS:
        yield Contradiction("provenance.json: time", _day(started), f"the run id was made at {stamp[1]}")
    for part in node_parts(plan, raw):
        yield from _clock(part, raw)
        yield from _time_of_day(part, started)
        yield from _facts(part, raw)


def _clock(part: NodePart, raw: RawRecords) -> Iterator[Contradiction | str]:
    telemetry = part.telemetry
    times = (*(r.time_ns for r in telemetry.readings), *(r.time_ns for r in telemetry.host))
    read = sorted({*times, *(time for time, _ in telemetry.wall_clock)})
    ends = [*(r.end_ns for r in part.steps), *(t for r, t in raw.begins.items() if r in part.ranks)]
    if not ends:
        return
    if not read:
        yield part.labelled("there is no telemetry, so nothing is held against the clock of the events")
        return
    field = part.labelled("events: first time")
    if not (read[0] - min(ends)) / NANOSECONDS <= EARLY_SECONDS:
        yield Contradiction(field, _seconds(min(ends)), f"telemetry begins at {_seconds(read[0])}")
    if not (min(ends) - read[-1]) / NANOSECONDS <= LATE_SECONDS:
        yield Contradiction(field, _seconds(min(ends)), f"telemetry ends at {_seconds(read[-1])}")
    elif not (late := (max(ends) - read[-1]) / NANOSECONDS) <= LATE_SECONDS:
        yield part.labelled(
            f"telemetry ends {late:.0f} s before the events, so their end is not held against its clock"
        )


def _time_of_day(part: NodePart, started: float | None) -> Iterator[Contradiction | str]:
    """Hold telemetry against the start, which the platform's machine noted. Other machines may show another day."""
    if started is None:
        return
    if not part.telemetry.wall_clock:
        yield part.labelled("telemetry has no time of day, so nothing is held against the time in provenance.json")
        return
    (first_ns, first_wall), (last_ns, last_wall) = min(part.telemetry.wall_clock), max(part.telemetry.wall_clock)
    if not -LATE_SECONDS <= first_wall / NANOSECONDS - started <= START_SECONDS:
        began = _day(first_wall / NANOSECONDS)
        if part.name is None:
            yield Contradiction("provenance.json: time", _day(started), f"telemetry begins at {began}")
        else:
            yield part.labelled(f"telemetry begins at {began} by that node's time of day; the run at {_day(started)}")
    apart = abs((last_wall - first_wall) - (last_ns - first_ns))
    if not apart <= max(DRIFT * (last_ns - first_ns), 2 * NANOSECONDS):
        moved = f"{apart / NANOSECONDS:.1f} s against the other clock"
        yield part.labelled(f"the time of day was set during the run: it moved {moved}")


def _facts(part: NodePart, raw: RawRecords) -> Iterator[Contradiction]:
    """Hold a node's telemetry against its facts: both have the two clocks, which are as far apart in each.

    Two machines that were started within a minute of each other cannot be told apart so.
    """
    facts = None if part.telemetry.node is None else raw.node_facts.get(part.telemetry.node)
    if not facts or not part.telemetry.wall_clock:
        return
    try:
        noted = whole_number(facts["wall_ns"]) - whole_number(facts["monotonic_ns"])
    except DAMAGE_ERRORS:
        return
    time_ns, wall_ns = min(part.telemetry.wall_clock)
    apart = abs((wall_ns - time_ns) - noted) / NANOSECONDS
    if not apart <= LATE_SECONDS:
        distance = f"they are {apart:.0f} s from those in nodes/{part.name}.facts.json: it is another machine's"
        yield Contradiction(f"telemetry/{part.name}.jsonl: clocks", _seconds(time_ns), distance)


def _job(plan: Plan, job: Event | None) -> Iterator[Contradiction | str]:
    """Hold job.json, which the training was given, against the plan. Its folders are placeholders."""
    if job is None:
        yield "there is no job.json, so the plan is not held against what the training was given"
        return
    sides = []
    for content in (job_of(plan, RunPaths(Path("/"))), job):
        corpus = content.get("corpus")
        if isinstance(corpus, dict):
            corpus = {key: value for key, value in corpus.items() if key != "prefix"}
        sides.append({**{key: value for key, value in content.items() if key not in _FOLDERS}, "corpus": corpus})
    expected, job = sides
    followed = job.pop("choices", {}).get("known") if expected.pop("choices", None) else None
    if plan.choices and plan.choices.follows != (digest_of(str(followed)) if followed else None):
        yield Contradiction("job.json: choices", "others", f"the plan has those of {clipped(plan.choices.follows, 80)}")
    for key in sorted(expected.keys() & job.keys()):
        if expected[key] != job[key]:
            planned = f"the plan gives {clipped(expected[key], 80)}"
            yield Contradiction(f"job.json: {key}", clipped(job[key], 80), planned)


def _peaks(plan: Plan, registry: Registry) -> Iterator[Contradiction | str]:
    """Hold the peak of MFU against the plan's own chip and what it cannot exceed, and that chip against vendor.yaml."""
    chip, used = plan.hardware.chip, plan.peak
    peak = chip.peaks.get(used.dtype)  # type: ignore[call-overload]
    if peak is not None and peak.tflops != used.tflops:
        yield Contradiction("plan.json: peak.tflops", f"{used.tflops}", f"its chip has {peak.tflops} {used.dtype}")
    if peak is None and used.tflops is not None and not used.source.startswith(MEASURED):
        yield Contradiction("plan.json: peak.source", used.source, f"its chip has no {used.dtype} peak")
    limit = used.limit_tflops if plan.hardware.is_host else chip_limit(plan.work.training.precision, chip.peaks)
    if used.tflops is not None and limit is not None and not used.tflops <= limit:
        yield Contradiction("plan.json: peak.tflops", f"{used.tflops}", f"{chip.name} has at most {limit:.4g}")
    if plan.hardware.overlay is not None:
        yield f"{', '.join(plan.hardware.overlay.fields)} of {chip.name} come from a private file and are not checked"
        return
    try:
        chips = {c.name: c for c in registry.vendor_file(plan.hardware.vendor).chips}
    except LevelfieldError:
        yield f"this checkout has no vendor {plan.hardware.vendor}, so its peaks are not checked"
        return
    if chip.name not in chips:
        yield f"vendor.yaml of {plan.hardware.vendor} has no chip {chip.name} here, so its peaks are not checked"
        return
    for dtype in sorted({*chip.peaks, *chips[chip.name].peaks}):
        ours, theirs = chips[chip.name].peaks.get(dtype), chip.peaks.get(dtype)
        if (ours and ours.tflops) != (theirs and theirs.tflops):
            stated = f"{theirs.tflops:g}" if theirs else "none"
            published = f"{ours.tflops:g} TFLOP/s in vendor.yaml" if ours else "no peak in vendor.yaml"
            yield Contradiction(f"plan.json: hardware.chip.peaks.{dtype}", stated, published)


def _day(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except DAMAGE_ERRORS:
        return f"{seconds:.0f} s"


def _seconds(time_ns: int) -> str:
    return f"{time_ns / NANOSECONDS:.1f} s"
