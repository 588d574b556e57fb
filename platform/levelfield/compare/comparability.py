"""Whether sides may be compared: what must be equal, what differs on purpose, and what asks for caution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from levelfield.compare.cautions import cautions
from levelfield.compare.compared_fields import NOTHING, ComparedField, Reader, chip_of, field_of, fields_of
from levelfield.compare.evidence import DIFFERS, ComparedSide
from levelfield.compare.quantities import at
from levelfield.specs.record import RunRecord
from levelfield.specs.vendor import HOST_SHARE

_HOLDS, _TOKENS, _FORMULAS = "yes", "tokens of the window", "formulas"


@dataclass(frozen=True)
class Comparability:
    """equal: what must be equal and is. unequal: what must be and is not, so that there is no ratio."""

    equal: tuple[ComparedField, ...]
    unequal: tuple[ComparedField, ...]
    on_purpose: tuple[ComparedField, ...]
    with_caution: tuple[ComparedField, ...]

    @property
    def holds(self) -> bool:
        return not self.unequal


def comparability(sides: Sequence[ComparedSide], across_precision: bool = False) -> Comparability:
    """Return what stands for and against a comparison. across_precision: the precision differs on purpose."""
    equal, unequal = checked(sides, _fixed(across_precision))
    on_purpose = tuple(each for each in fields_of(sides, _CHOSEN) if not each.is_equal)
    return Comparability(equal, unequal, on_purpose, tuple(cautions(sides)))


def checked(
    sides: Sequence[ComparedSide], fixed: Mapping[str, Reader]
) -> tuple[tuple[ComparedField, ...], tuple[ComparedField, ...]]:
    """Return the fields that must be equal and are, and those that are not: status, `fixed` and formulas."""
    good = {field.name: _is_good(field) for field in _states(sides)}
    fields = [*_states(sides), *fields_of(sides, fixed), _formulas(sides)]
    if not all(side.counted for side in sides):  # only a valid run has these two
        fields = [field for field in fields if field.name not in (_TOKENS, _FORMULAS)]
    holds = [good.get(field.name, _is_same(field)) for field in fields]
    named = list(zip(fields, holds, strict=True))
    return tuple(field for field, held in named if held), tuple(field for field, held in named if not held)


def window_tokens(record: RunRecord) -> int | None:
    """Return the tokens of the window, of all devices, by the result's speed and time. Equal work has equal tokens."""
    speed, seconds = (at(record.result, "throughput", name) for name in ("tokens_per_second", "wall_seconds"))
    if not isinstance(speed, (int, float)) or not isinstance(seconds, (int, float)):
        return None
    return round(speed * seconds)


def device_meaning(record: RunRecord) -> str:
    """Return what one device is. A share of a host is another one when the host has another number of shares."""
    series = record.series
    shares = f", {series.devices // series.nodes} a host" if series.device_is == HOST_SHARE else ""
    return f"{series.device_is}{shares}"


_FIXED: dict[str, Reader] = {
    "work": lambda r: r.series.work,
    "corpus": lambda r: r.series.corpus,
    "scale": lambda r: r.series.scale,
    "window": lambda r: f"steps {r.window[0]} to {r.window[1]}",
    _TOKENS: window_tokens,
    "device": lambda r: device_meaning(r),
}
_CHOSEN: dict[str, Reader] = {
    "chip": lambda r: chip_of(r.series),
    "framework": lambda r: r.series.framework_label,
    "precision": lambda r: r.series.precision,
    "devices": lambda r: f"{r.series.nodes} x {r.series.devices // r.series.nodes}",
    "layout": lambda r: r.series.layout,
    "micro-batch": lambda r: r.series.micro_batch,
    "virtual pipeline": lambda r: r.series.virtual_pipeline,
    "recompute": lambda r: r.series.recompute,
    "compile": lambda r: r.series.compile,
    "attention": lambda r: r.series.attention,
    "threads": lambda r: r.series.threads,
    "runtime": lambda r: r.series.runtime,
}


def _fixed(across_precision: bool) -> dict[str, Reader]:
    """Return the fields that must be equal. Across precisions the work must be the same but for its precision."""
    if across_precision:
        return {**_FIXED, "work": lambda r: r.result.get("work_but_precision")}
    return {**_FIXED, "precision": lambda r: r.series.precision}


def _is_same(field: ComparedField) -> bool:
    """Return whether the field is known and the same everywhere."""
    return field.is_equal and field.values[0] != (NOTHING,)


def _states(sides: Sequence[ComparedSide]) -> Iterator[ComparedField]:
    """Yield the two fields that must hold on every side: a run that counts, and a training that does the work."""
    yield ComparedField("valid and sealed", tuple(_counted(side) for side in sides))
    yield ComparedField("training", tuple(_training(side) for side in sides))


def _is_good(field: ComparedField) -> bool:
    return set(field.values) == {(_HOLDS,)}


def _counted(side: ComparedSide) -> tuple[str, ...]:
    return (_HOLDS,) if side.counted else tuple(f"{record.run_id}: {why}" for record, why in side.excluded)


def _training(side: ComparedSide) -> tuple[str, ...]:
    wrong = dict.fromkeys(record.verdict for record in side.runs if record.verdict in DIFFERS)
    return tuple(wrong) or (_HOLDS,)


def _formulas(sides: Sequence[ComparedSide]) -> ComparedField:
    """Return the versions of the formulas that all runs have. A formula that one run lacks is no difference."""
    names = [set(_names(record)) for side in sides for record in side.counted or side.runs]
    common = set.intersection(*names)

    def versions(record: RunRecord) -> str | None:
        found = sorted(formula for name, formula in _names(record).items() if name in common or not common)
        return ", ".join(found) or None

    return field_of(_FORMULAS, sides, versions)


def _names(record: RunRecord) -> dict[str, str]:
    """Return the run's formulas by their names: `palm` to `palm/1`."""
    return {formula.split("/")[0]: formula for formula in record.subject.formulas}
