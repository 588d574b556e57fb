"""What differs between sides without being their question: each such field asks for caution with their ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from levelfield.compare.compared_fields import NOTHING, ComparedField, Reader, field_of, fields_of
from levelfield.compare.evidence import ComparedSide
from levelfield.compare.quantities import at, palm
from levelfield.measure.other_use import HOST_LIMIT
from levelfield.specs.record import RunRecord

MOST_APART = timedelta(days=30)
# Why a field asks for caution, where its name does not say it.
WHY = {
    "left out": "these runs do not count; a side that often fails may look fast in the runs that are left",
    "alignment": "only `aligned` says that the training agrees with the reference",
    "attention kernel": "each side may choose its kernel, and this choice may explain the ratio",
    "source": "changed files are in no commit, so nobody can repeat exactly this run",
    "other programs": "what they used of the machine while a run was measured makes it slower",
    "run order": "the sides ran one after another, so a change of the machine meanwhile looks like a difference",
    "peak of MFU": "each MFU refers to its own peak, so the ratio of MFU is not the ratio of speed",
    "date": "the runs are more than 30 days apart, or a date is not known",
}
_OF_ONE_FRAMEWORK: dict[str, Reader] = {  # another framework has another of each
    "framework version": lambda r: r.subject.framework_version,
    "environment": lambda r: r.subject.environment,
    "packages": lambda r: r.subject.packages,
    "implementation": lambda r: r.subject.implementation,
}
_ALWAYS: dict[str, Reader] = {
    "case": lambda r: r.series.case,
    "platform": lambda r: r.subject.platform_version,
    "commit": lambda r: r.subject.commit,
    "image": lambda r: r.subject.image,
    "node": lambda r: r.node,
    "kernel": lambda r: r.conditions.kernel,
    "os": lambda r: r.conditions.os,
    "processor": lambda r: r.conditions.processor,
    "cores": lambda r: r.conditions.cores,
    "memory, GiB": lambda r: r.conditions.memory_gib,
    "engine": lambda r: r.conditions.engine,
    "peak of MFU": lambda r: _peak(r),
}


def cautions(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield every field that asks for caution, with its values."""
    yield from _left_out(sides)
    yield from _verdicts(sides)
    yield from _dirty(sides)
    yield from _kernels(sides)
    yield from _other_use(sides)
    yield from (each for each in fields_of(sides, _surroundings(sides)) if not each.is_equal)
    yield from _times(sides)


def began(record: RunRecord) -> datetime | None:
    """Return the begin of a run in UTC; None where the record has no date."""
    try:
        found = datetime.fromisoformat(record.began.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found.replace(tzinfo=None) - (found.utcoffset() or timedelta())


def _left_out(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    if any(side.counted and side.excluded for side in sides):
        values = (tuple(f"{record.run_id}: {why}" for record, why in side.excluded) or (NOTHING,) for side in sides)
        yield ComparedField("left out", tuple(values))


def _verdicts(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    found = field_of("alignment", sides, lambda record: record.verdict)
    if any(side != ("aligned",) for side in found.values):
        yield found


def _dirty(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    words = {True: "changed files", False: "as committed", None: NOTHING}
    found = field_of("source", sides, lambda record: words[record.subject.is_dirty])
    if any("changed files" in side for side in found.values):
        yield found


def _kernels(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield the kernels of attention where runs are known to have had different ones. An unknown one says nothing."""
    found = field_of("attention kernel", sides, lambda record: at(record.result, "attention_kernel", "name"))
    if len({name for side in found.values for name in side} - {NOTHING}) > 1:
        yield found


def _other_use(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield the most that others used of the machine during a run of each side, where a run has a warning about it."""
    most = [max((_busy(record) for record in side.counted or side.runs), default=(0.0, "")) for side in sides]
    if any(text for _, text in most):
        yield ComparedField("other programs", tuple((text or NOTHING,) for _, text in most))


def _busy(record: RunRecord) -> tuple[float, str]:
    """Return what others used beyond the limits of a warning: cores in the window, or a device before the training."""
    used = record.result.get("other_use")
    cores, of, devices = at(used, "host_in_window", "value"), at(used, "host_cores"), at(used, "devices")
    if isinstance(cores, (int, float)) and isinstance(of, int) and cores > HOST_LIMIT * of:
        return cores, f"up to {cores:.1f} of {of} cores"
    is_used = isinstance(devices, list) and any(at(device, "in_use") is True for device in devices)
    return 0.0, "a device" if is_used else ""


def _surroundings(sides: Sequence[ComparedSide]) -> dict[str, Reader]:
    """Return the readers of build and conditions that these sides can share."""
    series = [side.first.series for side in sides]
    readers = dict(_ALWAYS)
    if len({each.framework for each in series}) == 1:
        readers |= _OF_ONE_FRAMEWORK
    if len({each.vendor for each in series}) == 1:
        readers |= {f"software: {name}": _software(name) for name in _names(sides, "software")}
    return readers | {f"variable {name}": _variable(name) for name in _names(sides, "variables")}


def _names(sides: Sequence[ComparedSide], mapping: str) -> list[str]:
    return sorted({name for side in sides for r in side.runs for name in getattr(r.conditions, mapping)})


def _software(name: str) -> Reader:
    return lambda record: record.conditions.software.get(name)


def _variable(name: str) -> Reader:
    return lambda record: record.conditions.variables.get(name)


def _peak(record: RunRecord) -> str | None:
    tflops = palm(record).get("peak_tflops")
    return f"{tflops:.4g} TFLOP/s" if isinstance(tflops, (int, float)) else None


def _times(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield the dates where runs are more than 30 days apart, and the order where sides were not run in turn."""
    times = [sorted(time for r in side.counted or side.runs if (time := began(r))) for side in sides]
    if not all(times):
        yield ComparedField("date", tuple((f"{known[0]:%Y-%m-%d}",) if known else (NOTHING,) for known in times))
    elif max(known[-1] for known in times) - min(known[0] for known in times) > MOST_APART:
        yield ComparedField("date", tuple((_range(known, "%Y-%m-%d"),) for known in times))
    elif len({record.node for side in sides for record in side.runs}) == 1 and _is_in_sequence(times):
        yield ComparedField("run order", tuple((_range(known, "%m-%d %H:%M"),) for known in times))


def _range(times: Sequence[datetime], form: str) -> str:
    ends = [f"{time:{form}}" for time in (times[0], times[-1])]
    return " to ".join(dict.fromkeys(ends))


def _is_in_sequence(times: Sequence[Sequence[datetime]]) -> bool:
    """Return whether a side began after all runs of another had begun."""
    ordered = sorted(times, key=lambda known: known[0])
    return any(before[-1] <= after[0] for before, after in pairwise(ordered))
