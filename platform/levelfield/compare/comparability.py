"""Whether sides may be compared: fields that must be equal, deliberate differences, and what asks for caution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import permutations
from operator import attrgetter

from levelfield.compare.sides import (
    DIFFERING_VERDICTS,
    ComparedSide,
    Quantity,
    excess_use,
    headline_utilisation,
    start_time,
    tuned_fields,
    tuning_of,
)
from levelfield.specs.free_fields import FREE_FIELDS, RECOMPUTE_LAYERS
from levelfield.specs.record import RunRecord, Series
from levelfield.specs.short_names import short_value
from levelfield.specs.vendor import HOST_SHARE

_YES, _TOKENS, _FORMULAS = "yes", "tokens of the window", "formulas"
_WORK_DONE = ("tokens read", "initial weights")  # fields that equal work makes equal; an unknown one says nothing
_PEAK = "peak of MFU"
HARMLESS_VALUES = {"alignment": "aligned", "source": "as committed"}
NO_VALUE = "-"
FieldReader = Callable[[RunRecord], object]

MAX_DATE_GAP = timedelta(days=30)
# By the name of a field, why it asks for caution. A field whose name says why has no entry.
CAUTION_REASONS = {
    "left out": "these runs do not count; a side that often fails may look fast in the runs that are left",
    "alignment": "only `aligned` says that the training agrees with the reference",
    "attention kernel": "each side may choose its kernel, and this choice may explain the ratio",
    "fp8 library": "each scales and rounds in its own way, so the ratio is of the libraries as well",
    "tuning": "base has the defaults alone, peak has chosen fields; a ratio of the two is of the tuning as well",
    "source": "changed files are in no commit, so nobody can repeat exactly this run",
    "other programs": "what they used of the machine while a run was measured makes it slower",
    "run order": "the sides ran one after another, so a change of the machine meanwhile looks like a difference",
    "devices": "a speed per device falls with their number, so the ratio is of the scaling as well",
    "repeats": "who chooses among the repeats of a command may choose the fast ones",
    "cost": "the prices include different things, so the ratio is of the way of paying as well",
    _PEAK: "each MFU refers to its own peak, so the ratio of MFU is not the ratio of speed",
    "date": "the runs are more than 30 days apart, or a date is not known",
}
_SAME_FRAMEWORK_READERS: dict[str, FieldReader] = {  # these always differ between frameworks
    "framework version": lambda r: r.subject.framework_version,
    "environment": lambda r: r.subject.environment,
    "packages": lambda r: r.subject.packages,
    "implementation": lambda r: r.subject.implementation,
}


@dataclass(frozen=True)
class ComparedField:
    """A field with its different values on each side, in the order of the sides."""

    name: str
    values: tuple[tuple[str, ...], ...]

    @property
    def is_equal(self) -> bool:
        """Whether every run of every side has the same value."""
        return len({value for side in self.values for value in side}) == 1

    @property
    def is_known_to_differ(self) -> bool:
        """Whether two runs have different values. An unknown one says nothing."""
        return len({value for side in self.values for value in side} - {NO_VALUE}) > 1

    @property
    def cells(self) -> tuple[str, ...]:
        """Return a text for each side."""
        return tuple(", ".join(short_value(value) for value in side) or NO_VALUE for side in self.values)


def read_field(name: str, sides: Sequence[ComparedSide], read: FieldReader) -> ComparedField:
    """Return a field with its values on each side: of the runs that count; of all runs where none counts."""
    values = [[read(run) for run in side.counted or side.runs] for side in sides]
    texts = (tuple(NO_VALUE if value is None else str(value) for value in side) for side in values)
    return ComparedField(name, tuple(tuple(dict.fromkeys(side)) for side in texts))


def read_fields(sides: Sequence[ComparedSide], readers: Mapping[str, FieldReader]) -> Iterator[ComparedField]:
    """Return a field for each reader."""
    return (read_field(name, sides, read) for name, read in readers.items())


def chip_of(series: Series) -> str:
    """Return vendor and chip; one of them where both have the same name."""
    return series.chip if series.vendor == series.chip else f"{series.vendor} {series.chip}"


@dataclass(frozen=True)
class Comparability:
    """Whether sides may be compared, by the fields of their runs."""

    equal: tuple[ComparedField, ...]  # those that must be equal and are
    unequal: tuple[ComparedField, ...]  # those that must be equal and are not, so that there is no ratio
    deliberate: tuple[ComparedField, ...]  # those that differ and may
    cautions: tuple[ComparedField, ...]

    @property
    def is_comparable(self) -> bool:
        return not self.unequal


def check_comparability(sides: Sequence[ComparedSide], across_precision: bool = False) -> Comparability:
    """Return whether sides may be compared. across_precision: the precision differs on purpose."""
    # Across precisions the work must be the same but for its precision.
    fixed: dict[str, FieldReader] = (
        {"work": lambda r: r.result.work_but_precision}
        if across_precision
        else {"precision": _ON_PURPOSE_READERS["precision"]}
    )
    equal, unequal = equal_and_unequal(sides, FIXED_READERS | fixed)
    on_purpose = tuple(field for field in read_fields(sides, _ON_PURPOSE_READERS) if not field.is_equal)
    return Comparability(equal, unequal, on_purpose, tuple(cautions(sides)))


def equal_and_unequal(
    sides: Sequence[ComparedSide], fixed_readers: Mapping[str, FieldReader]
) -> tuple[tuple[ComparedField, ...], tuple[ComparedField, ...]]:
    """Return the fields that must be equal and are, and those that are not: status, `fixed_readers`, formulas."""
    differing = [dict.fromkeys(run.verdict for run in side.runs if run.verdict in DIFFERING_VERDICTS) for side in sides]
    run_fields: tuple[ComparedField, ...] = (
        ComparedField("valid and sealed", tuple(_left_out(side) if not side.counted else (_YES,) for side in sides)),
        ComparedField("training", tuple(tuple(verdicts) or (_YES,) for verdicts in differing)),
    )
    work_fields = [*read_fields(sides, fixed_readers), _formulas(sides)]
    if not all(side.counted for side in sides):  # only a valid run has these
        work_fields = [field for field in work_fields if field.name not in (_TOKENS, _FORMULAS, *_WORK_DONE)]
    unknown = {field.name for field in work_fields if any(NO_VALUE in side for side in field.values)}.intersection(
        _WORK_DONE
    )
    work_fields = [field for field in work_fields if field.is_known_to_differ or field.name not in unknown]
    passed = [field for field in run_fields if set(field.values) == {(_YES,)}]
    is_other_work = any(field.name in _WORK_DONE and not field.is_equal for field in work_fields)
    if is_other_work:  # `training yes` would say that it is the same
        run_fields = tuple(field for field in run_fields if field.name != "training" or field not in passed)
    equal = [field for field in run_fields if field in passed]
    equal += [field for field in work_fields if field.is_equal and field.values[0] != (NO_VALUE,)]
    return tuple(equal), tuple(field for field in (*run_fields, *work_fields) if field not in equal)


def window_tokens(record: RunRecord) -> int | None:
    """Return the tokens of the window, of all devices, by the result's speed and time. Equal work has equal tokens."""
    speed = record.result.throughput
    return round(speed.tokens_per_second * speed.wall_seconds) if speed else None


def _mapping_reader(mapping: str, name: str) -> FieldReader:
    return lambda record: attrgetter(mapping)(record).get(name)


_LABELS = {"micro_batch": "micro-batch", "virtual_pipeline": "virtual pipeline"}
FIXED_READERS: dict[str, FieldReader] = {
    "work": lambda r: r.series.work,
    "corpus": lambda r: r.series.corpus,
    "scale": lambda r: r.series.scale,
    "window": lambda r: f"steps {r.window[0]} to {r.window[1]}",
    _TOKENS: window_tokens,
    "tokens read": lambda r: r.result.identity.tokens,
    "initial weights": lambda r: r.result.identity.initial_weights,
    # A share of a host is another device when the host has another number of shares.
    "device": lambda r: (
        f"{r.series.device_is}, {r.series.devices // r.series.nodes} a host"
        if r.series.device_is == HOST_SHARE
        else r.series.device_is
    ),
}
_ON_PURPOSE_READERS: dict[str, FieldReader] = {
    "chip": lambda r: chip_of(r.series),
    "framework": lambda r: r.series.framework_label,
    "precision": lambda r: r.series.precision,
    "devices": lambda r: f"{r.series.nodes} x {r.series.devices // r.series.nodes}",
    **{
        _LABELS.get(name, name): _mapping_reader("series.values", name)
        for name in FREE_FIELDS
        if name != RECOMPUTE_LAYERS
    },
    "runtime": lambda r: r.series.runtime,
    "chosen fields": tuned_fields,
}


def _left_out(side: ComparedSide) -> tuple[str, ...]:
    return tuple(f"{record.run_id}: {reason}" for record, reason in side.excluded)


def _formulas(sides: Sequence[ComparedSide]) -> ComparedField:
    """Return the versions of the formulas that all runs have. A formula that one run lacks is no difference."""
    runs = [run for side in sides for run in side.counted or side.runs]
    # by their names: `palm` of `palm/1`
    common = set.intersection(*({formula.split("/")[0] for formula in run.subject.formulas} for run in runs))
    return read_field(
        _FORMULAS,
        sides,
        lambda r: ", ".join(sorted(f for f in r.subject.formulas if f.split("/")[0] in common or not common)) or None,
    )


_CAUTION_READERS: dict[str, FieldReader] = {
    "case": lambda r: r.series.case,
    "tuning": tuning_of,
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
    _PEAK: lambda r: peak_text(r),
}


def cautions(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield every field that asks for caution, with its values."""
    if any(side.counted and side.excluded for side in sides):
        yield ComparedField("left out", tuple(_left_out(side) or (NO_VALUE,) for side in sides))
    repeats = [_repeats_text(side) for side in sides]
    if any(repeats):
        yield ComparedField("repeats", tuple((text or NO_VALUE,) for text in repeats))
    devices = read_field("devices", sides, _ON_PURPOSE_READERS["devices"])
    if not devices.is_equal:
        yield devices
    verdicts = read_field("alignment", sides, lambda record: record.verdict)
    if any(side != ("aligned",) for side in verdicts.values):
        yield verdicts
    source_words = {True: "changed files", False: "as committed", None: NO_VALUE}
    sources = read_field("source", sides, lambda record: source_words[record.subject.is_dirty])
    if any("changed files" in side for side in sources.values):
        yield sources
    kernel = read_field(
        "attention kernel", sides, lambda r: r.result.attention_kernel and r.result.attention_kernel.name
    )
    fp8_library = read_field("fp8 library", sides, lambda r: r.result.fp8_library and r.result.fp8_library.name)
    yield from (field for field in (kernel, fp8_library) if field.is_known_to_differ)
    excess_uses = [
        max((excess_use(record) for record in side.counted or side.runs), default=(0.0, "")) for side in sides
    ]
    if any(text for _, text in excess_uses):
        yield ComparedField("other programs", tuple((text or NO_VALUE,) for _, text in excess_uses))
    yield from (field for field in read_fields(sides, _build_readers(sides)) if not field.is_equal)
    yield from _date_cautions(sides)


def cost_cautions(quantity: Quantity, sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield what the figure includes on each side, where the sides differ in it."""
    field = read_field("cost", sides, quantity.included_costs)
    if field.is_known_to_differ:
        yield field


def caution_texts(sides: Sequence[ComparedSide]) -> Iterator[str]:
    """Yield what a table of speeds must say about the last side: its fields of CAUTION_REASONS, with their values."""
    for field in cautions(sides):
        value = field.cells[-1]
        if (
            field.name in CAUTION_REASONS
            and field.name != _PEAK
            and value not in (NO_VALUE, HARMLESS_VALUES.get(field.name))
        ):
            yield f"{field.name} {value}"


def _repeats_text(side: ComparedSide) -> str | None:
    """Return how many of the repeats of its commands a side has, where it lacks some; None where their number is
    unknown. The repeats of a command have the time of its start in their ids."""
    repeats_by_start: dict[str, int] = {}
    for run in side.runs:
        start = run.run_id.split("_", 1)[0]
        repeats_by_start[start] = max(repeats_by_start.get(start, 0), run.command_repeats or 1)
    run_count, repeat_count = len(side.runs), sum(repeats_by_start.values())
    return f"{run_count} of {repeat_count} repeats of its command" if run_count < repeat_count else None


def _build_readers(sides: Sequence[ComparedSide]) -> dict[str, FieldReader]:
    """Return the readers of build and conditions that these sides can share."""
    series = [side.first.series for side in sides]
    readers = dict(_CAUTION_READERS)
    if len({entry.framework for entry in series}) == 1:
        readers |= _SAME_FRAMEWORK_READERS
    prefixes = {"variables": "variable "}
    if len({entry.vendor for entry in series}) == 1:
        prefixes = {"software": "software: ", **prefixes}
    for mapping, prefix in prefixes.items():
        names = sorted({name for side in sides for r in side.runs for name in getattr(r.conditions, mapping)})
        readers |= {f"{prefix}{name}": _mapping_reader(f"conditions.{mapping}", name) for name in names}
    return readers


def peak_text(record: RunRecord) -> str | None:
    """Return the peak that the MFU refers to; None without one."""
    row = headline_utilisation(record)
    return f"{row.peak_tflops:.4g} TFLOP/s" if row and row.peak_tflops is not None else None


def _date_cautions(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield the dates where runs are more than 30 days apart, and the order where sides were not run in turn."""
    times = [sorted(time for r in side.counted or side.runs if (time := start_time(r))) for side in sides]
    if not all(times):
        yield ComparedField(
            "date", tuple((f"{side_times[0]:%Y-%m-%d}",) if side_times else (NO_VALUE,) for side_times in times)
        )
    elif max(side_times[-1] for side_times in times) - min(side_times[0] for side_times in times) > MAX_DATE_GAP:
        yield ComparedField("date", tuple((_range_text(side_times, "%Y-%m-%d"),) for side_times in times))
    elif len({record.node for side in sides for record in side.runs}) == 1 and any(
        before[-1] <= after[0] for before, after in permutations(times, 2)
    ):  # a side began after all runs of another had begun
        yield ComparedField("run order", tuple((_range_text(side_times, "%m-%d %H:%M"),) for side_times in times))


def _range_text(times: Sequence[datetime], time_format: str) -> str:
    ends = [f"{time:{time_format}}" for time in (times[0], times[-1])]
    return " to ".join(dict.fromkeys(ends))
