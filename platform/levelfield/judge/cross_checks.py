"""Compares facts of a run with each other and with this checkout: clocks, job, peaks.

A bundle with a contradiction fails its verification. A note names what could not be checked.
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
from levelfield.measure.utilisation import MEASURED_PREFIX, chip_tflops_limit
from levelfield.rundir.event_lines import DAMAGE_ERRORS, JsonObject, truncated_number
from levelfield.rundir.node_parts import NodePart, node_parts
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content
from levelfield.specs.short_names import clipped
from levelfield.worker.choices import digest_of

MAX_EARLY_SECONDS = 1.0  # telemetry begins before the training, on the same clock
MAX_LATE_SECONDS = 60.0  # a tool that hangs leaves the readings after it out
MAX_CLOCK_DIFFERENCE_SECONDS = 60.0  # between times of day, which are set by seconds
MAX_START_SECONDS = 3600.0  # from provenance to the first reading: a large corpus is checked in between
MAX_CLOCK_DRIFT = 0.02  # of the time of day against the monotonic clock; a clock that was set in between drifts
_PATH_KEYS = ("events_dir", "capture", "save_weights_dir", "explain_step")  # keys of job.json that hold paths
_RUN_ID_TIME = re.compile(r"(\d{8}T\d{6}Z)_")


@dataclass(frozen=True)
class Contradiction:
    """A field whose stated value differs from what follows from raw files, plan or this checkout's documents."""

    field: str
    stated: str
    recomputed: str  # what follows from them

    @property
    def text(self) -> str:
        return f"{self.field}: stated {self.stated}, recomputed {self.recomputed}"


def cross_check(
    plan: Plan, raw: RawRecords, job: JsonObject | None, provenance: JsonObject | None, registry: Registry
) -> Iterator[Contradiction | str]:
    """Yield the contradictions within a run, and notes on what could not be checked.

    job, provenance: None where the run has none. registry: this checkout's documents.
    """
    yield from _check_clocks(plan, raw, provenance)
    if plan.work.fingerprint() != plan.work_digest:
        yield Contradiction("plan.json: work_digest", plan.work_digest, plan.work.fingerprint())
    yield from _check_job(plan, job)
    yield from _check_peaks(plan, registry)


def _check_clocks(plan: Plan, raw: RawRecords, provenance: JsonObject | None) -> Iterator[Contradiction | str]:
    """Compare each machine's events with its telemetry, which has the same clock, and both with provenance."""
    start_seconds = None
    try:
        start_seconds = datetime.fromisoformat((provenance or {})["time"]).timestamp()
    except DAMAGE_ERRORS:
        yield "provenance.json has no time of the start"
    stamp, run_id_seconds = _RUN_ID_TIME.match(plan.run_id), float("-inf")
    if stamp:
        with suppress(ValueError):  # a stamp that is no date
            run_id_seconds = datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
    if stamp and start_seconds is not None and not run_id_seconds <= start_seconds + MAX_CLOCK_DIFFERENCE_SECONDS:
        yield Contradiction("provenance.json: time", _utc_text(start_seconds), f"the run id was made at {stamp[1]}")
    for part in node_parts(plan, raw):
        yield from _check_event_clock(part, raw)
        yield from _check_time_of_day(part, start_seconds)
        yield from _check_node_clock(part, raw)


def _check_event_clock(part: NodePart, raw: RawRecords) -> Iterator[Contradiction | str]:
    telemetry = part.telemetry
    times = (*(r.time_ns for r in telemetry.readings), *(r.time_ns for r in telemetry.host))
    reading_times = sorted({*times, *(time for time, _ in telemetry.wall_clock)})
    event_times = [*(r.end_ns for r in part.steps), *(t for r, t in raw.first_step_start_ns.items() if r in part.ranks)]
    if not event_times:
        return
    if not reading_times:
        yield part.labelled("there is no telemetry, so nothing is held against the clock of the events")
        return
    field = part.labelled("events: first time")
    if not (reading_times[0] - min(event_times)) / NANOSECONDS <= MAX_EARLY_SECONDS:
        yield Contradiction(
            field, _seconds_text(min(event_times)), f"telemetry begins at {_seconds_text(reading_times[0])}"
        )
    if not (min(event_times) - reading_times[-1]) / NANOSECONDS <= MAX_LATE_SECONDS:
        yield Contradiction(
            field, _seconds_text(min(event_times)), f"telemetry ends at {_seconds_text(reading_times[-1])}"
        )
    elif not (late := (max(event_times) - reading_times[-1]) / NANOSECONDS) <= MAX_LATE_SECONDS:
        yield part.labelled(
            f"telemetry ends {late:.0f} s before the events, so their end is not held against its clock"
        )


def _check_time_of_day(part: NodePart, start_seconds: float | None) -> Iterator[Contradiction | str]:
    """Compare telemetry with the start on the clock of the platform's machine. Clocks of others may show another
    day."""
    if start_seconds is None:
        return
    if not part.telemetry.wall_clock:
        yield part.labelled("telemetry has no time of day, so nothing is held against the time in provenance.json")
        return
    (first_ns, first_wall), (last_ns, last_wall) = min(part.telemetry.wall_clock), max(part.telemetry.wall_clock)
    if not -MAX_CLOCK_DIFFERENCE_SECONDS <= first_wall / NANOSECONDS - start_seconds <= MAX_START_SECONDS:
        began = _utc_text(first_wall / NANOSECONDS)
        if part.name is None:
            yield Contradiction("provenance.json: time", _utc_text(start_seconds), f"telemetry begins at {began}")
        else:
            yield part.labelled(
                f"telemetry begins at {began} by that node's time of day; the run at {_utc_text(start_seconds)}"
            )
    difference = abs((last_wall - first_wall) - (last_ns - first_ns))
    if not difference <= max(MAX_CLOCK_DRIFT * (last_ns - first_ns), 2 * NANOSECONDS):
        moved = f"{difference / NANOSECONDS:.1f} s against the other clock"
        yield part.labelled(f"the time of day was set during the run: it moved {moved}")


def _check_node_clock(part: NodePart, raw: RawRecords) -> Iterator[Contradiction]:
    """Compare a node's telemetry with its facts: both record two clocks, which are equally far apart in each.

    Two machines that were started within a minute of each other pass as one.
    """
    facts = None if part.telemetry.node is None else raw.node_facts.get(part.telemetry.node)
    if not facts or not part.telemetry.wall_clock:
        return
    try:
        facts_offset = truncated_number(facts["wall_ns"]) - truncated_number(facts["monotonic_ns"])
    except DAMAGE_ERRORS:
        return
    time_ns, wall_ns = min(part.telemetry.wall_clock)
    difference = abs((wall_ns - time_ns) - facts_offset) / NANOSECONDS
    if not difference <= MAX_CLOCK_DIFFERENCE_SECONDS:
        distance = f"they are {difference:.0f} s from those in nodes/{part.name}.facts.json: it is another machine's"
        yield Contradiction(f"telemetry/{part.name}.jsonl: clocks", _seconds_text(time_ns), distance)


def _check_job(plan: Plan, job: JsonObject | None) -> Iterator[Contradiction | str]:
    """Compare job.json, which the training was given, with the plan, whose job has placeholders for folders."""
    if job is None:
        yield "there is no job.json, so the plan is not held against what the training was given"
        return
    contents = []
    for content in (job_content(plan, RunPaths(Path("/"))), job):
        corpus = content.get("corpus")
        if isinstance(corpus, dict):
            corpus = {key: value for key, value in corpus.items() if key != "prefix"}
        contents.append({**{key: value for key, value in content.items() if key not in _PATH_KEYS}, "corpus": corpus})
    expected, job = contents
    followed_choices = job.pop("choices", {}).get("known") if expected.pop("choices", None) else None
    if plan.choices and plan.choices.follows != (digest_of(str(followed_choices)) if followed_choices else None):
        yield Contradiction("job.json: choices", "others", f"the plan has those of {clipped(plan.choices.follows, 80)}")
    for key in sorted(expected.keys() & job.keys()):
        if expected[key] != job[key]:
            planned = f"the plan gives {clipped(expected[key], 80)}"
            yield Contradiction(f"job.json: {key}", clipped(job[key], 80), planned)


def _check_peaks(plan: Plan, registry: Registry) -> Iterator[Contradiction | str]:
    """Compare the peak of MFU with the plan's chip and its highest possible rate, and that chip with vendor.yaml."""
    chip, plan_peak = plan.hardware.chip, plan.peak
    peak = chip.peaks.get(plan_peak.dtype)  # type: ignore[call-overload]
    if peak is not None and peak.tflops != plan_peak.tflops:
        yield Contradiction(
            "plan.json: peak.tflops", f"{plan_peak.tflops}", f"its chip has {peak.tflops} {plan_peak.dtype}"
        )
    if peak is None and plan_peak.tflops is not None and not plan_peak.source.startswith(MEASURED_PREFIX):
        yield Contradiction("plan.json: peak.source", plan_peak.source, f"its chip has no {plan_peak.dtype} peak")
    limit = (
        plan_peak.limit_tflops if plan.hardware.is_host else chip_tflops_limit(plan.work.training.precision, chip.peaks)
    )
    if plan_peak.tflops is not None and limit is not None and not plan_peak.tflops <= limit:
        yield Contradiction("plan.json: peak.tflops", f"{plan_peak.tflops}", f"{chip.name} has at most {limit:.4g}")
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


def _utc_text(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except DAMAGE_ERRORS:
        return f"{seconds:.0f} s"


def _seconds_text(time_ns: int) -> str:
    return f"{time_ns / NANOSECONDS:.1f} s"
