"""The sides of a comparison: which of their runs count, and the figures that are compared.

A run counts that is valid, sealed, and whose figures follow from its own result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Literal

from levelfield.errors import UsageError
from levelfield.measure.cost import Cost, ResourceUse, cost_per_million_tokens
from levelfield.measure.other_use import use_beyond_limits
from levelfield.report.costs import RunCosts
from levelfield.report.repeats import FIGURE_COLUMNS, FigureColumn
from levelfield.specs.prices import Prices
from levelfield.specs.record import Point, RunRecord
from levelfield.specs.result import Utilisation
from levelfield.specs.run_figures import HEADLINE_FORMULA, MFU_NAME, RUN_FIGURES, RunFigure, value_at
from levelfield.specs.vendor import HOST_SHARE

DIFFERING_VERDICTS = ("different", "diverged")  # the training differs from its reference


@dataclass(frozen=True)
class ComparedSide:
    """One side of a comparison: runs of one series."""

    name: str
    counted: tuple[RunRecord, ...]  # runs that may be compared
    excluded: tuple[tuple[RunRecord, str], ...] = ()  # runs of the side that may not, with the reason
    # runs of a series named by its label that are no part of this side, with the reason
    left_out: tuple[tuple[RunRecord, str], ...] = ()

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return (*self.counted, *(record for record, _ in self.excluded))

    @property
    def first(self) -> RunRecord:
        """Return the run whose series stands for the side."""
        return self.runs[0]

    @property
    def last(self) -> RunRecord:
        """Return the last run that may be compared; of a side without one, the last of all."""
        return (self.counted or self.runs)[-1]

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs made its speed uncertain: beside a counted run they used more than the limit.

        Such a run counts only where no run of the side is quiet, or where the sides are paired.
        """
        return any(map(disturbance, self.counted))


def side_of(
    name: str,
    records: Sequence[RunRecord],
    is_paired: bool = False,
    left_out: Sequence[tuple[RunRecord, str]] = (),
) -> ComparedSide:
    """Return a side. Raises UsageError for no run, for a run given twice, and for runs of several series.

    A disturbed run is among `excluded` where another run of the side is quiet. is_paired: it counts all the same, as
    the runs of both sides ran in turns and are compared in pairs.
    """
    if not records:
        raise UsageError(f"side {name}: found no run, expected at least one")
    ids = [record.run_id for record in records]
    if repeated := next((i for i in ids if ids.count(i) > 1), None):
        raise UsageError(f"side {name}: found run {repeated} twice; expected every run once")
    first, *others = records
    for other in others:
        for field in type(first.series).model_fields:
            ours, theirs = getattr(first.series, field), getattr(other.series, field)
            if ours != theirs:
                raise UsageError(
                    f"side {name}: found {field} {ours} in {first.run_id} and {theirs} in {other.run_id}; expected "
                    "runs of one series a side, so give them as two sides"
                )
    reasons, originals = [], dict[tuple[float, ...], str]()  # by the seconds of its steps, the first run with these
    for record in records:
        original, reason = originals.setdefault(record.step_seconds, record.run_id), exclusion_reason(record)
        if record.step_seconds and original != record.run_id:
            reason = reason or f"a copy of {original}: each of its steps took exactly as long"
        reasons.append((record, reason))
    if not is_paired:
        good = [record for record, reason in reasons if reason is None]
        quiet = {record.run_id for record in quiet_runs(good)}
        disturbances = [
            None if r.run_id in quiet else f"{disturbance(r)}, and a quiet run is there" for r, _ in reasons
        ]
        reasons = [(r, reason or disturbed) for (r, reason), disturbed in zip(reasons, disturbances, strict=True)]
    counted = tuple(record for record, reason in reasons if reason is None)
    excluded = tuple((record, reason) for record, reason in reasons if reason)
    return ComparedSide(name, counted, excluded, tuple(left_out))


def exclusion_reason(record: RunRecord) -> str | None:
    """Return why the run is in no comparison; None for one that counts."""
    if record.evidence != "sealed":
        return f"{record.evidence}: {record.evidence_reason}" if record.evidence_reason else record.evidence
    if record.word != "valid":
        failure = f" ({record.failure})" if record.failure and record.failure != record.word else ""
        return f"{record.word}{failure}" + (f": {record.reason}" if record.reason else "")
    return next(contradictions(record), None)


def series_exclusion_reason(record: RunRecord) -> str | None:
    """Return why the run does not stand for its series: as in any comparison, or its training differs."""
    return exclusion_reason(record) or (
        f"the training is {record.verdict}" if record.verdict in DIFFERING_VERDICTS else None
    )


def disturbance(record: RunRecord) -> str | None:
    """Return what others used of the machine while the run was measured; None for no more than the limits."""
    others_use = excess_use(record)[1]
    return f"disturbed: others used {others_use}" if others_use else None


def quiet_runs(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that nobody is known to have disturbed; all where there is no such run."""
    return [record for record in records if disturbance(record) is None] or list(records)


def excess_use(record: RunRecord) -> tuple[float, str]:
    """Return what others used of the machine beyond the limits of a warning, in cores and in words."""
    return use_beyond_limits(record.result.other_use)


def start_time(record: RunRecord) -> datetime | None:
    """Return the begin of a run in UTC; None where the record has no date."""
    try:
        moment = datetime.fromisoformat(record.began.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment.replace(tzinfo=None) - (moment.utcoffset() or timedelta())


def contradictions(record: RunRecord) -> Iterator[str]:
    """Yield a speed per device that is not that of all over the devices, and a layout of another number of them."""
    speed, devices = record.result.throughput, record.series.devices
    if speed and not math.isclose(speed.tokens_per_second_per_device, speed.tokens_per_second / devices, rel_tol=1e-9):
        yield (
            f"{RATE.column.name} is {speed.tokens_per_second_per_device}, expected {speed.tokens_per_second} tokens/s "
            f"over {devices} device(s)"
        )
    if record.series.layout.world_size != devices:
        yield f"layout {record.series.layout} is for {record.series.layout.world_size} devices, found {devices}"


@dataclass(frozen=True)
class Quantity:
    """One compared figure."""

    column: FigureColumn
    read: Callable[[RunRecord], float | None]
    missing_reason: Callable[[RunRecord], str | None]  # why a run has none
    is_noisy: bool = True  # whether equal runs differ in it
    is_optional: bool = False  # whether it is left out where no run has it
    # what has to be equal on all sides for a ratio, such as the level of a time to a loss
    basis: Callable[[RunRecord], object] = lambda record: None
    # what the figure includes, in words; where sides differ in it, the ratio asks for caution
    included_costs: Callable[[RunRecord], str | None] = lambda record: None
    # the figure of a stored night of a run's series; None where nights do not store it
    read_stored_night: Callable[[RunRecord, Point], float | None] = lambda record, point: None
    # The figure is a constant of the side x speed ** this. 0: it depends on more than the speed, such as on energy.
    speed_exponent: Literal[1, 0, -1] = 0


def count_steady_runs(runs: Sequence[RunRecord]) -> tuple[int, int]:
    """Return how many runs have step times without a trend or shift, and how many were checked for one."""
    steps = [run.result.throughput.step_seconds for run in runs if run.result.throughput]
    checked = [step.flags for step in steps if step.unchecked is None]
    return sum(not flags for flags in checked), len(checked)


def headline_utilisation(record: RunRecord) -> Utilisation | None:
    """Return the headline utilisation, with its formula and peak."""
    row: Utilisation | None = value_at(record.result, "utilisation", HEADLINE_FORMULA)
    return row


def tuning_of(record: RunRecord) -> str | None:
    """Return `base` or `peak`; None for a record of an earlier version."""
    return record.result.tuning.word if record.result.tuning else None


def tuned_fields(record: RunRecord) -> str | None:
    """Return the chosen fields, each with who chose it, as a text; None where none was chosen."""
    chosen = record.result.tuning.chosen if record.result.tuning else {}
    return ", ".join(f"{name} ({who})" for name, who in chosen.items()) or None


def _quantity(figure: RunFigure) -> Quantity:
    def value_and_reason(record: RunRecord) -> tuple[float | None, str | None]:
        return figure.value_and_reason(record.result, record.series.device_is == HOST_SHARE)

    read = attrgetter(figure.store_column) if figure.store_column else lambda record: value_and_reason(record)[0]
    return Quantity(
        FIGURE_COLUMNS[figure.name],
        read,
        lambda record: value_and_reason(record)[1],
        is_noisy=figure.is_noisy,
        is_optional=figure.is_optional,
        basis=lambda record: value_at(record.result, *figure.basis) if figure.basis else None,
        read_stored_night=(lambda record, point: read(point)) if figure.store_column else lambda record, point: None,
        speed_exponent=1 if figure.name in ("tokens_per_second_per_device", MFU_NAME) else 0,
    )


QUANTITIES_BY_NAME = {figure.name: _quantity(figure) for figure in RUN_FIGURES if figure.is_compared}
QUANTITIES = tuple(QUANTITIES_BY_NAME.values())
RATE, ENERGY, MFU = (
    QUANTITIES_BY_NAME[name] for name in ("tokens_per_second_per_device", "joules_per_token", MFU_NAME)
)
NODE_ENERGY = QUANTITIES_BY_NAME["node_joules_per_token"]


def cost_quantity(prices: Prices) -> Quantity:
    """Return the cost of a million tokens at these prices, as a figure of a side."""

    def cost_of(record: RunRecord) -> Cost:
        rate, series = record.tokens_per_second_per_device, record.series
        total_rate = None if rate is None else rate * series.devices
        joules, reason, node_joules = ENERGY.read(record), ENERGY.missing_reason(record), NODE_ENERGY.read(record)
        is_host_share = series.device_is == HOST_SHARE
        use = ResourceUse(
            series.chip, is_host_share, series.nodes, series.devices, total_rate, joules, reason, node_joules
        )
        return cost_per_million_tokens(use, prices)

    def included_costs(record: RunRecord) -> str | None:
        price, cost = prices.chips.get(record.series.chip), cost_of(record)
        if price is None or cost.value is None:
            return None
        if price.own is None:
            return f"rent per {price.per}, with all power"
        return f"owned, per {price.per}, with the power of its {cost.power_of} alone"

    def read_stored_night(record: RunRecord, point: Point) -> float | None:
        if NODE_ENERGY.read(record) is not None:
            return None  # a stored night has the chips' energy alone
        names = ("tokens_per_second_per_device", "joules_per_token")
        return cost_of(record.model_copy(update={name: getattr(point, name) for name in names})).value

    return Quantity(
        RunCosts(prices).column,
        lambda record: cost_of(record).value,
        lambda record: cost_of(record).reason,
        basis=lambda record: (covered := cost_of(record).power_of) and f"with the power of {covered}",
        included_costs=included_costs,
        read_stored_night=read_stored_night,
        speed_exponent=-1,
    )
