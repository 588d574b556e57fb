"""The parts of a run's step from the timelines of its ranks: who waited for whom, means with intervals, warnings.

A wait for a message is divided at the time when its last rank came: before it is waiting (for a rank of another stage
the pipeline's bubble), after it the transfer. Ranks with clocks of other machines are first shifted, so that their
collectives end together.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median, stdev
from typing import NamedTuple, TypeVar

from levelfield.measure.step_timeline import ATTENTION_CORE, UNEXPLAINED, Message, Slice, Timeline
from levelfield.measure.student import t_quantile
from levelfield.specs.step_parts import (
    BUBBLE,
    COMMUNICATION,
    LAYER_PATTERN,
    MAX_CELLS,
    MAX_LINES,
    PARTS,
    WAITING,
    Kernel,
    KernelKind,
    LateRank,
    Milliseconds,
    Overhead,
    PartTime,
    Place,
    RankParts,
    StepTimeline,
    WaitedFor,
    mask_layer_number,
)

PlaceKey = tuple[str, str, str]  # part, where, phase
MessageEnd = tuple[int, int]  # the rank, and the number of the message on it
MessageGroups = dict[tuple[object, ...], list[MessageEnd]]
PartTimes = defaultdict[str, float]  # milliseconds by part, or by kind of message
K = TypeVar("K")
OTHER_PLACES, BETWEEN_MODULES = "others", "between modules"
_MAX_PLACES, _MAX_KERNELS = 300, 60
_MIN_LAYERS = 3
_SHORT_MS = 1.0  # a transfer this short shows how far two clocks are apart
_MIN_SHARE = 0.001  # of the step: smaller places are `others`
_LATE_SHARE, _SLOW_SHARE, _LARGE_SHARE = 0.02, 0.05, 0.05  # of the step: what gets a sentence
# The first pattern that fits a name gives its kind. torch's attention by math is a product, a softmax and a product.
_KERNEL_KINDS: tuple[tuple[re.Pattern[str], KernelKind], ...] = (
    (re.compile(r"cudnn.*(attention|sdpa|fmha)|cudnn_generated_.*fort_native_sdpa", re.I), "cudnn"),
    (re.compile(r"flash", re.I), "flash"),
    (re.compile(r"efficient|fmha", re.I), "efficient"),
    (re.compile(r"softmax|attention_math", re.I), "math"),
    (re.compile(r"gemm|cutlass|cublas|nvjet|matmul|mm\b|linear_pointwise|(?<!dot_)product", re.I), "product"),
)
_DTYPE_NAMES = {"float": "fp32", "double": "fp64", "c10::BFloat16": "bf16", "c10::Half": "fp16"}


@dataclass(frozen=True)
class RankLayout:
    """How ranks are arranged."""

    stage_ranks: int  # the ranks of one pipeline stage
    is_plain: bool  # all ranks form one group

    def stage(self, rank: int) -> int:
        return rank // self.stage_ranks

    def peer(self, rank: int, stage: int) -> int:
        """Return the rank of another stage that a rank sends to and receives from."""
        return stage * self.stage_ranks + rank % self.stage_ranks


class StepTime(NamedTuple):
    """One of the steps after the training's last one, on one rank, in milliseconds."""

    rank: int
    number: int
    is_recorded: bool
    ms: float


@dataclass
class _PlaceSums:
    """One rank's step by place, in milliseconds."""

    ms: defaultdict[PlaceKey, float]
    count: defaultdict[PlaceKey, float]  # of operations and messages
    waited: Mapping[int, float]  # for other ranks
    overlapped: PartTimes  # of messages, by kind
    total: float


@dataclass(frozen=True)
class DividedStep:
    """One step of all ranks."""

    lines: Mapping[int, Timeline]
    slices: Mapping[int, Sequence[Slice]]  # with waits divided from transfers
    waited: Mapping[int, Mapping[int, float]]  # how long each rank waited for which other one
    origins: Mapping[int, float]  # when each rank's step began, in milliseconds of a common clock

    @property
    def ms(self) -> float:
        """The mean over the ranks."""
        return fmean(line.ms for line in self.lines.values())


def divide_waits(step: Mapping[int, Timeline], layout: RankLayout) -> DividedStep:
    """Return a step, whose timelines are by rank, with waits divided from transfers."""
    groups = _message_groups(step, layout)
    origins = clock_origins(step, groups)
    arrivals: dict[MessageEnd, tuple[float, int]] = {}  # when, on the common clock, and by whom it was joined last
    for members in groups.values():
        times = [(origins[rank] + step[rank].messages[number].start, rank) for rank, number in members]
        arrivals.update(dict.fromkeys(members, max(times)) if len(members) > 1 else {})
    slices: dict[int, list[Slice]] = {rank: [] for rank in step}
    waits: dict[int, defaultdict[int, float]] = {rank: defaultdict(float) for rank in step}
    for rank, line in step.items():
        for piece in line.slices:
            last_arrival, last_rank = (
                (0.0, rank) if piece.message is None else arrivals.get((rank, piece.message), (0.0, rank))
            )
            if last_rank == rank:
                slices[rank].append(piece)
                continue
            arrival = min(max(last_arrival - origins[rank], piece.start), piece.end)
            if arrival > piece.start:
                part = BUBBLE if layout.stage(last_rank) != layout.stage(rank) else WAITING
                waits[rank][last_rank] += arrival - piece.start
                slices[rank].append(piece._replace(part=part, where=f"rank {last_rank}, {piece.part}", end=arrival))
            if piece.end > arrival:
                slices[rank].append(piece._replace(start=arrival))
    return DividedStep(step, slices, waits, origins)


def _message_groups(step: Mapping[int, Timeline], layout: RankLayout) -> MessageGroups:
    """Return the ends of each message by what identifies it."""
    groups: MessageGroups = defaultdict(list)
    for rank, line in step.items():
        seen: Counter[tuple[object, ...]] = Counter()
        for number, message in enumerate(line.messages):
            key = _message_key(message, rank, layout)
            if key is not None:
                groups[(*key, seen[key])].append((rank, number))
                seen[key] += 1
    return groups


def _message_key(message: Message, rank: int, layout: RankLayout) -> tuple[object, ...] | None:
    """Return what both ends of a message have in common; None where the trace does not say who takes part."""
    if message.direction:
        peer = layout.peer(rank, message.peer)
        sender_and_receiver = (rank, peer) if message.direction == "send" else (peer, rank)
        return None if message.peer < 0 else ("between two", *sender_and_receiver)
    if message.kind == "send/receive" or not (message.ranks or layout.is_plain):
        return None
    return message.kind, message.size, message.ranks


def clock_origins(step: Mapping[int, Timeline], groups: MessageGroups) -> dict[int, float]:
    """Return when each rank's step began, in milliseconds of a common clock that is 0 when the first rank's did.

    A rank of another machine has another clock: its collectives are taken to end when the first rank's do. The ends of
    one are apart by less than its transfer, so the short ones count.
    """
    first = min(step)
    origins = {rank: (line.origin_ns - step[first].origin_ns) / 1e6 for rank, line in step.items()}
    distances: dict[int, list[tuple[float, float]]] = defaultdict(list)  # how long the transfer took, and how far apart
    for members in groups.values():
        ends = {rank: step[rank].messages[number] for rank, number in members}
        for rank, message in ends.items() if first in ends and not ends[first].direction else ():
            transfer = min(end.end - end.start for end in (ends[first], message))
            distances[rank].append((transfer, ends[first].end - message.end))
    for rank, line in step.items():
        if line.host != step[first].host and distances[rank]:
            longest = max(2 * min(distances[rank])[0], _SHORT_MS)
            origins[rank] = median(distance for transfer, distance in distances[rank] if transfer <= longest)
    return origins


def place_sums(line: Timeline, slices: Iterable[Slice], waited: Mapping[int, float]) -> _PlaceSums:
    """Return the time and count of each place in one rank's step."""
    ms: defaultdict[PlaceKey, float] = defaultdict(float)
    count: defaultdict[PlaceKey, float] = defaultdict(float)
    exposed: defaultdict[int, float] = defaultdict(float)
    seen: set[tuple[PlaceKey, int]] = set()
    for piece in slices:
        key = (piece.part, piece.where or BETWEEN_MODULES, piece.phase)
        ms[key] += piece.ms
        if piece.message is None:
            count[key] += 1
        else:
            exposed[piece.message] += piece.ms
            count[key] += (key, piece.message) not in seen
            seen.add((key, piece.message))
    overlapped: PartTimes = defaultdict(float)
    for number, message in enumerate(line.messages):
        overlapped[message.kind] += max(0.0, message.end - message.start - exposed[number])
    return _PlaceSums(ms, count, waited, overlapped, line.ms)


def rank_parts(steps: Iterable[DividedStep], layout: RankLayout) -> tuple[RankParts, ...]:
    """Return the parts of each rank."""
    ranks: dict[int, list[_PlaceSums]] = defaultdict(list)
    for step in steps:
        for rank, line in step.lines.items():
            ranks[rank].append(place_sums(line, step.slices[rank], step.waited[rank]))
    results = []
    for rank, rank_steps in sorted(ranks.items()):
        others = sorted({other for step in rank_steps for other in step.waited})
        mean = {other: fmean(step.waited.get(other, 0.0) for step in rank_steps) for other in others}
        results.append(
            RankParts(
                rank=rank,
                stage=layout.stage(rank),
                step=milliseconds([step.total for step in rank_steps]),
                parts=_parts(rank_steps),
                places=_places(rank_steps),
                waited_for=tuple(WaitedFor(rank=other, ms=ms) for other, ms in mean.items()),
            )
        )
    return tuple(results)


def _parts(steps: Sequence[_PlaceSums]) -> tuple[PartTime, ...]:
    """Return the mean of each part of one rank's steps."""
    totals: list[PartTimes] = [defaultdict(float) for _ in steps]
    recomputed: list[PartTimes] = [defaultdict(float) for _ in steps]
    for step, total, repeated in zip(steps, totals, recomputed, strict=True):
        for (part, _, phase), ms in step.ms.items():
            total[part] += ms
            repeated[part] += ms if phase == "recompute" else 0.0
    return tuple(
        PartTime(
            part=part,
            time=milliseconds([total[part] for total in totals]),
            recompute_ms=fmean(repeated[part] for repeated in recomputed),
            overlapped_ms=fmean(step.overlapped[part] for step in steps),
        )
        for part in PARTS
        if any(total[part] for total in totals) or any(step.overlapped[part] for step in steps)
    )


def _places(steps: Sequence[_PlaceSums]) -> tuple[Place, ...]:
    """Return the mean of each place of one rank's steps; the small ones of a part and phase as one place."""
    ms: defaultdict[PlaceKey, float] = defaultdict(float)
    count: defaultdict[PlaceKey, float] = defaultdict(float)
    for step in steps:
        for key, value in step.ms.items():
            ms[key] += value / len(steps)
            count[key] += step.count[key] / len(steps)
    min_ms = _MIN_SHARE * fmean(step.total for step in steps)
    large = {key for key in _longest_first(ms)[:_MAX_PLACES] if ms[key] >= min_ms}
    for key in [key for key in ms if key not in large]:
        others_key = (key[0], OTHER_PLACES, key[2])
        ms[others_key] += ms.pop(key)
        count[others_key] += count.pop(key)
    return tuple(
        Place.model_validate({"part": key[0], "where": key[1], "phase": key[2], "ms": ms[key], "count": count[key]})
        for key in _longest_first(ms)
    )


def mean_parts(ranks: Sequence[RankParts], steps: Sequence[DividedStep]) -> tuple[PartTime, ...]:
    """Return the mean of each part over the ranks. ranks: the parts of the same steps by rank."""
    means, totals = [], list[PartTimes]()  # by step
    for step in steps:
        total: PartTimes = defaultdict(float)
        for piece in chain.from_iterable(step.slices.values()):
            total[piece.part] += piece.ms / len(step.lines)
        totals.append(total)
    for part in PARTS:
        if times := [time for rank in ranks for time in rank.parts if time.part == part]:
            means.append(
                PartTime(
                    part=part,
                    time=milliseconds([total[part] for total in totals]),
                    recompute_ms=sum(time.recompute_ms for time in times) / len(ranks),
                    overlapped_ms=sum(time.overlapped_ms for time in times) / len(ranks),
                )
            )
    return tuple(means)


def milliseconds(values: Sequence[float]) -> Milliseconds:
    """Return the mean of some steps with its 95 % interval, which one step does not have."""
    mean = fmean(values)
    if len(values) < 2:
        return Milliseconds(mean=mean)
    half = t_quantile(0.025, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return Milliseconds(mean=mean, low=mean - half, high=mean + half)


def recording_overhead(times: Iterable[StepTime]) -> Overhead | None:
    """Return what recording costs, by pairs of steps that took turns; None without a pair.

    A step of all ranks takes as long as its slowest one.
    """
    slowest: dict[tuple[int, bool], float] = {}
    for time in times:
        key = time.number, time.is_recorded
        slowest[key] = max(slowest.get(key, 0.0), time.ms)
    paired_numbers = [n for n in sorted({n for n, _ in slowest}) if {(n, False), (n, True)} <= slowest.keys()]
    pairs = [(slowest[n, False], slowest[n, True]) for n in paired_numbers if slowest[n, False] > 0]
    if not pairs:
        return None
    ratios = milliseconds([recorded / plain for plain, recorded in pairs])
    return Overhead(
        plain_ms=milliseconds([plain for plain, _ in pairs]),
        recorded_ms=milliseconds([recorded for _, recorded in pairs]),
        ratio=ratios.mean - 1,
        low=None if ratios.low is None else ratios.low - 1,
        high=None if ratios.high is None else ratios.high - 1,
    )


def late_ranks(ranks: Sequence[RankParts]) -> tuple[LateRank, ...]:
    """Return the ranks that others of their stage waited for, the one that was waited for longest first.

    What a rank waited itself is taken off: ranks that are late in turn, as on a busy machine, are none. Each has the
    place of its own work that takes longest beyond the median of its stage.
    """
    waited: defaultdict[int, float] = defaultdict(float)
    stages = {rank.rank: rank.stage for rank in ranks}
    for rank in ranks:
        for other in rank.waited_for:
            if stages.get(other.rank) == rank.stage:
                waited[other.rank] += other.ms / (list(stages.values()).count(rank.stage) - 1)
                waited[rank.rank] -= other.ms
    step_ms = fmean(rank.step.mean for rank in ranks)
    late = []
    for number in [number for number in _longest_first(waited) if waited[number] >= _LATE_SHARE * step_ms]:
        peers = [work_by_place(rank) for rank in ranks if rank.stage == stages[number] and rank.rank != number]
        work = next(work_by_place(rank) for rank in ranks if rank.rank == number)
        longer = {key: ms - median(peer.get(key, 0.0) for peer in peers) for key, ms in work.items()}
        (part, where), longest_ms = max(longer.items(), key=lambda item: item[1], default=((None, None), 0.0))
        place = (part, where, longest_ms) if longest_ms > 0 else (None, None, None)
        fields = dict(zip(("part", "where", "longer_ms"), place, strict=True))
        late.append(LateRank.model_validate({**fields, "rank": number, "waited_ms": waited[number]}))
    return tuple(late)


def work_by_place(rank: RankParts) -> dict[tuple[str, str], float]:
    """Return a rank's own work by part and place: no messages, no waiting."""
    work: defaultdict[tuple[str, str], float] = defaultdict(float)
    for place in rank.places:
        if place.part not in (*COMMUNICATION, WAITING, BUBBLE) and place.where != OTHER_PLACES:
            work[place.part, place.where] += place.ms
    return dict(work)


def mean_kernels(lines: Sequence[Timeline]) -> tuple[Kernel, ...]:
    """Return the kernels that ran, or the operations of a processor, the longest first: the mean over ranks' steps."""
    ms: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    count: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for line in lines:
        for piece in line.kernels or [piece for piece in line.slices if piece.operation and piece.message is None]:
            key = (piece.part, piece.operation, piece.dtype)
            ms[key] += piece.ms / len(lines)
            count[key] += 1 / len(lines)
    all_kernels = [
        Kernel.model_validate(
            {
                "part": part,
                "name": name,
                "kind": kernel_kind(name),
                "dtype": _DTYPE_NAMES.get(dtype, dtype or None),
                "ms": ms[part, name, dtype],
                "count": count[part, name, dtype],
            }
        )
        for part, name, dtype in _longest_first(ms)
        if part in PARTS
    ]
    # a short kernel of attention's core tells how attention was computed
    return tuple(
        kernel for index, kernel in enumerate(all_kernels) if index < _MAX_KERNELS or kernel.part == ATTENTION_CORE
    )


def uneven_layers(ranks: Sequence[RankParts]) -> Iterator[str]:
    """Yield a sentence for each place that takes far longer in one layer than in the median one, of three at least."""
    layers: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    step_ms = fmean(rank.step.mean for rank in ranks)
    means: defaultdict[tuple[str, str], list[float]] = defaultdict(list)  # of all phases, by rank that has the place
    for rank in ranks:
        total: defaultdict[tuple[str, str], float] = defaultdict(float)
        for place in rank.places:
            total[place.part, place.where] += place.ms
        for key, ms in total.items():
            means[key].append(ms)
    for (part, where), values in means.items():
        ms = fmean(values)
        if part not in (*COMMUNICATION, WAITING, BUBBLE) and LAYER_PATTERN.search(where):
            layers[part, mask_layer_number(where)].append((ms, where))
    for (part, _), times in layers.items():
        median_ms, (longest_ms, where) = median(ms for ms, _ in times), max(times)
        if len(times) >= _MIN_LAYERS and longest_ms - median_ms >= max(_SLOW_SHARE * step_ms, median_ms):
            yield f"{part} in {where}: {longest_ms:.1f} ms, {median_ms:.1f} ms in the median layer"


def _longest_first(ms: Mapping[K, float]) -> list[K]:
    """Return the keys in falling order of their milliseconds."""
    return sorted(ms, key=lambda key: -ms[key])


def kernel_kind(name: str) -> KernelKind:
    """Return the kind of a kernel or an operation by its name."""
    return next((kind for pattern, kind in _KERNEL_KINDS if pattern.search(name)), "other")


def step_warnings(step_ms: float, parts: Sequence[PartTime], kernels: Sequence[Kernel]) -> Iterator[str]:
    """Yield sentences about what a reader should see first."""
    share: dict[str, float] = {part.part: part.time.mean / step_ms for part in parts}
    if share.get(UNEXPLAINED, 0.0) >= _LARGE_SHARE:
        names = ", ".join([kernel.name for kernel in kernels if kernel.part == UNEXPLAINED][:3])
        yield f"unexplained: {share[UNEXPLAINED]:.0%} of the step, most of it {names}"
    core = [kernel for kernel in kernels if kernel.part == ATTENTION_CORE]
    if any(kernel.kind == "math" for kernel in core) and share.get(ATTENTION_CORE, 0.0) >= _SLOW_SHARE:
        names = ", ".join(kernel.name for kernel in core if kernel.kind in ("math", "product"))
        yield f"attention by math: {share[ATTENTION_CORE]:.0%} of the step ({names})"
    tf32_ms = sum(kernel.ms for kernel in kernels if kernel.dtype == "fp32" and "tf32" in kernel.name.lower())
    if tf32_ms >= _SLOW_SHARE * step_ms:
        yield f"products in TF32 of float32 values: {tf32_ms / step_ms:.0%} of the step"


def median_step_timeline(steps: Sequence[DividedStep], late: Sequence[int] = ()) -> StepTimeline:
    """Return the timeline of the step of middle length. late: ranks that get a line in any case."""
    step = sorted(steps, key=lambda step: step.ms)[len(steps) // 2]
    begin = min(step.origins.values())
    ms = max(step.origins[rank] + line.ms for rank, line in step.lines.items()) - begin
    spread_ranks = sorted(step.lines)[:: -(-len(step.lines) // MAX_LINES)]
    ranks = sorted([*dict.fromkeys([*late, *spread_ranks])][:MAX_LINES])
    cells = {rank: _cells(step.slices[rank], step.origins[rank] - begin, ms / MAX_CELLS) for rank in ranks}
    present = {cell[0] for line in cells.values() for cell in line if cell}
    parts = tuple(part for part in PARTS if part in present)
    letters: dict[tuple[str, bool], str] = {
        (part, is_repeated): chr(ord("A" if is_repeated else "a") + index)
        for index, part in enumerate(parts)
        for is_repeated in (False, True)
    }
    lines = [
        {"rank": rank, "cells": "".join(letters[cell] if cell else " " for cell in line)}
        for rank, line in cells.items()
    ]
    return StepTimeline.model_validate({"ms": ms, "parts": parts, "lines": lines})


def _cells(slices: Iterable[Slice], offset: float, width: float) -> list[tuple[str, bool] | None]:
    """Return the part that takes most of each cell, and whether it is repeated there. width, offset: milliseconds."""
    cells: list[defaultdict[tuple[str, bool], float]] = [defaultdict(float) for _ in range(MAX_CELLS)]
    for piece in slices:
        start, end = (offset + piece.start) / width, (offset + piece.end) / width
        for cell in range(max(0, int(start)), min(MAX_CELLS, int(end) + 1)):
            cells[cell][piece.part, piece.phase == "recompute"] += max(0.0, min(end, cell + 1) - max(start, cell))
    return [max(times, key=lambda key: times[key]) if sum(times.values()) >= 0.5 else None for times in cells]
