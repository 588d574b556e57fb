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
from levelfield.specs.step_parts import COMMUNICATION, PARTS, AlonePart, PartTime, StepAlone

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
    """What a chip can: FLOP/s by type, bytes/s of its memory, bytes/s each way of its links in a node. None: unknown.

    per_node: how many ranks a node has. peak, memory: the rates with their sources, as sentences.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    memory_bytes_per_second: float | None = None
    link_bytes_per_second: float | None = None
    per_node: int = 1
    peak: str | None = None
    memory: str | None = None


@dataclass(frozen=True)
class Repeated:
    """What one rank repeated alone. seconds, given, results: of each operation; sizes have their types.

    messages: kind, bytes, ranks, seconds, and how many a step has. left_out: operations as `name: why`.
    """

    seconds: Mapping[Operation, float] = field(default_factory=dict)
    given: Mapping[Operation, Sizes] = field(default_factory=dict)
    results: Mapping[Operation, Sizes] = field(default_factory=dict)
    messages: tuple[tuple[str, float, tuple[int, ...], float, int], ...] = ()
    copy_bytes_per_second: float | None = None
    left_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def repeated(values: Mapping[str, Any]) -> Repeated:
    """Return what a rank's event tells. Raises ValueError, TypeError or KeyError where it is damaged."""
    if failed := values.get("failed"):
        return Repeated(missing=(f"repeating operations alone failed: {str(failed)[:300]}",))
    seconds, given, results = {}, {}, {}
    for each in values.get("operations", ()):
        if each["seconds"] == 0:  # no kernel ran: a question to the host
            continue
        key = str(each["name"]), str(each["dtype"]), tuple(tuple(map(int, size)) for size in each["dims"])
        seconds[key], given[key], results[key] = _positive(each["seconds"], key[0]), each["given"], each["results"]
    messages = tuple(
        (each["kind"], _positive(each["bytes"], each["kind"]), tuple(map(int, each["ranks"])),
         _positive(each["seconds"], each["kind"]), int(each["count"]))
        for each in values.get("messages", ())
    )  # fmt: skip
    copied = values.get("copy")
    rate = None if copied is None else _positive(copied["bytes"], "copy") / _positive(copied["seconds"], "copy")
    left_out = tuple(str(each)[:120] for each in values.get("left_out", ()))
    return Repeated(seconds, given, results, messages, rate, left_out)


def _positive(value: Any, name: str) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{name} alone: found {value}, expected a finite number above zero")
    return float(value)


def least_seconds(call: Operation, alone: Repeated, chip: ChipRates, memory: float | None) -> float:
    """Return the least time that the chip allows an operation: 0 where no rate is known."""
    given, results = alone.given[call], alone.results[call]
    rate = _product_rate(call, alone, chip)
    computing = product_flops(call[0], given, results) / rate if rate else 0.0
    sizes = [_bytes(each) for each in (*given, *results)]
    moved = min(sizes, default=0.0) if _SOME_ROWS.search(call[0]) else sum(sizes)
    return max(computing, moved / memory if memory else 0.0)


def _product_rate(call: Operation, alone: Repeated, chip: ChipRates) -> float | None:
    """Return the chip's rate for the type of what is multiplied, which may be added to another type."""
    match, given = _PRODUCT.search(call[0]), alone.given[call]
    return chip.flops.get(given[1][0] if match and match["sum"] and len(given) > 1 else call[1])


def product_flops(name: str, given: Sizes, results: Sizes) -> float:
    """Return the floating-point operations of a product or of causal attention; 0 of anything else.

    A product of [m, k] and [k, n] has 2 m k n. Attention's core has those of queries with keys and of scores with
    values, without the masked half.
    """
    sizes = [size for _, size in given]
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


def _bytes(each: tuple[str, Sequence[int]]) -> float:
    return _WIDTHS.get(each[0], 1) * math.prod(each[1])


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
    copies = [each.copy_bytes_per_second for each in ranks.values() if each.copy_bytes_per_second]
    memory = chip.memory_bytes_per_second or (min(copies) if copies else None)
    found, missing = [], [sentence for each in ranks.values() for sentence in each.missing]
    missing += _left_out(each for rank in ranks.values() for each in rank.left_out)
    too_fast = [sentence for each in ranks.values() for sentence in _too_fast(each, chip)]
    missing += too_fast[:1]
    for part in () if too_fast else _parts(steps, parts, ranks, chip, memory):
        wrong = _implausible(part, step_ms)
        missing += [wrong] if wrong else []
        found += [] if wrong else [part]
    said = chip.memory or (f"{memory / 1e9:.4g} GB/s, by a copy of large values here" if memory else None)
    return StepAlone(
        parts=tuple(found),
        copy_bytes_per_second=min(copies) if copies else None,
        peak=chip.peak,
        memory=said,
        findings=tuple(_findings(found, step_ms)),
        missing=tuple(dict.fromkeys(missing)),
    )


def _left_out(operations: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each reason, with the operations that were not repeated for it."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for each in sorted(set(operations)):
        name, _, why = each.rpartition(": ")
        names[why].append(name)
    for why, found in names.items():
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        yield f"not repeated alone ({why}): {', '.join(found[:_MOST_NAMED])}{more}"


def _parts(
    steps: Sequence[DividedStep],
    parts: Sequence[PartTime],
    ranks: Mapping[int, Repeated],
    chip: ChipRates,
    memory: float | None,
) -> Iterator[AlonePart]:
    lines = [(ranks[rank], line, step.slices[rank]) for step in steps for rank, line in step.lines.items()]
    place, alone, least = (defaultdict[str, float](float) for _ in range(3))
    for own, line, slices in lines:
        for each in slices if not line.has_device else line.kernels:
            place[each.part] += each.ms * each.is_repeated / len(lines)
        for (part, call), count in Counter(line.calls).items():
            took = own.seconds[call]
            alone[part] += 1e3 * count * took / len(lines)
            least[part] += 1e3 * count * min(took, least_seconds(call, own, chip, memory)) / len(lines)
    for whole in parts:
        if whole.part in COMMUNICATION:
            yield from _messages(whole, list(ranks.values()), chip)
        elif alone[whole.part]:
            share = place[whole.part] / whole.time.mean if whole.time.mean else 1.0
            known = least[whole.part] if memory else None
            yield AlonePart(
                part=whole.part,
                in_place_ms=place[whole.part],
                alone_ms=alone[whole.part],
                allowed_ms=known,
                share=share,
            )


def _messages(part: PartTime, ranks: Sequence[Repeated], chip: ChipRates) -> Iterator[AlonePart]:
    own = [each for rank in ranks for each in rank.messages if each[0] == part.part]
    if not own:
        return
    least = [message_seconds(*each[:3], chip) for each in own]
    known = [count * min(took, one) for (*_, took, count), one in zip(own, least, strict=True) if one is not None]
    yield AlonePart(
        part=part.part,
        in_place_ms=part.time.mean + part.overlapped_ms,
        alone_ms=1e3 * sum(took * count for *_, took, count in own) / len(ranks),
        allowed_ms=1e3 * sum(known) / len(ranks) if len(known) == len(own) else None,
    )


def _too_fast(alone: Repeated, chip: ChipRates) -> Iterator[str]:
    """Give a sentence for each product that was far faster than the chip's peak: then nothing of the rank counts."""
    for call, seconds in alone.seconds.items():
        rate, flops = _product_rate(call, alone, chip), product_flops(call[0], alone.given[call], alone.results[call])
        if rate and not flops / seconds <= MOST_BELOW * rate:
            yield (
                f"{call[0]} alone: found {flops / seconds / 1e12:.4g} TFLOP/s, expected at most {MOST_BELOW:g} times "
                f"the peak, {rate / 1e12:.4g}, so nothing is shown; run it again, and measure the peak (--probe)"
            )


def _implausible(part: AlonePart, step_ms: float) -> str | None:
    """Return why what a part took alone is no measurement, such as milliseconds for seconds; None where it is one."""
    if max(part.alone_ms, part.in_place_ms) < _FEWEST * step_ms or part.alone_ms <= MOST_ABOVE * part.in_place_ms:
        return None
    return (
        f"{part.part}: found {part.alone_ms:.4g} ms alone, expected at most {MOST_ABOVE:g} times the "
        f"{part.in_place_ms:.4g} ms in place, so it is left out; run it again on an idle machine"
    )


def _findings(parts: Sequence[AlonePart], step_ms: float) -> Iterator[str]:
    """Give a sentence about the part with most time above alone, and one about the part most above what is allowed."""
    above = max(parts, key=lambda each: each.in_place_ms - each.alone_ms, default=None)
    if above and above.in_place_ms - above.alone_ms >= _FEWEST * step_ms:
        yield (
            f"{above.part} takes {above.in_place_ms - above.alone_ms:.1f} ms more in place than alone "
            f"({above.in_place_ms:.1f} and {above.alone_ms:.1f} ms): launches, order, caches or other load"
        )
    known = [(each, each.alone_ms - each.allowed_ms) for each in parts if each.allowed_ms is not None]
    slow, ms = max(known, key=lambda each: each[1], default=(None, 0.0))
    if slow and ms >= _FEWEST * step_ms:
        yield (
            f"{slow.part} takes {ms:.1f} ms more alone than the chip allows ({slow.alone_ms:.1f} and "
            f"{slow.allowed_ms:.1f} ms): its kernels, or links"
        )


assert set(COMMUNICATION) <= set(PARTS)
