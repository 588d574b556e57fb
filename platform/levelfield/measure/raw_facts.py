"""The raw facts behind every figure, as ranks and samplers reported them, and small functions over them.

Times are nanoseconds of a monotonic clock. Each node has its own clock: times of ranks on different nodes
are never subtracted from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

from levelfield.specs.layout import Layout

Item = TypeVar("Item")
Key = TypeVar("Key", int, str)
CHECKSUM_MODULUS = 2**64
NANOSECONDS = 1e9
MIN_COVERAGE = 0.95
LONGEST_GAP_SECONDS = 5.0


@dataclass(frozen=True)
class StepRecord:
    """One rank's report of one finished step."""

    rank: int
    step: int
    end_ns: int
    loss: float | None = None  # nats per token, mean over the whole global batch; None on ranks that do not have it
    grad_norm: float | None = None
    tokens: int = 0  # target tokens that this rank owns: 0 unless its pipeline, context and tensor ranks are 0
    tokens_checksum: int | None = None  # of the tokens that the rank read, below 2**64; None where it read no data
    learning_rate: float | None = None
    loss_scale: float | None = None
    skipped: bool = False  # the optimizer did not step because the scaled gradients overflowed (fp16 only)
    # Bytes by kind (allocated_peak_bytes, reserved_peak_bytes, process_peak_bytes); None where unknown.
    memory: dict[str, int | None] = field(default_factory=dict)
    # From the end of the last exchange to this step's first one; None where it is not measured.
    before_exchange_seconds: float | None = None
    auxiliary_loss: float | None = None  # what the routers of a mixture add to the loss; None on ranks without it
    compile_seconds: float | None = None  # total time of the framework's compiler so far; None without one


@dataclass(frozen=True)
class HeldSlice:
    """A box of a parameter, a range in each dimension, that one rank holds."""

    rank: int
    name: str
    shape: tuple[int, ...]  # of the whole parameter
    slices: tuple[tuple[int, int], ...]  # start and stop in each dimension


@dataclass(frozen=True)
class WeightSlice(HeldSlice):
    """A held box after initialisation."""

    checksum: int  # additive modulo 2**64 over disjoint boxes


@dataclass(frozen=True)
class FinalSlice(HeldSlice):
    """A held box after the last step."""

    sums: tuple[float, ...]  # of squares, then projections on random signs; additive over disjoint boxes


@dataclass(frozen=True)
class GradientShare:
    """One rank's share of a parameter's squared gradient norm. The shares of all ranks add up to the square."""

    rank: int
    step: int
    name: str
    square: float


@dataclass(frozen=True)
class ExpertShare:
    """One rank's share of the routing of a layer in one step. The shares of all ranks add up."""

    rank: int
    step: int
    layer: int
    tokens: tuple[int, ...]  # how many tokens chose each expert


@dataclass(frozen=True)
class ComparedChoices:
    """What one rank's routers would have chosen themselves, while they followed other choices, in a step and layer."""

    rank: int
    step: int
    layer: int
    choices: int  # of this rank's tokens
    changed: int  # how many of them differ from the followed ones
    # The widest of any token: how far its own experts' scores exceed the followed ones', as a part of their sum.
    margin: float
    followed_gate_sum: float  # the mean over tokens of the sum of the followed experts' gates


@dataclass(frozen=True)
class ChosenExperts:
    """All choices of a layer in a step."""

    rank: int
    step: int
    layer: int
    packed_experts: str  # by `packed` of worker/choices.py, base64 of zlib: [global batch, sequence, chosen]


@dataclass(frozen=True)
class Reading:
    """One reading of one device by the vendor's tool."""

    device: str  # its index on its node
    time_ns: int
    power_watts: float | None = None
    energy_joules: float | None = None
    memory_used_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1
    temperature_celsius: float | None = None
    before: bool = False  # it was taken before the training started
    reasons: dict[str, str] = field(default_factory=dict)  # why values are None


@dataclass(frozen=True)
class PowerReading:
    """The power of a whole node."""

    time_ns: int  # on the clock of the platform
    epoch_ns: int  # the same moment since 1970, `wall_ns` in the raw file
    watts: float
    # Only in earlier runs: when a BMC measured, by its clock, and over which time it averaged. The same stamp twice is
    # one reading.
    stamp: str | None = None
    period_seconds: float | None = None


@dataclass(frozen=True)
class HostReading:
    """Processor seconds since an unknown start."""

    time_ns: int
    busy_seconds: float  # of all programs on the cores that the platform may use
    own_seconds: float | None  # of the platform's processes; None: they cannot be told apart
    cores: int
    before: bool = False  # it was taken before the training started
    rank_bytes: int | None = None  # resident memory of the largest rank; None: unknown, as in earlier runs


class Coordinates(NamedTuple):
    """The place of a rank in the layout."""

    pipeline: int
    data: int
    context: int
    tensor: int

    @property
    def owns_tokens(self) -> bool:
        """Whether this rank counts the tokens of its batch. Exactly one rank of each data rank does so."""
        return self.pipeline == 0 and self.context == 0 and self.tensor == 0


def coordinates(rank: int, layout: Layout) -> Coordinates:
    """Return the place of a rank: rank = ((pipeline * D + data) * C + context) * T + tensor."""
    outer, tensor = divmod(rank, layout.tensor)
    outer, context = divmod(outer, layout.context)
    pipeline, data = divmod(outer, layout.data)
    return Coordinates(pipeline, data, context, tensor)


def records_by_rank(records: Iterable[StepRecord]) -> dict[int, tuple[StepRecord, ...]]:
    """Return the records of each rank, in the order of writing."""
    return group_sorted(records, lambda record: record.rank)


def records_by_step(records: Iterable[StepRecord]) -> dict[int, tuple[StepRecord, ...]]:
    """Return the records of each step over the ranks, by ascending step."""
    return group_sorted(records, lambda record: record.step)


def group_sorted(records: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, tuple[Item, ...]]:
    """Return the records of each key, in the order of writing; the keys ascend."""
    groups: dict[Key, list[Item]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {value: tuple(groups[value]) for value in sorted(groups)}


def values_by_step(records: Iterable[StepRecord], read_value: Callable[[StepRecord], float | None]) -> dict[int, float]:
    """Return the value of each step that `read_value` finds, by ascending step, from the lowest rank that has one."""
    ordered = sorted(records, key=lambda record: (record.step, -record.rank))
    return {record.step: number for record in ordered if (number := read_value(record)) is not None}


def coverage_shortfall(
    times_ns: Sequence[int], begin_ns: int, end_ns: int, longest_gap: float = LONGEST_GAP_SECONDS
) -> str | None:
    """Return a sentence when the readings do not cover the window, else None. The times ascend.

    Time between readings that are at most `longest_gap` seconds apart is covered.
    """
    short_gaps = [(a, b) for a, b in pairwise(times_ns) if (b - a) / NANOSECONDS <= longest_gap]
    covered = sum(max(0, min(b, end_ns) - max(a, begin_ns)) for a, b in short_gaps) / (end_ns - begin_ns)
    if covered >= MIN_COVERAGE:
        return None
    return f"readings cover {covered:.0%} of the window, at least {MIN_COVERAGE:.0%} is needed"


def mean_load(readings: Iterable[Reading], devices: Sequence[str], begin_ns: int, end_ns: int) -> float | str:
    """Return the mean over the devices of each one's mean in the window, 0 to 1; or the reason why there is none.

    It is what the tool calls utilisation: the share of time in which the device did anything. A device without a
    reading has no mean, so that idle devices are not left out.
    """
    window_readings = [r for r in readings if not r.before and begin_ns <= r.time_ns <= end_ns]
    means = []
    for device in devices:
        loads = [r.utilisation for r in window_readings if r.device == device and r.utilisation is not None]
        if not loads or not all(0 <= value <= 1 for value in loads):
            return f"device {device}: {'a reading outside of 0 to 1' if loads else 'no reading in the window'}"
        means.append(sum(loads) / len(loads))
    return sum(means) / len(means) if means else "no device"
