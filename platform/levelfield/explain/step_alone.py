"""What the parts of a step take alone on the device, and what the chip allows: from operations that were repeated.

An operation's least time is the larger of its floating-point operations at the peak and its values, each read or
written once, at the memory's rate (Williams et al., 2009). A message's is its share of each link at the link's rate.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from levelfield.explain.step_division import DividedStep
from levelfield.measure.collectives import bus_factor
from levelfield.measure.step_timeline import ATTENTION_OPERATION, Operation
from levelfield.specs.step_parts import COMMUNICATION, AlonePart, PartTime, StepAlone

ATTENTION_BACKWARD_FACTOR = 2.5  # a fused kernel computes the scores again (Dao, 2023, section 4.1)
# Time alone over time in place, and rate alone over the chip's peak: above them it is no measurement.
MAX_ALONE_RATIO, MAX_PEAK_RATIO = 5.0, 3.0
_MAX_NAMES = 12  # operations that a sentence names
_SMALL_SHARE = 0.02  # of the step: smaller parts are neither checked nor named
_PRODUCT = re.compile(
    r"::(?P<sum>addmm|baddbmm)_?$|::(mm|bmm|product|_linear_pointwise|linear|_grouped_mm|_scaled_mm)$"
)
_ROW_OPERATION = re.compile(r"embedding|index|gather|scatter|select|slice")
_TYPE_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "torch.int64": 8, "torch.int32": 4}
TypedSizes = Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True)
class ChipRates:
    """The rates of a chip. None: unknown."""

    flops_per_second: Mapping[str, float] = field(default_factory=dict)  # by type
    memory_bytes_per_second: float | None = None
    link_bytes_per_second: float | None = None  # each way, of its links in a node
    ranks_per_node: int = 1
    peak_text: str | None = None  # the peak with its source
    memory_text: str | None = None  # the memory's rate with its source


@dataclass(frozen=True)
class AloneTimes:
    """What the operations of one rank's step take when each is repeated alone."""

    seconds: Mapping[Operation, float] = field(default_factory=dict)  # of one call
    inputs: Mapping[Operation, TypedSizes] = field(default_factory=dict)  # type and size of each
    results: Mapping[Operation, TypedSizes] = field(default_factory=dict)
    # Of each message: kind, bytes, ranks, seconds, and how many a step has.
    messages: tuple[tuple[str, float, tuple[int, ...], float, int], ...] = ()
    copy_bytes_per_second: float | None = None
    left_out: tuple[str, ...] = ()  # operations as `name: reason`
    missing: tuple[str, ...] = ()  # sentences


def parse_alone_times(values: Mapping[str, Any]) -> AloneTimes:
    """Return the times in a rank's event. Raises ValueError, TypeError or KeyError where it is damaged."""
    if failed := values.get("failed"):
        return AloneTimes(missing=(f"repeating operations alone failed: {str(failed)[:300]}",))
    seconds, inputs, results = {}, {}, {}
    for entry in values.get("operations", ()):
        if entry["seconds"] == 0:  # no kernel ran: a question to the host
            continue
        key = str(entry["name"]), str(entry["dtype"]), tuple(tuple(map(int, size)) for size in entry["dims"])
        seconds[key], inputs[key], results[key] = (
            _positive_number(entry["seconds"], key[0]),
            entry["given"],
            entry["results"],
        )
    messages = tuple(
        (m["kind"], _positive_number(m["bytes"], m["kind"]), tuple(map(int, m["ranks"])),
         _positive_number(m["seconds"], m["kind"]), int(m["count"]))
        for m in values.get("messages", ())
    )  # fmt: skip
    copy = values.get("copy")
    copy_rate = (
        None if copy is None else _positive_number(copy["bytes"], "copy") / _positive_number(copy["seconds"], "copy")
    )
    left_out = tuple(str(text)[:120] for text in values.get("left_out", ()))
    return AloneTimes(seconds, inputs, results, messages, copy_rate, left_out)


def _positive_number(value: Any, name: str) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{name} alone: found {value}, expected a finite number above zero")
    return float(value)


def least_seconds(call: Operation, alone: AloneTimes, chip: ChipRates, memory_rate: float | None) -> float:
    """Return the least time that the chip allows an operation: 0 where no rate is known."""
    inputs, results = alone.inputs[call], alone.results[call]
    rate = _product_rate(call, alone, chip)
    compute_seconds = product_flops(call[0], inputs, results) / rate if rate else 0.0
    sizes = [_TYPE_BYTES.get(dtype, 1) * math.prod(size) for dtype, size in (*inputs, *results)]
    bytes_moved = min(sizes, default=0.0) if _ROW_OPERATION.search(call[0]) else sum(sizes)
    return max(compute_seconds, bytes_moved / memory_rate if memory_rate else 0.0)


def _product_rate(call: Operation, alone: AloneTimes, chip: ChipRates) -> float | None:
    """Return the chip's rate for the type of the factors, whose product may be added to another type."""
    match, inputs = _PRODUCT.search(call[0]), alone.inputs[call]
    return chip.flops_per_second.get(inputs[1][0] if match and match["sum"] and len(inputs) > 1 else call[1])


def product_flops(name: str, inputs: TypedSizes, results: TypedSizes) -> float:
    """Return the floating-point operations of a product or of causal attention; 0 of anything else.

    A product of [m, k] and [k, n] has 2 m k n. Attention's core has those of queries with keys and of scores with
    values, without the masked half.
    """
    sizes = [size for _, size in inputs]
    if ATTENTION_OPERATION.search(name):
        is_backward = "backward" in name
        query, key, value = sizes[is_backward : is_backward + 3]
        flops = 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]) / 2
        return flops * (ATTENTION_BACKWARD_FACTOR if is_backward else 1)
    match = _PRODUCT.search(name)
    if match is None:
        return 0.0
    left = sizes[1 if match["sum"] else 0]
    return 2.0 * math.prod(results[0][1]) * left[-1]


def message_seconds(kind: str, message_bytes: float, ranks: Sequence[int], chip: ChipRates) -> float | None:
    """Return the least time of a message by the links of a node; None between nodes and where the rate is not known."""
    is_within_node = len({rank // chip.ranks_per_node for rank in ranks}) == 1
    if chip.link_bytes_per_second is None or not is_within_node:
        return None
    name = "all_gather" if kind == "all-to-all" else kind.replace("-", "_")
    return bus_factor(name, len(ranks)) * message_bytes / chip.link_bytes_per_second


def step_alone(
    steps: Sequence[DividedStep], parts: Sequence[PartTime], ranks: Mapping[int, AloneTimes], chip: ChipRates
) -> StepAlone:
    """Return what the parts of some steps take alone. parts: of them, the mean over the ranks."""
    step_ms = fmean(step.ms for step in steps)
    copies = [rank.copy_bytes_per_second for rank in ranks.values() if rank.copy_bytes_per_second]
    memory_rate = chip.memory_bytes_per_second or (min(copies) if copies else None)
    missing = [sentence for rank in ranks.values() for sentence in rank.missing]
    missing += _left_out_sentences(operation for rank in ranks.values() for operation in rank.left_out)
    impossible = [sentence for rank in ranks.values() for sentence in _impossible_rates(rank, chip)]
    missing += impossible[:1]
    accepted = []
    for part in () if impossible else _alone_parts(steps, parts, ranks, chip, memory_rate):
        # more than that is no measurement, such as milliseconds for seconds
        is_small = max(part.alone_ms, part.in_place_ms) < _SMALL_SHARE * step_ms
        if not (is_small or part.alone_ms <= MAX_ALONE_RATIO * part.in_place_ms):
            missing.append(
                f"{part.part}: found {part.alone_ms:.4g} ms alone, expected at most {MAX_ALONE_RATIO:g} times the "
                f"{part.in_place_ms:.4g} ms in place, so it is left out; run it again on an idle machine"
            )
        else:
            accepted.append(part)
    return StepAlone(
        parts=tuple(accepted),
        copy_bytes_per_second=min(copies) if copies else None,
        peak=chip.peak_text,
        memory=chip.memory_text
        or (f"{memory_rate / 1e9:.4g} GB/s, by a copy of large values here" if memory_rate else None),
        findings=tuple(_alone_findings(accepted, step_ms)),
        missing=tuple(dict.fromkeys(missing)),
    )


def _left_out_sentences(operations: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each reason, with the operations that were not repeated because of it."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for operation in sorted(set(operations)):
        name, _, reason = operation.rpartition(": ")
        names[reason].append(name)
    for reason, skipped in names.items():
        more = f" and {len(skipped) - _MAX_NAMES} more" if len(skipped) > _MAX_NAMES else ""
        yield f"not repeated alone ({reason}): {', '.join(skipped[:_MAX_NAMES])}{more}"


def _alone_parts(
    steps: Sequence[DividedStep],
    parts: Sequence[PartTime],
    ranks: Mapping[int, AloneTimes],
    chip: ChipRates,
    memory_rate: float | None,
) -> Iterator[AlonePart]:
    lines = [(ranks[rank], line, step.slices[rank]) for step in steps for rank, line in step.lines.items()]
    in_place_ms, alone_ms, allowed_ms = (defaultdict[str, float](float) for _ in range(3))  # by part
    for rank, line, slices in lines:
        for piece in slices if not line.has_device else line.kernels:
            in_place_ms[piece.part] += piece.ms * piece.is_repeated / len(lines)
        for (part, call), count in Counter(line.calls).items():
            seconds = rank.seconds[call]
            alone_ms[part] += 1e3 * count * seconds / len(lines)
            allowed_ms[part] += 1e3 * count * min(seconds, least_seconds(call, rank, chip, memory_rate)) / len(lines)
    for part_time in parts:
        if part_time.part in COMMUNICATION:
            yield from _alone_messages(part_time, list(ranks.values()), chip)
        elif alone_ms[part_time.part]:
            yield AlonePart(
                part=part_time.part,
                in_place_ms=in_place_ms[part_time.part],
                alone_ms=alone_ms[part_time.part],
                allowed_ms=allowed_ms[part_time.part] if memory_rate else None,
                share=in_place_ms[part_time.part] / part_time.time.mean if part_time.time.mean else 1.0,
            )


def _alone_messages(part: PartTime, ranks: Sequence[AloneTimes], chip: ChipRates) -> Iterator[AlonePart]:
    messages = [message for rank in ranks for message in rank.messages if message[0] == part.part]
    if not messages:
        return
    allowed: float | None = 0.0
    for kind, size, members, seconds, count in messages:
        least = message_seconds(kind, size, members, chip)
        allowed = None if allowed is None or least is None else allowed + count * min(seconds, least)
    yield AlonePart(
        part=part.part,
        in_place_ms=part.time.mean + part.overlapped_ms,
        alone_ms=1e3 * sum(seconds * count for *_, seconds, count in messages) / len(ranks),
        allowed_ms=None if allowed is None else 1e3 * allowed / len(ranks),
    )


def _impossible_rates(alone: AloneTimes, chip: ChipRates) -> Iterator[str]:
    """Yield a sentence for each product that was far faster than the chip's peak: then nothing of the rank counts."""
    for call, seconds in alone.seconds.items():
        rate, flops = _product_rate(call, alone, chip), product_flops(call[0], alone.inputs[call], alone.results[call])
        if rate and not flops / seconds <= MAX_PEAK_RATIO * rate:
            yield (
                f"{call[0]} alone: found {flops / seconds / 1e12:.4g} TFLOP/s, expected at most {MAX_PEAK_RATIO:g} "
                f"times the peak, {rate / 1e12:.4g}, so nothing is shown; run it again, and measure the peak (--probe)"
            )


def _alone_findings(parts: Sequence[AlonePart], step_ms: float) -> Iterator[str]:
    """Yield a sentence about the part with most time above alone, and one about the part most above what is allowed."""
    slower_in_place = max(parts, key=lambda part: part.in_place_ms - part.alone_ms, default=None)
    extra_ms = slower_in_place.in_place_ms - slower_in_place.alone_ms if slower_in_place else 0.0
    if slower_in_place and extra_ms >= _SMALL_SHARE * step_ms:
        yield (
            f"{slower_in_place.part} takes {extra_ms:.1f} ms more in place "
            f"than alone ({slower_in_place.in_place_ms:.1f} and {slower_in_place.alone_ms:.1f} ms): launches, order, "
            "caches or other load"
        )
    excesses = [(part, part.alone_ms - part.allowed_ms) for part in parts if part.allowed_ms is not None]
    slow_part, ms = max(excesses, key=lambda pair: pair[1], default=(None, 0.0))
    if slow_part and ms >= _SMALL_SHARE * step_ms:
        yield (
            f"{slow_part.part} takes {ms:.1f} ms more alone than the chip allows ({slow_part.alone_ms:.1f} and "
            f"{slow_part.allowed_ms:.1f} ms): its kernels, or links"
        )
