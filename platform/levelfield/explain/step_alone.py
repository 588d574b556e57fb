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
from levelfield.measure.step_timeline import CORE_OPERATION, Operation
from levelfield.specs.step_parts import COMMUNICATION, AlonePart, PartTime, StepAlone

ATTENTION_BACKWARD = 2.5  # a fused kernel computes the scores again (Dao, 2023, section 4.1)
MOST_ABOVE, MOST_BELOW = 5.0, 3.0  # alone over in place, and least over alone: more is no measurement
_MOST_NAMED = 12  # operations of a sentence
_FEWEST = 0.02  # of the step: a smaller part is not held to it, nor named
_PRODUCT = re.compile(
    r"::(?P<sum>addmm|baddbmm)_?$|::(mm|bmm|product|_linear_pointwise|linear|_grouped_mm|_scaled_mm)$"
)
_SOME_ROWS = re.compile(r"embedding|index|gather|scatter|select|slice")
_WIDTHS = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "torch.int64": 8, "torch.int32": 4}
Sizes = Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True)
class ChipRates:
    """What a chip can. None: unknown."""

    flops: Mapping[str, float] = field(default_factory=dict)  # FLOP/s by type
    memory_bytes_per_second: float | None = None
    link_bytes_per_second: float | None = None  # each way, of its links in a node
    per_node: int = 1  # how many ranks a node has
    peak: str | None = None  # the peak with its source, as a sentence
    memory: str | None = None  # the memory's rate with its source, as a sentence


@dataclass(frozen=True)
class Repeated:
    """What one rank repeated alone."""

    seconds: Mapping[Operation, float] = field(default_factory=dict)  # of one call
    inputs: Mapping[Operation, Sizes] = field(default_factory=dict)  # type and size of each
    results: Mapping[Operation, Sizes] = field(default_factory=dict)
    # Kind, bytes, ranks, seconds, and how many a step has.
    messages: tuple[tuple[str, float, tuple[int, ...], float, int], ...] = ()
    copy_bytes_per_second: float | None = None
    left_out: tuple[str, ...] = ()  # operations as `name: reason`
    missing: tuple[str, ...] = ()  # sentences


def repeated(values: Mapping[str, Any]) -> Repeated:
    """Return what a rank's event tells. Raises ValueError, TypeError or KeyError where it is damaged."""
    if failed := values.get("failed"):
        return Repeated(missing=(f"repeating operations alone failed: {str(failed)[:300]}",))
    seconds, inputs, results = {}, {}, {}
    for entry in values.get("operations", ()):
        if entry["seconds"] == 0:  # no kernel ran: a question to the host
            continue
        key = str(entry["name"]), str(entry["dtype"]), tuple(tuple(map(int, size)) for size in entry["dims"])
        seconds[key], inputs[key], results[key] = _positive(entry["seconds"], key[0]), entry["given"], entry["results"]
    messages = tuple(
        (m["kind"], _positive(m["bytes"], m["kind"]), tuple(map(int, m["ranks"])), _positive(m["seconds"], m["kind"]),
         int(m["count"]))
        for m in values.get("messages", ())
    )  # fmt: skip
    copied = values.get("copy")
    rate = None if copied is None else _positive(copied["bytes"], "copy") / _positive(copied["seconds"], "copy")
    left_out = tuple(str(text)[:120] for text in values.get("left_out", ()))
    return Repeated(seconds, inputs, results, messages, rate, left_out)


def _positive(value: Any, name: str) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{name} alone: found {value}, expected a finite number above zero")
    return float(value)


def least_seconds(call: Operation, alone: Repeated, chip: ChipRates, memory: float | None) -> float:
    """Return the least time that the chip allows an operation: 0 where no rate is known."""
    inputs, results = alone.inputs[call], alone.results[call]
    rate = _product_rate(call, alone, chip)
    computing = product_flops(call[0], inputs, results) / rate if rate else 0.0
    sizes = [_WIDTHS.get(dtype, 1) * math.prod(size) for dtype, size in (*inputs, *results)]
    moved = min(sizes, default=0.0) if _SOME_ROWS.search(call[0]) else sum(sizes)
    return max(computing, moved / memory if memory else 0.0)


def _product_rate(call: Operation, alone: Repeated, chip: ChipRates) -> float | None:
    """Return the chip's rate for the type of what is multiplied, which may be added to another type."""
    match, inputs = _PRODUCT.search(call[0]), alone.inputs[call]
    return chip.flops.get(inputs[1][0] if match and match["sum"] and len(inputs) > 1 else call[1])


def product_flops(name: str, inputs: Sizes, results: Sizes) -> float:
    """Return the floating-point operations of a product or of causal attention; 0 of anything else.

    A product of [m, k] and [k, n] has 2 m k n. Attention's core has those of queries with keys and of scores with
    values, without the masked half.
    """
    sizes = [size for _, size in inputs]
    if CORE_OPERATION.search(name):
        is_back = "backward" in name
        query, key, value = sizes[is_back : is_back + 3]
        whole = 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]) / 2
        return whole * (ATTENTION_BACKWARD if is_back else 1)
    match = _PRODUCT.search(name)
    if match is None:
        return 0.0
    left = sizes[1 if match["sum"] else 0]
    return 2.0 * math.prod(results[0][1]) * left[-1]


def message_seconds(kind: str, size: float, ranks: Sequence[int], chip: ChipRates) -> float | None:
    """Return the least time of a message by the links of a node; None between nodes and where the rate is not known."""
    inside = len({rank // chip.per_node for rank in ranks}) == 1
    if chip.link_bytes_per_second is None or not inside:
        return None
    name = "all_gather" if kind == "all-to-all" else kind.replace("-", "_")
    return bus_factor(name, len(ranks)) * size / chip.link_bytes_per_second


def step_alone(
    steps: Sequence[DividedStep], parts: Sequence[PartTime], ranks: Mapping[int, Repeated], chip: ChipRates
) -> StepAlone:
    """Return what the parts of some steps take alone. parts: of them, the mean over the ranks."""
    step_ms = fmean(step.ms for step in steps)
    copies = [rank.copy_bytes_per_second for rank in ranks.values() if rank.copy_bytes_per_second]
    memory = chip.memory_bytes_per_second or (min(copies) if copies else None)
    missing = [sentence for rank in ranks.values() for sentence in rank.missing]
    missing += _left_out(operation for rank in ranks.values() for operation in rank.left_out)
    too_fast = [sentence for rank in ranks.values() for sentence in _too_fast(rank, chip)]
    missing += too_fast[:1]
    alone = []
    for part in () if too_fast else _parts(steps, parts, ranks, chip, memory):
        # more than that is no measurement, such as milliseconds for seconds
        is_small = max(part.alone_ms, part.in_place_ms) < _FEWEST * step_ms
        if not (is_small or part.alone_ms <= MOST_ABOVE * part.in_place_ms):
            missing.append(
                f"{part.part}: found {part.alone_ms:.4g} ms alone, expected at most {MOST_ABOVE:g} times the "
                f"{part.in_place_ms:.4g} ms in place, so it is left out; run it again on an idle machine"
            )
        else:
            alone.append(part)
    return StepAlone(
        parts=tuple(alone),
        copy_bytes_per_second=min(copies) if copies else None,
        peak=chip.peak,
        memory=chip.memory or (f"{memory / 1e9:.4g} GB/s, by a copy of large values here" if memory else None),
        findings=tuple(_findings(alone, step_ms)),
        missing=tuple(dict.fromkeys(missing)),
    )


def _left_out(operations: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each reason, with the operations that were not repeated for it."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for operation in sorted(set(operations)):
        name, _, reason = operation.rpartition(": ")
        names[reason].append(name)
    for reason, same in names.items():
        more = f" and {len(same) - _MOST_NAMED} more" if len(same) > _MOST_NAMED else ""
        yield f"not repeated alone ({reason}): {', '.join(same[:_MOST_NAMED])}{more}"


def _parts(
    steps: Sequence[DividedStep],
    parts: Sequence[PartTime],
    ranks: Mapping[int, Repeated],
    chip: ChipRates,
    memory: float | None,
) -> Iterator[AlonePart]:
    lines = [(ranks[rank], line, step.slices[rank]) for step in steps for rank, line in step.lines.items()]
    place, alone, least = (defaultdict[str, float](float) for _ in range(3))
    for rank, line, slices in lines:
        for piece in slices if not line.has_device else line.kernels:
            place[piece.part] += piece.ms * piece.is_repeated / len(lines)
        for (part, call), count in Counter(line.calls).items():
            seconds = rank.seconds[call]
            alone[part] += 1e3 * count * seconds / len(lines)
            least[part] += 1e3 * count * min(seconds, least_seconds(call, rank, chip, memory)) / len(lines)
    for whole in parts:
        if whole.part in COMMUNICATION:
            yield from _messages(whole, list(ranks.values()), chip)
        elif alone[whole.part]:
            yield AlonePart(
                part=whole.part,
                in_place_ms=place[whole.part],
                alone_ms=alone[whole.part],
                allowed_ms=least[whole.part] if memory else None,
                share=place[whole.part] / whole.time.mean if whole.time.mean else 1.0,
            )


def _messages(part: PartTime, ranks: Sequence[Repeated], chip: ChipRates) -> Iterator[AlonePart]:
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


def _too_fast(alone: Repeated, chip: ChipRates) -> Iterator[str]:
    """Yield a sentence for each product that was far faster than the chip's peak: then nothing of the rank counts."""
    for call, seconds in alone.seconds.items():
        rate, flops = _product_rate(call, alone, chip), product_flops(call[0], alone.inputs[call], alone.results[call])
        if rate and not flops / seconds <= MOST_BELOW * rate:
            yield (
                f"{call[0]} alone: found {flops / seconds / 1e12:.4g} TFLOP/s, expected at most {MOST_BELOW:g} times "
                f"the peak, {rate / 1e12:.4g}, so nothing is shown; run it again, and measure the peak (--probe)"
            )


def _findings(parts: Sequence[AlonePart], step_ms: float) -> Iterator[str]:
    """Yield a sentence about the part with most time above alone, and one about the part most above what is allowed."""
    above = max(parts, key=lambda part: part.in_place_ms - part.alone_ms, default=None)
    if above and above.in_place_ms - above.alone_ms >= _FEWEST * step_ms:
        yield (
            f"{above.part} takes {above.in_place_ms - above.alone_ms:.1f} ms more in place than alone "
            f"({above.in_place_ms:.1f} and {above.alone_ms:.1f} ms): launches, order, caches or other load"
        )
    beyond = [(part, part.alone_ms - part.allowed_ms) for part in parts if part.allowed_ms is not None]
    slow, ms = max(beyond, key=lambda pair: pair[1], default=(None, 0.0))
    if slow and ms >= _FEWEST * step_ms:
        yield (
            f"{slow.part} takes {ms:.1f} ms more alone than the chip allows ({slow.alone_ms:.1f} and "
            f"{slow.allowed_ms:.1f} ms): its kernels, or links"
        )
