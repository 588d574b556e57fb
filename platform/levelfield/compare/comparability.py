"""Whether sides may be compared: what must be equal, what differs on purpose, and what asks for caution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import permutations
from operator import attrgetter

from levelfield.compare.sides import (
    DIFFERS,
    ComparedSide,
    Quantity,
    began,
    busy,
    headline_utilisation,
    tuned_fields,
    tuning_of,
)
from levelfield.specs.free_fields import FREE_FIELDS, RECOMPUTE_LAYERS
from levelfield.specs.record import RunRecord, Series
from levelfield.specs.short_names import short_value
from levelfield.specs.vendor import HOST_SHARE

_HOLDS, _TOKENS, _FORMULAS = "yes", "tokens of the window", "formulas"
_DONE = ("tokens read", "initial weights")  # that follow from the work; an unknown one says nothing
_PEAK = "peak of MFU"
HARMLESS = {"alignment": "aligned", "source": "as committed"}
NOTHING = "-"
Reader = Callable[[RunRecord], object]

MOST_APART = timedelta(days=30)
# Why a field asks for caution, where its name does not say it.
WHY = {
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
_OF_ONE_FRAMEWORK: dict[str, Reader] = {  # another framework has another of each
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
        return len({value for side in self.values for value in side} - {NOTHING}) > 1

    @property
    def cells(self) -> tuple[str, ...]:
        """Return a text for each side."""
        return tuple(", ".join(short_value(value) for value in side) or NOTHING for side in self.values)


def field_of(name: str, sides: Sequence[ComparedSide], read: Reader) -> ComparedField:
    """Return a field of the runs that count; of a side without any, of all its runs."""
    values = [[read(run) for run in side.counted or side.runs] for side in sides]
    texts = (tuple(NOTHING if value is None else str(value) for value in side) for side in values)
    return ComparedField(name, tuple(tuple(dict.fromkeys(side)) for side in texts))


def fields_of(sides: Sequence[ComparedSide], readers: Mapping[str, Reader]) -> Iterator[ComparedField]:
    """Return a field for each reader, under its name."""
    return (field_of(name, sides, read) for name, read in readers.items())


def chip_of(series: Series) -> str:
    """Return vendor and chip; one of them where both have the same name."""
    return series.chip if series.vendor == series.chip else f"{series.vendor} {series.chip}"


@dataclass(frozen=True)
class Comparability:
    """What stands for and against a comparison of sides."""

    equal: tuple[ComparedField, ...]  # what must be equal and is
    unequal: tuple[ComparedField, ...]  # what must be equal and is not, so that there is no ratio
    on_purpose: tuple[ComparedField, ...]
    with_caution: tuple[ComparedField, ...]

    @property
    def holds(self) -> bool:
        return not self.unequal


def comparability(sides: Sequence[ComparedSide], across_precision: bool = False) -> Comparability:
    """Return what stands for and against a comparison. across_precision: the precision differs on purpose."""
    # Across precisions the work must be the same but for its precision.
    fixed: dict[str, Reader] = (
        {"work": lambda r: r.result.work_but_precision} if across_precision else {"precision": _CHOSEN["precision"]}
    )
    equal, unequal = checked(sides, FIXED | fixed)
    on_purpose = tuple(field for field in fields_of(sides, _CHOSEN) if not field.is_equal)
    return Comparability(equal, unequal, on_purpose, tuple(cautions(sides)))


def checked(
    sides: Sequence[ComparedSide], fixed: Mapping[str, Reader]
) -> tuple[tuple[ComparedField, ...], tuple[ComparedField, ...]]:
    """Return the fields that must be equal and are, and those that are not: status, `fixed` and formulas."""
    differing = [dict.fromkeys(run.verdict for run in side.runs if run.verdict in DIFFERS) for side in sides]
    states: tuple[ComparedField, ...] = (
        ComparedField("valid and sealed", tuple(_left_out(side) if not side.counted else (_HOLDS,) for side in sides)),
        ComparedField("training", tuple(tuple(verdicts) or (_HOLDS,) for verdicts in differing)),
    )
    same = [*fields_of(sides, fixed), _formulas(sides)]
    if not all(side.counted for side in sides):  # only a valid run has these
        same = [field for field in same if field.name not in (_TOKENS, _FORMULAS, *_DONE)]
    unknown = {field.name for field in same if any(NOTHING in side for side in field.values)}.intersection(_DONE)
    same = [field for field in same if field.is_known_to_differ or field.name not in unknown]
    good = [field for field in states if set(field.values) == {(_HOLDS,)}]
    does_other_work = any(field.name in _DONE and not field.is_equal for field in same)
    if does_other_work:  # `training yes` would say that it is the same
        states = tuple(field for field in states if field.name != "training" or field not in good)
    alike = [field for field in states if field in good]
    alike += [field for field in same if field.is_equal and field.values[0] != (NOTHING,)]
    return tuple(alike), tuple(field for field in (*states, *same) if field not in alike)


def window_tokens(record: RunRecord) -> int | None:
    """Return the tokens of the window, of all devices, by the result's speed and time. Equal work has equal tokens."""
    speed = record.result.throughput
    return round(speed.tokens_per_second * speed.wall_seconds) if speed else None


def _entry(mapping: str, name: str) -> Reader:
    return lambda record: attrgetter(mapping)(record).get(name)


_LABELS = {"micro_batch": "micro-batch", "virtual_pipeline": "virtual pipeline"}
FIXED: dict[str, Reader] = {
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
_CHOSEN: dict[str, Reader] = {
    "chip": lambda r: chip_of(r.series),
    "framework": lambda r: r.series.framework_label,
    "precision": lambda r: r.series.precision,
    "devices": lambda r: f"{r.series.nodes} x {r.series.devices // r.series.nodes}",
    **{_LABELS.get(name, name): _entry("series.values", name) for name in FREE_FIELDS if name != RECOMPUTE_LAYERS},
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
    return field_of(
        _FORMULAS,
        sides,
        lambda r: ", ".join(sorted(f for f in r.subject.formulas if f.split("/")[0] in common or not common)) or None,
    )


_ALWAYS: dict[str, Reader] = {
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
    _PEAK: lambda r: peak_of(r),
}


def cautions(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield every field that asks for caution, with its values."""
    if any(side.counted and side.excluded for side in sides):
        yield ComparedField("left out", tuple(_left_out(side) or (NOTHING,) for side in sides))
    chosen = [_chosen(side) for side in sides]
    if any(chosen):
        yield ComparedField("repeats", tuple((text or NOTHING,) for text in chosen))
    devices = field_of("devices", sides, _CHOSEN["devices"])
    if not devices.is_equal:
        yield devices
    verdicts = field_of("alignment", sides, lambda record: record.verdict)
    if any(side != ("aligned",) for side in verdicts.values):
        yield verdicts
    words = {True: "changed files", False: "as committed", None: NOTHING}
    sources = field_of("source", sides, lambda record: words[record.subject.is_dirty])
    if any("changed files" in side for side in sources.values):
        yield sources
    kernel = field_of("attention kernel", sides, lambda r: r.result.attention_kernel and r.result.attention_kernel.name)
    library = field_of("fp8 library", sides, lambda r: r.result.fp8_library and r.result.fp8_library.name)
    yield from (field for field in (kernel, library) if field.is_known_to_differ)
    most = [max((busy(record) for record in side.counted or side.runs), default=(0.0, "")) for side in sides]
    if any(text for _, text in most):
        yield ComparedField("other programs", tuple((text or NOTHING,) for _, text in most))
    yield from (field for field in fields_of(sides, _surroundings(sides)) if not field.is_equal)
    yield from _times(sides)


def covering(quantity: Quantity, sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield what the figure includes on each side, where the sides differ in it."""
    field = field_of("cost", sides, quantity.covers)
    if field.is_known_to_differ:
        yield field


def warned(sides: Sequence[ComparedSide]) -> Iterator[str]:
    """Yield what a table of speeds must say of the last side: each field of WHY that asks for caution in it."""
    for field in cautions(sides):
        value = field.cells[-1]
        if field.name in WHY and field.name != _PEAK and value not in (NOTHING, HARMLESS.get(field.name)):
            yield f"{field.name} {value}"


def _chosen(side: ComparedSide) -> str | None:
    """Return how many of the repeats of its commands a side has, where it lacks some; None where their number is
    unknown. The repeats of a command have the time of its start in their ids."""
    all_of: dict[str, int] = {}
    for run in side.runs:
        begin = run.run_id.split("_", 1)[0]
        all_of[begin] = max(all_of.get(begin, 0), run.command_repeats or 1)
    chosen, existing = len(side.runs), sum(all_of.values())
    return f"{chosen} of {existing} repeats of its command" if chosen < existing else None


def _surroundings(sides: Sequence[ComparedSide]) -> dict[str, Reader]:
    """Return the readers of build and conditions that these sides can share."""
    series = [side.first.series for side in sides]
    readers = dict(_ALWAYS)
    if len({entry.framework for entry in series}) == 1:
        readers |= _OF_ONE_FRAMEWORK
    prefixes = {"variables": "variable "}
    if len({entry.vendor for entry in series}) == 1:
        prefixes = {"software": "software: ", **prefixes}
    for mapping, prefix in prefixes.items():
        names = sorted({name for side in sides for r in side.runs for name in getattr(r.conditions, mapping)})
        readers |= {f"{prefix}{name}": _entry(f"conditions.{mapping}", name) for name in names}
    return readers


def peak_of(record: RunRecord) -> str | None:
    """Return the peak that the MFU refers to; None without one."""
    row = headline_utilisation(record)
    return f"{row.peak_tflops:.4g} TFLOP/s" if row and row.peak_tflops is not None else None


def _times(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield the dates where runs are more than 30 days apart, and the order where sides were not run in turn."""
    times = [sorted(time for r in side.counted or side.runs if (time := began(r))) for side in sides]
    if not all(times):
        yield ComparedField("date", tuple((f"{moments[0]:%Y-%m-%d}",) if moments else (NOTHING,) for moments in times))
    elif max(moments[-1] for moments in times) - min(moments[0] for moments in times) > MOST_APART:
        yield ComparedField("date", tuple((_range(moments, "%Y-%m-%d"),) for moments in times))
    elif len({record.node for side in sides for record in side.runs}) == 1 and any(
        before[-1] <= after[0] for before, after in permutations(times, 2)
    ):  # a side began after all runs of another had begun
        yield ComparedField("run order", tuple((_range(moments, "%m-%d %H:%M"),) for moments in times))


def _range(times: Sequence[datetime], form: str) -> str:
    ends = [f"{time:{form}}" for time in (times[0], times[-1])]
    return " to ".join(dict.fromkeys(ends))
